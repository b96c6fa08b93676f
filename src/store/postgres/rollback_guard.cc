#include "store/postgres/rollback_guard.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>

#include "base/hash.h"
#include "json/json.h"
#include "log/field_names.h"
#include "store/lines.h"
#include "store/postgres/location.h"

namespace ae::store::postgres {
namespace {

constexpr std::string_view kFirstMagic = "aetheris.mark.v1";
constexpr std::string_view kMagic = "aetheris.mark.v2";
constexpr std::uint64_t kNever = 1ULL << 62;  // above any entry's number
constexpr std::size_t kChecksumChars = 16;
constexpr std::chrono::milliseconds kSaveInterval{1000};  // minimum interval

// Not prepared: the first query runs before a pooler is detected.
constexpr const char* kReadHead =
    "SELECT h.epoch, e.last_seq, h.job FROM heads h JOIN log_ends e ON e.job = h.job "
    "WHERE h.job = (SELECT number FROM jobs WHERE job_id = $1::text)";
constexpr const char* kReadAuditHash = "SELECT hash FROM audit WHERE seq = $1::bigint";
// A canonical body begins with its act.
constexpr const char* kReadPrunes =
    "SELECT seq, body, hash FROM audit WHERE seq < $1::bigint AND "
    "substring(body FROM 1 FOR 15) = '{\"act\":\"prune\",'::bytea ORDER BY seq DESC LIMIT 64";
constexpr const char* kReadIdentity =
    "SELECT key, value FROM meta WHERE key IN ('timeline', 'timelines', 'lost', 'accepting')";
// Does nothing if the loss was accepted meanwhile.
constexpr const char* kMarkLost =
    "INSERT INTO meta(key, value) SELECT 'lost', $1::text WHERE coalesce("
    "(SELECT value FROM meta WHERE key = 'timeline'), $2::text) = $3::text "
    "ON CONFLICT DO NOTHING";
constexpr const char* kPutMeta =
    "INSERT INTO meta(key, value) VALUES($1::text, $2::text) "
    "ON CONFLICT (key) DO UPDATE SET value = excluded.value";

// Is the number in a list like "1-64,70"?
bool contains_number(std::string_view list, std::uint64_t number) {
  while (!list.empty()) {
    const std::string_view one = list.substr(0, list.find(','));
    list.remove_prefix(std::min(one.size() + 1, list.size()));
    const char *const begin = std::to_address(one.begin()), *const end = begin + one.size();
    std::uint64_t from = 0;
    const auto first = std::from_chars(begin, end, from);
    std::uint64_t to = from;
    if (first.ptr != end) std::from_chars(first.ptr + 1, end, to);
    if (from <= number && number <= to) return true;
  }
  return false;
}

// Begins a transaction and adds the entry to the audit log in it.
Pg<void> begin_audited(Connection& connection, const AuditEntry& entry) {
  connection.add_unprepared("BEGIN");
  connection.add_unprepared("SELECT value FROM meta WHERE key = 'audit_head' FOR UPDATE");
  AE_ASSIGN(const auto head, connection.run());
  const AuditRow row = chain_entry(audit_head_from_text(head[1].bytes(0, 0)), entry);
  connection.add_unprepared(
      "INSERT INTO audit(seq, body, hash) VALUES($1::bigint, $2::bytea, $3::bytea)",
      Params().add(row.seq).add(Bytes{row.body}).add(row.hash));
  connection.add_unprepared(kPutMeta,
                            Params().add("audit_head").add(to_text(AuditHead{row.seq, row.hash})));
  return {};
}

std::string checksum_of(std::string_view text) {
  return to_hex(sha256(text)).substr(0, kChecksumChars);
}

Error rolled_back(const std::string& loss) {
  return {Code::store_rolled_back,
          fmt::format("this store went backwards: {}; a restore or failover lost commits, whose "
                      "work would be repeated: check its jobs",
                      loss),
          Action{.act = act::kAcceptRollback}};
}

Error acceptance_unfinished() {
  return {Code::store_rolled_back,
          "this store went backwards, and not all of its jobs have been parked since",
          Action{.act = act::kAcceptRollback}};
}

Error restart_required(const std::string& why) {
  return {Code::store_stopped,
          fmt::format("{}; this process has stopped writing: restart it", why)};
}

}  // namespace

Result<StoreIdentity> read_store_identity(Connection& connection, const std::string& store_id) {
  connection.add_unprepared(kReadIdentity);
  auto answers = connection.run();
  if (!answers) return std::unexpected(unavailable_error(answers.error()));
  StoreIdentity identity{.timeline = store_id, .earlier_timelines = {}, .loss = {}};
  const Rows& rows = answers->back();
  for (int i = 0; i < rows.size(); ++i) {
    const std::string key = rows.text(i, 0), value = rows.text(i, 1);
    if (key == "timeline") identity.timeline = value;
    if (key == "timelines") identity.earlier_timelines = split_lines(value);
    if (key == "lost") identity.loss = value;
    if (key == "accepting") identity.accepting = true;
  }
  return identity;
}

RollbackGuard::RollbackGuard(std::string store_id, const std::string& folder, bool accepts)
    : store_id_(std::move(store_id)),
      path_(folder.empty() ? std::string() : fmt::format("{}/{}.mark", folder, store_id_)),
      is_accepting_(accepts) {
  saved_ = read();
}

RollbackGuard::~RollbackGuard() { save(); }

std::string RollbackGuard::timeline() const {
  const std::lock_guard lock(mutex_);
  return timeline_;
}

std::optional<std::string> RollbackGuard::compare(const StoreIdentity& identity,
                                                  const SavedMark& saved,
                                                  const std::optional<HighWaterMark>& current) {
  const auto& [timeline, high_water_mark] = saved;
  if (timeline != identity.timeline) {
    if (std::ranges::find(identity.earlier_timelines, timeline) != identity.earlier_timelines.end())
      return std::nullopt;
    return "it is from before a loss that was accepted";
  }
  if (high_water_mark.job.empty()) {
    if (current) return std::nullopt;
    return fmt::format("entry {} of its audit log is not in it any more",
                       high_water_mark.audit.seq);
  }
  if (!current) return fmt::format("job {} is not in it any more", high_water_mark.job.text);
  if (current->epoch >= high_water_mark.epoch && current->last_seq >= high_water_mark.last_seq)
    return std::nullopt;
  return fmt::format("job {} is at event {} (epoch {}), and was at event {} (epoch {})",
                     high_water_mark.job.text, current->last_seq, current->epoch,
                     high_water_mark.last_seq, high_water_mark.epoch);
}

// The current state of the same row or entry in the store; nullopt: it does not exist.
Result<std::optional<HighWaterMark>> RollbackGuard::current(Connection& connection,
                                                            const HighWaterMark& high_water_mark) {
  const bool is_entry = high_water_mark.job.empty();
  connection.add_unprepared(
      is_entry ? kReadAuditHash : kReadHead,
      is_entry ? Params().add(high_water_mark.audit.seq) : Params().add(high_water_mark.job.text));
  auto answers = connection.run();
  if (!answers) return std::unexpected(unavailable_error(answers.error()));
  const Rows& row = answers->back();
  if (row.empty()) return std::nullopt;
  if (is_entry)
    return row.hash(0, 0) == high_water_mark.audit.hash ? std::optional(high_water_mark)
                                                        : std::nullopt;
  HighWaterMark found{.job = high_water_mark.job,
                      .number = row.count(0, 2),
                      .epoch = row.count(0, 0),
                      .last_seq = row.count(0, 1),
                      .audit = {}};
  // Another job may have the id by now.
  if (high_water_mark.number != 0 && found.number != high_water_mark.number) return std::nullopt;
  return found;
}

// The newest audit entry of the deletion of this job; nullopt: it was not deleted. For a mark
// without a number any deletion of this job id counts.
Result<std::optional<HighWaterMark>> RollbackGuard::find_prune_entry(
    Connection& connection, const HighWaterMark& high_water_mark) {
  if (high_water_mark.job.empty()) return std::nullopt;
  for (std::uint64_t before_seq = kNever;;) {
    connection.add_unprepared(kReadPrunes, Params().add(before_seq));
    auto answers = connection.run();
    if (!answers) return std::unexpected(unavailable_error(answers.error()));
    const Rows& rows = answers->back();
    if (rows.empty()) return std::nullopt;
    for (int i = 0; i < rows.size(); ++i) {
      before_seq = rows.count(i, 0);
      const auto entry = parse_json(rows.text(i, 1), {.depth_max = 128});
      if (!entry) continue;
      if (high_water_mark.number == 0 ||
          contains_number((*entry)[field::detail].text("numbers"), high_water_mark.number)) {
        return HighWaterMark{.job = {}, .audit = {.seq = before_seq, .hash = rows.hash(i, 2)}};
      }
    }
  }
}

Result<std::optional<std::string>> RollbackGuard::find_loss(Connection& connection,
                                                            const StoreIdentity& identity) {
  if (!identity.loss.empty()) return identity.loss;
  std::optional<SavedMark> saved;
  {
    const std::lock_guard lock(mutex_);
    saved = saved_;
  }
  if (!saved) return std::nullopt;
  AE_ASSIGN(const auto found, current(connection, saved->high_water_mark));
  if (!found && saved->timeline == identity.timeline) {
    AE_ASSIGN(const auto entry, find_prune_entry(connection, saved->high_water_mark));
    if (entry) {
      // A write that was remembered meanwhile is newer and stays.
      const std::lock_guard lock(mutex_);
      if (saved_ && saved_->high_water_mark == saved->high_water_mark) {
        saved_->high_water_mark = *entry;
        changed_ = true;
      }
      return std::nullopt;
    }
  }
  return compare(identity, *saved, found);
}

Status RollbackGuard::check_unopened(Connection& connection) {
  AE_ASSIGN(const StoreIdentity identity, read_store_identity(connection, store_id_));
  AE_ASSIGN(const auto loss, find_loss(connection, identity));
  if (loss) return std::unexpected(rolled_back(*loss));
  if (identity.accepting && !is_accepting_) return std::unexpected(acceptance_unfinished());
  return {};
}

Status RollbackGuard::check(Connection& connection) {
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return std::unexpected(*stopped_);
  }
  AE_ASSIGN(const StoreIdentity identity, read_store_identity(connection, store_id_));
  AE_ASSIGN(const auto loss, find_loss(connection, identity));
  if (loss && identity.loss.empty()) {
    connection.add_unprepared(kMarkLost, Params().add(*loss).add(store_id_).add(identity.timeline));
    if (auto done = connection.run(); !done)
      return std::unexpected(unavailable_error(done.error()));
  }
  std::optional<Error> why;
  if (loss) why = rolled_back(*loss);
  if (!loss && identity.accepting && !is_accepting_) why = acceptance_unfinished();
  const std::lock_guard lock(mutex_);
  const bool first = timeline_.empty();
  if (!why && first) timeline_ = identity.timeline;
  if (!why && identity.timeline != timeline_) {
    why = Error{Code::store_rolled_back,
                "this store went backwards, and that was accepted while this process worked on it"};
  }
  if (!why) return {};
  if (first) return std::unexpected(*std::move(why));
  stopped_ = restart_required(why->message);
  return std::unexpected(*stopped_);
}

void RollbackGuard::record_write(const HighWaterMark& high_water_mark) {
  const auto now = std::chrono::steady_clock::now();
  {
    const std::lock_guard lock(mutex_);
    saved_ = {timeline_, high_water_mark};
    changed_ = true;
    if (now < save_at_) return;
    save_at_ = now + kSaveInterval;
  }
  save();
}

Status RollbackGuard::accept(Connection& connection, const std::string& loss, Instant at,
                             const std::string& by) {
  AE_ASSIGN(StoreIdentity identity, read_store_identity(connection, store_id_));
  identity.earlier_timelines.push_back(identity.timeline);
  {
    // The remembered mark may be of a timeline that this copy does not contain.
    const std::lock_guard lock(mutex_);
    if (saved_ && saved_->timeline != identity.timeline) {
      identity.earlier_timelines.push_back(saved_->timeline);
    }
    saved_.reset();
  }
  AE_ASSIGN(const std::string location, read_location(connection));
  const auto run = [&]() -> Pg<void> {
    AE_TRY(begin_audited(
        connection, {.at = at,
                     .by = by,
                     .act = "accept_rollback",
                     .job = {},
                     .detail = Value::object({{"lost", loss}, {"timeline", identity.timeline}})}));
    connection.add_unprepared(
        kPutMeta, Params().add("timelines").add(join_lines(identity.earlier_timelines)));
    connection.add_unprepared(kPutMeta, Params().add("accepting").add("1"));
    connection.add_unprepared(
        "INSERT INTO meta(key, value) VALUES('timeline', replace(gen_random_uuid()::text, '-', "
        "'')) ON CONFLICT (key) DO UPDATE SET value = excluded.value");
    connection.add_unprepared("DELETE FROM meta WHERE key = 'lost'");
    add_put_location(connection, location);
    connection.add_unprepared("COMMIT");
    AE_TRY(connection.run());
    return {};
  };
  if (const auto done = run(); !done) return std::unexpected(unavailable_error(done.error()));
  return {};
}

Status RollbackGuard::accept_move(Connection& connection, const std::string& why, Instant at,
                                  const std::string& by) {
  AE_ASSIGN(const std::string location, read_location(connection));
  const auto run = [&]() -> Pg<void> {
    AE_TRY(begin_audited(connection,
                         {.at = at,
                          .by = by,
                          .act = "accept_rollback",
                          .job = {},
                          .detail = Value::object({{"moved", why}, {"nothing_lost", true}})}));
    add_put_location(connection, location);
    connection.add_unprepared("COMMIT");
    AE_TRY(connection.run());
    return {};
  };
  if (const auto done = run(); !done) return std::unexpected(unavailable_error(done.error()));
  return {};
}

// ---------------------------------------------------------------- the file

std::optional<RollbackGuard::SavedMark> RollbackGuard::read() const {
  if (path_.empty()) return std::nullopt;
  std::ifstream file(path_);
  std::string group;
  if (!std::getline(file, group)) return std::nullopt;
  const std::size_t end = group.rfind(' ');
  if (end == group.npos || checksum_of(group.substr(0, end)) != group.substr(end + 1))
    return std::nullopt;
  std::istringstream fields(group);
  SavedMark found;
  std::string magic, store;
  HighWaterMark& high_water_mark = found.high_water_mark;
  std::string kind, hash, job;
  fields >> magic >> store >> found.timeline;
  if (magic == kFirstMagic) {
    fields >> high_water_mark.epoch >> high_water_mark.last_seq >> job;
    high_water_mark.job = JobId(job);
  } else if (magic == kMagic && fields >> kind && kind == "audit") {
    fields >> high_water_mark.audit.seq >> hash;
    const auto read = hash_from_hex(hash);
    if (!read) return std::nullopt;
    high_water_mark.audit.hash = *read;
  } else if (magic == kMagic) {
    fields >> high_water_mark.number >> high_water_mark.epoch >> high_water_mark.last_seq >> job;
    high_water_mark.job = JobId(job);
  } else {
    return std::nullopt;
  }
  if (!fields || store != store_id_) return std::nullopt;
  return found;
}

// Best effort: the file is a lower bound, and a failed save is repeated later or not at all.
// Processes that share a folder overwrite each other's mark; each mark is valid.
void RollbackGuard::save() {
  std::string text;
  {
    const std::lock_guard lock(mutex_);
    if (path_.empty() || !changed_ || !saved_) return;
    changed_ = false;
    const auto& [timeline, high_water_mark] = *saved_;
    text = fmt::format("{} {} {}", kMagic, store_id_, timeline);
    if (high_water_mark.job.empty()) {
      text += fmt::format(" audit {} {}", high_water_mark.audit.seq,
                          to_hex(high_water_mark.audit.hash));
    } else {
      text += fmt::format(" job {} {} {} {}", high_water_mark.number, high_water_mark.epoch,
                          high_water_mark.last_seq, high_water_mark.job.text);
    }
  }
  text += fmt::format(" {}\n", checksum_of(text));
  const std::string part = fmt::format("{}.{}", path_, ::getpid());
  const int fd = ::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return;
  const bool written = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
                       ::fsync(fd) == 0;
  ::close(fd);
  if (!written || std::rename(part.c_str(), path_.c_str()) != 0) ::unlink(part.c_str());
}

Pg<void> finish_accepting(Connection& connection) {
  connection.add_unprepared("BEGIN");
  // Locks a row even if `accepting` is already deleted, so that a retry also waits for the standby.
  connection.add_unprepared("SELECT value FROM meta WHERE key = 'store_id' FOR UPDATE");
  connection.add_unprepared("DELETE FROM meta WHERE key = 'accepting'");
  connection.add_unprepared("COMMIT");
  AE_TRY(connection.run());
  return {};
}

}  // namespace ae::store::postgres
