#include "store/postgres/plain_commits.h"

#include <algorithm>
#include <string_view>
#include <variant>

#include "store/rules.h"

namespace ae::store::postgres {
namespace {

using Type = Column::Type;

// A leased job that stays runnable keeps `ready` and `ripe_at`. The division by zero undoes the
// statement if a row does not match.
constexpr Statement kPutPlainCommits{
    "put_plain_commits",
    "WITH w AS (SELECT * FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], "
    "$5::bigint[], $6::bigint[], $7::bytea[], $8::text[], $9::bigint[], $10::bigint[], "
    "$11::bigint[], $12::bytea[]) AS w(job, attempt, epoch, expected_seq, last_seq, updated_at, "
    "head, status, not_before, wake_at, pending, body)), "
    "written AS (UPDATE heads h SET last_seq = w.last_seq, updated_at = w.updated_at, "
    "head = w.head, status = w.status, not_before = w.not_before, wake_at = w.wake_at, "
    "pending = w.pending FROM w WHERE h.job = w.job AND h.attempt = w.attempt "
    "AND h.epoch = w.epoch AND h.last_seq = w.expected_seq "
    "RETURNING w.job, w.expected_seq, w.last_seq, w.body), "
    "appended AS (INSERT INTO commits(job, first_seq, last_seq, body) "
    "SELECT job, expected_seq + 1, last_seq, body FROM written RETURNING 1) "
    "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint "
    "/ (count(*) = cardinality($1::bigint[]))::int FROM appended"};

constexpr std::string_view kDivisionByZero = "22012", kUniqueViolation = "23505";

const Fence& fence_of(const Batch& batch) { return std::get<Batch::Leased>(batch.authority).fence; }

}  // namespace

bool PlainCommits::is_plain(const Batch& batch) {
  return std::holds_alternative<Batch::Leased>(batch.authority) && batch.sealed &&
         batch.sealed->blobs.empty() && batch.effects.empty() && batch.effects_absent.empty() &&
         batch.ledger_put.empty() && batch.ledger_erase.empty() && batch.inbox_consumed.empty() &&
         batch.inbox_replies.empty() && !batch.inbox_read_through && !batch.release &&
         !batch.signed_head && !batch.summary && !batch.checkpoint && !batch.audit &&
         is_runnable(batch.row.status);
}

Pg<std::optional<Instant>> PlainCommits::write(Connection& connection) {
  // Sorted, as a Transaction locks them: writers wait for each other in one direction.
  std::ranges::sort(commits_, {}, &Commit::job);
  Column jobs(Type::integer), attempts(Type::text), epochs(Type::integer), expected(Type::integer),
      lasts(Type::integer), updated(Type::integer), heads(Type::bytes), statuses(Type::text),
      not_before(Type::integer), wake_at(Type::integer), pending(Type::integer),
      bodies(Type::bytes);
  for (const auto& [job, batch] : commits_) {
    const Fence& fence = fence_of(*batch);
    const SealedBatch& sealed = *batch->sealed;
    jobs.add(job);
    attempts.add(fence.attempt.text);
    epochs.add(fence.epoch);
    expected.add(batch->expected_seq);
    lasts.add(sealed.last_seq);
    updated.add(sealed.created_at);
    heads.add(sealed.head);
    statuses.add(batch->row.status);
    not_before.add(batch->row.not_before);
    wake_at.add(batch->row.wake_at);
    pending.add(std::uint64_t{batch->row.pending});
    bodies.add(std::string_view(sealed.bytes));
  }
  connection.add(kPutPlainCommits, Params()
                                       .add(jobs)
                                       .add(attempts)
                                       .add(epochs)
                                       .add(expected)
                                       .add(lasts)
                                       .add(updated)
                                       .add(heads)
                                       .add(statuses)
                                       .add(not_before)
                                       .add(wake_at)
                                       .add(pending)
                                       .add(bodies));
  const auto answers = connection.run();
  if (answers) return answers->at(0).instant(0, 0);
  const std::string& sqlstate = answers.error().sqlstate;
  if (sqlstate == kDivisionByZero || sqlstate == kUniqueViolation) return std::nullopt;
  return std::unexpected(answers.error());
}

HighWaterMark PlainCommits::high_water_mark() const {
  const auto& [job, batch] = commits_.front();
  return {.job = batch->job,
          .number = static_cast<std::uint64_t>(job),
          .epoch = fence_of(*batch).epoch,
          .last_seq = batch->sealed->last_seq,
          .audit = {}};
}

}  // namespace ae::store::postgres
