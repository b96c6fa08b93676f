// The audit log of a store file: its rows, and where it ends (`audit_head` of `meta`).
//
// Threads: the connection's. See store/audit.h.
#pragma once

#include "store/audit.h"
#include "store/sqlite/database.h"

namespace ae::store::sqlite {

// Inside of a transaction.
Sql<void> append_audit(Database& db, const AuditEntry& entry);
Sql<AuditLog> read_audit(Database& db, std::uint64_t after);

}  // namespace ae::store::sqlite
