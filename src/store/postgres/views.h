// Views: what a PostgreSQL store is asked. A job is loaded as of one moment (one snapshot, one round trip).
//
// The outer error is the connection's or the server's; the inner one is the answer.
// Threads: as Connection.
#pragma once

#include <optional>
#include <vector>

#include "store/postgres/connection.h"
#include "store/postgres/db_clock.h"
#include "store/store.h"

namespace ae::store::postgres {

Pg<Result<LoadedJob>> load(Connection& connection, const JobId& job, std::uint64_t from_seq);
Pg<Result<std::vector<JobRow>>> query(Connection& connection, const Filter& filter);
Pg<EndedPage> list_ended(Connection& connection, const EndedFilter& filter);
// `at`: a test's time in place of the database's. The clock hears what time it is there.
Pg<std::vector<JobId>> list_due(Connection& connection, std::size_t limit,
                                std::optional<Instant> at, DatabaseClock& clock);
Pg<std::optional<Instant>> next_due(Connection& connection, std::optional<Instant> at,
                                    DatabaseClock& clock);
Pg<void> read_database_time(Connection& connection, DatabaseClock& clock);

// Statements that are asked again and again, for who asks how they are planned.
std::vector<Statement> timer_statements();

}  // namespace ae::store::postgres
