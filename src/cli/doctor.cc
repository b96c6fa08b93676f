// doctor: says what is wrong here, one line per problem; silent when all is well.
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include "app/door.h"
#include "app/site.h"
#include "cli/commands.h"

namespace ae::cli {
namespace {

struct Problem {
  std::string code, message;
};

bool is_set(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

void look_at_environment(std::vector<Problem>& problems) {
  for (const char* name : {"AETHERIS_FAILPOINTS", "AETHERIS_FAILPOINTS_TRACE"}) {
    if (!is_set(name)) continue;
    problems.push_back({"failpoints", std::string(name) +
                                          " is set: things go wrong on purpose; unset it unless "
                                          "this is a test"});
  }
  if (std::time(nullptr) < 1'700'000'000) {
    problems.push_back({"clock",
                        "this machine's clock stands before 2023: leases and timers need "
                        "the right time"});
  }
}

void look_at_file(const std::string& path, const char* what, std::vector<Problem>& problems) {
  struct stat found{};
  if (::stat(path.c_str(), &found) != 0) return;
  if ((found.st_mode & 0077) != 0) {
    problems.push_back(
        {"permissions", path + " (" + what + ") can be used by others: chmod 600 " + quoted(path)});
  }
  if (found.st_uid != ::geteuid()) {
    problems.push_back({"owner", path + " (" + what + ") belongs to another user"});
  }
}

// Locks and shared memory do not hold across machines.
void look_at_disk(const app::StoreUrl& store, std::vector<Problem>& problems) {
  struct statfs disk{};
  if (::statfs(store.folder().c_str(), &disk) != 0) return;
  constexpr long kNfs = 0x6969, kSmb = 0x517B, kSmb2 = 0xFE534D42, kCifs = 0xFF534D42,
                 kNinep = 0x01021997;
  const long type = static_cast<long>(disk.f_type);
  for (const long network : {kNfs, kSmb, kSmb2, kCifs, kNinep}) {
    if (type == network) {
      problems.push_back({"network_disk",
                          "the store lies on a network file system, where locks "
                          "and fsync cannot be trusted: move it to a local disk"});
    }
  }
  const auto free_bytes = static_cast<unsigned long long>(disk.f_bavail) *
                          static_cast<unsigned long long>(disk.f_bsize);
  if (free_bytes < (64ull << 20)) {
    problems.push_back({"disk_full", "less than 64 MiB are free where the store lies"});
  }
}

constexpr Duration kClockApart = std::chrono::seconds(1);
constexpr std::int64_t kProcessesMore = 2;  // that should find room

// What nobody can work with is said when the store is opened.
void look_at_server(const store::PostgresFacts& facts, std::vector<Problem>& problems) {
  if (!facts.synchronous_standby) {
    problems.push_back(
        {"no_synchronous_standby",
         "the PostgreSQL server has no synchronous standby: what it has confirmed is "
         "lost with its disk, and may be lost when another server takes over; set "
         "synchronous_standby_names, or accept it"});
  }
  if (!facts.full_page_writes) {
    problems.push_back({"full_page_writes",
                        "the PostgreSQL server runs with full_page_writes=off: a power loss can "
                        "leave half a page on its disk; set it to on"});
  }
  if (!facts.autovacuum) {
    problems.push_back({"autovacuum",
                        "the PostgreSQL server runs with autovacuum=off: rows that change with "
                        "each step are never cleared away; set it to on"});
  }
  const std::int64_t left = facts.connections_max - facts.connections_used;
  if (left < kProcessesMore * store::kConnectionsEach) {
    problems.push_back({"connections", "the PostgreSQL server has " + std::to_string(left) +
                                           " of " + std::to_string(facts.connections_max) +
                                           " connections left, and each process of ours holds " +
                                           std::to_string(store::kConnectionsEach) +
                                           ": raise max_connections"});
  }
  const Duration apart =
      facts.clock_ahead < Duration(0) ? Duration(0) - facts.clock_ahead : facts.clock_ahead;
  if (apart > kClockApart + facts.clock_error) {
    problems.push_back(
        {"clock_offset", "this machine's clock is " + std::to_string(apart.count() / 1000) +
                             " ms " + (facts.clock_ahead < Duration(0) ? "ahead of" : "behind") +
                             " the database's: leases and timers follow the database, but times "
                             "in logs are this machine's; let both follow one time server"});
  }
}

// Where processes run the jobs, one that is not taken by any of them stands still all the same.
void look_for_stuck(app::Door& door, const app::StoreUrl& store, std::vector<Problem>& problems) {
  api::ApiRequest request;
  request.path = {"api", "jobs"};
  request.query = {{"stuck", "true"}, {"limit", "1000"}};
  const auto answer = door.ask(request);
  if (!answer || answer->status != 200) return;  // of an older process; what cannot be read is said
  std::size_t count = 0;
  for (const Value& job : answer->body["jobs"].items()) {
    count += job.text("status") == "parked" ? 0 : 1;
  }
  if (count == 0) return;
  problems.push_back({"stuck", std::to_string(count) +
                                   (count == 1 ? " job stands still, and no process takes it"
                                               : " jobs stand still, and no process takes them") +
                                   ": `aetheris jobs --stuck" + store_flag(store) +
                                   "` says why, and what would help"});
}

void look_at_store(const app::StoreUrl& store, std::vector<Problem>& problems) {
  if (store.kind == app::StoreUrl::Kind::memory) return;
  const bool shared = store.kind == app::StoreUrl::Kind::postgres;
  if (!shared) {
    look_at_disk(store, problems);
    look_at_file(store.path, "the store", problems);
    look_at_file(store.folder() + "/secrets", "secrets", problems);
  } else if (const auto facts = app::examine(store); facts && *facts) {
    look_at_server(**facts, problems);
  }
  if (auto stands = app::look_for_rollback(store); !stands) {
    problems.push_back({std::string(code_name(stands.error().code)), stands.error().message});
  }
  auto door = app::Door::open(store, app::Purpose::read);
  if (!door) {
    if (door.error().code != Code::not_found) {
      problems.push_back({std::string(code_name(door.error().code)), door.error().message});
    }
    return;
  }
  api::ApiRequest request;
  request.path = {"api", "jobs"};
  for (const char* status : {"running", "queued", "parked"}) {
    request.query = {{"status", status}, {"limit", "1000"}};
    auto answer = (*door)->ask(request);
    if (!answer || answer->status != 200) {
      problems.push_back({"unavailable", "the store cannot be read: " +
                                             (answer ? std::string(answer->body.text("detail"))
                                                     : answer.error().message)});
      return;
    }
    const std::size_t count = answer->body["jobs"].size();
    // Who runs the jobs of a shared store is not known here.
    const bool run_elsewhere = shared || (*door)->is_socket();
    if (count == 0 || (run_elsewhere && status != std::string_view("parked"))) continue;
    const std::string many = std::to_string(count) + (count == 1 ? " job is " : " jobs are ");
    if (status == std::string_view("parked")) {
      problems.push_back({"parked", many + "parked: `aetheris jobs --status parked" +
                                        store_flag(store) +
                                        (count == 1 ? "` lists it, `aetheris job ID` says what it "
                                                      "needs"
                                                    : "` lists them, `aetheris job ID` says what "
                                                      "each needs")});
    } else {
      problems.push_back({"unfinished", many + status +
                                            " and no process runs them: `aetheris run "
                                            "FILE" +
                                            store_flag(store) + "` recovers " +
                                            (count == 1 ? "it" : "them")});
    }
  }
  if (shared || (*door)->is_socket()) look_for_stuck(**door, store, problems);
}

// Parks what has not ended in a store that went backwards.
int accept_rollback(const app::StoreUrl& store, bool restored, Terminal& terminal) {
  if (store.kind == app::StoreUrl::Kind::memory) {
    return terminal.fail_with({Code::usage, "a memory: store is gone with its process"});
  }
  app::SiteOptions options{.store = store};
  struct stat found{};
  if (store.kind == app::StoreUrl::Kind::sqlite && ::stat(store.path.c_str(), &found) != 0) {
    return terminal.fail_with({Code::not_found, "there is no store at " + store.path + " yet"});
  }
  options.mode = app::SiteOptions::Mode::write;
  options.accept_rollback = true;
  options.restored = restored;
  options.accepted_by = who();
  auto site = app::Site::open(std::move(options));
  if (!site) return terminal.fail_with(site.error());
  const auto parked = (*site)->accept_rollback(who());
  if (!parked) return terminal.fail_with(parked.error());
  const runtime::ParkedJobs count = parked->value_or(runtime::ParkedJobs());
  if (terminal.json()) {
    terminal.print_json(Value::object({{"accepted", parked->has_value()},
                                       {"ending", count.ending},
                                       {"parked", count.parked},
                                       {"pausing", count.pausing}}));
    return kDone;
  }
  if (!*parked) {
    terminal.print("the store did not go backwards: there is nothing to accept\n");
    return kDone;
  }
  const auto jobs = [](std::uint64_t n) { return std::to_string(n) + (n == 1 ? " job" : " jobs"); };
  std::string text = "accepted: " + jobs(count.parked) + " parked (store_rolled_back)";
  if (count.pausing > 0) {
    text += ", " + jobs(count.pausing) + " will park before anything else is begun";
  }
  if (count.ending > 0) text += ", " + jobs(count.ending) + " were ending already";
  terminal.print(text + "\n");
  terminal.note("look at each (`aetheris jobs --status parked" + store_flag(store) +
                "`), at what it did elsewhere, then `aetheris resume ID" + store_flag(store) +
                "` or `aetheris cancel ID" + store_flag(store) + "`");
  return kDone;
}

}  // namespace

int doctor_command(const Options& options, Terminal& terminal) {
  const auto store = store_of(options);
  if (!store) return terminal.fail_with(store.error());
  if (options.accept_rollback) return accept_rollback(*store, options.restored, terminal);
  std::vector<Problem> problems;
  look_at_environment(problems);
  look_at_store(*store, problems);
  if (terminal.json()) {
    std::vector<Value> list;
    list.reserve(problems.size());
    for (const Problem& problem : problems) {
      list.push_back(Value::object({{"code", problem.code}, {"message", problem.message}}));
    }
    terminal.print_json(
        Value::object({{"ok", problems.empty()}, {"problems", Value::array(std::move(list))}}));
  } else {
    for (const Problem& problem : problems) terminal.print(safe(problem.message) + "\n");
  }
  return problems.empty() ? kDone : kFailed;
}

}  // namespace ae::cli
