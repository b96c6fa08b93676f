// Maintenance: what is done to a store as a whole, while nobody works on it or beside those who do.
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

// Fails with unsupported (a store that is gone with its process), and as migrate_sqlite and migrate_postgres.
Result<store::Migration> migrate(const StoreUrl& store, const store::MigrationOptions& params);

struct MaintenanceProgress {
  std::uint64_t bytes = 0, of_bytes = 0;  // copied, and about how many there are
  std::uint64_t jobs = 0;                 // proved
};
using Progress = std::function<void(const MaintenanceProgress& progress)>;

// A whole copy of a SQLite store in a new file. Fails with unsupported (another kind) · already_exists · not_found ·
// unavailable.
Status backup(const StoreUrl& store, const std::string& to, const Progress& progress);

struct RestoreRequest {
  StoreUrl store;
  std::string from;
  std::string by;             // who does it, for the audit log
  bool nothing_lost = false;  // nothing ran on the store after the backup was made
  bool verify = true;         // each job is proved before the copy gets its place
  Progress progress;
};
// The jobs that were proved. Fails with log_corrupt (names a job that does not prove well), and as restore_sqlite.
Result<std::uint64_t> restore(const RestoreRequest& request);

}  // namespace ae::app
