#include "store/sqlite/reader.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "log/field_names.h"
#include "store/lines.h"
#include "store/rules.h"
#include "store/sqlite/audit_table.h"

namespace ae::store::sqlite {
namespace {

constexpr std::size_t kReadBytes = 4u << 20;  // read in one transaction

constexpr std::int64_t kMissing = -1;  // no commit has this number

constexpr std::string_view kRowColumns =
    "SELECT jobs.id, job_id, agent, status, idempotency_key, priority, created_at, updated_at, "
    "last_seq, head, not_before, wake_at, epoch, attempt, worker, lease_until, last_commit, "
    "capabilities, queue, pending, forked_from, summaries.error, summaries.body, summaries.kind, "
    "summaries.cost_micros, summaries.changed_at "
    "FROM jobs JOIN heads ON heads.job = jobs.id ";

// The rows of jobs. `join`: "JOIN" leaves out those without a summary.
std::string select_rows(std::string_view join = "LEFT JOIN") {
  return std::string(kRowColumns) + std::string(join) + " summaries ON summaries.job = jobs.id ";
}

// Most jobs are of the kind `plan`, which has no index.
bool is_indexed_kind(const Filter& filter) {
  return !filter.kind.empty() && filter.kind != kPlanKind;
}

// `<> ''`, `<> 'plan'` and `> 0` are for the indexes.
void add_summary_conditions(const Filter& filter, const auto& equals, std::string& sql) {
  if (!filter.error.empty()) {
    equals("summaries.error", filter.error);
    sql += " AND summaries.error <> ''";
  }
  if (is_indexed_kind(filter)) {
    equals("summaries.kind", filter.kind);
    sql += " AND summaries.kind <> 'plan'";
  } else if (!filter.kind.empty()) {
    equals("ifnull(summaries.kind, '')", filter.kind);
  }
  if (filter.cost_min > 0) {
    sql += " AND jobs.id IN (SELECT job FROM summaries WHERE cost_micros > 0 AND cost_micros >= " +
           std::to_string(filter.cost_min) + ")";
  }
}

}  // namespace

Snapshot::~Snapshot() {
  if (!open_) return;
  // Nothing was written, so a failed end loses nothing.
  [[maybe_unused]] const auto done = end_.run();
}

Sql<void> Snapshot::open() {
  AE_TRY(begin_.run());
  open_ = true;
  return {};
}

Sql<ReadStatements> ReadStatements::open(Database db) {
  ReadStatements v(std::move(db));
  AE_TRY(v.db_.execute("PRAGMA query_only = ON"));
  struct StatementSpec {
    Statement& statement;
    std::string sql;
  };
  const StatementSpec specs[] = {
      {v.begin_, "BEGIN"},
      {v.end_, "COMMIT"},
      {v.find_, fmt::format("{}WHERE job_id = ?1", select_rows())},
      {v.labels_, "SELECT key, value FROM labels WHERE job = ?1 ORDER BY number"},
      {v.commit_,
       "SELECT job, first_seq, last_seq, prev, jump, blobs, body FROM commits WHERE id = ?1"},
      {v.commit_span_,
       "SELECT job, first_seq, last_seq, prev, jump, length(body) FROM commits WHERE id = ?1"},
      {v.blob_, "SELECT bytes FROM blobs WHERE hash = ?1"},
      {v.effects_,
       "SELECT invocation, try, record FROM effects WHERE job = ?1 ORDER BY invocation, try"},
      {v.ledger_,
       "SELECT invocation, try, state, record FROM ledger WHERE job = ?1 ORDER BY invocation, try"},
      {v.inbox_, "SELECT number, id, act FROM inbox WHERE job = ?1 ORDER BY number"},
      {v.inbox_entry_,
       "SELECT EXISTS (SELECT 1 FROM inbox WHERE job = jobs.id AND id = ?2), "
       "(SELECT reply FROM inbox_replies WHERE job = jobs.id AND id = ?2) "
       "FROM jobs WHERE job_id = ?1"},
      {v.signed_head_, "SELECT body FROM signed_heads WHERE job = ?1"},
      {v.request_,
       "SELECT request_hash, commits FROM jobs JOIN heads ON heads.job = jobs.id WHERE jobs.id = "
       "?1"},
      {v.checkpoint_, "SELECT seq, body FROM checkpoints WHERE job = ?1"},
      {v.due_,
       "SELECT job_id FROM jobs WHERE wake_at IS NOT NULL AND attempt IS NULL AND wake_at <= ?1 "
       "ORDER BY wake_at, id LIMIT ?2"},
      {v.next_wake_,
       "SELECT wake_at FROM jobs WHERE wake_at IS NOT NULL AND attempt IS NULL "
       "ORDER BY wake_at LIMIT 1"},
      {v.next_eligible_,
       "SELECT ripe_at FROM jobs WHERE ready = 0 AND ripe_at IS NOT NULL AND ripe_at > ?1 "
       "AND attempt IS NULL ORDER BY ripe_at LIMIT 1"},
      {v.number_, "SELECT id FROM jobs WHERE job_id = ?1"},
      {v.job_exists_, "SELECT 1 FROM jobs WHERE id = ?1"},
  };
  for (const StatementSpec& spec : specs) {
    AE_ASSIGN(spec.statement, v.db_.prepare(spec.sql));
  }
  return v;
}

Sql<JobRow> ReadStatements::read_row(Statement& row) {
  JobRow job;
  const std::int64_t id = row.integer(0);
  job.id = JobId(row.text(1));
  job.number = static_cast<std::uint64_t>(id);
  job.agent = row.text(2);
  job.status = row.text(3);
  job.idempotency_key = row.text(4);
  job.priority = row.integer(5);
  job.created_at = row.instant(6);
  job.updated_at = row.instant(7);
  job.last_seq = row.count(8);
  job.head = row.hash(9);
  job.not_before = row.maybe_instant(10);
  job.wake_at = row.maybe_instant(11);
  if (!row.is_null(13)) job.claim = Fence{AttemptId(row.text(13)), row.count(12)};
  job.claim_worker = row.text(14);
  job.lease_until = row.maybe_instant(15);
  job.capabilities = split_lines(row.text(17));
  job.queue = row.text(18);
  job.pending = static_cast<PendingKinds>(row.count(19));
  if (!row.is_null(20)) job.forked_from = row.text(20);
  if (!row.is_null(22)) {
    job.summary = Summary{.error = row.text(21),
                          .kind = row.text(23),
                          .cost_micros = row.count(24),
                          .changed_at = row.instant(25),
                          .body = row.text(22)};
  }
  Rows label(labels_, id);
  for (;;) {
    AE_ASSIGN(const bool found, label.next());
    if (!found) return job;
    job.labels.emplace_back(label->text(0), label->text(1));
  }
}

Sql<std::optional<ReadStatements::JobLocation>> ReadStatements::find(const JobId& job) {
  Rows row(find_, job.text);
  AE_ASSIGN(const bool found_row, row.next());
  if (!found_row) return std::nullopt;
  JobLocation found{.id = row->integer(0), .last_commit = row->integer(16), .row = {}};
  AE_ASSIGN(found.row, read_row(find_));
  return found;
}

Sql<Result<LoadedJob>> ReadStatements::load(const JobId& job, std::uint64_t from_seq) {
  if (from_seq == kFirstCommit) return load_first(job);
  return load(job, from_seq, 2);
}

Sql<Result<LoadedJob>> ReadStatements::load_first(const JobId& job) {
  LoadedJob loaded;
  {
    Snapshot snapshot(begin_, end_);
    AE_TRY(snapshot.open());
    AE_ASSIGN(const auto found, find(job));
    if (!found) return Result<LoadedJob>(std::unexpected(job_not_found(job)));
    loaded.row = found->row;
    AE_ASSIGN(const bool found_row, read_first(*found, loaded));
    if (found_row) return Result<LoadedJob>(std::move(loaded));
  }
  // The pointers to the first commit are damaged: load all commits.
  AE_ASSIGN(auto loaded_again, load(job, 1, 2));
  if (!loaded_again) return loaded_again;
  loaded.row = std::move(loaded_again->row);
  loaded.commits.assign(loaded_again->commits.begin(),
                        loaded_again->commits.begin() + (loaded_again->commits.empty() ? 0 : 1));
  loaded.blobs = std::move(loaded_again->blobs);
  return Result<LoadedJob>(std::move(loaded));
}

// Follows the longest pointers, none of which skips the first commit. False if they are damaged.
Sql<bool> ReadStatements::read_first(const JobLocation& found, LoadedJob& into) {
  for (std::int64_t commit = found.last_commit;;) {
    Rows row(commit_, commit);
    AE_ASSIGN(const bool found_row, row.next());
    if (!found_row || row->integer(0) != found.id) return false;
    if (row->count(1) == 1) {
      into.commits.push_back(row->text(6));
      std::vector<Hash> blobs;
      const std::string_view list = row->bytes(5);
      for (std::size_t at = 0; at + sizeof(Hash) <= list.size(); at += sizeof(Hash)) {
        std::memcpy(blobs.emplace_back().bytes.data(), list.data() + at, sizeof(Hash));
      }
      AE_TRY(read_blobs(blobs, into.blobs));  // a missing one fails later, with log_corrupt
      return true;
    }
    const std::int64_t jump = row->integer(4);
    const std::int64_t next = jump != 0 ? jump : row->integer(3);
    if (next <= 0 || next >= commit) return false;
    commit = next;
  }
}

Sql<Result<LoadedJob>> ReadStatements::load(const JobId& job, std::uint64_t from_seq, int tries) {
  LoadedJob loaded;
  std::optional<JobLocation> found;
  {
    Snapshot snapshot(begin_, end_);
    AE_TRY(snapshot.open());
    AE_ASSIGN(found, find(job));
    if (!found) return Result<LoadedJob>(std::unexpected(job_not_found(job)));
    AE_TRY(read_rows(*found, loaded));
    if (from_seq <= 1) {
      Rows row(checkpoint_, found->id);
      AE_ASSIGN(const bool found_row, row.next());
      if (found_row) loaded.checkpoint = Checkpoint{row->count(0), row->text(1)};
    }
    if (from_seq == 1) {
      Rows row(request_, found->id);
      AE_TRY(row.next());
      loaded.request_hash = row->hash(0);
      loaded.commit_count = row->count(1);
    }
  }
  const std::uint64_t requested_seq = from_seq;
  if (from_seq == kFromCheckpoint) from_seq = loaded.checkpoint ? loaded.checkpoint->seq + 1 : 1;
  loaded.row = found->row;
  if (from_seq <= loaded.row.last_seq) {
    AE_ASSIGN(const bool complete, read_commits(*found, from_seq, loaded));
    // Deleted during the read. Another job may have its id by now.
    AE_ASSIGN(const bool is_job_deleted, is_deleted(*found));
    if (is_job_deleted) return load(job, requested_seq, tries);
    // Redacted during the read: its commits now reference other blobs.
    if (!complete && tries > 1) return load(job, requested_seq, tries - 1);
  }
  return Result<LoadedJob>(std::move(loaded));
}

// Job numbers are never reused.
Sql<bool> ReadStatements::is_deleted(const JobLocation& found) {
  Rows row(job_exists_, found.id);
  AE_ASSIGN(const bool found_row, row.next());
  return !found_row;
}

Sql<void> ReadStatements::read_rows(const JobLocation& found, LoadedJob& into) {
  for (Rows row(effects_, found.id);;) {
    AE_ASSIGN(const bool more, row.next());
    if (!more) break;
    into.effects.push_back(
        {InvocationId(row->text(0)), static_cast<std::uint32_t>(row->integer(1)), row->text(2)});
  }
  for (Rows row(ledger_, found.id);;) {
    AE_ASSIGN(const bool more, row.next());
    if (!more) break;
    into.ledger.push_back({InvocationId(row->text(0)), static_cast<std::uint32_t>(row->integer(1)),
                           row->text(2), row->text(3)});
  }
  for (Rows row(inbox_, found.id);;) {
    AE_ASSIGN(const bool more, row.next());
    if (!more) break;
    into.inbox.push_back({row->count(0), row->text(1), row->text(2)});
  }
  Rows row(signed_head_, found.id);
  AE_ASSIGN(const bool found_row, row.next());
  if (found_row) into.signed_head = row->text(0);
  return {};
}

// From the last commit back to the one that contains from_seq, then reversed.
Sql<bool> ReadStatements::read_commits(const JobLocation& found, std::uint64_t from_seq,
                                       LoadedJob& into) {
  from_seq = std::max<std::uint64_t>(from_seq, 1);
  std::vector<Hash> blobs;
  std::int64_t commit = found.last_commit;
  while (commit != 0) {
    Snapshot snapshot(begin_, end_);
    AE_TRY(snapshot.open());
    AE_ASSIGN(commit, step_back(commit, kReadBytes, found, from_seq, into, blobs));
    if (commit != kMissing) continue;
    AE_ASSIGN(const bool is_job_deleted, is_deleted(found));
    if (is_job_deleted) return true;
    return read_remaining_commits(found, from_seq, into);
  }
  std::ranges::reverse(into.commits);
  std::ranges::reverse(blobs);
  return read_blobs(blobs, into.blobs);
}

// A commit is missing or a pointer is damaged. Loads the existing commits in the order of their
// rows, which is the order of the log; opening the log fails with log_corrupt at the gap, if there
// is one. Scans every commit of the store.
Sql<bool> ReadStatements::read_remaining_commits(const JobLocation& found, std::uint64_t from_seq,
                                                 LoadedJob& into) {
  into.commits.clear();
  std::vector<Hash> blobs;
  AE_ASSIGN(Statement commits_after,
            db_.prepare("SELECT blobs, body FROM commits WHERE job = ?1 AND last_seq >= ?2 "
                        "AND id <= ?3 ORDER BY id"));
  for (Rows row(commits_after, found.id, static_cast<std::int64_t>(from_seq), found.last_commit);
       ;) {
    AE_ASSIGN(const bool more, row.next());
    if (!more) break;
    into.commits.push_back(row->text(1));
    const std::string_view list = row->bytes(0);
    for (std::size_t at = 0; at + sizeof(Hash) <= list.size(); at += sizeof(Hash)) {
      std::memcpy(blobs.emplace_back().bytes.data(), list.data() + at, sizeof(Hash));
    }
  }
  return read_blobs(blobs, into.blobs);
}

// Reads up to bytes_max. Answers the next commit to read, 0 at the end, kMissing if it does not
// exist. Commits only point to earlier ones, so this terminates for any stored data.
Sql<std::int64_t> ReadStatements::step_back(std::int64_t commit, std::size_t bytes_max,
                                            const JobLocation& found, std::uint64_t from_seq,
                                            LoadedJob& into, std::vector<Hash>& blobs) {
  for (std::size_t bytes = 0; bytes < bytes_max;) {
    Rows row(commit_, commit);
    AE_ASSIGN(const bool found_row, row.next());
    if (!found_row || row->integer(0) != found.id) return kMissing;
    into.commits.push_back(row->text(6));
    bytes += into.commits.back().size();
    const std::string_view list = row->bytes(5);
    for (std::size_t end = list.size(); end >= sizeof(Hash); end -= sizeof(Hash)) {
      Hash& hash = blobs.emplace_back();  // in reverse, like the commits
      std::memcpy(hash.bytes.data(), list.data() + end - sizeof(Hash), sizeof(Hash));
    }
    if (row->count(1) <= from_seq) return 0;
    const std::int64_t prev = row->integer(3);
    if (prev <= 0 || prev >= commit) return kMissing;
    commit = prev;
  }
  return commit;
}

Sql<bool> ReadStatements::read_blobs(const std::vector<Hash>& hashes, std::vector<Blob>& into) {
  std::unordered_set<Hash> seen;
  bool complete = true;
  for (const Hash& hash : hashes) {
    if (!seen.insert(hash).second) continue;
    Rows row(blob_, hash);
    AE_ASSIGN(const bool found, row.next());
    // A missing one is omitted: opening the commit fails with log_corrupt.
    if (found) into.push_back({hash, row->text(0)});
    complete = complete && found;
  }
  return complete;
}

Sql<Result<InboxEntryState>> ReadStatements::read_inbox_entry(const JobId& job,
                                                              const std::string& id) {
  Rows row(inbox_entry_, job.text, id);
  AE_ASSIGN(const bool found, row.next());
  if (!found) return Result<InboxEntryState>(std::unexpected(job_not_found(job)));
  InboxEntryState state{.pending = row->integer(0) != 0, .reply = {}};
  if (!row->is_null(1)) state.reply = row->text(1);
  return Result<InboxEntryState>(std::move(state));
}

Sql<Result<std::vector<JobRow>>> ReadStatements::query(const Filter& filter) {
  std::optional<std::int64_t> before;
  if (filter.after_number) {
    before = static_cast<std::int64_t>(*filter.after_number);
  } else if (!filter.after.empty()) {
    Rows row(number_, filter.after);
    AE_ASSIGN(const bool found, row.next());
    if (!found) {
      return Result<std::vector<JobRow>>(std::unexpected(job_not_found(JobId(filter.after))));
    }
    before = row->integer(0);
  }
  const bool by_change = filter.order == JobOrder::changed;
  const bool by_summary = by_change || is_indexed_kind(filter) || !filter.error.empty();
  // The column whose index has this order.
  const std::string number = by_summary ? "summaries.job" : "jobs.id";
  std::string sql = select_rows(by_summary ? "JOIN" : "LEFT JOIN");
  if (!before) {
    sql += "WHERE ?1 IS NULL";
  } else if (by_change) {
    sql += "WHERE (summaries.changed_at, summaries.job) < (" +
           std::to_string(filter.after_changed_at->us) + ", ?1)";
  } else {
    sql += "WHERE " + number + " < ?1";
  }
  std::vector<std::string> texts;
  const auto equals = [&](std::string_view column, const std::string& value) {
    texts.push_back(value);
    sql += fmt::format(" AND {} = ?{}", column, texts.size() + 2);
  };
  if (!filter.statuses.empty()) {
    std::string in;
    for (const std::string& status : filter.statuses) {
      texts.push_back(status);
      in += fmt::format("{}?{}", in.empty() ? "" : ", ", texts.size() + 2);
    }
    sql += fmt::format(" AND status IN ({})", in);
    const bool open = std::ranges::find(filter.statuses, "completed") == filter.statuses.end();
    if (open) sql += " AND status <> 'completed'";  // for the index
  }
  if (!filter.agent.empty()) equals(field::agent, filter.agent);
  if (!filter.queue.empty()) equals(field::queue, filter.queue);
  add_summary_conditions(filter, equals, sql);
  if (!filter.forked_from.empty()) {
    equals(field::forked_from, filter.forked_from);
    sql += " AND forked_from <> ''";
  }
  const auto compares = [&](std::string_view condition, const std::optional<Instant>& time) {
    if (time) sql += fmt::format(" AND {} {}", condition, time->us);
  };
  compares("created_at >=", filter.created_from);
  compares("created_at <", filter.created_before);
  compares("updated_at >=", filter.updated_from);
  compares("updated_at <", filter.updated_before);
  if (filter.pending != 0) {  // the first condition is for the index
    sql += fmt::format(" AND pending <> 0 AND pending & {} <> 0",
                       filter.pending | pending::not_computed);
  }
  for (const auto& [key, value] : filter.labels) {
    sql += " AND jobs.id IN (SELECT labels.job FROM labels WHERE true";
    equals("key", key);
    equals(field::value, value);
    sql += ")";
  }
  sql += std::string(" ORDER BY ") + (by_change ? "summaries.changed_at DESC, " : "") + number +
         " DESC LIMIT ?2";
  AE_ASSIGN(Statement statement, db_.prepare(sql));
  statement.start(before, std::uint64_t{filter.limit});
  for (std::size_t i = 0; i < texts.size(); ++i) statement.set(static_cast<int>(i) + 3, texts[i]);
  std::vector<JobRow> rows;
  for (;;) {
    AE_ASSIGN(const bool more, statement.next());
    if (!more) return Result<std::vector<JobRow>>(std::move(rows));
    AE_ASSIGN(JobRow row, read_row(statement));
    rows.push_back(std::move(row));
  }
}

Sql<EndedPage> ReadStatements::list_ended(const EndedFilter& filter) {
  AE_ASSIGN(
      Statement statement,
      db_.prepare(fmt::format("{}WHERE jobs.id > ?1 ORDER BY jobs.id LIMIT ?2", select_rows())));
  std::vector<JobRow> scanned;
  for (Rows row(statement, filter.after, std::uint64_t{kEndedScanMax});;) {
    AE_ASSIGN(const bool more, row.next());
    if (!more) return make_ended_page(std::move(scanned), filter);
    AE_ASSIGN(JobRow found, read_row(statement));
    scanned.push_back(std::move(found));
  }
}

Sql<std::vector<JobId>> ReadStatements::list_due(std::size_t limit, Instant now) {
  std::vector<JobId> jobs;
  Rows row(due_, now, std::uint64_t{limit});
  for (;;) {
    AE_ASSIGN(const bool more, row.next());
    if (!more) return jobs;
    jobs.emplace_back(row->text(0));
  }
}

// Each count reads an index and stops at kJobCountMax.
Sql<JobStats> ReadStatements::count_jobs(Instant now) {
  Snapshot snapshot(begin_, end_);
  AE_TRY(snapshot.open());
  JobStats job_stats;
  for (const std::string_view status : kOpenStatuses) {
    AE_ASSIGN(Statement count,
              db_.prepare(fmt::format("SELECT count(*) FROM (SELECT 1 FROM jobs WHERE status = ?1 "
                                      "AND status <> 'completed' LIMIT {})",
                                      kJobCountMax)));
    count.start(status);
    AE_TRY(count.next());
    job_stats.statuses[std::string(status)] = static_cast<std::uint64_t>(count.integer(0));
  }
  AE_ASSIGN(Statement ready,
            db_.prepare(fmt::format("SELECT queue, count(*) FROM (SELECT queue FROM jobs WHERE "
                                    "ready = 1 AND attempt IS NULL LIMIT {}) GROUP BY queue",
                                    kJobCountMax)));
  ready.start();
  for (;;) {
    AE_ASSIGN(const bool more, ready.next());
    if (!more) break;
    job_stats.ready[std::string(ready.text(0))] = static_cast<std::uint64_t>(ready.integer(1));
  }
  AE_ASSIGN(Statement held,
            db_.prepare(fmt::format(
                "SELECT worker, lease_until FROM jobs WHERE attempt IS NOT NULL LIMIT {}",
                kJobCountMax)));
  held.start();
  for (;;) {
    AE_ASSIGN(const bool more, held.next());
    if (!more) return job_stats;
    JobStats::Worker& worker = job_stats.workers[std::string(held.text(0))];
    ++(held.instant(1) > now ? worker.live : worker.expired);
  }
}

Sql<AuditLog> ReadStatements::read_audit_log(std::uint64_t after) {
  Snapshot snapshot(begin_, end_);
  AE_TRY(snapshot.open());
  return read_audit(db_, after);
}

Sql<std::optional<Instant>> ReadStatements::next_due(Instant now) {
  std::optional<Instant> next;
  {
    Rows row(next_wake_);
    AE_ASSIGN(const bool found, row.next());
    if (found) next = row->instant(0);
  }
  Rows row(next_eligible_, now);
  AE_ASSIGN(const bool found, row.next());
  if (found && (!next || row->instant(0) < *next)) next = row->instant(0);
  return next;
}

Reader::Reader(ReadStatements statements)
    : statements_(std::move(statements)), thread_([this] { run(); }) {}

Reader::~Reader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void Reader::enqueue(ReadTask task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  wake_.notify_one();
}

void Reader::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stop_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    ReadTask task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task(statements_);
    task = nullptr;
    lock.lock();
  }
}

}  // namespace ae::store::sqlite
