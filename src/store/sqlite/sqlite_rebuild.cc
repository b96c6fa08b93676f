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

}  // namespace

struct SqliteRebuild::Impl {
  std::string path;
  bool writes = false;
  LockFile lock, file_lock;  // released last
  Database db;
  std::unordered_map<std::string, Statement> statements;  // by their SQL

  bool open = false;                  // in a transaction
  std::string only;                   // this job; "" = all
  std::int64_t walked = 0;            // job rows already visited by `next`
  std::int64_t number = 0;            // of the job that was read last
  std::vector<std::int64_t> commits;  // row ids of its commits

  template <class T>
  Result<T> answer(Sql<T> answer) const {
    if (!answer) return fail(Code::unavailable, "{}: {}", path, answer.error().text());
    if constexpr (!std::is_void_v<T>) return *std::move(answer);
    return Result<T>();
  }

  Sql<Statement*> statement(const std::string& sql) {
    auto found = statements.find(sql);
    if (found == statements.end()) {
      AE_ASSIGN(Statement prepared, db.prepare(sql));
      found = statements.emplace(sql, std::move(prepared)).first;
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
    if (open) return {};
    AE_TRY(db.execute(writes ? "BEGIN IMMEDIATE" : "BEGIN"));
    open = true;
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
};

SqliteRebuild::SqliteRebuild(std::unique_ptr<Impl> parts) : impl_(std::move(parts)) {}

SqliteRebuild::~SqliteRebuild() {
  impl_->statements.clear();
  if (!impl_->open) return;
  // Nothing of it was reported as durable.
  [[maybe_unused]] const auto rolled_back = impl_->db.execute("ROLLBACK");
}

Result<std::unique_ptr<SqliteRebuild>> SqliteRebuild::open(const SqliteRebuildOptions& options) {
  const std::string path = resolve_symlinks(options.path);
  AE_TRY(check_file(path));
  if (is_file_missing(path)) return std::unexpected(store_missing(path));
  std::error_code error;
  if (!std::filesystem::exists(options.path, error)) {
    return fail(Code::not_found, "no store at {} yet: run a job first", path);
  }
  auto parts = std::make_unique<Impl>();
  parts->path = path;
  parts->writes = !options.compare_only;
  parts->only = options.job;
  if (parts->writes) {
    AE_ASSIGN(parts->lock, LockFile::acquire(lock_path(path)));
    AE_ASSIGN(parts->file_lock, LockFile::lock_database(path));
  }
  auto db = Database::open({.path = path, .read_only = options.compare_only});
  if (!db) return std::unexpected(cannot_open(path, db.error()));
  parts->db = *std::move(db);
  AE_ASSIGN(const bool no_tables, has_no_tables(parts->db, path));
  if (no_tables) return std::unexpected(store_missing(path));
  AE_TRY(parts->writes ? prepare_schema(parts->db, path) : check_schema(parts->db, path));
  // No index finds the commits of a job (it would cost every commit): build a list once.
  const auto list_jobs = [&]() -> Sql<void> {
    AE_TRY(
        parts->db.execute("CREATE TEMP TABLE written(job INTEGER NOT NULL, id INTEGER NOT NULL, "
                          "PRIMARY KEY(job, id)) WITHOUT ROWID"));
    AE_TRY(parts->begin());
    AE_TRY(
        parts->run("INSERT INTO written SELECT job, id FROM commits WHERE ?1 = '' OR job = "
                   "(SELECT id FROM jobs WHERE job_id = ?1)",
                   parts->only));
    return {};
  };
  if (const auto listed = list_jobs(); !listed) {
    return std::unexpected(cannot_open(path, listed.error()));
  }
  return std::unique_ptr<SqliteRebuild>(new SqliteRebuild(std::move(parts)));
}

Result<std::uint64_t> SqliteRebuild::count_jobs() {
  std::uint64_t count = 0;
  AE_TRY(impl_->answer(impl_->read_row(
      "SELECT count(*) FROM jobs WHERE ?1 = '' OR job_id = ?1",
      [&](Statement& row) { count = row.count(0); }, impl_->only)));
  return count;
}

Result<std::optional<JobId>> SqliteRebuild::next_job() {
  std::optional<JobId> job;
  AE_TRY(impl_->answer(impl_->read_row(
      "SELECT id, job_id FROM jobs WHERE id > ?2 AND (?1 = '' OR job_id = ?1) ORDER BY id LIMIT 1",
      [&](Statement& row) {
        impl_->walked = row.integer(0);
        job = JobId(row.text(1));
      },
      impl_->only, impl_->walked)));
  return job;
}

Result<StoredLog> SqliteRebuild::read(const JobId& job) {
  Impl& p = *impl_;
  StoredLog log{.job = job, .commits = {}, .end = {}, .signed_head = {}, .checkpoint = {}};
  bool exists = false;
  const auto read = [&]() -> Sql<void> {
    AE_TRY(p.begin());
    AE_ASSIGN(exists, p.read_row(
                          "SELECT id FROM jobs WHERE job_id = ?1",
                          [&](Statement& row) { p.number = row.integer(0); }, job.text));
    if (!exists) return {};
    p.commits.clear();
    AE_ASSIGN(Statement * commits,
              p.statement("SELECT id, body FROM commits WHERE id IN (SELECT id "
                          "FROM written WHERE job = ?1) ORDER BY id"));
    for (Rows row(*commits, p.number);;) {
      AE_ASSIGN(const bool more, row.next());
      if (!more) break;
      p.commits.push_back(row->integer(0));
      log.commits.push_back(row->text(1));
    }
    AE_TRY(p.read_row(
        "SELECT last_seq, head FROM heads WHERE job = ?1",
        [&](Statement& row) { log.end = StoredLog::End{row.count(0), row.hash(1)}; }, p.number));
    AE_TRY(p.read_row(
        "SELECT body FROM signed_heads WHERE job = ?1",
        [&](Statement& row) { log.signed_head = row.text(0); }, p.number));
    AE_TRY(p.read_row(
        "SELECT seq, body FROM checkpoints WHERE job = ?1",
        [&](Statement& row) { log.checkpoint = Checkpoint{row.count(0), row.text(1)}; }, p.number));
    return {};
  };
  AE_TRY(p.answer(read()));
  if (!exists) return std::unexpected(job_not_found(job));
  return log;
}

Result<std::string> SqliteRebuild::blob(const Hash& hash) {
  std::string bytes;
  AE_ASSIGN(const bool exists, impl_->answer(impl_->read_row(
                                   "SELECT bytes FROM blobs WHERE hash = ?1",
                                   [&](Statement& row) { bytes = row.text(0); }, hash)));
  if (!exists) {
    return fail(Code::log_corrupt, "blob {} is missing", to_hex(hash));
  }
  return bytes;
}

// ---------------------------------------------------------------- one row

// Columns differ by SQL comparison (type and bytes).
Sql<void> SqliteRebuild::Impl::reconcile_row(const ExpectedRow& row,
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
  if (found.differing.empty() || !writes) return {};
  return step(rewrite_of(row, found, dialect), [](Statement&) {});
}

// ---------------------------------------------------------------- the tables

// Another row may have the idempotency key that this job's log contains. A row later in the walk
// gives it up until it is rewritten itself. False: the key belongs to another job's log.
Sql<bool> SqliteRebuild::Impl::release_key(const Projection& expected) {
  if (expected.idempotency_key.empty()) return true;
  std::int64_t other = 0;
  AE_TRY(read_row(
      "SELECT id FROM jobs WHERE agent = ?1 AND idempotency_key = ?2 AND idempotency_key <> '' AND "
      "id <> ?3",
      [&](Statement& row) { other = row.integer(0); }, expected.agent, expected.idempotency_key,
      number));
  if (other == 0 || !writes) return true;
  if (!only.empty() || other < number) return false;
  AE_TRY(run("UPDATE jobs SET idempotency_key = '' WHERE id = ?1", other));
  return true;
}

Sql<Result<void>> SqliteRebuild::Impl::reconcile_job(const Projection& expected, Instant now,
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
      number));
  AE_ASSIGN(const bool has_key, release_key(expected));
  if (!has_key) {
    return Result<void>(std::unexpected(idempotency_key_taken(expected, !only.empty())));
  }
  const std::string capabilities = join_lines(expected.capabilities);
  std::string fair_by;
  AE_TRY(read_row("SELECT value FROM meta WHERE key = 'fair_by'",
                  [&](Statement& found) { fair_by = found.text(0); }));
  const std::string fairness_key = fairness_key_of(expected.labels, fair_by);
  ExpectedRow job{
      .table = "jobs",
      .key = {integer_column("id", number)},
      .columns = {text_column(field::agent, expected.agent),
                  text_column(field::idempotency_key, expected.idempotency_key),
                  integer_column(field::priority, expected.priority),
                  text_column("capabilities", capabilities),
                  text_column(field::queue, expected.queue), text_column("turn", fairness_key),
                  time_column("created_at", expected.created_at),
                  text_column("status", expected.row.status),
                  time_column(field::not_before, expected.row.not_before),
                  time_column("wake_at", expected.row.wake_at)}};
  if (head.not_computed && writes) {
    AE_TRY(run("UPDATE jobs SET pending = ?2 WHERE id = ?1", number,
               std::uint64_t{expected.row.pending}));
  } else if (!head.not_computed) {
    job.columns.push_back(integer_column("pending", std::uint64_t{expected.row.pending}));
  }
  if (head.has_no_origin && writes) {
    AE_TRY(run("UPDATE jobs SET forked_from = ?2 WHERE id = ?1", number, expected.forked_from));
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

Sql<void> SqliteRebuild::Impl::reconcile_head(const Projection& expected,
                                              std::vector<Difference>& differences) {
  return reconcile_row({.table = "heads",
                        .key = {integer_column("job", number)},
                        .columns = {integer_column("last_seq", expected.last_seq),
                                    integer_column("commits", std::uint64_t{commits.size()}),
                                    integer_column("last_commit", commits.back()),
                                    time_column("updated_at", expected.updated_at),
                                    hash_column("head", expected.head)}},
                       differences);
}

Sql<void> SqliteRebuild::Impl::reconcile_labels(const Projection& expected,
                                                std::vector<Difference>& differences) {
  std::vector<std::pair<std::string, std::string>> stored;
  {
    AE_ASSIGN(Statement * prepared, statement("SELECT key, value FROM labels WHERE job = ?1"));
    for (Rows found(*prepared, number);;) {
      AE_ASSIGN(const bool more, found.next());
      if (!more) break;
      stored.emplace_back(found->text(0), found->text(1));
    }
  }
  auto difference = compare_labels(std::move(stored), expected.labels);
  if (!difference) return {};
  differences.push_back(*std::move(difference));
  if (!writes) return {};
  AE_TRY(run("DELETE FROM labels WHERE job = ?1", number));
  std::int64_t place = 0;
  for (const auto& [key, value] : expected.labels) {
    AE_TRY(run("INSERT INTO labels(job, number, key, value) VALUES(?1, ?2, ?3, ?4)", number,
               place++, key, value));
  }
  return {};
}

Sql<void> SqliteRebuild::Impl::reconcile_commits(const Projection& expected,
                                                 std::vector<Difference>& differences) {
  SkipList skip_list;
  for (std::size_t i = 0; i < commits.size(); ++i) {
    const Projection::Commit& commit = expected.commits[i];
    const SkipList::Links links = skip_list.next();
    skip_list.add(commits[i], links);
    AE_TRY(reconcile_row(
        {.table = "commits",
         .key = {integer_column("id", commits[i])},
         .columns = {integer_column("first_seq", commit.first_seq),
                     integer_column("last_seq", commit.last_seq),
                     integer_column("prev", links.prev), integer_column("jump", links.jump),
                     hashes_column("blobs", commit.blobs)}},
        differences));
  }
  return {};
}

Sql<void> SqliteRebuild::Impl::reconcile_summary(const Projection& expected,
                                                 std::vector<Difference>& differences) {
  std::vector<Difference> found;
  AE_TRY(reconcile_row(summary_row(number, expected), found));
  add_summary_differences(std::move(found), differences);
  return {};
}

Sql<void> SqliteRebuild::Impl::reconcile_checkpoint(const Projection& expected,
                                                    std::vector<Difference>& differences) {
  if (!expected.checkpoint) return {};
  std::vector<Difference> found;
  AE_TRY(reconcile_row({.table = "checkpoints",
                        .key = {integer_column("job", number)},
                        .columns = {integer_column("seq", expected.checkpoint->seq),
                                    bytes_column("body", expected.checkpoint->bytes)}},
                       found));
  add_checkpoint_differences(std::move(found), *expected.checkpoint, writes, differences);
  return {};
}

Result<std::vector<Difference>> SqliteRebuild::reconcile(const Projection& expected, Instant now) {
  Impl& p = *impl_;
  AE_CHECK(expected.commits.size() == p.commits.size() && !p.commits.empty(), expected.job.text);
  std::vector<Difference> differences;
  const auto all = [&]() -> Sql<Result<void>> {
    AE_TRY(p.begin());
    AE_ASSIGN(Result<void> result, p.reconcile_job(expected, now, differences));
    if (!result) return result;
    AE_TRY(p.reconcile_head(expected, differences));
    AE_TRY(p.reconcile_labels(expected, differences));
    AE_TRY(p.reconcile_commits(expected, differences));
    AE_TRY(p.reconcile_summary(expected, differences));
    AE_TRY(p.reconcile_checkpoint(expected, differences));
    return Result<void>();
  };
  AE_ASSIGN(const Result<void> result, p.answer(all()));
  if (!result) return std::unexpected(result.error());
  return differences;
}

Result<std::vector<Difference>> SqliteRebuild::reconcile_store_rows() {
  Impl& p = *impl_;
  std::vector<Difference> differences;
  if (!p.only.empty()) return differences;
  const auto all = [&]() -> Sql<void> {
    AE_TRY(p.begin());
    for (const std::string table : {"heads", field::labels, "summaries", "checkpoints"}) {
      std::uint64_t rows = 0;
      const std::string where =
          fmt::format(" FROM {} WHERE job NOT IN (SELECT id FROM jobs)", table);
      AE_TRY(p.read_row("SELECT count(*)" + where, [&](Statement& row) { rows = row.count(0); }));
      if (rows == 0) continue;
      differences.push_back({table, {}, fmt::format("{} of no job", rows), {}});
      if (p.writes) AE_TRY(p.run("DELETE" + where));
    }
    return {};
  };
  AE_TRY(p.answer(all()));
  return differences;
}

Result<std::vector<Damage>> SqliteRebuild::find_damage() {
  Impl& p = *impl_;
  std::vector<Damage> found;
  std::map<std::string, std::string> meta;
  const auto all = [&]() -> Sql<void> {
    AE_TRY(p.begin());
    AE_ASSIGN(Statement * triggers,
              p.statement("SELECT name, tbl_name, replace(name, '\"', '\"\"') FROM sqlite_schema "
                          "WHERE type = 'trigger' ORDER BY name"));
    for (Rows row(*triggers);;) {
      AE_ASSIGN(const bool more, row.next());
      if (!more) break;
      found.push_back(foreign_trigger(fmt::format("the trigger {}", row->text(0)), row->text(1),
                                      fmt::format("DROP TRIGGER \"{}\"", row->text(2))));
    }
    AE_ASSIGN(Statement * rows, p.statement("SELECT key, value FROM meta"));
    for (Rows row(*rows);;) {
      AE_ASSIGN(const bool more, row.next());
      if (!more) return {};
      meta[row->text(0)] = row->text(1);
    }
  };
  AE_TRY(p.answer(all()));
  const auto is_number = [](std::string_view text) {
    return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
  };
  for (const char* key : {"store_id", "timeline"}) {
    if (!is_store_id(meta[key])) found.push_back(broken_meta(key, meta[key]));
  }
  if (!is_number(meta["position"])) found.push_back(broken_meta("position", meta["position"]));
  for (const std::string& timeline : split_lines(meta["timelines"])) {
    if (!is_store_id(timeline)) found.push_back(broken_meta("timelines", timeline));
  }
  const auto recorded = PositionFile(position_path(p.path)).read();
  if (recorded && is_store_id(meta["store_id"]) && recorded->store != meta["store_id"]) {
    constexpr const char* kRemedy =
        "if that was not intended, stop what uses the store and restore a backup";
    found.push_back(
        {"meta", fmt::format("the id of the store is {}, and {} names {}: another store replaced "
                             "it, or its table meta was overwritten; {}",
                             meta["store_id"], position_path(p.path), recorded->store, kRemedy)});
  }
  return found;
}

Status SqliteRebuild::append_audit_entry(const AuditEntry& entry) {
  Impl& p = *impl_;
  if (!p.writes) return {};
  const auto recorded = [&]() -> Sql<void> {
    AE_TRY(p.begin());
    return append_audit(p.db, entry);
  };
  return p.answer(recorded());
}

Status SqliteRebuild::commit() {
  Impl& p = *impl_;
  if (!p.open || !p.writes) return {};  // a comparison keeps its snapshot
  const auto commit_transaction = [&]() -> Sql<void> {
    AE_TRY(p.db.execute("COMMIT"));
    p.open = false;
    return p.db.checkpoint(false);
  };
  return p.answer(commit_transaction());
}

}  // namespace ae::store
