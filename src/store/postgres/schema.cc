#include "store/postgres/schema.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>

namespace ae::store::postgres {
namespace {

constexpr int kServerMin = 130000;

// `jobs` is written once. Columns that claims and commits change are in `heads` and `log_ends`, in
// narrow rows with free space on their pages. A commit of a running job writes one row of `commits`
// and one of `log_ends`, and touches no index of `log_ends` (HOT).
// `ready` = claimable now; `ripe_at` = when it becomes claimable: not_before, or the end of its
// lease.
// Texts are compared by their bytes (COLLATE "C"); sealed bytes are stored unchanged as bytea.
constexpr const char* kFirstTables[] = {
    "CREATE TABLE meta(key text PRIMARY KEY, value text NOT NULL)",
    "CREATE SEQUENCE job_numbers",
    "CREATE SEQUENCE inbox_numbers",
    R"sql(CREATE TABLE jobs(
      number bigint PRIMARY KEY,
      job_id text COLLATE "C" NOT NULL UNIQUE,
      agent text COLLATE "C" NOT NULL,
      idempotency_key text COLLATE "C" NOT NULL,
      request_hash bytea NOT NULL,
      priority bigint NOT NULL,
      capabilities text[] COLLATE "C" NOT NULL,
      created_at bigint NOT NULL))sql",
    "CREATE UNIQUE INDEX jobs_key ON jobs(agent, idempotency_key) WHERE idempotency_key <> ''",
    "CREATE INDEX jobs_agent ON jobs(agent, number)",
    R"sql(CREATE TABLE heads(
      job bigint PRIMARY KEY,
      last_seq bigint NOT NULL,
      updated_at bigint NOT NULL,
      head bytea NOT NULL,
      priority bigint NOT NULL,
      epoch bigint NOT NULL,
      not_before bigint,
      wake_at bigint,
      lease_until bigint,
      ripe_at bigint,
      ready boolean NOT NULL,
      status text COLLATE "C" NOT NULL,
      attempt text COLLATE "C",
      worker text COLLATE "C",
      queue text COLLATE "C" NOT NULL,
      turn text COLLATE "C" NOT NULL) WITH (fillfactor = 60))sql",
    "CREATE INDEX heads_ready ON heads(priority DESC, job) WHERE ready",
    "CREATE INDEX heads_line ON heads(queue, priority DESC, turn, job) WHERE ready",
    "CREATE INDEX heads_held ON heads(queue) WHERE attempt IS NOT NULL",
    "CREATE INDEX heads_delayed ON heads(ripe_at) "
    "WHERE NOT ready AND ripe_at IS NOT NULL AND attempt IS NULL",
    "CREATE INDEX heads_leased ON heads(ripe_at) "
    "WHERE NOT ready AND ripe_at IS NOT NULL AND attempt IS NOT NULL",
    "CREATE INDEX heads_wake ON heads(wake_at, job) WHERE wake_at IS NOT NULL AND attempt IS NULL",
    "CREATE INDEX heads_status ON heads(status, job) WHERE status <> 'completed'",
    R"sql(CREATE TABLE commits(
      job bigint NOT NULL,
      first_seq bigint NOT NULL,
      last_seq bigint NOT NULL,
      blobs bytea,
      body bytea NOT NULL,
      PRIMARY KEY(job, first_seq)))sql",
    "CREATE TABLE blobs(hash bytea PRIMARY KEY, bytes bytea NOT NULL)",
    R"sql(CREATE TABLE labels(
      job bigint NOT NULL,
      number bigint NOT NULL,
      key text COLLATE "C" NOT NULL,
      value text COLLATE "C" NOT NULL,
      PRIMARY KEY(job, number)))sql",
    "CREATE INDEX labels_value ON labels(key, value, job)",
    R"sql(CREATE TABLE effects(
      job bigint NOT NULL,
      invocation text COLLATE "C" NOT NULL,
      try bigint NOT NULL,
      record bytea NOT NULL,
      PRIMARY KEY(job, invocation, try)))sql",
    R"sql(CREATE TABLE ledger(
      job bigint NOT NULL,
      invocation text COLLATE "C" NOT NULL,
      try bigint NOT NULL,
      state text COLLATE "C" NOT NULL,
      record bytea NOT NULL,
      PRIMARY KEY(job, invocation, try)))sql",
    R"sql(CREATE TABLE inbox(
      job bigint NOT NULL,
      number bigint NOT NULL,
      id text COLLATE "C" NOT NULL,
      act bytea NOT NULL,
      PRIMARY KEY(job, number),
      UNIQUE(job, id)))sql",
    "CREATE TABLE signed_heads(job bigint PRIMARY KEY, body bytea NOT NULL)",
    "CREATE TABLE checkpoints(job bigint PRIMARY KEY, seq bigint NOT NULL, body bytea NOT NULL)",
    R"sql(CREATE TABLE turns(
      priority bigint PRIMARY KEY,
      last text COLLATE "C" NOT NULL))sql",
    "CREATE TABLE audit(seq bigint PRIMARY KEY, body bytea NOT NULL, hash bytea NOT NULL)",
    "INSERT INTO meta VALUES('audit_head', '0 ' || repeat('0', 64))",
    "INSERT INTO meta VALUES('fair_by', '')",
    "INSERT INTO meta VALUES('store_id', replace(gen_random_uuid()::text, '-', ''))",
    "INSERT INTO meta VALUES('layout', '0')",
};

// Announcements of workers and their expiry; no decision depends on them.
constexpr const char* kWorkerTable[] = {
    R"sql(CREATE TABLE workers(
      worker text COLLATE "C" PRIMARY KEY,
      until bigint NOT NULL,
      says bytea NOT NULL))sql",
};

// Which job references which blob. Until layout 8 a trigger maintains it, because a process of an
// older version that runs beside newer ones must not omit a reference. Redaction deletes obsolete
// references.
// Older versions did not, so obsolete ones can exist: before a blob is deleted, the commits of the
// job are checked too.
constexpr const char* kValueUses[] = {
    R"sql(CREATE TABLE value_uses(
      job bigint NOT NULL,
      hash bytea NOT NULL,
      PRIMARY KEY(job, hash)))sql",
    "CREATE INDEX value_uses_hash ON value_uses(hash)",
    R"sql(CREATE FUNCTION note_values() RETURNS trigger
    LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
    BEGIN
      INSERT INTO value_uses(job, hash)
        SELECT DISTINCT NEW.job, substring(NEW.blobs FROM 1 + 32 * n FOR 32)
        FROM generate_series(0, length(NEW.blobs) / 32 - 1) AS n ON CONFLICT DO NOTHING;
      RETURN NULL;
    END $$)sql",
    "CREATE TRIGGER note_values AFTER INSERT OR UPDATE OF blobs ON commits FOR EACH ROW "
    "WHEN (NEW.blobs IS NOT NULL) EXECUTE FUNCTION note_values()",
    // The trigger has locked the table against writers.
    "INSERT INTO value_uses(job, hash) "
    "SELECT DISTINCT job, substring(blobs FROM 1 + 32 * n FOR 32) "
    "FROM commits CROSS JOIN LATERAL generate_series(0, length(blobs) / 32 - 1) AS n "
    "WHERE blobs IS NOT NULL",
};

// A hash of a job's requirements (kind_of in transaction_send.cc): ready jobs with the same
// requirements are adjacent. '' = not computed: jobs that had ended, and jobs created by a process
// of an older version.
constexpr const char* kKinds[] = {
    "ALTER TABLE heads ADD COLUMN kind bytea NOT NULL DEFAULT ''",
    "UPDATE heads SET kind = substring(sha256(convert_to(agent, 'UTF8') || '\\x00'::bytea || "
    "convert_to(array_to_string(capabilities, E'\\n'), 'UTF8')) FOR 16) "
    "FROM jobs WHERE number = heads.job AND status NOT IN ('completed', 'failed', 'cancelled')",
    "DROP INDEX heads_ready",
    "DROP INDEX heads_line",
    "CREATE INDEX heads_ready ON heads(kind, priority DESC, job) WHERE ready",
    "CREATE INDEX heads_line ON heads(queue, kind, priority DESC, turn, job) WHERE ready",
};

// Keeps values and their hashes out of the server's statistics, which redaction cannot erase.
constexpr const char* kNoSamples[] = {
    "ALTER TABLE commits ALTER body SET STATISTICS 0, ALTER blobs SET STATISTICS 0",
    "ALTER TABLE blobs ALTER bytes SET STATISTICS 0, ALTER hash SET STATISTICS 0",
    "ALTER TABLE value_uses ALTER hash SET STATISTICS 0",
    "ALTER TABLE effects ALTER record SET STATISTICS 0",
    "ALTER TABLE ledger ALTER record SET STATISTICS 0",
    "ALTER TABLE checkpoints ALTER body SET STATISTICS 0",
    "ALTER TABLE inbox ALTER act SET STATISTICS 0",
};

// The requests to operators that a job may have open (store/pending.h), and the replies to consumed
// entries of inboxes. A process of an older version does not compute them for the jobs that it
// creates.
constexpr const char* kPending[] = {
    "ALTER TABLE heads ADD COLUMN pending bigint NOT NULL DEFAULT 127",
    "UPDATE heads SET pending = 80 WHERE status IN ('completed', 'failed', 'cancelled')",
    "CREATE INDEX heads_pending ON heads(job) WHERE pending <> 0",
    R"sql(CREATE TABLE inbox_replies(
      number bigint PRIMARY KEY,
      job bigint NOT NULL,
      id text COLLATE "C" NOT NULL,
      reply bytea NOT NULL,
      UNIQUE(job, id)))sql",
    "ALTER TABLE inbox_replies ALTER reply SET STATISTICS 0",
};

// What lists show of a job: its origin (NULL = not set) and its summary. A process of an older
// version does not compute them for the jobs that it writes.
constexpr const char* kSummaries[] = {
    "ALTER TABLE jobs ADD COLUMN forked_from text COLLATE \"C\"",
    "CREATE INDEX jobs_forked_from ON jobs(forked_from, number) WHERE forked_from <> ''",
    R"sql(CREATE TABLE summaries(
      job bigint PRIMARY KEY,
      error text COLLATE "C" NOT NULL,
      kind text COLLATE "C" NOT NULL,
      cost_micros bigint NOT NULL,
      changed_at bigint NOT NULL,
      body bytea NOT NULL))sql",
    "CREATE INDEX summaries_error ON summaries(error, job) WHERE error <> ''",
    "CREATE INDEX summaries_kind ON summaries(kind, job) WHERE kind <> 'plan'",
    "CREATE INDEX summaries_cost ON summaries(cost_micros) WHERE cost_micros > 0",
    "CREATE INDEX summaries_changed ON summaries(changed_at, job)",
};

// What moves at each step of a job, apart from what lists and claims search. `attempt`: as in
// `heads`, the lease whose holder may append.
// Writers insert the references of new commits: the trigger cost as much as the rest of a commit
// with values. A process of an older version cannot append any more; `held_by` was `worker`, so that
// it cannot claim either.
constexpr const char* kLogEnds[] = {
    "LOCK TABLE heads IN ACCESS EXCLUSIVE MODE",
    R"sql(CREATE TABLE log_ends(
      job bigint PRIMARY KEY,
      attempt text COLLATE "C",
      last_seq bigint NOT NULL,
      updated_at bigint NOT NULL,
      head bytea NOT NULL) WITH (fillfactor = 60))sql",
    "INSERT INTO log_ends SELECT job, attempt, last_seq, updated_at, head FROM heads",
    "ALTER TABLE heads DROP COLUMN last_seq, DROP COLUMN updated_at, DROP COLUMN head",
    "ALTER TABLE heads RENAME COLUMN worker TO held_by",
    "DROP TRIGGER note_values ON commits",
    ("CREATE TRIGGER note_values AFTER UPDATE OF blobs ON commits FOR EACH ROW "
     "WHEN (NEW.blobs IS NOT NULL) EXECUTE FUNCTION note_values()"),
};

struct Step {
  const char* const* statements;
  std::size_t count;
};
// From each layout to the next, starting with an empty schema.
constexpr Step kMigrations[] = {
    {kFirstTables, std::size(kFirstTables)},  // 0 → 1
    {kWorkerTable, std::size(kWorkerTable)},  // 1 → 2
    {kValueUses, std::size(kValueUses)},      // 2 → 3
    {kKinds, std::size(kKinds)},              // 3 → 4
    {kNoSamples, std::size(kNoSamples)},      // 4 → 5
    {kPending, std::size(kPending)},          // 5 → 6
    {kSummaries, std::size(kSummaries)},      // 6 → 7
    {kLogEnds, std::size(kLogEnds)},          // 7 → 8
};

std::string literal(std::string_view text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? "''" : std::string(1, c);
  return quoted + "'";
}

// A role that may create tables in an existing schema need not have the right to create schemas.
Status make_schema(Connection& connection, const std::string& schema) {
  Params name;
  name.add(schema);
  connection.add_unprepared("SELECT count(*) > 0 FROM pg_namespace WHERE nspname = $1::text", name);
  auto schema_exists = connection.run();
  if (!schema_exists) return std::unexpected(unavailable_error(schema_exists.error()));
  if (!schema_exists->at(0).boolean(0, 0))
    connection.add_unprepared(fmt::format("CREATE SCHEMA {}", quoted_name(schema)));
  return {};
}

Status unsupported(std::string message) { return fail(Code::unsupported, std::move(message)); }

}  // namespace

std::int64_t newest_layout() { return std::size(kMigrations); }

Result<std::int64_t> layout_of(Connection& connection, const std::string& schema) {
  Params name;
  name.add(schema);
  // Queries the catalog, because the server caches earlier name lookups.
  connection.add_unprepared(
      "SELECT count(*) > 0 FROM pg_class WHERE relname = 'meta' AND relnamespace IN "
      "(SELECT oid FROM pg_namespace WHERE nspname = $1::text)",
      name);
  auto table_exists = connection.run();
  if (!table_exists) return std::unexpected(unavailable_error(table_exists.error()));
  if (!table_exists->at(0).boolean(0, 0)) return 0;
  connection.add_unprepared("SELECT value::bigint FROM meta WHERE key = 'layout'");
  auto layout = connection.run();
  if (!layout) return std::unexpected(unavailable_error(layout.error()));
  if (layout->at(0).empty()) {
    return fail(Code::unavailable, "the schema {} belongs to another program: use another database",
                schema);
  }
  const std::int64_t found = layout->at(0).integer(0, 0);
  if (found > newest_layout()) {
    return fail(Code::needs_version,
                "this store was made by a newer aetheris (layout "
                "{}, this one knows {}): use that version",
                found, newest_layout());
  }
  return found;
}

std::string quoted_name(std::string_view name) {
  std::string quoted = "\"";
  for (const char c : name) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

Error unavailable_error(const PgError& error) { return {Code::unavailable, error.text()}; }

Status prepare_session(Connection& connection, const SessionParams& params) {
  if (connection.server_version() < kServerMin) {
    return unsupported(fmt::format("this is PostgreSQL {}: Aetheris needs 13 or newer",
                                   connection.server_version() / 10000));
  }
  const auto set = [&](const std::string& name, const std::string& value) {
    connection.add_unprepared(
        fmt::format("SELECT set_config({}, {}, false)", literal(name), literal(value)));
  };
  connection.add_unprepared(
      "SELECT pg_is_in_recovery(), current_setting('fsync') = 'on', "
      "current_setting('server_encoding') = 'UTF8', "
      "current_setting('synchronous_commit') IN ('off', 'local')");
  set("search_path", quoted_name(params.schema));
  // Every statement selects its rows by a key: no plan may scan a whole table because it was small
  // once.
  for (const char* off :
       {"enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin", "jit"}) {
    set(off, "off");
  }
  set("plan_cache_mode", "force_generic_plan");
  // A process that stops in the middle of a transaction must not block its jobs.
  set("idle_in_transaction_session_timeout", "5s");
  set("lock_timeout", kLockTimeout);
  set("statement_timeout", kStatementTimeout);
  auto answers = connection.run();
  if (!answers) return std::unexpected(unavailable_error(answers.error()));
  const Rows& about = answers->at(0);
  if (about.boolean(0, 0)) {
    return unsupported("this PostgreSQL server is a replica: give the address of the primary");
  }
  if (!about.boolean(0, 1) && !params.allow_no_fsync) {
    return unsupported(
        "this PostgreSQL server runs with fsync=off and would lose what it has confirmed: set "
        "fsync=on");
  }
  if (!about.boolean(0, 2)) {
    return unsupported("this database is not encoded in UTF8: make one with ENCODING 'UTF8'");
  }
  if (about.boolean(0, 3)) {
    set("synchronous_commit", "on");
    if (auto done = connection.run(); !done)
      return std::unexpected(unavailable_error(done.error()));
  }
  return {};
}

Status prepare_schema(Connection& connection, const std::string& schema) {
  AE_TRY(prepare_schema(connection, schema, newest_layout()));
  return {};
}

namespace {

Error migrating(const PgError& error) {
  if (error.sqlstate != "55P03") return unavailable_error(error);
  return {Code::unavailable,
          fmt::format(
              "another process is migrating this store, or holds its tables: try again later ({})",
              error.text())};
}

}  // namespace

Result<std::int64_t> prepare_schema(Connection& connection, const std::string& schema,
                                    std::int64_t layout, std::chrono::milliseconds lock_timeout) {
  AE_ASSIGN(const std::int64_t before, layout_of(connection, schema));
  if (before >= layout) return before;
  const auto run = [&]() -> Result<std::int64_t> {
    connection.add_unprepared("BEGIN");
    connection.add_unprepared(fmt::format("SET LOCAL lock_timeout = {}", lock_timeout.count()));
    connection.add_unprepared("SET LOCAL statement_timeout = 0");
    // The search path of this transaction, in case a pooler assigned another server process.
    connection.add_unprepared(fmt::format("SET LOCAL search_path = {}", quoted_name(schema)));
    connection.add_unprepared(fmt::format("SELECT pg_advisory_xact_lock(hashtextextended({}, 0))",
                                          literal("aetheris " + schema)));
    if (auto locked = connection.run(); !locked) return std::unexpected(migrating(locked.error()));
    AE_ASSIGN(const std::int64_t from, layout_of(connection, schema));  // may have changed
    if (from == 0) AE_TRY(make_schema(connection, schema));
    for (std::int64_t step = from; step < layout; ++step) {
      const Step& migration = kMigrations[step];
      for (std::size_t i = 0; i < migration.count; ++i) {
        connection.add_unprepared(migration.statements[i]);
      }
    }
    Params now;
    now.add(std::to_string(std::max(from, layout)));
    connection.add_unprepared("UPDATE meta SET value = $1::text WHERE key = 'layout'", now);
    connection.add_unprepared("COMMIT");
    if (auto done = connection.run(); !done) return std::unexpected(migrating(done.error()));
    return from;
  };
  Result<std::int64_t> done = run();
  if (done || connection.lost()) return done;
  connection.add_unprepared("ROLLBACK");
  if (auto undone = connection.run(); !undone)
    return std::unexpected(unavailable_error(undone.error()));
  return done;
}

Status check_schema(Connection& connection, const std::string& schema) {
  AE_ASSIGN(const std::int64_t layout, layout_of(connection, schema));
  if (layout == 0) {
    return fail(Code::not_found, "there is no store in this database yet: run a job first");
  }
  if (layout < newest_layout()) {
    return fail(Code::needs_version, Action{.act = act::kMigrate},
                "this store was made by an older aetheris (layout {}, this one knows {}): each "
                "process that runs jobs migrates it",
                layout, newest_layout());
  }
  return {};
}

// A writer of a job locks a row or the table first and reads the label after that, so either it
// waits for this transaction or this one waits for it. Ended jobs are never claimed again and keep
// their key.
Status set_fairness_label(Connection& connection, const std::string& label) {
  Params by;
  by.add(label);
  connection.add_unprepared("SELECT value = $1::text FROM meta WHERE key = 'fair_by'", by);
  auto same = connection.run();
  if (!same) return std::unexpected(unavailable_error(same.error()));
  if (same->at(0).boolean(0, 0)) return {};
  connection.add_unprepared("BEGIN");
  connection.add_unprepared("LOCK TABLE heads IN EXCLUSIVE MODE");
  connection.add_unprepared("UPDATE meta SET value = $1::text WHERE key = 'fair_by'", by);
  connection.add_unprepared("DELETE FROM turns");
  connection.add_unprepared(
      "UPDATE heads SET turn = coalesce((SELECT value FROM labels WHERE job = heads.job "
      "AND key = $1::text ORDER BY number LIMIT 1), '') "
      // `status <> 'completed'` lets the server use the index.
      "WHERE status <> 'completed' AND status NOT IN ('failed', 'cancelled')",
      by);
  connection.add_unprepared("COMMIT");
  // On failure the caller must not use the connection any more.
  if (auto done = connection.run(); !done) {
    return std::unexpected(unavailable_error(done.error()));
  }
  return {};
}

Result<std::string> store_id(Connection& connection) {
  connection.add_unprepared("SELECT value FROM meta WHERE key = 'store_id'");
  auto found = connection.run();
  if (!found) return std::unexpected(unavailable_error(found.error()));
  if (found->at(0).empty()) {
    return fail(Code::unavailable, "this store has no store id: restore a backup");
  }
  return found->at(0).text(0, 0);
}

Status check_pooler(Connection& one, Connection& other) {
  const auto backend_pid = [](Connection& connection, bool in_transaction) -> Result<std::int64_t> {
    if (in_transaction) connection.add_unprepared("BEGIN");
    connection.add_unprepared("SELECT pg_backend_pid()::bigint");
    auto answers = connection.run();
    if (!answers) return std::unexpected(unavailable_error(answers.error()));
    return answers->back().integer(0, 0);
  };
  AE_ASSIGN(const std::int64_t first, backend_pid(one, false));
  AE_ASSIGN(const std::int64_t second, backend_pid(other, true));  // and keeps it
  AE_ASSIGN(const std::int64_t again, backend_pid(one, false));
  other.add_unprepared("ROLLBACK");
  if (auto done = other.run(); !done) return std::unexpected(unavailable_error(done.error()));
  if (first != second && first == again) return {};
  return unsupported(
      "a pooler in transaction mode is in front of this PostgreSQL server: connect to the server "
      "directly, or set the pool to session mode");
}

}  // namespace ae::store::postgres
