// Redaction: values of a job are dropped, in a transaction of its own.
//
// A value that stands apart goes when no commit names it any more. The server writes a row anew and leaves the old bytes
// on their page until VACUUM, in its log until that is recycled, and in backups (docs/data.md).
// Threads: as Connection.
#pragma once

#include <vector>

#include "store/postgres/connection.h"
#include "store/store.h"

namespace ae::store::postgres {

Pg<Result<void>> redact(Connection& connection, const Redaction& redaction);

// Those that drop values, for whoever measures them.
std::vector<Statement> redaction_statements();

Pg<AuditLog> read_audit_log(Connection& connection, std::uint64_t after);

}  // namespace ae::store::postgres
