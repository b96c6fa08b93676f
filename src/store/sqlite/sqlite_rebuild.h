// The rebuild of a store file. For writing, it becomes the owner of the file. For comparing, it
// reads one snapshot, also while an owner is running.
//
// Threads: one. See store/rebuild.h.
#pragma once

#include <memory>
#include <string>

#include "store/rebuild.h"

namespace ae::store {

struct SqliteRebuildOptions {
  std::string path;
  bool compare_only = false;
  std::string job;  // only this one; "" = all
};

// Fails with store_locked (the message has the owner's pid; not with compare_only) · needs_version
// · not_found · unavailable. Its destructor rolls back what was not committed.
Result<std::unique_ptr<Rebuild>> open_sqlite_rebuild(const SqliteRebuildOptions& options);

}  // namespace ae::store
