#include "store/postgres/postgres_rebuild.h"

#include <fmt/core.h>

#include <algorithm>

#include "log/field_names.h"
#include "store/postgres/session.h"
#include "store/postgres/statements.h"
#include "store/postgres/transaction.h"
#include "store/rebuild_row.h"
#include "store/rules.h"

namespace ae::store {

using namespace postgres;  // NOLINT: this file is where the parts come together

namespace {

class PostgresDialect final : public SqlDialect {
 public:
  std::string parameter(ExpectedValue::Type type, int index) const override {
    const std::string number = fmt::format("${}", index);
    switch (type) {
      case ExpectedValue::Type::integer:
        return number + "::bigint";
      case ExpectedValue::Type::text:
        return number + "::text";
      case ExpectedValue::Type::bytes:
        return number + "::bytea";
      case ExpectedValue::Type::boolean:
        return fmt::format("({}::bigint <> 0)", number);
      case ExpectedValue::Type::list:
        break;
    }
    return fmt::format("string_to_array({}::text, E'\\n')", number);
  }
  std::string_view is_same() const override { return "IS NOT DISTINCT FROM"; }
  std::string literal(ExpectedValue::Type type, const std::string& expression) const override {
    return type == ExpectedValue::Type::text
               ? fmt::format("quote_nullable({})", expression)
               : fmt::format("coalesce(({})::text, 'NULL')", expression);
  }
};

Params params_of(const SqlStatement& statement) {
  Params params;
  for (const ExpectedValue* value : statement.parameters) {
    using ValueType = ExpectedValue::Type;
    if (value->is_null) {
      params.add(std::nullopt);
    } else if (value->type == ValueType::integer || value->type == ValueType::boolean) {
      params.add(value->number);
    } else if (value->type == ValueType::bytes) {
      params.add(Bytes{value->text});
    } else {
      params.add(value->text);
    }
  }
  return params;
}

using Labels = std::vector<std::pair<std::string, std::string>>;

// Is it a possible fairness key of a job with these labels, for any label?
bool may_be_fairness_key(const std::string& fairness_key, const Labels& labels) {
  return fairness_key.empty() || std::ranges::any_of(labels, [&](const auto& label) {
           return label.second == fairness_key;
         });
}

// The server rolls back what was not committed.
class PostgresRebuild final : public Rebuild {
 public:
  PostgresRebuild(Connection connection, const PostgresRebuildOptions& options)
      : connection_(std::move(connection)), writes_(!options.compare_only), only_(options.job) {}
  Status prepare();

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
  Result<std::vector<Rows>> run() {
    auto answers = connection_.run();
    if (!answers) return std::unexpected(unavailable_error(answers.error()));
    return *std::move(answers);
  }
  Result<Rows> query(const std::string& sql, const Params& params = {}) {
    connection_.add_unprepared(sql, params);
    AE_ASSIGN(auto answers, run());
    return std::move(answers.back());
  }
  Status begin() {
    if (in_transaction_) return {};
    AE_TRY(query(writes_ ? kBegin.sql : kBeginSnapshot.sql));
    in_transaction_ = true;
    return {};
  }

  Status reconcile_row(const ExpectedRow& row, std::vector<Difference>& differences);
  Result<bool> release_key(const Projection& expected);
  Status reconcile_job(const Projection& expected, std::vector<Difference>& differences);
  Status reconcile_head(const Projection& expected, Instant now,
                        std::vector<Difference>& differences);
  Status reconcile_labels(const Projection& expected, std::vector<Difference>& differences);
  Status reconcile_commits(const Projection& expected, std::vector<Difference>& differences);
  Status reconcile_summary(const Projection& expected, std::vector<Difference>& differences);
  Status reconcile_checkpoint(const Projection& expected, std::vector<Difference>& differences);

  Connection connection_;
  const bool writes_;
  bool in_transaction_ = false;
  const std::string only_;             // this job; "" = all
  std::string fair_by_;                // label of the fairness key
  std::int64_t walked_ = 0;            // job numbers already visited by `next`
  std::int64_t job_ = 0;               // number of the job that was read last
  std::vector<std::int64_t> commits_;  // first seqs of its commits, from their rows
};

Status PostgresRebuild::prepare() {
  // Folding a long log takes time between two statements.
  AE_TRY(query("SET idle_in_transaction_session_timeout = '10min'"));
  AE_ASSIGN(const Rows label, query(kFairBy.sql));
  if (!label.empty()) fair_by_ = label.text(0, 0);
  return {};
}

Result<std::uint64_t> PostgresRebuild::count_jobs() {
  if (!writes_) AE_TRY(begin());
  AE_ASSIGN(const Rows found,
            query("SELECT count(*) FROM jobs WHERE $1::text = '' OR job_id = $1::text",
                  Params().add(only_)));
  return found.count(0, 0);
}

Result<std::optional<JobId>> PostgresRebuild::next_job() {
  AE_ASSIGN(const Rows found, query("SELECT number, job_id FROM jobs WHERE number > $2::bigint AND "
                                    "($1::text = '' OR job_id = $1::text) ORDER BY number LIMIT 1",
                                    Params().add(only_).add(walked_)));
  if (found.empty()) return std::optional<JobId>();
  walked_ = found.integer(0, 0);
  return std::optional<JobId>(JobId(found.text(0, 1)));
}

Result<StoredLog> PostgresRebuild::read(const JobId& job) {
  StoredLog log{.job = job, .commits = {}, .end = {}, .signed_head = {}, .checkpoint = {}};
  AE_TRY(begin());
  AE_ASSIGN(const Rows row,
            query("SELECT number FROM jobs WHERE job_id = $1::text", Params().add(job.text)));
  if (row.empty()) return std::unexpected(job_not_found(job));
  job_ = row.integer(0, 0);
  const Params number = Params().add(job_);
  // Every writer of a job locks one of these rows first, so its rows do not change until the
  // commit.
  connection_.add_unprepared(
      fmt::format("SELECT 1 FROM heads WHERE job = $1::bigint{}", writes_ ? " FOR UPDATE" : ""),
      number);
  connection_.add_unprepared(
      fmt::format("SELECT last_seq, head FROM log_ends WHERE job = $1::bigint{}",
                  writes_ ? " FOR UPDATE" : ""),
      number);
  connection_.add_unprepared(
      "SELECT first_seq, body FROM commits WHERE job = $1::bigint ORDER BY first_seq", number);
  connection_.add_unprepared("SELECT body FROM signed_heads WHERE job = $1::bigint", number);
  connection_.add_unprepared("SELECT seq, body FROM checkpoints WHERE job = $1::bigint", number);
  AE_ASSIGN(const auto answers, run());
  const Rows &end = answers[1], &commits = answers[2], &signed_head = answers[3],
             &checkpoint = answers[4];
  if (!end.empty()) log.end = StoredLog::End{end.count(0, 0), end.hash(0, 1)};
  commits_.clear();
  for (int i = 0; i < commits.size(); ++i) {
    commits_.push_back(commits.integer(i, 0));
    log.commits.push_back(commits.text(i, 1));
  }
  if (!signed_head.empty()) log.signed_head = signed_head.text(0, 0);
  if (!checkpoint.empty())
    log.checkpoint = Checkpoint{checkpoint.count(0, 0), checkpoint.text(0, 1)};
  return log;
}

Result<std::string> PostgresRebuild::blob(const Hash& hash) {
  AE_ASSIGN(const Rows found,
            query("SELECT bytes FROM blobs WHERE hash = $1::bytea", Params().add(hash)));
  if (found.empty()) {
    return fail(Code::log_corrupt, "blob {} is missing", to_hex(hash));
  }
  return found.text(0, 0);
}

// ---------------------------------------------------------------- one row

Status PostgresRebuild::reconcile_row(const ExpectedRow& row,
                                      std::vector<Difference>& differences) {
  const PostgresDialect dialect;
  const SqlStatement comparison = comparison_of(row, dialect);
  AE_ASSIGN(const Rows answer, query(comparison.sql, params_of(comparison)));
  std::optional<std::vector<ColumnComparison>> columns;
  if (!answer.empty()) {
    columns.emplace();
    for (int at = 0; at < static_cast<int>(row.columns.size()) * 3; at += 3) {
      ColumnComparison& compared = columns->emplace_back();
      compared.is_same = answer.boolean(0, at);
      if (compared.is_same) continue;
      compared.stored = answer.text(0, at + 1);
      compared.derived = answer.text(0, at + 2);
    }
  }
  const RowComparison found = compare_row(row, columns, differences);
  if (found.differing.empty() || !writes_) return {};
  const SqlStatement rewrite = rewrite_of(row, found, dialect);
  AE_TRY(query(rewrite.sql, params_of(rewrite)));
  return {};
}

// ---------------------------------------------------------------- the tables

// Another row may have the idempotency key that this job's log contains. A row later in the walk
// gives it up until it is rewritten itself. False: the key belongs to another job's log.
Result<bool> PostgresRebuild::release_key(const Projection& expected) {
  if (expected.idempotency_key.empty()) return true;
  AE_ASSIGN(const Rows other,
            query("SELECT number FROM jobs WHERE agent = $1::text AND "
                  "idempotency_key = $2::text AND idempotency_key <> '' AND "
                  "number <> $3::bigint",
                  Params().add(expected.agent).add(expected.idempotency_key).add(job_)));
  if (other.empty() || !writes_) return true;
  if (!only_.empty() || other.integer(0, 0) < job_) return false;
  AE_TRY(query("UPDATE jobs SET idempotency_key = '' WHERE number = $1::bigint",
               Params().add(other.integer(0, 0))));
  return true;
}

Status PostgresRebuild::reconcile_job(const Projection& expected,
                                      std::vector<Difference>& differences) {
  AE_ASSIGN(const bool has_key, release_key(expected));
  if (!has_key) {
    return std::unexpected(idempotency_key_taken(expected, !only_.empty()));
  }
  ExpectedRow row{.table = "jobs",
                  .key = {integer_column("number", job_)},
                  .columns = {text_column(field::agent, expected.agent),
                              text_column(field::idempotency_key, expected.idempotency_key),
                              integer_column(field::priority, expected.priority),
                              list_column("capabilities", expected.capabilities),
                              time_column("created_at", expected.created_at)}};
  if (expected.request_hash) {
    row.columns.push_back(hash_column("request_hash", *expected.request_hash));
  }
  // Rows of an earlier layout, or of a process of an older version, are completed.
  AE_ASSIGN(
      const Rows origin,
      query("SELECT forked_from IS NULL FROM jobs WHERE number = $1::bigint", Params().add(job_)));
  const bool not_computed = !origin.empty() && origin.boolean(0, 0);
  if (not_computed && writes_) {
    AE_TRY(query("UPDATE jobs SET forked_from = $2::text WHERE number = $1::bigint",
                 Params().add(job_).add(expected.forked_from)));
  } else if (!not_computed) {
    row.columns.push_back(text_column(field::forked_from, expected.forked_from));
  }
  return reconcile_row(row, differences);
}

// Claims are not part of the log. But the epoch must not decrease, and a blocked job with a lease
// could never wake up.
Status PostgresRebuild::reconcile_head(const Projection& expected, Instant now,
                                       std::vector<Difference>& differences) {
  AE_ASSIGN(
      const Rows head,
      query("SELECT epoch, attempt IS NOT NULL, lease_until, kind = '', turn, pending >= 64 FROM "
            "heads "
            "WHERE job = $1::bigint",
            Params().add(job_)));
  const std::uint64_t epoch = head.empty() ? 0 : head.count(0, 0);
  bool held = !head.empty() && head.boolean(0, 1);
  std::optional<Instant> lease_until = held ? head.maybe_instant(0, 2) : std::nullopt;
  ExpectedRow row{.table = "heads",
                  .key = {integer_column("job", job_)},
                  .columns = {integer_column(field::priority, expected.priority),
                              integer_column(field::epoch, std::max(epoch, expected.epoch)),
                              text_column("status", expected.row.status),
                              time_column(field::not_before, expected.row.not_before),
                              time_column("wake_at", expected.row.wake_at),
                              text_column(field::queue, expected.queue)}};
  // An ended job may keep a key of an earlier fairness label.
  const bool keeps_fairness_key = !head.empty() && has_ended(expected.row.status) &&
                                  may_be_fairness_key(head.text(0, 4), expected.labels);
  if (!keeps_fairness_key)
    row.columns.push_back(text_column("turn", fairness_key_of(expected.labels, fair_by_)));
  // Rows of an earlier layout, or of a process of an older version, are completed.
  const bool not_computed = !head.empty() && head.boolean(0, 5);
  if (not_computed && writes_) {
    AE_TRY(query("UPDATE heads SET pending = $2::bigint WHERE job = $1::bigint",
                 Params().add(job_).add(std::uint64_t{expected.row.pending})));
  } else if (!not_computed) {
    row.columns.push_back(integer_column("pending", std::uint64_t{expected.row.pending}));
  }
  // With kind '' a claim checks the job's own columns.
  if (head.empty() || !head.boolean(0, 3)) {
    row.columns.push_back(
        bytes_column(field::kind, kind_of(expected.agent, expected.capabilities)));
  }
  if (!is_runnable(expected.row.status)) {
    held = false;
    row.columns.push_back(null_text_column("attempt"));
    row.columns.push_back(null_text_column("held_by"));
    row.columns.push_back(time_column("lease_until", std::nullopt));
  } else if (held && !lease_until) {
    lease_until = Instant{0};
    row.columns.push_back(time_column("lease_until", lease_until));
  }
  const Eligibility eligibility = eligibility_of(expected.row, held ? lease_until : std::nullopt);
  // Eligible jobs get `ready` at the next claim; until then both values are correct.
  const bool eligible = eligibility.at && *eligibility.at <= now;
  if (!eligible || head.empty())
    row.columns.push_back(boolean_column("ready", eligibility.ready || eligible));
  row.columns.push_back(time_column("ripe_at", eligibility.at));
  AE_TRY(reconcile_row(row, differences));
  // With the lease that the row has now.
  AE_ASSIGN(const Rows lease,
            query("SELECT attempt FROM heads WHERE job = $1::bigint", Params().add(job_)));
  ExpectedColumn attempt = lease.empty() || lease.is_null(0, 0)
                               ? null_text_column("attempt")
                               : text_column("attempt", lease.text(0, 0));
  return reconcile_row(
      {.table = "log_ends",
       .key = {integer_column("job", job_)},
       .columns = {std::move(attempt), integer_column("last_seq", expected.last_seq),
                   time_column("updated_at", expected.updated_at),
                   hash_column("head", expected.head)}},
      differences);
}

Status PostgresRebuild::reconcile_labels(const Projection& expected,
                                         std::vector<Difference>& differences) {
  const Params number = Params().add(job_);
  AE_ASSIGN(const Rows found,
            query("SELECT key, value FROM labels WHERE job = $1::bigint", number));
  Labels stored;
  for (int i = 0; i < found.size(); ++i) stored.emplace_back(found.text(i, 0), found.text(i, 1));
  auto difference = compare_labels(std::move(stored), expected.labels);
  if (!difference) return {};
  differences.push_back(*std::move(difference));
  if (!writes_) return {};
  connection_.add_unprepared("DELETE FROM labels WHERE job = $1::bigint", number);
  std::int64_t location = 0;
  for (const auto& [key, value] : expected.labels) {
    connection_.add_unprepared(
        "INSERT INTO labels(job, number, key, value) "
        "VALUES($1::bigint, $2::bigint, $3::text, $4::text)",
        Params().add(job_).add(location++).add(key).add(value));
  }
  AE_TRY(run());
  return {};
}

Status PostgresRebuild::reconcile_commits(const Projection& expected,
                                          std::vector<Difference>& differences) {
  for (std::size_t i = 0; i < commits_.size(); ++i) {
    const Projection::Commit& commit = expected.commits[i];
    AE_TRY(reconcile_row(
        {.table = "commits",
         .key = {integer_column("job", job_), integer_column("first_seq", commits_[i])},
         .columns = {integer_column("first_seq", commit.first_seq),
                     integer_column("last_seq", commit.last_seq),
                     hashes_column("blobs", commit.blobs)}},
        differences));
  }
  return {};
}

Status PostgresRebuild::reconcile_summary(const Projection& expected,
                                          std::vector<Difference>& differences) {
  std::vector<Difference> found;
  AE_TRY(reconcile_row(summary_row(job_, expected), found));
  add_summary_differences(std::move(found), differences);
  return {};
}

Status PostgresRebuild::reconcile_checkpoint(const Projection& expected,
                                             std::vector<Difference>& differences) {
  if (!expected.checkpoint) return {};
  std::vector<Difference> found;
  AE_TRY(reconcile_row({.table = "checkpoints",
                        .key = {integer_column("job", job_)},
                        .columns = {integer_column("seq", expected.checkpoint->seq),
                                    bytes_column("body", expected.checkpoint->bytes)}},
                       found));
  add_checkpoint_differences(std::move(found), *expected.checkpoint, writes_, differences);
  return {};
}

Result<std::vector<Difference>> PostgresRebuild::reconcile(const Projection& expected,
                                                           Instant now) {
  AE_CHECK(expected.commits.size() == commits_.size() && !commits_.empty(), expected.job.text);
  std::vector<Difference> differences;
  AE_TRY(begin());
  AE_TRY(reconcile_job(expected, differences));
  AE_TRY(reconcile_head(expected, now, differences));
  AE_TRY(reconcile_labels(expected, differences));
  AE_TRY(reconcile_commits(expected, differences));
  AE_TRY(reconcile_summary(expected, differences));
  AE_TRY(reconcile_checkpoint(expected, differences));
  return differences;
}

Result<std::vector<Difference>> PostgresRebuild::reconcile_store_rows() {
  std::vector<Difference> differences;
  if (!only_.empty()) return differences;
  AE_TRY(begin());
  for (const std::string table : {"heads", "log_ends", field::labels, "summaries", "checkpoints"}) {
    const std::string where =
        fmt::format(" FROM {} WHERE NOT EXISTS (SELECT 1 FROM jobs WHERE number = job)", table);
    AE_ASSIGN(const Rows found, query("SELECT count(*)" + where));
    if (found.count(0, 0) == 0) continue;
    differences.push_back({table, {}, fmt::format("{} of no job", found.count(0, 0)), {}});
    if (writes_) AE_TRY(query("DELETE" + where));
  }
  return differences;
}

Result<std::vector<Damage>> PostgresRebuild::find_damage() {
  std::vector<Damage> found;
  AE_TRY(begin());
  constexpr const char* kOwnTables =
      "(SELECT relnamespace FROM pg_catalog.pg_class WHERE oid = 'meta'::regclass)";
  AE_ASSIGN(const Rows triggers,
            query(fmt::format(
                "SELECT 'TRIGGER', t.tgname::text, c.relname::text, "
                "quote_ident(t.tgname) || ' ON ' || quote_ident(c.relname) "
                "FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid "
                "WHERE NOT t.tgisinternal AND t.tgname <> 'note_values' AND c.relnamespace = {0} "
                "UNION ALL SELECT 'RULE', r.rulename::text, c.relname::text, "
                "quote_ident(r.rulename) || ' ON ' || quote_ident(c.relname) "
                "FROM pg_catalog.pg_rewrite r JOIN pg_catalog.pg_class c ON c.oid = r.ev_class "
                "WHERE c.relkind = 'r' AND c.relnamespace = {0} ORDER BY 2",
                kOwnTables)));
  for (int i = 0; i < triggers.size(); ++i) {
    const std::string kind = triggers.text(i, 0);
    found.push_back(foreign_trigger(
        fmt::format("the {} {}", kind == "RULE" ? "rule" : "trigger", triggers.text(i, 1)),
        triggers.text(i, 2), fmt::format("DROP {} {}", kind, triggers.text(i, 3))));
  }
  AE_ASSIGN(const Rows meta,
            query("SELECT k, coalesce((SELECT value FROM meta WHERE key = k), '') FROM "
                  "unnest(ARRAY['store_id', 'timeline', 'audit_head']) k"));
  for (int i = 0; i < meta.size(); ++i) {
    const std::string key = meta.text(i, 0), value = meta.text(i, 1);
    const std::size_t space = value.find(' ');
    const bool valid = key == "audit_head" ? space != value.npos && space > 0 &&
                                                 value.find_first_not_of("0123456789") == space &&
                                                 hash_from_hex(value.substr(space + 1)).has_value()
                       : key == "timeline" && value.empty() ? true
                                                            : is_store_id(value);
    if (!valid) found.push_back(broken_meta(key, value));
  }
  return found;
}

Status PostgresRebuild::append_audit_entry(const AuditEntry& entry) {
  if (!writes_) return {};
  AE_TRY(begin());
  AE_ASSIGN(const Rows head, query("SELECT value FROM meta WHERE key = 'audit_head' FOR UPDATE"));
  const AuditRow row = chain_entry(audit_head_from_text(head.bytes(0, 0)), entry);
  connection_.add_unprepared(
      "INSERT INTO audit(seq, body, hash) VALUES($1::bigint, $2::bytea, $3::bytea)",
      Params().add(row.seq).add(Bytes{row.body}).add(row.hash));
  connection_.add_unprepared("UPDATE meta SET value = $1::text WHERE key = 'audit_head'",
                             Params().add(to_text(AuditHead{row.seq, row.hash})));
  AE_TRY(run());
  return {};
}

Status PostgresRebuild::commit() {
  if (!in_transaction_ || !writes_) return {};  // a comparison keeps its snapshot
  AE_TRY(query("COMMIT"));
  in_transaction_ = false;
  return {};
}

}  // namespace

Result<std::unique_ptr<Rebuild>> open_postgres_rebuild(const PostgresRebuildOptions& options) {
  AE_ASSIGN(Connection connection, Session::open_first({.connection = {.url = options.url},
                                                        .params = {.schema = options.schema},
                                                        .store_id = {}}));
  AE_TRY(check_schema(connection, options.schema));
  auto rebuild = std::make_unique<PostgresRebuild>(std::move(connection), options);
  AE_TRY(rebuild->prepare());
  return rebuild;
}

}  // namespace ae::store
