// JobStats of a server: job counts, worker counts, and the announcements of workers.
//
// Threads: as Connection.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "store/postgres/connection.h"
#include "store/store.h"

namespace ae::store::postgres {

// `at`: replaces the database's time in tests.
Pg<JobStats> count_jobs(Connection& connection, std::optional<Instant> at);
Pg<void> announce(Connection& connection, const std::string& worker,
                  const std::string& announcement, Duration ttl);

// For tests of their query plans.
std::vector<Statement> job_stats_statements();

}  // namespace ae::store::postgres
