#include "store/postgres/postgres_rebuild.h"

#include <algorithm>
#include <functional>
#include <initializer_list>

#include "store/postgres/session.h"
#include "store/postgres/transaction.h"
#include "store/rules.h"

namespace ae::store {

using namespace postgres;  // NOLINT: this file is where the parts come together

namespace {

// The expected value of a column. `value`: the SQL expression for its parameter ($).
struct Cell {
  std::string_view name, value;
  std::function<void(Params&)> add;
};

Cell number(std::string_view name, std::int64_t wanted) {
  return {name, "$::bigint", [wanted](Params& all) { all.add(wanted); }};
}
Cell number(std::string_view name, std::uint64_t wanted) {
  return number(name, static_cast<std::int64_t>(wanted));
}
Cell time(std::string_view name, const std::optional<Instant>& wanted) {
  return {name, "$::bigint", [wanted](Params& all) { all.add(wanted); }};
}
Cell text(std::string_view name, std::string wanted) {
  return {name, "$::text", [wanted](Params& all) { all.add(wanted); }};
}
Cell nothing(std::string_view name) {
  return {name, "$::text", [](Params& all) { all.add(std::nullopt); }};
}
Cell bytes(std::string_view name, std::optional<std::string> wanted) {
  return {name, "$::bytea",
          [wanted](Params& all) { wanted ? all.add(Bytes{*wanted}) : all.add(std::nullopt); }};
}
Cell truth(std::string_view name, bool wanted) {
  return {name, "($::bigint <> 0)", [wanted](Params& all) { all.add(std::int64_t{wanted}); }};
}
Cell list(std::string_view name, const std::vector<std::string>& wanted) {
  std::string lines;
  for (const std::string& group : wanted) lines += (lines.empty() ? "" : "\n") + group;
  return {name, "string_to_array($::text, E'\\n')", [lines](Params& all) { all.add(lines); }};
}

std::string raw(const Hash& hash) {
  return {reinterpret_cast<const char*>(hash.bytes.data()), hash.bytes.size()};
}

// One row of a table, by its key.
struct Row {
  std::string_view table;
  std::vector<Cell> key, columns;
};

// Builds a statement with numbered parameters.
class Text {
 public:
  Text& put(std::string_view plain) {
    sql_ += plain;
    return *this;
  }
  Text& put(const Cell& cell) {
    cell.add(params_);
    const std::size_t at = cell.value.find('$');
    sql_ += cell.value.substr(0, at + 1);
    sql_ += std::to_string(++count_);
    sql_ += cell.value.substr(at + 1);
    return *this;
  }
  // "a = 1, b = 2", with other texts for " = " and ", ".
  Text& pairs(const std::vector<Cell>& cells, std::string_view is, std::string_view between) {
    for (std::size_t i = 0; i < cells.size(); ++i) {
      put(i == 0 ? "" : between).put(cells[i].name).put(is).put(cells[i]);
    }
    return *this;
  }
  void add_to(Connection& connection) const { connection.add_unprepared(sql_, params_); }

 private:
  std::string sql_;
  Params params_;
  int count_ = 0;
};

using Labels = std::vector<std::pair<std::string, std::string>>;

std::string shown(Labels labels) {
  std::ranges::sort(labels);
  std::string all;
  for (const auto& [key, value] : labels) {
    all.append(all.empty() ? "" : ", ").append(key).append("=").append(value);
  }
  return all;
}

// Is it a possible fairness key of a job with these labels, for any label?
bool may_be_fairness_key(const std::string& fairness_key, const Labels& labels) {
  return fairness_key.empty() || std::ranges::any_of(labels, [&](const auto& label) {
           return label.second == fairness_key;
         });
}

}  // namespace

struct PostgresRebuild::Impl {
  explicit Impl(Connection opened) : connection(std::move(opened)) {}

  Connection connection;
  bool writes = false;
  bool open = false;                  // in a transaction
  std::string only;                   // this job; "" = all
  std::string fair_by;                // label of the fairness key
  std::int64_t walked = 0;            // job numbers already visited by `next`
  std::int64_t job = 0;               // number of the job that was read last
  std::vector<std::int64_t> commits;  // first seqs of its commits, from their rows

  Result<std::vector<Rows>> run() {
    auto answers = connection.run();
    if (!answers) return std::unexpected(unavailable_error(answers.error()));
    return *std::move(answers);
  }
  Result<Rows> ask(const std::string& sql, const Params& params = {}) {
    connection.add_unprepared(sql, params);
    AE_ASSIGN(auto answers, run());
    return std::move(answers.back());
  }
  Status begin() {
    if (open) return {};
    AE_TRY(ask(writes ? "BEGIN" : "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"));
    open = true;
    return {};
  }

  Status reconcile_row(const Row& row, std::vector<Difference>& said);
  Status put(const Row& row, bool there, const std::vector<Cell>& differ);
  Result<bool> release_key(const Projection& wanted);
  Status reconcile_job(const Projection& wanted, std::vector<Difference>& said);
  Status reconcile_head(const Projection& wanted, Instant now, std::vector<Difference>& said);
  Status reconcile_labels(const Projection& wanted, std::vector<Difference>& said);
  Status reconcile_commits(const Projection& wanted, std::vector<Difference>& said);
  Status reconcile_checkpoint(const Projection& wanted, std::vector<Difference>& said);
};

PostgresRebuild::PostgresRebuild(std::unique_ptr<Impl> parts) : impl_(std::move(parts)) {}
// The server rolls back what was not committed.
PostgresRebuild::~PostgresRebuild() = default;

Result<std::unique_ptr<PostgresRebuild>> PostgresRebuild::open(
    const PostgresRebuildOptions& options) {
  AE_ASSIGN(Connection connection, Session::open_first({.connection = {.url = options.url},
                                                        .params = {.schema = options.schema},
                                                        .store_id = {}}));
  AE_TRY(check_schema(connection, options.schema));
  auto parts = std::make_unique<Impl>(std::move(connection));
  parts->writes = !options.compare_only;
  parts->only = options.job;
  // Folding a long log takes time between two statements.
  AE_TRY(parts->ask("SET idle_in_transaction_session_timeout = '10min'"));
  AE_ASSIGN(const Rows label, parts->ask("SELECT value FROM meta WHERE key = 'fair_by'"));
  if (!label.empty()) parts->fair_by = label.text(0, 0);
  return std::unique_ptr<PostgresRebuild>(new PostgresRebuild(std::move(parts)));
}

Result<std::uint64_t> PostgresRebuild::jobs() {
  if (!impl_->writes) AE_TRY(impl_->begin());
  AE_ASSIGN(const Rows found,
            impl_->ask("SELECT count(*) FROM jobs WHERE $1::text = '' OR job_id = $1::text",
                       Params().add(impl_->only)));
  return found.count(0, 0);
}

Result<std::optional<JobId>> PostgresRebuild::next() {
  AE_ASSIGN(const Rows found,
            impl_->ask("SELECT number, job_id FROM jobs WHERE number > $2::bigint AND "
                       "($1::text = '' OR job_id = $1::text) ORDER BY number LIMIT 1",
                       Params().add(impl_->only).add(impl_->walked)));
  if (found.empty()) return std::optional<JobId>();
  impl_->walked = found.integer(0, 0);
  return std::optional<JobId>(JobId(found.text(0, 1)));
}

Result<StoredLog> PostgresRebuild::read(const JobId& job) {
  Impl& p = *impl_;
  StoredLog log{.job = job, .commits = {}, .end = {}, .signed_head = {}, .checkpoint = {}};
  AE_TRY(p.begin());
  AE_ASSIGN(const Rows row,
            p.ask("SELECT number FROM jobs WHERE job_id = $1::text", Params().add(job.text)));
  if (row.empty()) return std::unexpected(job_not_found(job));
  p.job = row.integer(0, 0);
  const Params number = Params().add(p.job);
  // Every writer of a job locks this row first, so the rows do not change until the commit.
  p.connection.add_unprepared(
      std::string("SELECT last_seq, head FROM heads WHERE job = $1::bigint") +
          (p.writes ? " FOR UPDATE" : ""),
      number);
  p.connection.add_unprepared(
      "SELECT first_seq, body FROM commits WHERE job = $1::bigint ORDER BY first_seq", number);
  p.connection.add_unprepared("SELECT body FROM signed_heads WHERE job = $1::bigint", number);
  p.connection.add_unprepared("SELECT seq, body FROM checkpoints WHERE job = $1::bigint", number);
  AE_ASSIGN(const auto answers, p.run());
  const Rows &head = answers[0], &commits = answers[1], &signed_head = answers[2],
             &checkpoint = answers[3];
  if (!head.empty()) log.end = StoredLog::End{head.count(0, 0), head.hash(0, 1)};
  p.commits.clear();
  for (int i = 0; i < commits.size(); ++i) {
    p.commits.push_back(commits.integer(i, 0));
    log.commits.push_back(commits.text(i, 1));
  }
  if (!signed_head.empty()) log.signed_head = signed_head.text(0, 0);
  if (!checkpoint.empty())
    log.checkpoint = Checkpoint{checkpoint.count(0, 0), checkpoint.text(0, 1)};
  return log;
}

Result<std::string> PostgresRebuild::blob(const Hash& hash) {
  AE_ASSIGN(const Rows found, impl_->ask("SELECT bytes FROM blobs WHERE hash = $1::bytea",
                                         Params().add(Bytes{raw(hash)})));
  if (found.empty()) {
    return fail(Code::log_corrupt, "blob " + to_hex(hash) + " is missing");
  }
  return found.text(0, 0);
}

// ---------------------------------------------------------------- one row

Status PostgresRebuild::Impl::reconcile_row(const Row& row, std::vector<Difference>& said) {
  Text question;
  question.put("SELECT ");
  for (std::size_t i = 0; i < row.columns.size(); ++i) {
    const Cell& cell = row.columns[i];
    question.put(i == 0 ? "" : ", ").put(cell.name).put(" IS NOT DISTINCT FROM ").put(cell);
    const bool quoted = cell.value == "$::text";
    for (const bool stored : {true, false}) {
      question.put(quoted ? ", quote_nullable(" : ", coalesce((");
      stored ? question.put(cell.name) : question.put(cell);
      question.put(quoted ? ")" : ")::text, 'NULL')");
    }
  }
  question.put(" FROM ").put(row.table).put(" WHERE ").pairs(row.key, " = ", " AND ");
  question.add_to(connection);
  AE_ASSIGN(const auto answers, run());
  const Rows& found = answers.back();
  if (found.empty()) {
    said.push_back(
        {.table = std::string(row.table), .column = {}, .stored = {}, .derived = "a row"});
    return put(row, false, row.columns);
  }
  std::vector<Cell> differ;
  for (std::size_t i = 0; i < row.columns.size(); ++i) {
    const int at = static_cast<int>(i) * 3;
    if (found.boolean(0, at)) continue;
    differ.push_back(row.columns[i]);
    said.push_back({.table = std::string(row.table),
                    .column = std::string(row.columns[i].name),
                    .stored = found.text(0, at + 1),
                    .derived = found.text(0, at + 2)});
  }
  return put(row, true, differ);
}

Status PostgresRebuild::Impl::put(const Row& row, bool there, const std::vector<Cell>& differ) {
  if (differ.empty() || !writes) return {};
  Text statement;
  if (there) {
    statement.put("UPDATE ").put(row.table).put(" SET ").pairs(differ, " = ", ", ");
    statement.put(" WHERE ").pairs(row.key, " = ", " AND ");
  } else {
    statement.put("INSERT INTO ").put(row.table).put("(");
    std::vector<Cell> all = row.key;
    all.insert(all.end(), differ.begin(), differ.end());
    for (const Cell& cell : all) statement.put(&cell == all.data() ? "" : ", ").put(cell.name);
    statement.put(") VALUES(");
    for (const Cell& cell : all) statement.put(&cell == all.data() ? "" : ", ").put(cell);
    statement.put(")");
  }
  statement.add_to(connection);
  AE_TRY(run());
  return {};
}

// ---------------------------------------------------------------- the tables

// Another row may have the idempotency key that this job's log contains. A row later in the walk
// gives it up until it is rewritten itself. False: the key belongs to another job's log.
Result<bool> PostgresRebuild::Impl::release_key(const Projection& wanted) {
  if (wanted.idempotency_key.empty()) return true;
  AE_ASSIGN(const Rows other, ask("SELECT number FROM jobs WHERE agent = $1::text AND "
                                  "idempotency_key = $2::text AND idempotency_key <> '' AND "
                                  "number <> $3::bigint",
                                  Params().add(wanted.agent).add(wanted.idempotency_key).add(job)));
  if (other.empty() || !writes) return true;
  if (!only.empty() || other.integer(0, 0) < job) return false;
  AE_TRY(ask("UPDATE jobs SET idempotency_key = '' WHERE number = $1::bigint",
             Params().add(other.integer(0, 0))));
  return true;
}

Status PostgresRebuild::Impl::reconcile_job(const Projection& wanted,
                                            std::vector<Difference>& said) {
  AE_ASSIGN(const bool has_key, release_key(wanted));
  if (!has_key) {
    return fail(Code::idempotency_conflict,
                "another job of agent " + wanted.agent + " has its idempotency key " +
                    wanted.idempotency_key +
                    (only.empty() ? "" : ": rebuild the whole store, without --job"));
  }
  Row row{
      .table = "jobs",
      .key = {number("number", job)},
      .columns = {text("agent", wanted.agent), text("idempotency_key", wanted.idempotency_key),
                  number("priority", wanted.priority), list("capabilities", wanted.capabilities),
                  time("created_at", wanted.created_at)}};
  if (wanted.request_hash) row.columns.push_back(bytes("request_hash", raw(*wanted.request_hash)));
  return reconcile_row(row, said);
}

// Claims are not part of the log. But the epoch must not decrease, and a blocked job with a lease
// could never wake up.
Status PostgresRebuild::Impl::reconcile_head(const Projection& wanted, Instant now,
                                             std::vector<Difference>& said) {
  AE_ASSIGN(const Rows stands,
            ask("SELECT epoch, attempt IS NOT NULL, lease_until, kind = '', turn FROM heads "
                "WHERE job = $1::bigint",
                Params().add(job)));
  const std::uint64_t epoch = stands.empty() ? 0 : stands.count(0, 0);
  bool held = !stands.empty() && stands.boolean(0, 1);
  std::optional<Instant> lease_until = held ? stands.maybe_instant(0, 2) : std::nullopt;
  Row row{.table = "heads",
          .key = {number("job", job)},
          .columns = {number("last_seq", wanted.last_seq), time("updated_at", wanted.updated_at),
                      bytes("head", raw(wanted.head)), number("priority", wanted.priority),
                      number("epoch", std::max(epoch, wanted.epoch)),
                      text("status", wanted.row.status), time("not_before", wanted.row.not_before),
                      time("wake_at", wanted.row.wake_at), text("queue", wanted.queue)}};
  // An ended job may keep a key of an earlier fairness label.
  const bool may_stay = !stands.empty() && has_ended(wanted.row.status) &&
                        may_be_fairness_key(stands.text(0, 4), wanted.labels);
  if (!may_stay) row.columns.push_back(text("turn", fairness_key_of(wanted.labels, fair_by)));
  // With kind '' a claim checks the job's own columns.
  if (stands.empty() || !stands.boolean(0, 3)) {
    row.columns.push_back(bytes("kind", kind_of(wanted.agent, wanted.capabilities)));
  }
  if (!may_run(wanted.row.status)) {
    held = false;
    row.columns.push_back(nothing("attempt"));
    row.columns.push_back(nothing("worker"));
    row.columns.push_back(time("lease_until", std::nullopt));
  } else if (held && !lease_until) {
    lease_until = Instant{0};
    row.columns.push_back(time("lease_until", lease_until));
  }
  const Eligibility eligibility = eligibility_of(wanted.row, held ? lease_until : std::nullopt);
  // Eligible jobs get `ready` at the next claim; until then both values are correct.
  const bool eligible = eligibility.at && *eligibility.at <= now;
  if (!eligible || stands.empty())
    row.columns.push_back(truth("ready", eligibility.ready || eligible));
  row.columns.push_back(time("ripe_at", eligibility.at));
  return reconcile_row(row, said);
}

Status PostgresRebuild::Impl::reconcile_labels(const Projection& wanted,
                                               std::vector<Difference>& said) {
  const Params number = Params().add(job);
  AE_ASSIGN(const Rows found, ask("SELECT key, value FROM labels WHERE job = $1::bigint", number));
  Labels stored;
  for (int i = 0; i < found.size(); ++i) stored.emplace_back(found.text(i, 0), found.text(i, 1));
  if (std::ranges::is_permutation(stored, wanted.labels)) return {};
  said.push_back({.table = "labels",
                  .column = {},
                  .stored = shown(std::move(stored)),
                  .derived = shown(wanted.labels)});
  if (!writes) return {};
  connection.add_unprepared("DELETE FROM labels WHERE job = $1::bigint", number);
  std::int64_t location = 0;
  for (const auto& [key, value] : wanted.labels) {
    connection.add_unprepared(
        "INSERT INTO labels(job, number, key, value) "
        "VALUES($1::bigint, $2::bigint, $3::text, $4::text)",
        Params().add(job).add(location++).add(key).add(value));
  }
  AE_TRY(run());
  return {};
}

Status PostgresRebuild::Impl::reconcile_commits(const Projection& wanted,
                                                std::vector<Difference>& said) {
  for (std::size_t i = 0; i < commits.size(); ++i) {
    const Projection::Commit& commit = wanted.commits[i];
    std::string blobs;
    for (const Hash& hash : commit.blobs) blobs += raw(hash);
    AE_TRY(reconcile_row(
        {.table = "commits",
         .key = {number("job", job), number("first_seq", commits[i])},
         .columns = {number("first_seq", commit.first_seq), number("last_seq", commit.last_seq),
                     bytes("blobs", blobs.empty() ? std::nullopt : std::optional(blobs))}},
        said));
  }
  return {};
}

Status PostgresRebuild::Impl::reconcile_checkpoint(const Projection& wanted,
                                                   std::vector<Difference>& said) {
  if (!wanted.checkpoint) return {};
  std::vector<Difference> found;
  AE_TRY(reconcile_row(
      {.table = "checkpoints",
       .key = {number("job", job)},
       .columns = {number("seq", wanted.checkpoint->seq), bytes("body", wanted.checkpoint->bytes)}},
      found));
  for (Difference& difference : found) {
    if (difference.column.empty() && !writes) continue;  // it is optional
    if (difference.column == "body") {
      difference.stored = "another state";
      difference.derived = "the state at event " + std::to_string(wanted.checkpoint->seq);
    }
    said.push_back(std::move(difference));
  }
  return {};
}

Result<std::vector<Difference>> PostgresRebuild::reconcile(const Projection& wanted, Instant now) {
  Impl& p = *impl_;
  AE_CHECK(wanted.commits.size() == p.commits.size() && !p.commits.empty(), wanted.job.text);
  std::vector<Difference> said;
  AE_TRY(p.begin());
  AE_TRY(p.reconcile_job(wanted, said));
  AE_TRY(p.reconcile_head(wanted, now, said));
  AE_TRY(p.reconcile_labels(wanted, said));
  AE_TRY(p.reconcile_commits(wanted, said));
  AE_TRY(p.reconcile_checkpoint(wanted, said));
  return said;
}

Result<std::vector<Difference>> PostgresRebuild::reconcile_rest() {
  Impl& p = *impl_;
  std::vector<Difference> said;
  if (!p.only.empty()) return said;
  AE_TRY(p.begin());
  for (const std::string table : {"heads", "labels", "checkpoints"}) {
    const std::string where =
        " FROM " + table + " WHERE NOT EXISTS (SELECT 1 FROM jobs WHERE number = job)";
    AE_ASSIGN(const Rows found, p.ask("SELECT count(*)" + where));
    if (found.count(0, 0) == 0) continue;
    said.push_back({table, {}, std::to_string(found.count(0, 0)) + " of no job", {}});
    if (p.writes) AE_TRY(p.ask("DELETE" + where));
  }
  return said;
}

Result<std::vector<Damage>> PostgresRebuild::damage() {
  Impl& p = *impl_;
  std::vector<Damage> found;
  AE_TRY(p.begin());
  constexpr const char* kOurs =
      "(SELECT relnamespace FROM pg_catalog.pg_class WHERE oid = 'meta'::regclass)";
  AE_ASSIGN(const Rows triggers,
            p.ask(std::string("SELECT 'TRIGGER', t.tgname::text, c.relname::text, "
                              "quote_ident(t.tgname) || ' ON ' || quote_ident(c.relname) "
                              "FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_class c ON c.oid = "
                              "t.tgrelid WHERE NOT t.tgisinternal AND t.tgname <> 'note_values' "
                              "AND c.relnamespace = ") +
                  kOurs +
                  " UNION ALL SELECT 'RULE', r.rulename::text, c.relname::text, "
                  "quote_ident(r.rulename) || ' ON ' || quote_ident(c.relname) "
                  "FROM pg_catalog.pg_rewrite r JOIN pg_catalog.pg_class c ON c.oid = r.ev_class "
                  "WHERE c.relkind = 'r' AND c.relnamespace = " +
                  kOurs + " ORDER BY 2"));
  for (int i = 0; i < triggers.size(); ++i) {
    const std::string kind = triggers.text(i, 0);
    found.push_back(
        foreign_trigger((kind == "RULE" ? "the rule " : "the trigger ") + triggers.text(i, 1),
                        triggers.text(i, 2), "DROP " + kind + " " + triggers.text(i, 3)));
  }
  AE_ASSIGN(const Rows meta,
            p.ask("SELECT k, coalesce((SELECT value FROM meta WHERE key = k), '') FROM "
                  "unnest(ARRAY['store_id', 'timeline', 'audit_head']) k"));
  for (int i = 0; i < meta.size(); ++i) {
    const std::string key = meta.text(i, 0), value = meta.text(i, 1);
    const std::size_t space = value.find(' ');
    const bool whole = key == "audit_head" ? space != value.npos && space > 0 &&
                                                 value.find_first_not_of("0123456789") == space &&
                                                 hash_from_hex(value.substr(space + 1)).has_value()
                       : key == "timeline" && value.empty() ? true
                                                            : is_store_id(value);
    if (!whole) found.push_back(broken_meta(key, value));
  }
  return found;
}

Status PostgresRebuild::append_audit_entry(const AuditEntry& entry) {
  Impl& p = *impl_;
  if (!p.writes) return {};
  AE_TRY(p.begin());
  AE_ASSIGN(const Rows head, p.ask("SELECT value FROM meta WHERE key = 'audit_head' FOR UPDATE"));
  const AuditRow row = chain_entry(Transaction::audit_head(head.text(0, 0)), entry);
  p.connection.add_unprepared(
      "INSERT INTO audit(seq, body, hash) VALUES($1::bigint, $2::bytea, $3::bytea)",
      Params().add(row.seq).add(Bytes{row.body}).add(Bytes{raw(row.hash)}));
  p.connection.add_unprepared("UPDATE meta SET value = $1::text WHERE key = 'audit_head'",
                              Params().add(std::to_string(row.seq) + " " + to_hex(row.hash)));
  AE_TRY(p.run());
  return {};
}

Status PostgresRebuild::commit() {
  Impl& p = *impl_;
  if (!p.open || !p.writes) return {};  // a comparison keeps its snapshot
  AE_TRY(p.ask("COMMIT"));
  p.open = false;
  return {};
}

}  // namespace ae::store
