// Examine: what a PostgreSQL server is like, for `doctor`: what it promises, and what it is about to run out of.
//
// What nobody can work with (a replica, fsync=off, a pooler in transaction mode, …) is refused when the store is opened, and
// not told here. Blocks; for a process that does nothing else. Threads: one.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"
#include "base/time.h"

namespace ae::store {

struct PostgresServerInfo {
  // Is every commit on a second machine before it is confirmed (synchronous_standby_names)? Without one, what a lost
  // server had confirmed is lost with it.
  bool synchronous_standby = false;
  bool full_page_writes = true;  // off: a page that a power loss tore is not mended
  bool autovacuum = true;
  std::int64_t connections_max = 0;   // that may be opened by us, and
  std::int64_t connections_used = 0;  // are opened now, by anybody; without the one that asked
  // How far the database's clock is ahead of this machine's wall clock, and how far that may be wrong.
  Duration clock_ahead{}, clock_error{};
};
// Fails as PostgresStore::open.
Result<PostgresServerInfo> read_server_info(const std::string& url);

// Connections that a process of ours holds.
constexpr std::int64_t kConnectionsEach = 3;

}  // namespace ae::store
