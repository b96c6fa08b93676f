#include "store/postgres/views.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "store/lines.h"
#include "store/log_window.h"
#include "store/postgres/statements.h"
#include "store/rules.h"

namespace ae::store::postgres {
namespace {

using Type = Column::Type;

// NOLINTBEGIN(cppcoreguidelines-macro-usage): pieces of SQL, put together by the compiler
#define ROW_COLUMNS                                                                             \
  "SELECT j.number, j.job_id, j.agent, h.status, j.idempotency_key, j.priority, j.created_at, " \
  "e.updated_at, e.last_seq, e.head, h.not_before, h.wake_at, h.epoch, h.attempt, h.held_by, "  \
  "h.lease_until, array_to_string(j.capabilities, E'\\n'), h.queue, h.pending, "                \
  "j.forked_from, s.error, s.body, s.kind, s.cost_micros, s.changed_at "                        \
  "FROM jobs j JOIN heads h ON h.job = j.number JOIN log_ends e ON e.job = j.number LEFT JOIN " \
  "summaries s ON s.job = j.number "
#define JOB_NUMBER "(SELECT number FROM jobs WHERE job_id = $1::text)"
#define TIME                      \
  "(SELECT coalesce($1::bigint, " \
  "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint))"
// NOLINTEND(cppcoreguidelines-macro-usage)

constexpr Statement kLoadRow{"load_row", ROW_COLUMNS "WHERE j.job_id = $1::text"};
constexpr Statement kLoadOldest{
    "load_oldest", ROW_COLUMNS "WHERE j.number > $1::bigint ORDER BY j.number LIMIT $2::bigint"};
constexpr Statement kLoadLabels{
    "load_labels", "SELECT key, value FROM labels WHERE job = " JOB_NUMBER " ORDER BY number"};
constexpr Statement kLoadRequest{"load_request",
                                 "SELECT request_hash FROM jobs WHERE job_id = $1::text"};
constexpr Statement kLoadEffects{
    "load_effects", "SELECT invocation, try, record FROM effects WHERE job = " JOB_NUMBER
                    " ORDER BY invocation, try"};
constexpr Statement kLoadLedger{
    "load_ledger", "SELECT invocation, try, state, record FROM ledger WHERE job = " JOB_NUMBER
                   " ORDER BY invocation, try"};
constexpr Statement kInboxEntry{
    "inbox_entry",
    "SELECT EXISTS (SELECT 1 FROM inbox WHERE job = j.number AND id = $2::text), "
    "(SELECT reply FROM inbox_replies WHERE job = j.number AND id = $2::text) "
    "FROM jobs j WHERE job_id = $1::text"};
constexpr Statement kLoadInbox{
    "load_inbox", "SELECT number, id, act FROM inbox WHERE job = " JOB_NUMBER " ORDER BY number"};
constexpr Statement kLoadSignedHead{"load_signed_head",
                                    "SELECT body FROM signed_heads WHERE job = " JOB_NUMBER};
constexpr Statement kLoadCheckpoint{"load_checkpoint",
                                    "SELECT seq, body FROM checkpoints WHERE job = " JOB_NUMBER};
// From the commit that contains the event; 0 = from the checkpoint.
constexpr Statement kLoadCommits{
    "load_commits",
    "WITH from_seq AS MATERIALIZED (SELECT CASE WHEN $2::bigint > 0 THEN $2::bigint ELSE "
    "coalesce((SELECT seq FROM checkpoints WHERE job = " JOB_NUMBER
    "), 0) + 1 END AS seq) "
    "SELECT body, blobs FROM commits WHERE job = " JOB_NUMBER
    " AND first_seq >= coalesce((SELECT c.first_seq FROM commits c WHERE c.job = " JOB_NUMBER
    " AND c.first_seq <= (SELECT seq FROM from_seq) ORDER BY c.first_seq DESC LIMIT 1), 0) "
    "AND last_seq >= (SELECT seq FROM from_seq) ORDER BY first_seq"};
constexpr Statement kLoadFirst{
    "load_first", "SELECT body, blobs FROM commits WHERE job = " JOB_NUMBER " AND first_seq = 1"};
// The commits of a window without their bytes: those that end after an event, and those that begin
// before one.
constexpr Statement kSpansAfter{
    "spans_after",
    "SELECT first_seq, last_seq, octet_length(body)::bigint FROM commits "
    "WHERE job = " JOB_NUMBER
    " AND first_seq >= coalesce((SELECT c.first_seq FROM commits c WHERE c.job = " JOB_NUMBER
    " AND c.first_seq <= $2::bigint + 1 "
    "ORDER BY c.first_seq DESC LIMIT 1), 0) "
    "AND last_seq > $2::bigint ORDER BY first_seq LIMIT $3::bigint"};
constexpr Statement kSpansBefore{
    "spans_before",
    "SELECT first_seq, last_seq, octet_length(body)::bigint FROM commits "
    "WHERE job = " JOB_NUMBER
    " AND first_seq < $2::bigint ORDER BY first_seq DESC LIMIT $3::bigint"};
constexpr Statement kWindow{"window", "SELECT body, blobs FROM commits WHERE job = " JOB_NUMBER
                                      " AND first_seq >= $2::bigint AND first_seq <= $3::bigint "
                                      "ORDER BY first_seq"};
constexpr Statement kPreceding{"preceding", "SELECT body FROM commits WHERE job = " JOB_NUMBER
                                            " AND first_seq < $2::bigint "
                                            "ORDER BY first_seq DESC LIMIT 1"};
constexpr Statement kLoadBlobs{"load_blobs",
                               "SELECT hash, bytes FROM blobs WHERE hash = ANY($1::bytea[])"};
constexpr Statement kJobNumber{"job_number", "SELECT number FROM jobs WHERE job_id = $1::text"};
constexpr Statement kLabelsOf{"labels_of",
                              "SELECT job, key, value FROM labels WHERE job = ANY($1::bigint[]) "
                              "ORDER BY job, number"};
constexpr Statement kDue{"due",
                         "SELECT (SELECT job_id FROM jobs WHERE number = heads.job) "
                         "FROM heads WHERE wake_at IS NOT NULL AND attempt IS NULL "
                         "AND wake_at <= " TIME " ORDER BY wake_at, job LIMIT $2::bigint"};
constexpr Statement kNextDue{
    "next_due",
    "SELECT least("
    "(SELECT wake_at FROM heads WHERE wake_at IS NOT NULL AND attempt IS NULL "
    "ORDER BY wake_at LIMIT 1), "
    "(SELECT ripe_at FROM heads WHERE NOT ready AND ripe_at IS NOT NULL AND attempt IS NULL "
    "AND ripe_at > " TIME " ORDER BY ripe_at LIMIT 1))"};

#undef JOB_NUMBER
#undef TIME

constexpr const char* kRowColumns = ROW_COLUMNS;

#undef ROW_COLUMNS

JobRow row_of(const Rows& rows, int i) {
  JobRow job;
  job.id = JobId(rows.text(i, 1));
  job.number = rows.count(i, 0);
  job.agent = rows.text(i, 2);
  job.status = rows.text(i, 3);
  job.idempotency_key = rows.text(i, 4);
  job.priority = rows.integer(i, 5);
  job.created_at = rows.instant(i, 6);
  job.updated_at = rows.instant(i, 7);
  job.last_seq = rows.count(i, 8);
  job.head = rows.hash(i, 9);
  job.not_before = rows.maybe_instant(i, 10);
  job.wake_at = rows.maybe_instant(i, 11);
  if (!rows.is_null(i, 13)) job.claim = Fence{AttemptId(rows.text(i, 13)), rows.count(i, 12)};
  job.claim_worker = rows.text(i, 14);
  job.lease_until = rows.maybe_instant(i, 15);
  job.capabilities = split_lines(rows.bytes(i, 16));
  job.queue = rows.text(i, 17);
  job.pending = static_cast<PendingKinds>(rows.count(i, 18));
  if (!rows.is_null(i, 19)) job.forked_from = rows.text(i, 19);
  if (!rows.is_null(i, 21)) {
    job.summary = Summary{.error = rows.text(i, 20),
                          .kind = rows.text(i, 22),
                          .cost_micros = rows.count(i, 23),
                          .changed_at = rows.instant(i, 24),
                          .body = rows.text(i, 21)};
  }
  return job;
}

Pg<std::vector<JobRow>> with_labels(Connection& connection, const Rows& found) {
  std::vector<JobRow> rows;
  std::unordered_map<std::int64_t, std::size_t> places;
  Column numbers(Type::integer);
  for (int i = 0; i < found.size(); ++i) {
    places[found.integer(i, 0)] = rows.size();
    numbers.add(found.integer(i, 0));
    rows.push_back(row_of(found, i));
  }
  if (rows.empty()) return rows;
  connection.add(kLabelsOf, Params().add(numbers));
  AE_ASSIGN(const auto labels, connection.run());
  for (int i = 0; i < labels[0].size(); ++i) {
    rows[places.at(labels[0].integer(i, 0))].labels.emplace_back(labels[0].text(i, 1),
                                                                 labels[0].text(i, 2));
  }
  return rows;
}

Pg<void> read_blobs(Connection& connection, const std::vector<Hash>& hashes,
                    std::vector<Blob>& into) {
  if (hashes.empty()) return {};
  std::unordered_set<Hash> seen;
  std::vector<Hash> once;
  Column column(Type::bytes);
  for (const Hash& hash : hashes) {
    if (!seen.insert(hash).second) continue;
    once.push_back(hash);
    column.add(hash);
  }
  connection.add(kLoadBlobs, Params().add(column));
  AE_ASSIGN(const auto answers, connection.run());
  std::unordered_map<Hash, int> found;
  for (int i = 0; i < answers[0].size(); ++i) found[answers[0].hash(i, 0)] = i;
  for (const Hash& hash : once) {
    // A missing one is omitted: opening the commit fails with log_corrupt.
    if (const auto it = found.find(hash); it != found.end()) {
      into.push_back({hash, answers[0].text(it->second, 1)});
    }
  }
  return {};
}

}  // namespace

std::vector<Statement> timer_statements() { return {kDue, kNextDue}; }

namespace {

void add_commits(const Rows& rows, std::vector<std::string>& into, std::vector<Hash>& blobs) {
  for (int i = 0; i < rows.size(); ++i) {
    into.push_back(rows.text(i, 0));
    const std::string_view list = rows.bytes(i, 1);
    for (std::size_t at = 0; at + sizeof(Hash) <= list.size(); at += sizeof(Hash)) {
      std::memcpy(blobs.emplace_back().bytes.data(), list.data() + at, sizeof(Hash));
    }
  }
}

Pg<bool> add_blobs(Connection& connection, const std::vector<Hash>& blobs, LoadedJob& into) {
  AE_TRY(read_blobs(connection, blobs, into.blobs));
  return into.blobs.size() == std::unordered_set<Hash>(blobs.begin(), blobs.end()).size();
}

Pg<Result<LoadedJob>> load_first(Connection& connection, const JobId& job, bool& complete) {
  complete = true;
  const Params id = Params().add(job.text);
  connection.add(kBeginSnapshot);
  connection.add(kLoadRow, id);
  connection.add(kLoadFirst, id);
  connection.add(kCommit);
  auto run_result = connection.run();
  if (!run_result) return std::unexpected(connection.roll_back(std::move(run_result).error()));
  const std::vector<Rows>& answers = *run_result;
  if (answers[1].empty()) return Result<LoadedJob>(std::unexpected(job_not_found(job)));
  LoadedJob loaded{.row = row_of(answers[1], 0)};
  std::vector<Hash> blobs;
  add_commits(answers[2], loaded.commits, blobs);
  AE_ASSIGN(complete, add_blobs(connection, blobs, loaded));
  return Result<LoadedJob>(std::move(loaded));
}

// Blobs are read after the snapshot: `complete` = all were found.
Pg<Result<LoadedJob>> load_once(Connection& connection, const JobId& job, std::uint64_t from_seq,
                                bool& complete) {
  if (from_seq == kFirstCommit) return load_first(connection, job, complete);
  complete = true;
  const Params id = Params().add(job.text);
  connection.add(kBeginSnapshot);
  for (const Statement* statement : {&kLoadRow, &kLoadLabels, &kLoadEffects, &kLoadLedger,
                                     &kLoadInbox, &kLoadSignedHead, &kLoadCheckpoint}) {
    connection.add(*statement, id);
  }
  connection.add(kLoadCommits, Params().add(job.text).add(from_seq));
  if (from_seq == 1) connection.add(kLoadRequest, id);
  connection.add(kCommit);
  auto run_result = connection.run();
  if (!run_result) return std::unexpected(connection.roll_back(std::move(run_result).error()));
  const std::vector<Rows>& answers = *run_result;
  if (answers[1].empty()) return Result<LoadedJob>(std::unexpected(job_not_found(job)));
  LoadedJob loaded{.row = row_of(answers[1], 0)};
  for (int i = 0; i < answers[2].size(); ++i) {
    loaded.row.labels.emplace_back(answers[2].text(i, 0), answers[2].text(i, 1));
  }
  for (int i = 0; i < answers[3].size(); ++i) {
    const Rows& r = answers[3];
    loaded.effects.push_back(
        {InvocationId(r.text(i, 0)), static_cast<std::uint32_t>(r.integer(i, 1)), r.text(i, 2)});
  }
  for (int i = 0; i < answers[4].size(); ++i) {
    const Rows& r = answers[4];
    loaded.ledger.push_back({InvocationId(r.text(i, 0)),
                             static_cast<std::uint32_t>(r.integer(i, 1)), r.text(i, 2),
                             r.text(i, 3)});
  }
  for (int i = 0; i < answers[5].size(); ++i) {
    const Rows& r = answers[5];
    loaded.inbox.push_back({r.count(i, 0), r.text(i, 1), r.text(i, 2)});
  }
  if (!answers[6].empty()) loaded.signed_head = answers[6].text(0, 0);
  if (from_seq <= 1 && !answers[7].empty()) {
    loaded.checkpoint = Checkpoint{answers[7].count(0, 0), answers[7].text(0, 1)};
  }
  if (from_seq == 1) loaded.request_hash = answers[9].hash(0, 0);
  std::vector<Hash> blobs;
  add_commits(answers[8], loaded.commits, blobs);
  AE_ASSIGN(complete, add_blobs(connection, blobs, loaded));
  return Result<LoadedJob>(std::move(loaded));
}

}  // namespace

Pg<Result<LoadedJob>> load(Connection& connection, const JobId& job, std::uint64_t from_seq) {
  bool complete = false;
  AE_ASSIGN(auto loaded, load_once(connection, job, from_seq, complete));
  if (complete) return loaded;
  // Deleted or redacted meanwhile: the commits now reference other blobs, or another job has the
  // id.
  return load_once(connection, job, from_seq, complete);
}

namespace {

// The commits of a window, in the transaction that has read their spans.
Pg<void> read_window(Connection& connection, const JobId& job, std::span<const CommitSpan> commits,
                     LogWindow& into) {
  const Params id = Params().add(job.text);
  connection.add(
      kWindow, Params().add(job.text).add(commits.front().first_seq).add(commits.back().first_seq));
  connection.add(kPreceding, Params().add(job.text).add(commits.front().first_seq));
  AE_ASSIGN(const auto answers, connection.run());
  std::vector<Hash> blobs;
  add_commits(answers[0], into.commits, blobs);
  if (!answers[1].empty()) into.preceding = answers[1].text(0, 0);
  return read_blobs(connection, blobs, into.blobs);
}

Pg<Result<LogWindow>> read_spans_and_window(Connection& connection, const JobId& job,
                                            const WindowRequest& window) {
  const bool forwards = window.direction == WindowRequest::Direction::after;
  const std::uint64_t seq = std::min<std::uint64_t>(window.seq, INT64_MAX - 1);
  const Params id = Params().add(job.text);
  connection.add(kBeginSnapshot);
  for (const Statement* statement : {&kLoadRow, &kLoadLabels, &kLoadCheckpoint})
    connection.add(*statement, id);
  connection.add(forwards ? kSpansAfter : kSpansBefore,
                 Params().add(job.text).add(seq).add(window.events_max));
  AE_ASSIGN(const auto answers, connection.run());
  if (answers[1].empty()) return Result<LogWindow>(std::unexpected(job_not_found(job)));
  LogWindow read{.row = row_of(answers[1], 0)};
  for (int i = 0; i < answers[2].size(); ++i) {
    read.row.labels.emplace_back(answers[2].text(i, 0), answers[2].text(i, 1));
  }
  if (window.reads_checkpoint && !answers[3].empty()) {
    read.checkpoint = Checkpoint{answers[3].count(0, 0), answers[3].text(0, 1)};
  }
  const SeqRange range = range_of(window, read.row.last_seq);
  std::vector<CommitSpan> spans;
  for (int i = 0; i < answers[4].size(); ++i) {
    const Rows& rows = answers[4];
    const CommitSpan span{rows.count(i, 0), rows.count(i, 1),
                          static_cast<std::size_t>(rows.count(i, 2))};
    if (!range.empty() && range.overlaps(span)) spans.push_back(span);
  }
  if (!forwards) std::ranges::reverse(spans);
  if (spans.empty() && !range.empty()) {
    return Result<LogWindow>(std::unexpected(commit_missing(job)));
  }
  const auto fitting = fit_window(window, spans);
  if (!fitting.empty()) AE_TRY(read_window(connection, job, fitting, read));
  return Result<LogWindow>(std::move(read));
}

}  // namespace

Pg<Result<LogWindow>> load_window(Connection& connection, const JobId& job,
                                  const WindowRequest& window) {
  auto read = read_spans_and_window(connection, job, window);
  if (!read) return std::unexpected(connection.roll_back(std::move(read).error()));
  connection.add(kCommit);
  if (auto ended = connection.run(); !ended) {
    return std::unexpected(connection.roll_back(std::move(ended).error()));
  }
  return read;
}

Pg<Result<InboxEntryState>> read_inbox_entry(Connection& connection, const JobId& job,
                                             const std::string& id) {
  connection.add(kInboxEntry, Params().add(job.text).add(id));
  AE_ASSIGN(const auto answers, connection.run());
  const Rows& rows = answers[0];
  if (rows.empty()) return Result<InboxEntryState>(std::unexpected(job_not_found(job)));
  InboxEntryState state{.pending = rows.boolean(0, 0), .reply = {}};
  if (!rows.is_null(0, 1)) state.reply = rows.text(0, 1);
  return Result<InboxEntryState>(std::move(state));
}

Pg<Result<std::vector<JobRow>>> query(Connection& connection, const Filter& filter) {
  Params params;
  int count = 0;
  std::string sql = fmt::format("{}WHERE true", kRowColumns);
  const auto next = [&](const auto& value, const char* type) {
    params.add(value);
    return fmt::format("${}::{}", ++count, type);
  };
  const bool by_change = filter.order == JobOrder::changed;
  if (by_change) sql += " AND s.changed_at IS NOT NULL";
  if (by_change && filter.after_number) {
    sql +=
        fmt::format(" AND (s.changed_at, s.job) < ({}, ", next(*filter.after_changed_at, "bigint"));
    sql += fmt::format("{})", next(*filter.after_number, "bigint"));
  } else if (filter.after_number) {
    sql += fmt::format(" AND j.number < {}", next(*filter.after_number, "bigint"));
  } else if (!filter.after.empty()) {
    connection.add(kJobNumber, Params().add(filter.after));
    AE_ASSIGN(const auto answers, connection.run());
    if (answers[0].empty()) {
      return Result<std::vector<JobRow>>(std::unexpected(job_not_found(JobId(filter.after))));
    }
    sql += fmt::format(" AND j.number < {}", next(answers[0].integer(0, 0), "bigint"));
  }
  const auto equals = [&](const char* column, const std::string& value) {
    if (!value.empty()) sql += fmt::format(" AND {} = {}", column, next(value, "text"));
  };
  const auto compares = [&](const char* condition, const std::optional<Instant>& time) {
    if (time) sql += fmt::format(" AND {} {}", condition, next(*time, "bigint"));
  };
  if (!filter.statuses.empty()) {
    std::string in;
    for (const std::string& status : filter.statuses) {
      in += (in.empty() ? "" : ", ") + next(status, "text");
    }
    sql += fmt::format(" AND h.status IN ({})", in);
    const bool open = std::ranges::find(filter.statuses, "completed") == filter.statuses.end();
    if (open) sql += " AND h.status <> 'completed'";  // for the index
  }
  equals("j.agent", filter.agent);
  equals("h.queue", filter.queue);
  equals("s.error", filter.error);
  if (!filter.error.empty()) sql += " AND s.error <> ''";  // for the index
  equals("s.kind", filter.kind);
  if (!filter.kind.empty() && filter.kind != kPlanKind) sql += " AND s.kind <> 'plan'";  // as above
  if (filter.cost_min > 0) {
    sql += " AND j.number IN (SELECT job FROM summaries WHERE cost_micros > 0 AND cost_micros >= " +
           next(filter.cost_min, "bigint") + ")";
  }
  equals("j.forked_from", filter.forked_from);
  if (!filter.forked_from.empty()) sql += " AND j.forked_from <> ''";  // for the index
  compares("j.created_at >=", filter.created_from);
  compares("j.created_at <", filter.created_before);
  compares("e.updated_at >=", filter.updated_from);
  compares("e.updated_at <", filter.updated_before);
  if (filter.pending != 0) {  // the first condition is for the index
    sql += fmt::format(" AND h.pending <> 0 AND h.pending & {} <> 0",
                       next(std::uint64_t{filter.pending | pending::not_computed}, "bigint"));
  }
  for (const auto& [key, value] : filter.labels) {
    sql +=
        fmt::format(" AND j.number IN (SELECT job FROM labels WHERE key = {}", next(key, "text"));
    sql += fmt::format(" AND value = {})", next(value, "text"));
  }
  sql += by_change ? " ORDER BY s.changed_at DESC, s.job DESC" : " ORDER BY j.number DESC";
  sql += fmt::format(" LIMIT {}", next(std::uint64_t{filter.limit}, "bigint"));
  connection.add_unprepared(sql, params);
  AE_ASSIGN(const auto answers, connection.run());
  AE_ASSIGN(auto rows, with_labels(connection, answers[0]));
  return Result<std::vector<JobRow>>(std::move(rows));
}

Pg<EndedPage> list_ended(Connection& connection, const EndedFilter& filter) {
  connection.add(kLoadOldest, Params().add(filter.after).add(std::uint64_t{kEndedScanMax}));
  AE_ASSIGN(const auto answers, connection.run());
  AE_ASSIGN(auto rows, with_labels(connection, answers[0]));
  return make_ended_page(std::move(rows), filter);
}

Pg<std::vector<JobId>> list_due(Connection& connection, std::size_t limit,
                                std::optional<Instant> at, DatabaseClock& clock) {
  connection.add(kServerTime);
  connection.add(kDue, Params().add(at).add(std::uint64_t{limit}));
  const Duration sent_at = clock.before_request();
  AE_ASSIGN(const auto answers, connection.run());
  clock.on_response(answers[0].instant(0, 0), sent_at);
  std::vector<JobId> jobs;
  jobs.reserve(static_cast<std::size_t>(answers[1].size()));
  for (int i = 0; i < answers[1].size(); ++i) jobs.emplace_back(answers[1].text(i, 0));
  return jobs;
}

Pg<std::optional<Instant>> next_due(Connection& connection, std::optional<Instant> at,
                                    DatabaseClock& clock) {
  connection.add(kServerTime);
  connection.add(kNextDue, Params().add(at));
  const Duration sent_at = clock.before_request();
  AE_ASSIGN(const auto answers, connection.run());
  clock.on_response(answers[0].instant(0, 0), sent_at);
  return answers[1].maybe_instant(0, 0);
}

Pg<void> read_database_time(Connection& connection, DatabaseClock& clock) {
  connection.add(kServerTime);
  const Duration sent_at = clock.before_request();
  AE_ASSIGN(const auto answers, connection.run());
  clock.on_response(answers[0].instant(0, 0), sent_at);
  return {};
}

}  // namespace ae::store::postgres
