#include "store/sqlite/schema.h"

#include <fmt/core.h>

#include <filesystem>
#include <initializer_list>
#include <string>
#include <system_error>

namespace ae::store::sqlite {
namespace {

// Columns that change with every commit are in `heads`, in narrow rows that share pages. A commit
// of a running job writes one row of `commits` and one of `heads` and touches no index. `commits`
// is append-only: a job's commits are found by following `prev`, and `jump` (skew-binary), which
// makes finding the n-th one O(log n).
// `ready` = claimable now; `ripe_at` = when it becomes claimable: not_before, or the end of its
// lease.
constexpr const char* kTables = R"sql(
CREATE TABLE meta(
  key TEXT PRIMARY KEY,
  value NOT NULL
) WITHOUT ROWID;

CREATE TABLE jobs(
  id INTEGER PRIMARY KEY,
  job_id TEXT NOT NULL UNIQUE,
  agent TEXT NOT NULL,
  idempotency_key TEXT NOT NULL,
  request_hash BLOB NOT NULL,
  priority INTEGER NOT NULL,
  capabilities TEXT NOT NULL DEFAULT '',
  queue TEXT NOT NULL DEFAULT 'default',
  turn TEXT NOT NULL DEFAULT '',
  created_at INTEGER NOT NULL,
  status TEXT NOT NULL,
  not_before INTEGER,
  wake_at INTEGER,
  epoch INTEGER NOT NULL,
  attempt TEXT,
  worker TEXT,
  lease_until INTEGER,
  ready INTEGER NOT NULL,
  ripe_at INTEGER
);
CREATE UNIQUE INDEX jobs_key ON jobs(agent, idempotency_key) WHERE idempotency_key <> '';
CREATE INDEX jobs_delayed ON jobs(ripe_at)
  WHERE ready = 0 AND ripe_at IS NOT NULL AND attempt IS NULL;
CREATE INDEX jobs_leased ON jobs(ripe_at)
  WHERE ready = 0 AND ripe_at IS NOT NULL AND attempt IS NOT NULL;
CREATE INDEX jobs_wake ON jobs(wake_at) WHERE wake_at IS NOT NULL AND attempt IS NULL;
CREATE INDEX jobs_status ON jobs(status) WHERE status <> 'completed';
CREATE INDEX jobs_agent ON jobs(agent);

CREATE TABLE heads(
  job INTEGER PRIMARY KEY,
  last_seq INTEGER NOT NULL,
  commits INTEGER NOT NULL,
  last_commit INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  head BLOB NOT NULL
);

CREATE TABLE commits(
  id INTEGER PRIMARY KEY,
  job INTEGER NOT NULL,
  first_seq INTEGER NOT NULL,
  last_seq INTEGER NOT NULL,
  prev INTEGER,
  jump INTEGER,
  blobs BLOB,
  body BLOB NOT NULL
);

CREATE TABLE blobs(
  hash BLOB PRIMARY KEY,
  bytes BLOB NOT NULL
) WITHOUT ROWID;

CREATE TABLE labels(
  job INTEGER NOT NULL,
  number INTEGER NOT NULL,
  key TEXT NOT NULL,
  value TEXT NOT NULL,
  PRIMARY KEY(job, number)
) WITHOUT ROWID;
CREATE INDEX labels_value ON labels(key, value, job);

CREATE TABLE effects(
  job INTEGER NOT NULL,
  invocation TEXT NOT NULL,
  try INTEGER NOT NULL,
  record BLOB NOT NULL,
  PRIMARY KEY(job, invocation, try)
) WITHOUT ROWID;

CREATE TABLE ledger(
  job INTEGER NOT NULL,
  invocation TEXT NOT NULL,
  try INTEGER NOT NULL,
  state TEXT NOT NULL,
  record BLOB NOT NULL,
  PRIMARY KEY(job, invocation, try)
) WITHOUT ROWID;

CREATE TABLE inbox(
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  job INTEGER NOT NULL,
  id TEXT NOT NULL,
  act BLOB NOT NULL,
  UNIQUE(job, id)
);

INSERT INTO meta VALUES('store_id', lower(hex(randomblob(16))));
)sql";

// Added by layout 3.
constexpr const char* kSideRecordTables = R"sql(
CREATE TABLE signed_heads(
  job INTEGER PRIMARY KEY,
  body BLOB NOT NULL
);

CREATE TABLE checkpoints(
  job INTEGER PRIMARY KEY,
  seq INTEGER NOT NULL,
  body BLOB NOT NULL
);
)sql";

// Added by layout 4: the order of claims (store/claim_order.h), the store position and the audit
// log (store/audit.h).
constexpr const char* kClaimOrderTables = R"sql(
CREATE INDEX jobs_ready ON jobs(queue, priority DESC, turn) WHERE ready = 1;
CREATE INDEX jobs_held ON jobs(queue) WHERE attempt IS NOT NULL;

CREATE TABLE turns(
  priority INTEGER PRIMARY KEY,
  last TEXT NOT NULL
);

CREATE TABLE audit(
  seq INTEGER PRIMARY KEY,
  body TEXT NOT NULL,
  hash BLOB NOT NULL
);

INSERT INTO meta VALUES('timeline', lower(hex(randomblob(16))));
INSERT INTO meta VALUES('position', 0);
)sql";

// Added by layout 5: which job references which blob. Each commit is indexed once, before jobs are
// deleted; `meta.values_listed` is the last indexed one.
constexpr const char* kValueUses = R"sql(
CREATE TABLE value_uses(
  job INTEGER NOT NULL,
  hash BLOB NOT NULL,
  PRIMARY KEY(job, hash)
) WITHOUT ROWID;
CREATE INDEX value_uses_hash ON value_uses(hash);
)sql";

// Changed by layout 6: ready jobs with the same requirements are adjacent in the index.
constexpr const char* kByNeeds = R"sql(
DROP INDEX jobs_ready;
CREATE INDEX jobs_ready ON jobs(queue, agent, capabilities, priority DESC, turn) WHERE ready = 1;
)sql";

// Added by layout 7: the requests to operators that a job may have open (store/pending.h), and the
// replies to consumed entries of inboxes.
constexpr const char* kPending = R"sql(
ALTER TABLE jobs ADD COLUMN pending INTEGER NOT NULL DEFAULT 0;
UPDATE jobs SET pending = CASE WHEN status IN ('completed', 'failed', 'cancelled') THEN 80 ELSE 127 END;
CREATE INDEX jobs_pending ON jobs(id) WHERE pending <> 0;

CREATE TABLE inbox_replies(
  number INTEGER PRIMARY KEY,
  job INTEGER NOT NULL,
  id TEXT NOT NULL,
  reply BLOB NOT NULL,
  UNIQUE(job, id)
);
)sql";

// Added by layout 8: what lists show of a job: its origin (NULL = a row of an earlier layout) and
// its summary.
constexpr const char* kSummaries = R"sql(
ALTER TABLE jobs ADD COLUMN forked_from TEXT;
CREATE INDEX jobs_forked_from ON jobs(forked_from) WHERE forked_from <> '';

CREATE TABLE summaries(
  job INTEGER PRIMARY KEY,
  error TEXT NOT NULL,
  kind TEXT NOT NULL,
  cost_micros INTEGER NOT NULL,
  changed_at INTEGER NOT NULL,
  body BLOB NOT NULL
);
CREATE INDEX summaries_error ON summaries(error) WHERE error <> '';
CREATE INDEX summaries_kind ON summaries(kind) WHERE kind <> 'plan';
CREATE INDEX summaries_cost ON summaries(cost_micros) WHERE cost_micros > 0;
CREATE INDEX summaries_changed ON summaries(changed_at);
)sql";

constexpr const char* kDropOldClaimOrder = R"sql(
ALTER TABLE jobs ADD COLUMN queue TEXT NOT NULL DEFAULT 'default';
ALTER TABLE jobs ADD COLUMN turn TEXT NOT NULL DEFAULT '';
DROP INDEX jobs_ready;
)sql";

// From each layout to the next; a new file gets all tables at once.
constexpr std::initializer_list<const char*> kMigrations[] = {
    {"ALTER TABLE jobs ADD COLUMN capabilities TEXT NOT NULL DEFAULT ''"},  // 1 → 2
    {kSideRecordTables},                                                    // 2 → 3
    {kDropOldClaimOrder, kClaimOrderTables},                                // 3 → 4
    {kValueUses},                                                           // 4 → 5
    {kByNeeds},                                                             // 5 → 6
    {kPending},                                                             // 6 → 7
    {kSummaries},                                                           // 7 → 8
};
static_assert(std::size(kMigrations) == kLayout - 1);

std::unexpected<Error> unusable(const std::string& path, const SqlError& error) {
  return std::unexpected(cannot_open(path, error));
}

}  // namespace

Result<std::int64_t> layout_of(Database& db, const std::string& path) {
  // In one statement: another process may be creating the tables.
  std::int64_t application = 0, layout = 0, tables = 0;
  const auto read = [&]() -> Sql<void> {
    AE_ASSIGN(Statement all,
              db.prepare("SELECT application_id, user_version, (SELECT count(*) FROM "
                         "sqlite_schema) FROM pragma_application_id, pragma_user_version"));
    Rows row(all);
    AE_TRY(row.next());
    application = row->integer(0);
    layout = row->integer(1);
    tables = row->integer(2);
    return {};
  };
  if (const auto done = read(); !done) return unusable(path, done.error());
  if (application == 0 && tables == 0) return 0;
  if (application != kApplicationId) {
    return fail(Code::unavailable,
                "{} is a database of another program: choose another file for the store", path);
  }
  if (layout > kLayout) {
    return fail(Code::needs_version,
                "{} was made by a newer aetheris (layout {}, this one knows {}): use that version",
                path, layout, kLayout);
  }
  return layout;
}

Error cannot_open(const std::string& path, const SqlError& error) {
  if (!error.no_space()) return {Code::unavailable, fmt::format("{}: {}", path, error.text())};
  std::error_code unknown;
  const std::filesystem::path absolute = std::filesystem::absolute(path, unknown);
  const std::string folder =
      (unknown ? std::filesystem::path(path) : absolute).parent_path().string();
  return {Code::unavailable, fmt::format("the store {} cannot be opened: the disk that holds {} is "
                                         "full; free some space there, then start again",
                                         path, folder)};
}

Status prepare_schema(Database& db, const std::string& path) {
  AE_ASSIGN(const std::int64_t layout, layout_of(db, path));
  const auto run = [&]() -> Sql<void> {
    AE_TRY(db.execute("PRAGMA journal_mode = WAL"));
    AE_TRY(db.execute("PRAGMA synchronous = FULL"));
    AE_TRY(db.execute("PRAGMA wal_autocheckpoint = 0"));
    // Overwrites deleted and moved data, such as consumed control requests and replaced
    // checkpoints.
    AE_TRY(db.execute("PRAGMA secure_delete = ON"));
    AE_TRY(db.execute("PRAGMA cache_size = -65536"));            // a group never spills
    AE_TRY(db.execute("PRAGMA journal_size_limit = 67108864"));  // size of a WAL after it is reset
    if (layout == kLayout) return {};
    AE_TRY(db.execute("BEGIN IMMEDIATE"));
    if (layout == 0) {
      AE_TRY(db.execute(kTables));
      AE_TRY(db.execute(kSideRecordTables));
      AE_TRY(db.execute(kClaimOrderTables));
      AE_TRY(db.execute(kValueUses));
      AE_TRY(db.execute(kByNeeds));
      AE_TRY(db.execute(kPending));
      AE_TRY(db.execute(kSummaries));
    } else {
      for (std::int64_t from = layout; from < kLayout; ++from) {
        for (const char* step : kMigrations[from - 1]) AE_TRY(db.execute(step));
      }
    }
    AE_TRY(db.execute(fmt::format("PRAGMA application_id = {}", kApplicationId).c_str()));
    AE_TRY(db.execute(fmt::format("PRAGMA user_version = {}", kLayout).c_str()));
    AE_TRY(db.execute("COMMIT"));
    return {};
  };
  if (const auto done = run(); !done) return unusable(path, done.error());
  return {};
}

Status check_schema(Database& db, const std::string& path) {
  AE_ASSIGN(const std::int64_t layout, layout_of(db, path));
  if (layout == 0) return fail(Code::not_found, "{} holds no store yet", path);
  if (layout < kLayout) {
    return fail(Code::needs_version, Action{.act = act::kMigrate},
                "{} was made by an older aetheris (layout {}, this one knows {}): each command "
                "that writes migrates it",
                path, layout, kLayout);
  }
  return {};
}

}  // namespace ae::store::sqlite
