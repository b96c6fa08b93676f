// Claims: chooses and claims ready jobs. Without queue limits and fairness keys it is one statement
// over one small index. With them, the queries of store/claim_order.h run one by one, and only one
// process claims at a time.
//
// A job that another transaction has locked is skipped: it is being claimed or written.
// Threads: as Connection.
#pragma once

#include <optional>
#include <vector>

#include "store/postgres/connection.h"
#include "store/store.h"

namespace ae::store::postgres {

// Runs in its own transaction. `at`: replaces the database's time in tests.
Pg<std::vector<Lease>> claim(Connection& connection, const ClaimRequest& request,
                             std::optional<Instant> at);

// The statements, for tests of their query plans.
std::vector<Statement> claim_statements();

}  // namespace ae::store::postgres
