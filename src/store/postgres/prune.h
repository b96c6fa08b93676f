// Prune: jobs that have ended are deleted, in a transaction of their own.
//
// Their rows are locked as whoever writes to a job locks them: who was writing has written, who comes later finds no job.
// Whether another job names one of their values is one look into an index each; `blobs` is locked against writers only when
// a value goes, for the last two statements.
// Threads: as Connection.
#pragma once

#include "store/audit.h"
#include "store/postgres/connection.h"
#include "store/store.h"

namespace ae::store::postgres {

// `at`: where the audit log ends with it.
Pg<Result<bool>> prune(Connection& connection, const Pruning& pruning, AuditHead& at);

}  // namespace ae::store::postgres
