// Loss: detects that a store lacks acknowledged writes. It is checked when a store is opened for
// writing, before the first write.
//
// A store has lost writes if it is behind the position in its position file, if its file is gone
// although the position file exists, or if it is a backup that was not restored. Writing fails with
// `store_rolled_back` until an operator accepts the loss.
// Threads: the opening thread. See docs/decisions/0025-a-store-that-went-backwards.md and
// 0069-lost-and-copied-stores.md.
#pragma once

#include <optional>
#include <string>

#include "base/error.h"
#include "base/time.h"
#include "store/sqlite/database.h"
#include "store/sqlite/position_file.h"

namespace ae::store::sqlite {

// The row of `meta` with the number of the store's position.
inline constexpr char kPositionKey[] = "position";

// The store's identity as its own rows record it. REQUIRES: this layout.
Sql<StoreIdentity> read_store_identity(Database& db);

// Marks a copy of any layout as a backup (`aetheris backup`). A store whose loss is being accepted
// keeps that mark.
Sql<void> mark_backup(Database& db);
// Removes the backup mark.
Sql<void> unmark_backup(Database& db);

// True if the store is gone although its position file exists: is_file_missing if the file is
// missing or empty (check before SQLite opens it and deletes the -wal of an empty file),
// has_no_tables if it has no tables. REQUIRES: `db` has it open.
bool is_file_missing(const std::string& path);
Result<bool> has_no_tables(Database& db, const std::string& path);
Error store_missing(const std::string& path);

struct LossOptions {
  bool accept = false;
  bool is_loss_certain = false;  // with accept: even if no loss is detected
  bool nothing_lost = false;     // with accept: no later work elsewhere since the backup
  Instant at;
  std::string by;  // for the audit log
};
struct Loss {
  bool no_tables = false;  // the file had no tables
  bool found = false;
  bool nothing_lost = false;
  bool accepting = false;  // found now, or accepted earlier and not finished
  std::optional<StorePosition> recorded;
  StoreIdentity identity;
};
// Fails with store_rolled_back if the store has lost writes and that is not accepted. REQUIRES:
// this layout; `no_tables`: this opening created the tables.
Result<Loss> find_loss(Database& db, const std::string& path, bool no_tables,
                       const LossOptions& options);
// Records the acceptance inside a transaction: an audit entry and, for a loss, a new timeline.
// Updates `loss.identity`.
Sql<void> accept_loss(Database& db, Loss& loss, const LossOptions& options);
// Starts a new timeline with a position above both the store's and the remembered one. REQUIRES:
// inside a transaction.
Sql<void> begin_timeline(Database& db, const StoreIdentity& identity,
                         const StorePosition& recorded);

// The same check for a reader. Fails with store_rolled_back.
Status check_for_loss(Database& db, const std::string& path);

}  // namespace ae::store::sqlite
