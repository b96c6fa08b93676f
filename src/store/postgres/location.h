// Place: in which database a store's tables stand, so that a dump that was restored elsewhere is noticed.
//
// A dump holds every row and so knows nothing of what was done after it was made. But its tables are new ones: another
// cluster has another system identifier, another database another oid, and tables that were made again have other oids. The
// store keeps the three numbers; who opens it to write compares them. A failover keeps all three; so does an archive of the
// server's log that is restored, which this does not notice.
// Stored: `meta.place`: "<system identifier> <oid of the database> <oid of meta>", a number that the server does not tell
// is "-".
// Threads: as Connection. See docs/decisions/0069-lost-and-copied-stores.md.
#pragma once

#include <optional>
#include <string>

#include "base/error.h"
#include "store/postgres/connection.h"

namespace ae::store::postgres {

// Where the tables stand. REQUIRES: the store's schema is first in the search path. Fails with unavailable.
Result<std::string> read_location(Connection& connection);

// Does the store remember another place? Then what happened, in words. A number that is not known on one side counts as
// equal. Fails with unavailable.
Result<std::optional<std::string>> find_move(Connection& connection);

Error move_not_accepted(const std::string& how);  // store_rolled_back

// Remembers the place, unless one is remembered. Fails with unavailable.
Status save_location(Connection& connection);

// The statement that puts it in the place of what was remembered, as part of a transaction.
void add_put_location(Connection& connection, const std::string& location);

}  // namespace ae::store::postgres
