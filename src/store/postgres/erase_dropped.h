// erase_dropped_values: erases redacted values that remain in the tables of a server.
//
// The server writes a changed row to another place, and VACUUM frees the old one without
// overwriting it. So tables up to a size limit are rewritten (VACUUM FULL, which locks each for a
// second at most). Larger ones are vacuumed and reported as residual copies. Copies elsewhere (the
// server's WAL, replicas, backups) cannot be erased and are always reported.
// Threads: as Connection; waits for old transactions, 2 s at most.
#pragma once

#include <string>
#include <vector>

#include "store/postgres/connection.h"
#include "store/store.h"

namespace ae::store::postgres {

// REQUIRES: no transaction.
Pg<std::vector<ResidualCopy>> erase_dropped_values(Connection& connection,
                                                   const std::string& schema,
                                                   std::size_t rewrite_bytes);

}  // namespace ae::store::postgres
