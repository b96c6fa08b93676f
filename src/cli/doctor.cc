// doctor: checks the environment and the store; prints a line per check and problem, and `ok` if
// all pass.
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/command_line.h"
#include "app/api_client.h"
#include "app/instance.h"
#include "app/toolbox.h"
#include "base/counted.h"
#include "cli/shared.h"
#include "inspect/verify.h"
#include "log/field_names.h"
#include "net/system.h"
#include "runtime/service/rebuild.h"

namespace ae::cli {
namespace {

struct DoctorOptions : CommonOptions {
  bool accept_rollback = false, restored = false, nothing_lost = false, sandbox = false;
};

std::vector<Option> doctor_options(DoctorOptions& o) {
  return {{"--accept-rollback", "", &o.accept_rollback,
           "accept a store that was rolled back: park its open jobs"},
          {"--restored",
           "",
           &o.restored,
           "the store was restored from a backup",
           {.needs = "--accept-rollback"}},
          {"--nothing-lost",
           "",
           &o.nothing_lost,
           "the store was moved and nothing ran since; its jobs continue",
           {.needs = "--accept-rollback", .excludes = {"--restored"}}},
          {"--sandbox",
           "",
           &o.sandbox,
           "show the sandbox features of this machine",
           {.excludes = {"--accept-rollback"}}}};
}

struct Problem {
  std::string code, message;
};

// The checks in order, with their problems, and notes about queued, waiting or parked jobs.
struct Checks {
  struct Check {
    std::string name, detail;
    std::vector<Problem> problems, notes;
  };
  std::vector<Check> done;

  // `detail`: printed if the check passes.
  void add(std::string name, std::string detail, std::vector<Problem> found) {
    done.push_back({std::move(name), std::move(detail), std::move(found), {}});
  }
};

bool is_set(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

void check_environment(std::vector<Problem>& problems) {
  for (const char* name : {"AETHERIS_FAILPOINTS", "AETHERIS_FAILPOINTS_TRACE"}) {
    if (!is_set(name)) continue;
    problems.push_back(
        {"failpoints",
         fmt::format("{} is set: failures are injected; unset it outside tests", name)});
  }
}

void check_clock(std::vector<Problem>& problems) {
  if (is_set(net::kClockOffsetFile)) {
    problems.push_back(
        {"clock", fmt::format("{} is set: the clock is simulated; unset it outside tests",
                              net::kClockOffsetFile)});
  }
  if (std::time(nullptr) < 1'700'000'000) {
    problems.push_back(
        {"clock", "the system clock is before 2023; leases and timers need the correct time"});
  }
}

// The folder itself, or its nearest existing ancestor.
std::string existing_folder(std::string folder) {
  struct stat found{};
  while (!folder.empty() && ::stat(folder.c_str(), &found) != 0) {
    const std::size_t slash = folder.find_last_not_of('/');
    folder.resize(slash == folder.npos ? 0 : slash + 1);
    const std::size_t cut_at = folder.rfind('/');
    folder = cut_at == folder.npos ? "." : cut_at == 0 ? "/" : folder.substr(0, cut_at);
  }
  return folder;
}

// Can this user create or change the store? `run` fails otherwise.
void check_writable(const app::StoreUrl& store, std::vector<Problem>& problems) {
  const auto check = [&](const std::string& path, int mode) {
    if (::faccessat(AT_FDCWD, path.c_str(), mode, AT_EACCESS) == 0) return true;
    problems.push_back({"read_only", fmt::format("cannot write {}: {}; `aetheris run` would fail: "
                                                 "change its permissions, or use another --store",
                                                 path, std::strerror(errno))});
    return false;
  };
  if (!check(existing_folder(store.folder()), W_OK | X_OK)) return;
  struct stat found{};
  if (::stat(store.path.c_str(), &found) == 0) check(store.path, R_OK | W_OK);
}

void check_file(const std::string& path, const char* what, std::vector<Problem>& problems) {
  struct stat found{};
  if (::stat(path.c_str(), &found) != 0) return;
  if ((found.st_mode & 0077) != 0) {
    problems.push_back({"permissions", fmt::format("{} ({}) is accessible to others: chmod 600 {}",
                                                   path, what, quoted(path))});
  }
  if (found.st_uid != ::geteuid()) {
    problems.push_back({"owner", fmt::format("{} ({}) belongs to another user", path, what)});
  }
}

// A user who can write the folder can replace the store, its lock and its socket.
void check_folder_access(const std::string& folder, std::vector<Problem>& problems) {
  struct stat found{};
  if (::stat(folder.c_str(), &found) != 0 || (found.st_mode & S_ISVTX) != 0) return;
  const bool by_group = (found.st_mode & S_IWGRP) != 0 && found.st_gid != ::getegid();
  if ((found.st_mode & S_IWOTH) == 0 && !by_group) return;
  problems.push_back({"permissions", fmt::format("{} (the store's folder) is writable by others, "
                                                 "who could replace the store: chmod 700 {}",
                                                 folder, quoted(folder))});
}

// Locks and shared memory do not work across machines.
void check_disk(const app::StoreUrl& store, std::vector<Problem>& problems) {
  struct statfs disk{};
  if (::statfs(store.folder().c_str(), &disk) != 0) return;
  constexpr long kNfs = 0x6969, kSmb = 0x517B, kSmb2 = 0xFE534D42, kCifs = 0xFF534D42,
                 kNinep = 0x01021997;
  const long type = static_cast<long>(disk.f_type);
  for (const long network : {kNfs, kSmb, kSmb2, kCifs, kNinep}) {
    if (type == network) {
      problems.push_back({"network_disk",
                          "the store is on a network file system, where locks and fsync are "
                          "unreliable; move it to a local disk"});
    }
  }
  const auto free_bytes = static_cast<unsigned long long>(disk.f_bavail) *
                          static_cast<unsigned long long>(disk.f_bsize);
  if (free_bytes < (64ull << 20)) {
    problems.push_back({"disk_full", "less than 64 MiB free on the store's disk"});
  }
}

constexpr Duration kClockSkewMax = std::chrono::seconds(1);
constexpr std::int64_t kProcessesMore = 2;  // that must still be able to connect

// Unsupported settings are reported when the store is opened.
void check_database_server(const store::PostgresServerInfo& facts, std::vector<Problem>& problems) {
  if (!facts.synchronous_standby) {
    problems.push_back({"no_synchronous_standby",
                        "PostgreSQL has no synchronous standby: commits can be lost with its disk "
                        "or on failover; set synchronous_standby_names, or accept it"});
  }
  if (!facts.full_page_writes) {
    problems.push_back({"full_page_writes",
                        "PostgreSQL runs with full_page_writes=off: a power loss can corrupt "
                        "pages; set it to on"});
  }
  if (!facts.autovacuum) {
    problems.push_back(
        {"autovacuum",
         "PostgreSQL runs with autovacuum=off: tables grow without limit; set it to on"});
  }
  const std::int64_t left = facts.connections_max - facts.connections_used;
  if (left < kProcessesMore * store::kConnectionsPerProcess) {
    problems.push_back(
        {"connections", fmt::format("PostgreSQL has {} of {} connections left; each Aetheris "
                                    "process uses {}: raise max_connections",
                                    left, facts.connections_max, store::kConnectionsPerProcess)});
  }
  const Duration apart =
      facts.clock_ahead < Duration(0) ? Duration(0) - facts.clock_ahead : facts.clock_ahead;
  if (apart > kClockSkewMax + facts.clock_error) {
    problems.push_back(
        {"clock_offset", fmt::format("this machine's clock is {} ms {} the database's clock; use "
                                     "NTP on both (leases and timers use the database's clock)",
                                     apart.count() / 1000,
                                     facts.clock_ahead < Duration(0) ? "ahead of" : "behind")});
  }
}

// Even if processes run jobs, none of them may be able to run a particular job.
void check_stuck_jobs(app::ApiClient& client, const app::StoreUrl& store,
                      std::vector<Problem>& problems) {
  api::ApiRequest request;
  request.path = {"api", "jobs"};
  request.query = {{"stalled", "true"}, {"limit", "1000"}};
  const auto answer = client.send(request);
  if (!answer || answer->status != 200)
    return;  // an older server; read errors are reported elsewhere
  std::size_t count = 0;
  for (const Value& job : answer->body["jobs"].items()) {
    count += job.text("status") == "parked" ? 0 : 1;
  }
  if (count == 0) return;
  problems.push_back(
      {"stuck",
       fmt::format("{} {} no worker: `aetheris jobs --stalled{}` shows why and what to run",
                   counted(count, "job"), count == 1 ? "has" : "have", store_flag(store))});
}

// Iterates over a store's jobs until the time is up.
class TimeLimitedRebuild final : public store::Rebuild {
 public:
  explicit TimeLimitedRebuild(store::Rebuild& store) : store_(store) {}
  Result<std::uint64_t> count_jobs() override { return store_.count_jobs(); }
  Result<std::optional<JobId>> next_job() override {
    if (std::chrono::steady_clock::now() > deadline_) return std::nullopt;
    return store_.next_job();
  }
  Result<store::StoredLog> read(const JobId& job) override { return store_.read(job); }
  Result<std::string> blob(const Hash& hash) override { return store_.blob(hash); }
  Result<std::vector<store::Difference>> reconcile(const store::Projection& wanted,
                                                   Instant now) override {
    return store_.reconcile(wanted, now);
  }
  Result<std::vector<store::Difference>> reconcile_store_rows() override {
    return store_.reconcile_store_rows();
  }
  Result<std::vector<store::Damage>> find_damage() override { return store_.find_damage(); }
  Status append_audit_entry(const store::AuditEntry& entry) override {
    return store_.append_audit_entry(entry);
  }
  Status commit() override { return store_.commit(); }

 private:
  static constexpr std::chrono::seconds kTime{5};
  store::Rebuild& store_;
  const std::chrono::steady_clock::time_point deadline_ = std::chrono::steady_clock::now() + kTime;
};

// Does a time differ only slightly from the event's, as written by earlier builds?
bool times_are_near(const store::Difference& row) {
  if (row.column != "created_at" && row.column != "updated_at") return false;
  const auto time_of = [](const std::string& text) -> std::optional<Instant> {
    Instant at;
    const char* const end = text.data() + text.size();
    const auto read = std::from_chars(text.data(), end, at.us);
    return read.ec == std::errc() && read.ptr == end ? std::optional(at) : std::nullopt;
  };
  const auto stored = time_of(row.stored), derived = time_of(row.derived);
  return stored && derived && !engine::exceeds_time_skew(*stored, *derived);
}

// Compares the derived rows of a store that is not too large with its logs; `rebuild --check`
// compares all.
void check_rows(const app::StoreUrl& store, std::vector<Problem>& problems) {
  constexpr off_t kFileMax = off_t{1} << 30;
  struct stat file{};
  const bool shared = store.kind == app::StoreUrl::Kind::postgres;
  if (!shared && (::stat(store.path.c_str(), &file) != 0 || file.st_size > kFileMax)) return;
  const auto opened = app::open_rebuild({.store = store, .compare_only = true, .job = {}});
  if (!opened) return;  // ApiClient::open reports why
  if (const auto damage = (*opened)->find_damage()) {
    for (const store::Damage& one : *damage) problems.push_back({one.code, one.message});
  }
  TimeLimitedRebuild jobs(**opened);
  net::SystemClock clock;
  const auto compared =
      runtime::rebuild(jobs, [&] { return clock.now(); }, [](const runtime::RebuildProgress&) {});
  if (!compared) {
    problems.push_back({"unavailable", fmt::format("the store cannot be read: {}",
                                                   api::message_with_command(compared.error()))});
    return;
  }
  for (const auto& [job, rows] : compared->differing) {
    const auto found = std::ranges::find_if_not(rows, times_are_near);
    if (found == rows.end()) continue;
    const store::Difference& first = *found;
    std::string what =
        first.column.empty() ? first.table : fmt::format("{}.{}", first.table, first.column);
    if (!first.stored.empty()) what += fmt::format(" is {}", first.stored);
    if (!first.derived.empty()) what += fmt::format(", expected from the log: {}", first.derived);
    const std::string whose =
        job.empty() ? "rows without a job" : fmt::format("the rows of job {}", job.text);
    problems.push_back(
        {"rows_differ", fmt::format("{} differ from the log ({}): stop all processes of the store, "
                                    "then run `aetheris rebuild{}`",
                                    whose, safe(what), store_flag(store))});
  }
  for (const auto& [job, error] : compared->refused) {
    problems.push_back({std::string(code_name(error.code)),
                        fmt::format("job {}: {}", job.text, api::message_with_command(error))});
  }
}

// Jobs of one status that no process may run: "job a is queued: …", "3 jobs are queued: …".
std::string jobs_text(const Value& jobs, const std::string& status, const std::string& flag) {
  const bool runs = status == "queued" || status == "running";
  const char* const shown = status == "parked" ? "the next command" : "what for";
  if (jobs.size() == 1) {
    const std::string id = quoted(std::string(jobs.items()[0].text("id")));
    if (runs) {
      return fmt::format(
          "job {0} is {1} and no process runs it: `aetheris run FILE --job-id {0}{2}` resumes it",
          id, status, flag);
    }
    return fmt::format("job {0} is {1}: `aetheris job {0}{2}` shows {3}", id, status, flag, shown);
  }
  if (runs) {
    return fmt::format(
        "{0} jobs are {1} and no process runs them: `aetheris jobs --status {1}{2}` lists them, "
        "`aetheris serve FILE{2}` resumes them",
        jobs.size(), status, flag);
  }
  return fmt::format(
      "{0} jobs are {1}: `aetheris jobs --status {1}{2}` lists them, `aetheris job ID{2}` shows "
      "{3}",
      jobs.size(), status, flag, shown);
}

void check_jobs(app::ApiClient& client, const app::StoreUrl& store, std::vector<Problem>& problems,
                std::vector<Problem>& notes) {
  const bool shared = store.kind == app::StoreUrl::Kind::postgres;
  const std::string silent =
      shared || client.is_remote() ? "" : app::find_unresponsive_owner(store);
  if (!silent.empty()) {
    problems.push_back(
        {"owner_silent", fmt::format("{} owns the store but does not respond within 3s; check it, "
                                     "and restart it if it stays unresponsive",
                                     silent)});
  }
  api::ApiRequest request;
  request.path = {"api", "jobs"};
  // Other machines may run the jobs of a shared store.
  const bool run_elsewhere = shared || !silent.empty() || client.is_remote();
  for (const std::string status : {"running", "queued", "waiting", "parked"}) {
    request.query = {{"status", status}, {"limit", "1000"}};
    auto answer = client.send(request);
    if (!answer || answer->status != 200) {
      problems.push_back({"unavailable", fmt::format("the store cannot be read: {}",
                                                     answer ? answer->body.text(field::detail)
                                                            : answer.error().message)});
      return;
    }
    const Value& jobs = answer->body["jobs"];
    const bool runs = status == "running" || status == "queued";
    if (jobs.size() == 0 || (run_elsewhere && runs)) continue;
    const std::string text = jobs_text(jobs, status, store_flag(store));
    if (status == "running") {
      problems.push_back({"unfinished", text});
    } else {
      notes.push_back({status, text});
    }
  }
  if (shared || client.is_remote()) check_stuck_jobs(client, store, problems);
}

std::string secrets_text(const std::string& path) {
  struct stat found{};
  return ::stat(path.c_str(), &found) == 0 ? path
                                           : fmt::format("no secrets file ({} is optional)", path);
}

void check_store(const app::StoreUrl& store, Checks& checks) {
  using Kind = app::StoreUrl::Kind;
  if (store.kind == Kind::memory) return checks.add("store", "memory:, nothing is kept", {});
  const auto check = [&](const char* name, std::string detail, auto run_check) {
    std::vector<Problem> found;
    run_check(found);
    checks.add(name, std::move(detail), std::move(found));
  };
  const bool shared = store.kind == Kind::postgres;
  if (!shared) {
    check("writable", existing_folder(store.folder()),
          [&](auto& found) { check_writable(store, found); });
    check("disk", "local, with free space", [&](auto& found) { check_disk(store, found); });
    check("permissions", "no other user can change the store", [&](auto& found) {
      check_folder_access(store.folder(), found);
      check_file(store.path, "the store", found);
    });
    const std::string secrets = fmt::format("{}/secrets", store.folder());
    check("secrets", secrets_text(secrets),
          [&](auto& found) { check_file(secrets, "secrets", found); });
  } else {
    check("server", "PostgreSQL settings, connections and clock", [&](auto& found) {
      if (const auto facts = app::examine(store); facts && *facts)
        check_database_server(**facts, found);
    });
  }
  check("rollback", "the store is not older than it was", [&](auto& found) {
    if (auto checked = app::check_for_rollback(store); !checked) {
      found.push_back({std::string(code_name(checked.error().code)),
                       api::message_with_command(checked.error())});
    }
  });
  auto client = app::ApiClient::open(store, app::OpenMode::read);
  const bool missing = !client && client.error().code == Code::not_found;
  check("store",
        fmt::format("{}{}", store.text(),
                    missing ? " does not exist yet; `aetheris run` creates it" : ""),
        [&](auto& found) {
          if (client || missing) return;
          found.push_back({std::string(code_name(client.error().code)),
                           api::message_with_command(client.error())});
        });
  if (missing) return;
  check("rows", "rows agree with the event logs", [&](auto& found) { check_rows(store, found); });
  if (!client) return;
  if (!shared) {
    checks.add("lock", (*client)->is_remote() ? "held by a running process" : "free", {});
  }
  std::vector<Problem> notes;
  check("jobs", "no job is stalled or needs a decision",
        [&](auto& found) { check_jobs(**client, store, found, notes); });
  checks.done.back().notes = std::move(notes);
}

Value repeat_view(const std::vector<runtime::RepeatableCalls>& jobs) {
  std::vector<Value> shown;
  shown.reserve(jobs.size());
  for (const runtime::RepeatableCalls& job : jobs) {
    std::vector<Value> calls;
    calls.reserve(job.calls.size());
    for (const std::string& call : job.calls) calls.emplace_back(call);
    shown.push_back(Value::object({{field::at, to_text(job.at)},
                                   {"calls", Value::array(std::move(calls))},
                                   {"id", job.job.text},
                                   {"more", std::uint64_t{job.more}},
                                   {"seq", job.seq}}));
  }
  return Value::array(std::move(shown));
}

// Lists the calls that resumed jobs may repeat.
void print_repeats(const runtime::ParkResult& count, Terminal& terminal) {
  if (count.may_repeat.empty()) return;
  terminal.print(
      "These calls are unfinished in this store. Each may already have happened; resuming its job "
      "can repeat it:\n");
  for (const runtime::RepeatableCalls& job : count.may_repeat) {
    std::string line =
        fmt::format("  {}, after event {} of {}: ", safe(job.job.text), job.seq, to_text(job.at));
    for (const std::string& call : job.calls) {
      line += (&call == job.calls.data() ? "" : ", ") + safe(call);
    }
    if (job.more > 0) line += fmt::format(" and {} more", job.more);
    terminal.print(line + "\n");
  }
  if (count.more) terminal.print("  and calls of more jobs, not listed here\n");
}

// Parks all unfinished jobs of a store that was rolled back.
int accept_rollback(const app::StoreUrl& store, const DoctorOptions& command_options,
                    Terminal& terminal) {
  if (store.kind == app::StoreUrl::Kind::memory) {
    return terminal.fail_with({Code::usage, "a memory: store exists only in its process"});
  }
  app::InstanceOptions options{.store = store};
  struct stat found{};
  const auto whole = app::check_for_rollback(store);
  if (whole && store.kind == app::StoreUrl::Kind::sqlite &&
      ::stat(store.path.c_str(), &found) != 0) {
    return terminal.fail_with({Code::not_found, fmt::format("no store at {}", store.path)});
  }
  options.mode = app::InstanceOptions::Mode::write;
  options.accept_rollback = true;
  options.restored = command_options.restored;
  options.nothing_lost = command_options.nothing_lost;
  options.accepted_by = cli_actor();
  auto instance = app::Instance::open(std::move(options));
  if (!instance) return terminal.fail_with(instance.error());
  const bool gone = (*instance)->was_recreated();
  const auto parked = (*instance)->accept_rollback(cli_actor());
  if (!parked) return terminal.fail_with(parked.error());
  const runtime::ParkResult count = parked->value_or(runtime::ParkResult());
  if (terminal.json()) {
    terminal.print_json(Value::object({{"accepted", parked->has_value() || !whole},
                                       {"ending", count.ending},
                                       {"may_repeat", repeat_view(count.may_repeat)},
                                       {"parked", count.parked},
                                       {"pausing", count.pausing}}));
    return kDone;
  }
  if (!*parked && !whole) {
    terminal.print("accepted: nothing was lost; jobs continue\n");
    return kDone;
  }
  if (!*parked) {
    terminal.print("the store was not rolled back; nothing to accept\n");
    return kDone;
  }
  std::string text =
      fmt::format("accepted: {} parked (store_rolled_back)", counted(count.parked, "job"));
  if (count.pausing > 0) {
    text += fmt::format(", {} will park before their next step", counted(count.pausing, "job"));
  }
  if (count.ending > 0) {
    text += fmt::format(", {} {} already ending", counted(count.ending, "job"),
                        count.ending == 1 ? "was" : "were");
  }
  if (gone) {
    text =
        "accepted an empty store: the earlier jobs are lost, and a job created again repeats its "
        "effects";
  }
  terminal.print(text + "\n");
  print_repeats(count, terminal);
  if (gone) return kDone;
  terminal.note(
      fmt::format("review each job (`aetheris jobs --status parked{0}`) and its external effects, "
                  "then `aetheris resume ID{0}` or `aetheris cancel ID{0}`",
                  store_flag(store)));
  return kDone;
}

int show_sandbox(Terminal& terminal) {
  const app::SandboxFeatures can = app::sandbox_features();
  if (terminal.json()) {
    terminal.print_json(Value::object({{"files", can.files},
                                       {"landlock_abi", can.landlock},
                                       {"network", can.network},
                                       {"processes", can.processes},
                                       {"root", can.root},
                                       {"signals", can.signals},
                                       {"tracing", can.tracing}}));
    return kDone;
  }
  const auto line = [](const char* what, bool possible, const char* needs) {
    return fmt::format("{}{}{}\n", what, possible ? "yes" : "no: ", possible ? "" : needs);
  };
  terminal.print(
      (can.landlock > 0 ? fmt::format("Landlock          ABI {}\n", can.landlock)
                        : "Landlock          no: not available or disabled in this kernel\n") +
      line("read, write       ", can.files, "needs Landlock ABI 3 (Linux 6.2)") +
      line("tracing inside    ", can.tracing, "needs Landlock ABI 2 (Linux 5.19)") +
      line("signals inside    ", can.signals, "needs Landlock ABI 6 (Linux 6.12)") +
      line("network: none     ", can.network, "network namespaces are not allowed") +
      line("processes         ", can.processes,
           "user namespaces are not allowed, or the process runs as root") +
      (can.root
           ? "user              runs as root: tools get root's files; run it as a separate user\n"
           : ""));
  return kDone;
}

int doctor_command(const DoctorOptions& options, Terminal& terminal) {
  if (options.sandbox) return show_sandbox(terminal);
  const auto store = store_of(options);
  if (!store) return terminal.fail_with(store.error());
  if (options.accept_rollback) return accept_rollback(*store, options, terminal);
  Checks checks;
  std::vector<Problem> found;
  check_environment(found);
  checks.add("environment", "no test settings are active", std::exchange(found, {}));
  check_clock(found);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  checks.add("clock",
             to_text(Instant{std::chrono::duration_cast<std::chrono::microseconds>(now).count()}),
             std::exchange(found, {}));
  const app::SandboxFeatures can = app::sandbox_features();
  checks.add("sandbox",
             can.landlock > 0 ? fmt::format("available (Landlock ABI {})", can.landlock)
                              : "no Landlock: `sandbox` cannot confine tools to folders",
             {});
  check_store(*store, checks);
  std::size_t count = 0;
  for (const Checks::Check& check : checks.done) count += check.problems.size();
  const bool ok = count == 0;
  if (terminal.json()) {
    std::vector<Value> problems, notes, done;
    const auto add = [](std::vector<Value>& list, const std::vector<Problem>& more) {
      for (const Problem& one : more) {
        list.push_back(Value::object({{field::code, one.code}, {"message", one.message}}));
      }
    };
    for (const Checks::Check& check : checks.done) {
      add(problems, check.problems);
      add(notes, check.notes);
      done.push_back(Value::object(
          {{field::detail, check.detail}, {"name", check.name}, {"ok", check.problems.empty()}}));
    }
    terminal.print_json(Value::object({{"checks", Value::array(std::move(done))},
                                       {"notes", Value::array(std::move(notes))},
                                       {"ok", ok},
                                       {"problems", Value::array(std::move(problems))}}));
    return ok ? kDone : kFailed;
  }
  const Paint& paint = terminal.out();
  for (const Checks::Check& check : checks.done) {
    const auto line = [&](Tint tint, const char* mark, const std::string& text) {
      terminal.print(fmt::format("{}{}  {}\n", paint(tint, mark), pad(check.name, 12), safe(text)));
    };
    if (check.problems.empty() && check.notes.empty()) line(Tint::good, "ok       ", check.detail);
    for (const Problem& one : check.problems) line(Tint::bad, "problem  ", one.message);
    for (const Problem& one : check.notes) line(Tint::dim, "note     ", one.message);
  }
  terminal.print(ok ? "ok\n" : counted(count, "problem") + "\n");
  return ok ? kDone : kFailed;
}

}  // namespace

extern const Command kDoctorCommand{
    .name = "doctor",
    .group = Group::maintain,
    .target = Target::store,
    .summary = "check the environment and the store",
    .example = "aetheris doctor",
    .bind = bound_command<DoctorOptions, doctor_options, doctor_command>};

}  // namespace ae::cli
