// Claims: which of the ready jobs a claim takes. Without limits and turns it is one statement over one small index; with
// them the questions of store/claim_order.h are asked one by one, by one claimer at a time.
//
// A job that another transaction has locked is passed over: it is being claimed, or worked on.
// Threads: as Connection.
#pragma once

#include <optional>
#include <vector>

#include "store/postgres/connection.h"
#include "store/store.h"

namespace ae::store::postgres {

// A transaction of its own. `at`: a test's time in place of the database's.
Pg<std::vector<Lease>> claim(Connection& connection, const ClaimRequest& request,
                             std::optional<Instant> at);

// Its statements, for who asks how they are planned.
std::vector<Statement> claim_statements();

}  // namespace ae::store::postgres
