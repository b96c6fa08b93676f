// StoreUrl: which store a command works on.
//
//   sqlite:PATH     a file; the default is sqlite:.aetheris/aetheris.db
//   memory:         gone when the process ends
//   postgres://…    a database that many processes share (also postgresql://…), as libpq reads it
// Without one, the nearest folder `.aetheris` of the current folder or a parent holds the store (find_store).
// Threads: values, functions over the file system.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"

namespace ae::app {

constexpr std::string_view kDefaultStore = "sqlite:.aetheris/aetheris.db";

struct StoreUrl {
  enum class Kind { sqlite, memory, postgres };
  Kind kind = Kind::sqlite;
  std::string path;  // of sqlite; of postgres the whole address, with the password if there is one
  bool found = false;  // by find_store: the next command in this folder finds it again

  // As it is given to --store, without a password.
  std::string text() const;
  std::string folder() const;  // that holds the file
  // Where the owner listens, beside the file that a link leads to; the second is used when the first belongs to another store
  // of the same folder.
  std::string socket_path() const;
  std::string second_socket_path() const;
};

// Fails with usage.
Result<StoreUrl> store_url(std::string_view text);
// The store of the nearest folder `.aetheris`, of the current folder or a parent; without one, the default of the current
// folder. The search ends at the root, where the file system changes, below the home folder, and below a shared folder
// (sticky, every user may write to it, as /tmp). Fails with forbidden: the folder or its store belongs to another user.
Result<StoreUrl> find_store();
// Only the folder `.aetheris` is created with a store. Fails with not_found: the folder of any other store does not exist.
Status check_folder(const StoreUrl& store);

}  // namespace ae::app
