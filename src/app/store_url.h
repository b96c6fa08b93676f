// StoreUrl: which store a command works on.
//
//   sqlite:PATH     a file; the default is sqlite:.aetheris/aetheris.db
//   memory:         gone when the process ends
//   postgres://…    comes later
// Threads: values, pure functions.
#pragma once

#include <string>
#include <string_view>

#include "core/error.h"

namespace ae::app {

constexpr std::string_view kDefaultStore = "sqlite:.aetheris/aetheris.db";

struct StoreUrl {
  enum class Kind { sqlite, memory };
  Kind kind = Kind::sqlite;
  std::string path;  // of sqlite

  // As it is given to --store.
  std::string text() const;
  std::string folder() const;  // that holds the file
  std::string lock_path() const { return path + ".lock"; }
  // Where the owner listens; the second is used when the first belongs to another store of the same folder.
  std::string socket_path() const { return folder() + "/aetheris.sock"; }
  std::string second_socket_path() const { return path + ".sock"; }
};

// Fails with usage, or unsupported for a store that comes later.
Result<StoreUrl> store_url(std::string_view text);

}  // namespace ae::app
