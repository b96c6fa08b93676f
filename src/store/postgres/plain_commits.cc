#include "store/postgres/plain_commits.h"

#include <algorithm>
#include <string_view>
#include <variant>

#include "store/rules.h"

namespace ae::store::postgres {
namespace {

using Type = Column::Type;

// The job keeps its row of `heads`. The division by zero undoes the statement if a row does not
// match.
constexpr Statement kPutPlainCommits{
    "put_plain_commits",
    "WITH w AS (SELECT * FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], "
    "$5::bigint[], $6::bytea[], $7::bytea[]) "
    "AS w(job, attempt, expected_seq, last_seq, updated_at, head, body)), "
    "written AS (UPDATE log_ends e SET last_seq = w.last_seq, updated_at = w.updated_at, "
    "head = w.head FROM w WHERE e.job = w.job AND e.attempt = w.attempt "
    "AND e.last_seq = w.expected_seq RETURNING w.job, w.expected_seq, w.last_seq, w.body), "
    "appended AS (INSERT INTO commits(job, first_seq, last_seq, body) "
    "SELECT job, expected_seq + 1, last_seq, body FROM written RETURNING 1) "
    "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint "
    "/ (count(*) = cardinality($1::bigint[]))::int FROM appended"};

constexpr std::string_view kDivisionByZero = "22012", kUniqueViolation = "23505";

const Fence& fence_of(const Batch& batch) { return std::get<Batch::Leased>(batch.authority).fence; }

}  // namespace

bool is_same(const RowState& a, const RowState& b) {
  return a.status == b.status && a.not_before == b.not_before && a.wake_at == b.wake_at &&
         a.pending == b.pending;
}

bool PlainCommits::is_plain(const Batch& batch, const WrittenRow& written) {
  return std::holds_alternative<Batch::Leased>(batch.authority) && batch.sealed &&
         batch.sealed->blobs.empty() && batch.effects.empty() && batch.effects_absent.empty() &&
         batch.ledger_put.empty() && batch.ledger_erase.empty() && batch.inbox_consumed.empty() &&
         batch.inbox_replies.empty() && batch.inbox_puts.empty() && !batch.inbox_read_through &&
         !batch.release && !batch.signed_head && !batch.summary && !batch.checkpoint &&
         !batch.audit && fence_of(batch) == written.fence && is_same(batch.row, written.row);
}

Pg<std::optional<Instant>> PlainCommits::write(Connection& connection) {
  // Sorted, as a Transaction locks them: writers wait for each other in one direction.
  std::ranges::sort(commits_, {}, &Commit::job);
  Column jobs(Type::integer), attempts(Type::text), expected(Type::integer), lasts(Type::integer),
      updated(Type::integer), heads(Type::bytes), bodies(Type::bytes);
  for (const auto& [job, batch] : commits_) {
    const SealedBatch& sealed = *batch->sealed;
    jobs.add(job);
    attempts.add(fence_of(*batch).attempt.text);
    expected.add(batch->expected_seq);
    lasts.add(sealed.last_seq);
    updated.add(sealed.created_at);
    heads.add(sealed.head);
    bodies.add(std::string_view(sealed.bytes));
  }
  connection.add(
      kPutPlainCommits,
      Params().add(jobs).add(attempts).add(expected).add(lasts).add(updated).add(heads).add(
          bodies));
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
