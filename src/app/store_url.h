// StoreUrl: which store a command works on.
//
//   sqlite:PATH     a file; the default is sqlite:.aetheris/aetheris.db
//   memory:         gone when the process ends
//   postgres://…    a database that many processes share (also postgresql://…), as libpq reads it
// Threads: values, functions over the file system.
#pragma once

#include <string>
#include <string_view>

#include "core/error.h"

namespace ae::app {

constexpr std::string_view kDefaultStore = "sqlite:.aetheris/aetheris.db";

struct StoreUrl {
  enum class Kind { sqlite, memory, postgres };
  Kind kind = Kind::sqlite;
  std::string path;  // of sqlite; of postgres the whole address, with the password if there is one

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

}  // namespace ae::app
