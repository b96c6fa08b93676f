// The layout of a PostgreSQL store: how it is made, brought up to date and checked, and what a session must be like.
//
// Stored: a change is a new step of kMigrations. A new store runs all of them, so that it is the same as one that was
// brought up to date. See docs/data.md and docs/decisions/0030-postgres-layout.md.
// Threads: as Connection.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "store/postgres/connection.h"

namespace ae::store::postgres {

// Of processes that start.
inline constexpr std::chrono::milliseconds kMigrationPatience{8000};

// The layout that this program writes.
std::int64_t newest_layout();

// What this server and the session must be, whenever a connection is opened: a primary, 13 or newer, UTF-8, fsync on. Sets
// the session up. Fails with unsupported (what to do about it) · unavailable.
struct SessionParams {
  std::string schema;
  bool allow_no_fsync = false;
};
Status prepare_session(Connection& connection, const SessionParams& params);

// 0 = there is no store. Fails as prepare_schema.
Result<std::int64_t> layout_of(Connection& connection, const std::string& schema);
// Makes the tables, or brings them up to `layout`; one process at a time, all or nothing; answers where it began. Others are
// waited for as long as `patience`, which REQUIRES: is less than the connection's `response_timeout`. Fails with needs_version
// (made by a newer program) · unavailable.
Result<std::int64_t> prepare_schema(Connection& connection, const std::string& schema,
                                    std::int64_t layout,
                                    std::chrono::milliseconds patience = kMigrationPatience);
Status prepare_schema(Connection& connection, const std::string& schema);
// For who only reads: fails with not_found · needs_version · unavailable.
Status check_schema(Connection& connection, const std::string& schema);

// From now on claims take turns between the values of this label ("" = of none). Jobs that have ended keep their turn.
Status set_fairness_label(Connection& connection, const std::string& label);

// Which store this is: 32 hex digits, made with it.
Result<std::string> store_id(Connection& connection);

// Do two connections of ours have a server process each? Fails with unsupported when a pooler deals them out anew for each
// transaction.
Status check_pooler(Connection& one, Connection& other);

std::string quoted_name(std::string_view name);

// Of every session.
inline constexpr const char* kLockTimeout = "2s";
inline constexpr const char* kStatementTimeout = "60s";
Error unavailable_error(const PgError& error);  // unavailable, nothing has changed

}  // namespace ae::store::postgres
