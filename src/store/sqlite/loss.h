// Loss: does a store lack something that it had acknowledged? Decided when a store is opened to write, before anything is
// written.
//
// A store lacks something when it is behind what its position file remembers, when the whole store is gone although there is
// a position file, or when the file is a backup that was not restored. Writing is refused with `store_rolled_back` until a
// person accepts the loss.
// Threads: the opening thread. See docs/decisions/0025-a-store-that-went-backwards.md and 0069-lost-and-copied-stores.md.
#pragma once

#include <optional>
#include <string>

#include "base/error.h"
#include "base/time.h"
#include "store/sqlite/database.h"
#include "store/sqlite/position_file.h"

namespace ae::store::sqlite {

// Where the store is, by its own rows. REQUIRES: this layout.
Sql<StoreIdentity> read_store_identity(Database& db);

// What `aetheris backup` writes into the copy, of any layout. Keeps the mark of a store whose loss is being accepted.
Sql<void> mark_backup(Database& db);
// Removes that mark.
Sql<void> unmark_backup(Database& db);

// Is nothing left of the store although a position file is there? The file is missing or has no bytes: to be asked before
// sqlite opens it, which deletes the -wal of an empty file. Or the file holds no tables. REQUIRES: `db` has it open.
bool is_file_missing(const std::string& path);
Result<bool> has_no_tables(Database& db, const std::string& path);
Error store_missing(const std::string& path);

struct LossOptions {
  bool accept = false;
  bool is_loss_certain = false;  // accept: also when nothing shows that something is missing
  bool nothing_lost = false;     // accept: nothing was done elsewhere since a backup was made
  Instant at;
  std::string by;  // for the audit log
};
struct Loss {
  bool gone = false;  // the file held no tables
  bool found = false;
  bool nothing_lost = false;
  bool accepting = false;  // found now, or accepted earlier and not finished
  std::optional<StorePosition> remembered;
  StoreIdentity identity;
};
// Fails with store_rolled_back when the store lacks something and that is not accepted. REQUIRES: this layout; `gone` says
// whether the tables were made by this opening.
Result<Loss> find_loss(Database& db, const std::string& path, bool gone,
                       const LossOptions& options);
// Writes the acceptance inside of a transaction: an audit entry, and for a loss a new timeline. Updates `loss.stands`.
Sql<void> accept_loss(Database& db, Loss& loss, const LossOptions& options);
// Goes on from where the store stands, above what was remembered, on a timeline of its own. Inside of a transaction.
Sql<void> begin_timeline(Database& db, const StoreIdentity& identity,
                         const StorePosition& remembered);

// The same question for who only looks. Fails with store_rolled_back.
Status check_for_loss(Database& db, const std::string& path);

}  // namespace ae::store::sqlite
