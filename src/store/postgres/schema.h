// Schema: creates, migrates and checks the layout of a PostgreSQL store, and sets up sessions.
//
// Stored: a change is a new step of kMigrations. A new store runs all steps, so it equals a
// migrated one. See docs/data.md and docs/decisions/0030-postgres-layout.md.
// Threads: as Connection.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "store/postgres/connection.h"

namespace ae::store::postgres {

// For processes that start.
inline constexpr std::chrono::milliseconds kMigrationLockTimeout{8000};

// The layout that this program writes.
std::int64_t newest_layout();

// Checks the server of a new connection (a primary, 13 or newer, UTF-8, fsync on) and sets up the
// session. Fails with unsupported (with the remedy) · unavailable.
struct SessionParams {
  std::string schema;
  bool allow_no_fsync = false;
};
Status prepare_session(Connection& connection, const SessionParams& params);

// 0 = there is no store. Fails as prepare_schema.
Result<std::int64_t> layout_of(Connection& connection, const std::string& schema);
// Creates the tables or migrates them to `layout`, one process at a time, atomically. Answers the
// layout before. Waits for other processes for up to `lock_timeout`. REQUIRES: `lock_timeout` is
// less than the connection's `response_timeout`. Fails with needs_version (made by a newer program)
// · unavailable.
Result<std::int64_t> prepare_schema(Connection& connection, const std::string& schema,
                                    std::int64_t layout,
                                    std::chrono::milliseconds lock_timeout = kMigrationLockTimeout);
Status prepare_schema(Connection& connection, const std::string& schema);
// For readers: fails with not_found · needs_version · unavailable.
Status check_schema(Connection& connection, const std::string& schema);

// Sets the label of the fairness key ("" = none). Ended jobs keep their stored key.
Status set_fairness_label(Connection& connection, const std::string& label);

// The store's id: 32 hex digits, assigned at creation.
Result<std::string> store_id(Connection& connection);

// Checks that two connections have a server process each. Fails with unsupported if a pooler
// assigns a server process per transaction.
Status check_pooler(Connection& one, Connection& other);

std::string quoted_name(std::string_view name);

// Of every session.
inline constexpr const char* kLockTimeout = "2s";
inline constexpr const char* kStatementTimeout = "60s";
Error unavailable_error(const PgError& error);  // unavailable, nothing has changed

}  // namespace ae::store::postgres
