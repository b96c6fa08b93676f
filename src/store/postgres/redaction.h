// Redaction: erases values of a job, in a separate transaction.
//
// A blob is deleted when no commit references it any more. The server leaves the old bytes of a
// changed row on their page until VACUUM, in its WAL until that is recycled, and in backups
// (docs/data.md).
// Threads: as Connection.
#pragma once

#include <vector>

#include "store/postgres/connection.h"
#include "store/store.h"

namespace ae::store::postgres {

Pg<Result<void>> redact(Connection& connection, const Redaction& redaction);

// The statements that delete blobs, for measurements.
std::vector<Statement> redaction_statements();

Pg<AuditLog> read_audit_log(Connection& connection, std::uint64_t after);

}  // namespace ae::store::postgres
