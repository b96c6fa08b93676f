// The audit log in a store file: its rows, and its end (`audit_head` of `meta`).
//
// Threads: the connection's. See store/audit.h.
#pragma once

#include "store/audit.h"
#include "store/sqlite/database.h"

namespace ae::store::sqlite {

// REQUIRES: inside a transaction.
Sql<void> append_audit(Database& db, const AuditEntry& entry);
Sql<AuditLog> read_audit(Database& db, std::uint64_t after);

}  // namespace ae::store::sqlite
