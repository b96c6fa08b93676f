// StoreUrl: which store a command works on.
//
//   sqlite:PATH     a file; the default is sqlite:.aetheris/aetheris.db
//   memory:         lost when the process ends; memory:?clock=virtual: tests advance its clock
//   postgres://…    a database that many processes share (also postgresql://…), as libpq reads it
// Without one, the store is in the nearest folder `.aetheris` of the current folder or a parent
// (find_store).
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
  std::string path;                // sqlite: the file; postgres: the whole URL, with its password
  bool found = false;              // by find_store: the next command in this folder finds it again
  bool has_virtual_clock = false;  // of memory, for tests (clock_control.h)

  // As given to --store, without a password.
  std::string text() const;
  std::string folder() const;  // of the file
  // The owner's socket, beside the file (symbolic links are resolved). The second is used if the
  // first belongs to another store of the same folder.
  std::string socket_path() const;
  std::string second_socket_path() const;
};

// Fails with usage.
Result<StoreUrl> store_url(std::string_view text);
// The store in the nearest folder `.aetheris` of the current folder or a parent; otherwise the
// default of the current folder. The search ends at the root, at a file system boundary, below the
// home folder, and below a shared folder (sticky and world-writable, such as /tmp). Fails with
// forbidden: the folder or its store belongs to another user.
Result<StoreUrl> find_store();
// Only the folder `.aetheris` is created on demand. Fails with not_found: the folder of another
// store does not exist.
Status check_folder(const StoreUrl& store);

}  // namespace ae::app
