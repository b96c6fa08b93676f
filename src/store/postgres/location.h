// Location: identifies the database that holds a store's tables, to detect a dump that was restored
// elsewhere.
//
// A dump contains every row, so its rows do not show later work. But its tables are new: another
// cluster has another system identifier, another database has another oid, and recreated tables
// have other oids. The store saves the three numbers; they are compared when it is opened for
// writing. A failover keeps all three. So does a restored archive of the server's WAL, which is not
// detected here.
// Stored: `meta.place`: "<system identifier> <oid of the database> <oid of meta>"; a number that
// the server does not reveal is "-".
// Threads: as Connection. See docs/decisions/0069-lost-and-copied-stores.md.
#pragma once

#include <optional>
#include <string>

#include "base/error.h"
#include "store/postgres/connection.h"

namespace ae::store::postgres {

// The current location. REQUIRES: the store's schema is first in the search path. Fails with
// unavailable.
Result<std::string> read_location(Connection& connection);

// If the saved location differs from the current one: a description of the move. A number that is
// unknown on one side counts as equal. Fails with unavailable.
Result<std::optional<std::string>> find_move(Connection& connection);

Error move_not_accepted(const std::string& how);  // store_rolled_back

// Saves the location if none is saved. Fails with unavailable.
Status save_location(Connection& connection);

// Adds the statement that replaces the saved location, as part of a transaction.
void add_put_location(Connection& connection, const std::string& location);

}  // namespace ae::store::postgres
