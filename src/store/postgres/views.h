// Views: the queries of a PostgreSQL store. A job is loaded from one snapshot, in one round trip.
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
Pg<Result<LogWindow>> load_window(Connection& connection, const JobId& job,
                                  const WindowRequest& window);
Pg<Result<InboxEntryState>> read_inbox_entry(Connection& connection, const JobId& job,
                                             const std::string& id);
Pg<Result<std::vector<JobRow>>> query(Connection& connection, const Filter& filter);
Pg<EndedPage> list_ended(Connection& connection, const EndedFilter& filter);
// `at`: replaces the database's time in tests. `clock` is updated with the database's time.
Pg<std::vector<JobId>> list_due(Connection& connection, std::size_t limit,
                                std::optional<Instant> at, DatabaseClock& clock);
Pg<std::optional<Instant>> next_due(Connection& connection, std::optional<Instant> at,
                                    DatabaseClock& clock);
Pg<void> read_database_time(Connection& connection, DatabaseClock& clock);

// Frequent statements, for tests of their query plans.
std::vector<Statement> timer_statements();

}  // namespace ae::store::postgres
