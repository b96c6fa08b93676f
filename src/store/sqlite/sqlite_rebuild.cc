#include "store/sqlite/sqlite_rebuild.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <unordered_map>

#include "json/value.h"
#include "log/field_names.h"
#include "store/lines.h"
#include "store/rebuild_row.h"
#include "store/rules.h"
#include "store/sqlite/audit_table.h"
#include "store/sqlite/files.h"
#include "store/sqlite/lock_file.h"
#include "store/sqlite/loss.h"
#include "store/sqlite/position_file.h"
#include "store/sqlite/schema.h"
#include "store/sqlite/tables.h"

namespace ae::store {

using namespace sqlite;  // NOLINT: this file is where the parts come together

namespace {

class SqliteDialect final : public SqlDialect {
 public:
  std::string parameter(ExpectedValue::Type, int index) const override {
    return fmt::format("?{}", index);
  }
  std::string_view is_same() const override { return "IS"; }
  std::string literal(ExpectedValue::Type, const std::string& expression) const override {
    return fmt::format("quote({})", expression);
  }
};

class SqliteRebuild final : public Rebuild {
 public:
  SqliteRebuild(std::string path, const SqliteRebuildOptions& options)
      : path_(std::move(path)), writes_(!options.compare_only), only_(options.job) {}
  Status open();
  ~SqliteRebuild() override;

  Result<std::uint64_t> count_jobs() override;
  Result<std::optional<JobId>> next_job() override;
  Result<StoredLog> read(const JobId& job) override;
  Result<std::string> blob(const Hash& hash) override;
  Result<std::vector<Difference>> reconcile(const Projection& expected, Instant now) override;
  Result<std::vector<Difference>> reconcile_store_rows() override;
  Result<std::vector<Damage>> find_damage() override;
  Status append_audit_entry(const AuditEntry& entry) override;
  Status commit() override;

 private:
  Sql<void> list_commits();
  template <class T>
  Result<T> answer(Sql<T> answer) const {
    if (!answer) return fail(Code::unavailable, "{}: {}", path_, answer.error().text());
    if constexpr (!std::is_void_v<T>) return *std::move(answer);
    return Result<T>();
  }

  Sql<Statement*> statement(const std::string& sql) {
    auto found = statements_.find(sql);
    if (found == statements_.end()) {
      AE_ASSIGN(Statement prepared, db_.prepare(sql));
      found = statements_.emplace(sql, std::move(prepared)).first;
    }
    return &found->second;
  }
  template <class... Args>
  Sql<void> run(const std::string& sql, const Args&... args) {
    AE_ASSIGN(Statement * prepared, statement(sql));
    return prepared->run(args...);
  }
  // Reads the single row of a query, if there is one.
  template <class Read, class... Args>
  Sql<bool> read_row(const std::string& sql, Read read, const Args&... args) {
    AE_ASSIGN(Statement * prepared, statement(sql));
    Rows rows(*prepared, args...);
    AE_ASSIGN(const bool exists, rows.next());
    if (exists) read(*prepared);
    return exists;
  }
  static void set(Statement& statement, int index, const ExpectedValue& value) {
    using Type = ExpectedValue::Type;
    if (value.is_null) return statement.set(index, std::nullopt);
    if (value.type == Type::bytes) return statement.set(index, Bytes{value.text});
    const bool is_number = value.type == Type::integer || value.type == Type::boolean;
    is_number ? statement.set(index, value.number)
              : statement.set(index, std::string_view(value.text));
  }

  Sql<void> begin() {
    if (in_transaction_) return {};
    AE_TRY(db_.execute(writes_ ? "BEGIN IMMEDIATE" : "BEGIN"));
    in_transaction_ = true;
    return {};
  }

  Sql<void> reconcile_row(const ExpectedRow& row, std::vector<Difference>& differences);

  Sql<bool> release_key(const Projection& expected);
  Sql<Result<void>> reconcile_job(const Projection& expected, Instant now,
                                  std::vector<Difference>& differences);
  Sql<void> reconcile_head(const Projection& expected, std::vector<Difference>& differences);
  Sql<void> reconcile_labels(const Projection& expected, std::vector<Difference>& differences);
  Sql<void> reconcile_commits(const Projection& expected, std::vector<Difference>& differences);
  Sql<void> reconcile_summary(const Projection& expected, std::vector<Difference>& differences);
  Sql<void> reconcile_checkpoint(const Projection& expected, std::vector<Difference>& differences);

  const std::string path_;
  const bool writes_;
  LockFile lock_, file_lock_;  // released last
  Database db_;
  std::unordered_map<std::string, Statement> statements_;  // by their SQL

  bool in_transaction_ = false;
  const std::string only_;             // this job; "" = all
  std::int64_t walked_ = 0;            // job rows already visited by `next`
  std::int64_t number_ = 0;            // of the job that was read last
  std::vector<std::int64_t> commits_;  // row ids of its commits
};

SqliteRebuild::~SqliteRebuild() {
  statements_.clear();
  if (!in_transaction_) return;
  // Nothing of it was reported as durable.
  [[maybe_unused]] const auto rolled_back = db_.execute("ROLLBACK");
}

Status SqliteRebuild::open() {
  if (writes_) {
    AE_ASSIGN(lock_, LockFile::acquire(lock_path(path_)));
    AE_ASSIGN(file_lock_, LockFile::lock_database(path_));
  }
  auto db = Database::open({.path = path_, .read_only = !writes_});
  if (!db) return std::unexpected(cannot_open(path_, db.error()));
  db_ = *std::move(db);
  AE_ASSIGN(const bool no_tables, has_no_tables(db_, path_));
  if (no_tables) return std::unexpected(store_missing(path_));
  AE_TRY(writes_ ? prepare_schema(db_, path_) : check_schema(db_, path_));
  if (const auto listed = list_commits(); !listed) {
    return std::unexpected(cannot_open(path_, listed.error()));
  }
  return {};
}

// No index finds the commits of a job (it would cost every commit): build a list once.
Sql<void> SqliteRebuild::list_commits() {
  AE_TRY(
      db_.execute("CREATE TEMP TABLE written(job INTEGER NOT NULL, id INTEGER NOT NULL, "
                  "PRIMARY KEY(job, id)) WITHOUT ROWID"));
  AE_TRY(begin());
  return run(
      "INSERT INTO written SELECT job, id FROM commits WHERE ?1 = '' OR job = "
      "(SELECT id FROM jobs WHERE job_id = ?1)",
      only_);
}

Result<std::uint64_t> SqliteRebuild::count_jobs() {
  std::uint64_t count = 0;
  AE_TRY(answer(read_row(
      "SELECT count(*) FROM jobs WHERE ?1 = '' OR job_id = ?1",
      [&](Statement& row) { count = row.count(0); }, only_)));
  return count;
}

Result<std::optional<JobId>> SqliteRebuild::next_job() {
  std::optional<JobId> job;
  AE_TRY(answer(read_row(
      "SELECT id, job_id FROM jobs WHERE id > ?2 AND (?1 = '' OR job_id = ?1) ORDER BY id LIMIT 1",
      [&](Statement& row) {
        walked_ = row.integer(0);
        job = JobId(row.text(1));
      },
      only_, walked_)));
  return job;
}

Result<StoredLog> SqliteRebuild::read(const JobId& job) {
  StoredLog log{.job = job, .commits = {}, .end = {}, .signed_head = {}, .checkpoint = {}};
  bool exists = false;
  const auto read = [&]() -> Sql<void> {
    AE_TRY(begin());
    AE_ASSIGN(exists, read_row(
                          "SELECT id FROM jobs WHERE job_id = ?1",
                          [&](Statement& row) { number_ = row.integer(0); }, job.text));
    if (!exists) return {};
    commits_.clear();
    AE_ASSIGN(Statement * commits, statement("SELECT id, body FROM commits WHERE id IN (SELECT id "
                                             "FROM written WHERE job = ?1) ORDER BY id"));
    for (Rows row(*commits, number_);;) {
      AE_ASSIGN(const bool more, row.next());
      if (!more) break;
      commits_.push_back(row->integer(0));
      log.commits.push_back(row->text(1));
    }
    AE_TRY(read_row(
        "SELECT last_seq, head FROM heads WHERE job = ?1",
        [&](Statement& row) { log.end = StoredLog::End{row.count(0), row.hash(1)}; }, number_));
    AE_TRY(read_row(
        "SELECT body FROM signed_heads WHERE job = ?1",
        [&](Statement& row) { log.signed_head = row.text(0); }, number_));
    AE_TRY(read_row(
        "SELECT seq, body FROM checkpoints WHERE job = ?1",
        [&](Statement& row) { log.checkpoint = Checkpoint{row.count(0), row.text(1)}; }, number_));
    return {};
  };
  AE_TRY(answer(read()));
  if (!exists) return std::unexpected(job_not_found(job));
  return log;
}

Result<std::string> SqliteRebuild::blob(const Hash& hash) {
  std::string bytes;
  AE_ASSIGN(const bool exists, answer(read_row(
                                   "SELECT bytes FROM blobs WHERE hash = ?1",
                                   [&](Statement& row) { bytes = row.text(0); }, hash)));
  if (!exists) {
    return fail(Code::log_corrupt, "blob {} is missing", to_hex(hash));
  }
  return bytes;
}

// ---------------------------------------------------------------- one row

// Columns differ by SQL comparison (type and bytes).
Sql<void> SqliteRebuild::reconcile_row(const ExpectedRow& row,
                                       std::vector<Difference>& differences) {
  const SqliteDialect dialect;
  const auto step = [&](const SqlStatement& made, const auto& read) -> Sql<void> {
    AE_ASSIGN(Statement * prepared, statement(made.sql));
    Rows rows(*prepared);
    int index = 0;
    for (const ExpectedValue* value : made.parameters) set(*prepared, ++index, *value);
    AE_ASSIGN(const bool exists, rows.next());
    if (exists) read(*prepared);
    return {};
  };
  std::optional<std::vector<ColumnComparison>> columns;
  AE_TRY(step(comparison_of(row, dialect), [&](Statement& answer) {
    columns.emplace();
    for (int at = 0; at < static_cast<int>(row.columns.size()) * 3; at += 3) {
      ColumnComparison& compared = columns->emplace_back();
      compared.is_same = answer.integer(at) != 0;
      if (compared.is_same) continue;
      compared.stored = answer.text(at + 1);
      compared.derived = answer.text(at + 2);
    }
  }));
  const RowComparison found = compare_row(row, columns, differences);
  if (found.differing.empty() || !writes_) return {};
  return step(rewrite_of(row, found, dialect), [](Statement&) {});
}

// ---------------------------------------------------------------- the tables

// Another row may have the idempotency key that this job's log contains. A row later in the walk
// gives it up until it is rewritten itself. False: the key belongs to another job's log.
Sql<bool> SqliteRebuild::release_key(const Projection& expected) {
  if (expected.idempotency_key.empty()) return true;
  std::int64_t other = 0;
  AE_TRY(read_row(
      "SELECT id FROM jobs WHERE agent = ?1 AND idempotency_key = ?2 AND idempotency_key <> '' AND "
      "id <> ?3",
      [&](Statement& row) { other = row.integer(0); }, expected.agent, expected.idempotency_key,
      number_));
  if (other == 0 || !writes_) return true;
  if (!only_.empty() || other < number_) return false;
  AE_TRY(run("UPDATE jobs SET idempotency_key = '' WHERE id = ?1", other));
  return true;
}

Sql<Result<void>> SqliteRebuild::reconcile_job(const Projection& expected, Instant now,
                                               std::vector<Difference>& differences) {
  struct {
    std::uint64_t epoch = 0;
    bool held = false;
    std::optional<Instant> lease_until;
    bool may_be_ready = false;  // `ready` is 0 or 1
    // of a file of an earlier layout: `pending`, `forked_from`
    bool not_computed = false, has_no_origin = false;
  } head;
  AE_TRY(read_row(
      "SELECT epoch, attempt IS NOT NULL, lease_until, ready IN (0, 1), pending >= 64, "
      "forked_from IS NULL FROM jobs WHERE id = ?1",
      [&](Statement& found) {
        head.epoch = found.count(0);
        head.held = found.integer(1) != 0;
        head.lease_until = found.maybe_instant(2);
        head.may_be_ready = found.integer(3) == 1;
        head.not_computed = found.integer(4) == 1;
        head.has_no_origin = found.integer(5) == 1;
      },
      number_));
  AE_ASSIGN(const bool has_key, release_key(expected));
  if (!has_key) {
    return Result<void>(std::unexpected(idempotency_key_taken(expected, !only_.empty())));
  }
  const std::string capabilities = join_lines(expected.capabilities);
  std::string fair_by;
  AE_TRY(read_row("SELECT value FROM meta WHERE key = 'fair_by'",
                  [&](Statement& found) { fair_by = found.text(0); }));
  const std::string fairness_key = fairness_key_of(expected.labels, fair_by);
  ExpectedRow job{
      .table = "jobs",
      .key = {integer_column("id", number_)},
      .columns = {text_column(field::agent, expected.agent),
                  text_column(field::idempotency_key, expected.idempotency_key),
                  integer_column(field::priority, expected.priority),
                  text_column("capabilities", capabilities),
                  text_column(field::queue, expected.queue), text_column("turn", fairness_key),
                  time_column("created_at", expected.created_at),
                  text_column("status", expected.row.status),
                  time_column(field::not_before, expected.row.not_before),
                  time_column("wake_at", expected.row.wake_at)}};
  if (head.not_computed && writes_) {
    AE_TRY(run("UPDATE jobs SET pending = ?2 WHERE id = ?1", number_,
               std::uint64_t{expected.row.pending}));
  } else if (!head.not_computed) {
    job.columns.push_back(integer_column("pending", std::uint64_t{expected.row.pending}));
  }
  if (head.has_no_origin && writes_) {
    AE_TRY(run("UPDATE jobs SET forked_from = ?2 WHERE id = ?1", number_, expected.forked_from));
  } else if (!head.has_no_origin) {
    job.columns.push_back(text_column(field::forked_from, expected.forked_from));
  }
  if (expected.request_hash) {
    job.columns.push_back(hash_column("request_hash", *expected.request_hash));
  }
  // Claims are not part of the log. But the epoch must not decrease, and a blocked job with a lease
  // could never wake up.
  if (head.epoch < expected.epoch)
    job.columns.push_back(integer_column(field::epoch, expected.epoch));
  if (!is_runnable(expected.row.status)) {
    head.held = false;
    for (const char* column : {"attempt", "worker", "lease_until"}) {
      job.columns.push_back(null_text_column(column));
    }
  } else if (head.held && !head.lease_until) {
    head.lease_until = Instant{0};
    job.columns.push_back(time_column("lease_until", Instant{0}));
  }
  const Eligibility eligibility =
      eligibility_of(expected.row, head.held ? head.lease_until : std::nullopt);
  // Eligible jobs get `ready` at the next claim; until then both values are correct.
  const bool eligible = eligibility.at && *eligibility.at <= now;
  if (!eligible || !head.may_be_ready) {
    job.columns.push_back(boolean_column("ready", eligibility.ready || eligible));
  }
  job.columns.push_back(time_column("ripe_at", eligibility.at));
  AE_TRY(reconcile_row(job, differences));
  return Result<void>();
}

Sql<void> SqliteRebuild::reconcile_head(const Projection& expected,
                                        std::vector<Difference>& differences) {
  return reconcile_row({.table = "heads",
                        .key = {integer_column("job", number_)},
                        .columns = {integer_column("last_seq", expected.last_seq),
                                    integer_column("commits", std::uint64_t{commits_.size()}),
                                    integer_column("last_commit", commits_.back()),
                                    time_column("updated_at", expected.updated_at),
                                    hash_column("head", expected.head)}},
                       differences);
}

Sql<void> SqliteRebuild::reconcile_labels(const Projection& expected,
                                          std::vector<Difference>& differences) {
  std::vector<std::pair<std::string, std::string>> stored;
  {
    AE_ASSIGN(Statement * prepared, statement("SELECT key, value FROM labels WHERE job = ?1"));
    for (Rows found(*prepared, number_);;) {
      AE_ASSIGN(const bool more, found.next());
      if (!more) break;
      stored.emplace_back(found->text(0), found->text(1));
    }
  }
  auto difference = compare_labels(std::move(stored), expected.labels);
  if (!difference) return {};
  differences.push_back(*std::move(difference));
  if (!writes_) return {};
  AE_TRY(run("DELETE FROM labels WHERE job = ?1", number_));
  std::int64_t place = 0;
  for (const auto& [key, value] : expected.labels) {
    AE_TRY(run("INSERT INTO labels(job, number, key, value) VALUES(?1, ?2, ?3, ?4)", number_,
               place++, key, value));
  }
  return {};
}

Sql<void> SqliteRebuild::reconcile_commits(const Projection& expected,
                                           std::vector<Difference>& differences) {
  SkipList skip_list;
  for (std::size_t i = 0; i < commits_.size(); ++i) {
    const Projection::Commit& commit = expected.commits[i];
    const SkipList::Links links = skip_list.next();
    skip_list.add(commits_[i], links);
    AE_TRY(reconcile_row(
        {.table = "commits",
         .key = {integer_column("id", commits_[i])},
         .columns = {integer_column("first_seq", commit.first_seq),
                     integer_column("last_seq", commit.last_seq),
                     integer_column("prev", links.prev), integer_column("jump", links.jump),
                     hashes_column("blobs", commit.blobs)}},
        differences));
  }
  return {};
}

Sql<void> SqliteRebuild::reconcile_summary(const Projection& expected,
                                           std::vector<Difference>& differences) {
  std::vector<Difference> found;
  AE_TRY(reconcile_row(summary_row(number_, expected), found));
  add_summary_differences(std::move(found), differences);
  return {};
}

Sql<void> SqliteRebuild::reconcile_checkpoint(const Projection& expected,
                                              std::vector<Difference>& differences) {
  if (!expected.checkpoint) return {};
  std::vector<Difference> found;
  AE_TRY(reconcile_row({.table = "checkpoints",
                        .key = {integer_column("job", number_)},
                        .columns = {integer_column("seq", expected.checkpoint->seq),
                                    bytes_column("body", expected.checkpoint->bytes)}},
                       found));
  add_checkpoint_differences(std::move(found), *expected.checkpoint, writes_, differences);
  return {};
}

Result<std::vector<Difference>> SqliteRebuild::reconcile(const Projection& expected, Instant now) {
  AE_CHECK(expected.commits.size() == commits_.size() && !commits_.empty(), expected.job.text);
  std::vector<Difference> differences;
  const auto all = [&]() -> Sql<Result<void>> {
    AE_TRY(begin());
    AE_ASSIGN(Result<void> result, reconcile_job(expected, now, differences));
    if (!result) return result;
    AE_TRY(reconcile_head(expected, differences));
    AE_TRY(reconcile_labels(expected, differences));
    AE_TRY(reconcile_commits(expected, differences));
    AE_TRY(reconcile_summary(expected, differences));
    AE_TRY(reconcile_checkpoint(expected, differences));
    return Result<void>();
  };
  AE_ASSIGN(const Result<void> result, answer(all()));
  if (!result) return std::unexpected(result.error());
  return differences;
}

Result<std::vector<Difference>> SqliteRebuild::reconcile_store_rows() {
  std::vector<Difference> differences;
  if (!only_.empty()) return differences;
  const auto all = [&]() -> Sql<void> {
    AE_TRY(begin());
    for (const std::string table : {"heads", field::labels, "summaries", "checkpoints"}) {
      std::uint64_t rows = 0;
      const std::string where =
          fmt::format(" FROM {} WHERE job NOT IN (SELECT id FROM jobs)", table);
      AE_TRY(read_row("SELECT count(*)" + where, [&](Statement& row) { rows = row.count(0); }));
      if (rows == 0) continue;
      differences.push_back({table, {}, fmt::format("{} of no job", rows), {}});
      if (writes_) AE_TRY(run("DELETE" + where));
    }
    return {};
  };
  AE_TRY(answer(all()));
  return differences;
}

Result<std::vector<Damage>> SqliteRebuild::find_damage() {
  std::vector<Damage> found;
  std::map<std::string, std::string> meta;
  const auto all = [&]() -> Sql<void> {
    AE_TRY(begin());
    AE_ASSIGN(Statement * triggers,
              statement("SELECT name, tbl_name, replace(name, '\"', '\"\"') FROM sqlite_schema "
                        "WHERE type = 'trigger' ORDER BY name"));
    for (Rows row(*triggers);;) {
      AE_ASSIGN(const bool more, row.next());
      if (!more) break;
      found.push_back(foreign_trigger(fmt::format("the trigger {}", row->text(0)), row->text(1),
                                      fmt::format("DROP TRIGGER \"{}\"", row->text(2))));
    }
    AE_ASSIGN(Statement * rows, statement("SELECT key, value FROM meta"));
    for (Rows row(*rows);;) {
      AE_ASSIGN(const bool more, row.next());
      if (!more) return {};
      meta[row->text(0)] = row->text(1);
    }
  };
  AE_TRY(answer(all()));
  const auto is_number = [](std::string_view text) {
    return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
  };
  for (const char* key : {"store_id", "timeline"}) {
    if (!is_store_id(meta[key])) found.push_back(broken_meta(key, meta[key]));
  }
  if (!is_number(meta[kPositionKey]))
    found.push_back(broken_meta(kPositionKey, meta[kPositionKey]));
  for (const std::string& timeline : split_lines(meta["timelines"])) {
    if (!is_store_id(timeline)) found.push_back(broken_meta("timelines", timeline));
  }
  const auto recorded = PositionFile(position_path(path_)).read();
  if (recorded && is_store_id(meta["store_id"]) && recorded->store != meta["store_id"]) {
    constexpr const char* kRemedy =
        "if that was not intended, stop what uses the store and restore a backup";
    found.push_back(
        {"meta", fmt::format("the id of the store is {}, and {} names {}: another store replaced "
                             "it, or its table meta was overwritten; {}",
                             meta["store_id"], position_path(path_), recorded->store, kRemedy)});
  }
  return found;
}

Status SqliteRebuild::append_audit_entry(const AuditEntry& entry) {
  if (!writes_) return {};
  const auto recorded = [&]() -> Sql<void> {
    AE_TRY(begin());
    return append_audit(db_, entry);
  };
  return answer(recorded());
}

Status SqliteRebuild::commit() {
  if (!in_transaction_ || !writes_) return {};  // a comparison keeps its snapshot
  const auto commit_transaction = [&]() -> Sql<void> {
    AE_TRY(db_.execute("COMMIT"));
    in_transaction_ = false;
    return db_.checkpoint(false);
  };
  return answer(commit_transaction());
}

}  // namespace

Result<std::unique_ptr<Rebuild>> open_sqlite_rebuild(const SqliteRebuildOptions& options) {
  const std::string path = resolve_symlinks(options.path);
  AE_TRY(check_file(path));
  if (is_file_missing(path)) return std::unexpected(store_missing(path));
  std::error_code error;
  if (!std::filesystem::exists(options.path, error)) {
    return fail(Code::not_found, "no store at {} yet: run a job first", path);
  }
  auto rebuild = std::make_unique<SqliteRebuild>(path, options);
  AE_TRY(rebuild->open());
  return rebuild;
}

}  // namespace ae::store
