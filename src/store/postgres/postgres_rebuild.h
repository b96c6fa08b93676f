// The rebuild of a store in PostgreSQL, also while workers use it: each job is locked, rewritten
// and released. A comparison reads one snapshot.
//
// Threads: one. See store/rebuild.h.
#pragma once

#include <memory>
#include <string>

#include "store/rebuild.h"

namespace ae::store {

struct PostgresRebuildOptions {
  std::string url;  // a libpq connection string
  std::string schema = "aetheris";
  bool compare_only = false;
  std::string job;  // only this one; "" = all
};

// Fails as PostgresStore::open. Its destructor rolls back what was not committed.
Result<std::unique_ptr<Rebuild>> open_postgres_rebuild(const PostgresRebuildOptions& options);

}  // namespace ae::store
