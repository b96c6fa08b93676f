// Wipe: removes what the tables of a server still hold of values that were dropped.
//
// The server writes a changed row to another place, and VACUUM frees the old one without overwriting it. So tables up to a
// size are rewritten (VACUUM FULL, which locks each of them for a second at most); larger ones are vacuumed, and answered
// as places that may hold old values. What the server keeps elsewhere (its log, replicas, backups) is out of reach and is
// always answered.
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
