// PostgresServerInfo: facts about a PostgreSQL server for `aetheris doctor`: its durability
// settings and remaining connections.
//
// Unusable servers (a replica, fsync=off, a pooler in transaction mode, …) are refused when the
// store is opened, and not reported here. Blocks; for a process that does nothing else. Threads:
// one.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"
#include "base/time.h"

namespace ae::store {

struct PostgresServerInfo {
  // True if every commit is replicated to a second machine before it is confirmed
  // (synchronous_standby_names). Without a standby, confirmed commits are lost with the server.
  bool synchronous_standby = false;
  bool full_page_writes = true;  // off: pages torn by a power loss are not repaired
  bool autovacuum = true;
  std::int64_t connections_max = 0;   // maximum for this role
  std::int64_t connections_used = 0;  // open now, from all clients, except this one
  // How far the database's clock is ahead of this machine's wall clock, and the error of that
  // measurement.
  Duration clock_ahead{}, clock_error{};
};
// Fails as PostgresStore::open.
Result<PostgresServerInfo> read_server_info(const std::string& url);

// Connections of one process.
constexpr std::int64_t kConnectionsPerProcess = 3;

}  // namespace ae::store
