// Maintenance: operations on a whole store, exclusive or concurrent with its users.
//
// Threads: one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "app/store_url.h"
#include "base/error.h"
#include "store/migration.h"

namespace ae::app {

// Fails with unsupported (a store in memory), and as migrate_sqlite and migrate_postgres.
Result<store::Migration> migrate(const StoreUrl& store, const store::MigrationOptions& params);

struct MaintenanceProgress {
  std::uint64_t bytes = 0, of_bytes = 0;  // copied; estimated total
  std::uint64_t jobs = 0;                 // verified
};
using Progress = std::function<void(const MaintenanceProgress& progress)>;

// Copies a whole SQLite store to a new file. Fails with unsupported (another kind of store) ·
// already_exists · not_found · unavailable.
Status backup(const StoreUrl& store, const std::string& to, const Progress& progress);

struct RestoreRequest {
  StoreUrl store;
  std::string from;
  std::string by;             // the operator, for the audit log
  bool nothing_lost = false;  // no process used the store after the backup
  bool verify = true;         // verify each job before the copy replaces the store
  Progress progress;
};
// Returns the number of verified jobs. Fails with log_corrupt (names an invalid job), and as
// restore_sqlite.
Result<std::uint64_t> restore(const RestoreRequest& request);

}  // namespace ae::app
