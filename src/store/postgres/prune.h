// Prune: deletes ended jobs, in a separate transaction.
//
// Locks their rows as any writer of a job does: earlier writers have finished, later ones find no
// job. Each check for other references to a blob is one index lookup. `blobs` is locked against
// writers only if a blob is deleted, for the last two statements.
// Threads: as Connection.
#pragma once

#include "store/audit.h"
#include "store/postgres/connection.h"
#include "store/store.h"

namespace ae::store::postgres {

// `at`: the end of the audit log after its entry.
Pg<Result<bool>> prune(Connection& connection, const Pruning& pruning, AuditHead& at);

}  // namespace ae::store::postgres
