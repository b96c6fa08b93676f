// Census: how many jobs stand where, and which processes work on them; what they say of themselves.
//
// Threads: as Connection.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "store/postgres/connection.h"
#include "store/store.h"

namespace ae::store::postgres {

// `at`: a test's time in place of the database's.
Pg<JobStats> count_jobs(Connection& connection, std::optional<Instant> at);
Pg<void> announce(Connection& connection, const std::string& worker, const std::string& says,
                  Duration ttl);

// For who asks how they are planned.
std::vector<Statement> job_stats_statements();

}  // namespace ae::store::postgres
