#include "store/postgres/writer.h"

#include <fmt/core.h>

#include <algorithm>
#include <span>
#include <unordered_set>
#include <utility>

#include "store/postgres/statements.h"

namespace ae::store::postgres {
namespace {

constexpr std::size_t kWrittenRowsMax = 100'000;

Error outcome_unknown(const PgError& error) {
  return {Code::unknown_outcome,
          fmt::format("the connection was lost while a commit was under way ({}): its outcome is "
                      "unknown; reload before you retry",
                      error.text())};
}

}  // namespace

Writer::Writer(async::Loop& loop, Session session, DatabaseClock& clock, std::string channel,
               const WriterLimits& limits)
    : session_(std::move(session)), clock_(clock), channel_(std::move(channel)), limits_(limits) {
  group_writer_ = std::make_unique<Thread>(
      loop, *this, GroupLimits{.writes = limits_.group_writes, .bytes = limits_.group_bytes});
}

bool Writer::may_split(const Attempt& attempt) const {
  return attempt.outcome == CommitOutcome::nothing && !attempt.connection_lost &&
         session_.is_open();
}

void Writer::on_written(const Group& group) {
  stats_.writes += group.size();
  stats_.groups += 1;
  stats_.reconnects = session_.reconnects();
}

// Retries when nothing has happened and a retry can succeed: after a conflict with another
// transaction, or once if the connection was already dead (a restarted server).
Writer::Attempt Writer::attempt(const Group& group, std::size_t first, std::size_t count) {
  bool reconnects = false;
  for (int tries = 1;; ++tries) {
    const bool was_open = session_.is_open();
    Attempt tried = attempt_once(group, first, count);
    if (tried.outcome == CommitOutcome::conflict && tries < limits_.tries) {
      stats_.retried += 1;
      continue;
    }
    if (tried.outcome == CommitOutcome::nothing && tried.connection_lost && was_open &&
        !std::exchange(reconnects, true)) {
      continue;
    }
    return tried;
  }
}

Writer::Attempt Writer::attempt_once(const Group& group, std::size_t first, std::size_t count) {
  auto opened = session_.connection();
  if (!opened) return {CommitOutcome::nothing, std::move(opened).error(), true};
  Connection& connection = **opened;
  backend_pid_ = connection.backend_pid();
  if (group[first]->is_standalone()) return run_standalone(connection, *group[first]);
  if (auto plain = run_plain(connection, group, first, count)) return *std::move(plain);
  return run_group(connection, group, first, count);
}

bool Writer::is_plain(const Write& write) const {
  const Batch* const batch = write.batch();
  if (batch == nullptr) return false;
  const auto written = written_rows_.find(batch->job);
  return written != written_rows_.end() && PlainCommits::is_plain(*batch, written->second);
}

// The plain commits that are the first commit of their job in the group, then all other writes.
std::vector<Writer::Group> Writer::divide(Group group) const {
  Group plain, others;
  std::unordered_set<JobId> jobs;
  for (std::unique_ptr<Write>& write : group) {
    const bool is_first = write->batch() != nullptr && jobs.insert(write->batch()->job).second;
    (is_first && is_plain(*write) ? plain : others).push_back(std::move(write));
  }
  std::vector<Group> groups;
  for (Group* part : {&plain, &others}) {
    if (!part->empty()) groups.push_back(std::move(*part));
  }
  return groups;
}

// nullopt: nothing was written, a transaction must decide these writes.
std::optional<Writer::Attempt> Writer::run_plain(Connection& connection, const Group& group,
                                                 std::size_t first, std::size_t count) {
  const std::span writes(group.begin() + static_cast<std::ptrdiff_t>(first), count);
  if (!std::ranges::all_of(writes, [&](const auto& write) { return is_plain(*write); }))
    return std::nullopt;
  PlainCommits commits;
  for (const auto& write : writes) {
    write->decide_plain(commits, written_rows_.at(write->batch()->job).number);
  }
  if (commits.empty()) return Attempt{.outcome = CommitOutcome::committed};
  const Duration sent_at = clock_.before_request();
  const auto written_at = commits.write(connection);
  if (!written_at) {
    return failed(connection, written_at.error(), written_at.error().may_be_committed);
  }
  if (!*written_at) return std::nullopt;
  clock_.on_response(**written_at, sent_at);
  if (session_.rollback_guard() != nullptr)
    session_.rollback_guard()->record_write(commits.high_water_mark());
  stats_.plain += commits.size();
  return Attempt{.outcome = CommitOutcome::committed};
}

Writer::Attempt Writer::run_standalone(Connection& connection, Write& write) {
  if (const auto done = write.run_standalone(connection); !done) {
    // Claims that may have been committed belong to attempts that nothing runs: their leases
    // expire.
    return failed(connection, done.error(), done.error().may_be_committed);
  }
  if (const auto high_water_mark = write.high_water_mark();
      high_water_mark && session_.rollback_guard() != nullptr) {
    session_.rollback_guard()->record_write(*high_water_mark);
  }
  return {CommitOutcome::committed, {}, false};
}

Writer::Attempt Writer::run_group(Connection& connection, const Group& group, std::size_t first,
                                  std::size_t count) {
  Transaction transaction;
  for (std::size_t i = first; i < first + count; ++i) group[i]->declare_reads(transaction);
  const Duration sent_at = clock_.before_request();
  if (const auto read = transaction.read(connection); !read) {
    return failed(connection, read.error(), false);
  }
  clock_.on_response(transaction.now(), sent_at);
  for (std::size_t i = first; i < first + count; ++i) group[i]->decide(transaction);
  const std::size_t commit = transaction.send(connection);
  if (!transaction.hints().empty()) {
    add_notify(connection, channel_, transaction.hints().texts());
  }
  const auto done = connection.run();
  const bool is_committed =
      done || done.error().failed_statement > commit;  // or only the notification failed
  if (const auto high_water_mark = transaction.high_water_mark();
      is_committed && high_water_mark && session_.rollback_guard() != nullptr) {
    session_.rollback_guard()->record_write(*high_water_mark);
  }
  if (!is_committed) {
    // The rows may have been written.
    if (done.error().may_be_committed) written_rows_.clear();
    return failed(connection, done.error(), done.error().may_be_committed);
  }
  if (written_rows_.size() > kWrittenRowsMax) written_rows_.clear();
  transaction.update(written_rows_);
  return {CommitOutcome::committed, {}, false};
}

Writer::Attempt Writer::failed(Connection& connection, const PgError& error,
                               bool may_be_committed) {
  if (may_be_committed) return {CommitOutcome::unknown, outcome_unknown(error), true};
  if (error.connection_lost) return {CommitOutcome::nothing, unavailable_error(error), true};
  connection.add(kRollback);
  const bool undone = connection.run().has_value();
  if (!undone) session_.disconnect();
  return {error.is_transient() ? CommitOutcome::conflict : CommitOutcome::nothing,
          unavailable_error(error), !undone};
}

void Writer::finish(Write& write, const Attempt& attempt) {
  if (attempt.outcome == CommitOutcome::committed) return write.committed();
  write.fail(attempt.error);
}

}  // namespace ae::store::postgres
