// The statements that several files of this folder send, each once: a connection prepares a
// statement by its address, and registers its name at the server.
//
// Names are unique in the folder, because its files are compiled together: a constant is named
// after the registered name of its statement ("lock_jobs": kLockJobs).
// Threads: constants.
#pragma once

#include "store/postgres/connection.h"

namespace ae::store::postgres {

inline constexpr Statement kBegin{"begin", "BEGIN"};
// All reads of the transaction see one snapshot.
inline constexpr Statement kBeginSnapshot{"begin_snapshot",
                                          "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"};
inline constexpr Statement kCommit{"commit", "COMMIT"};
inline constexpr Statement kRollback{"rollback", "ROLLBACK"};
inline constexpr Statement kServerTime{
    "server_time", "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"};
inline constexpr Statement kFairBy{"fair_by", "SELECT value FROM meta WHERE key = 'fair_by'"};
// Claims with queue limits or fairness keys run one at a time across all processes, because each
// counts leased jobs.
inline constexpr Statement kLockClaims{
    "lock_claims",
    "SELECT pg_advisory_xact_lock(hashtextextended('aetheris claims ' || current_schema(), 0))"};

}  // namespace ae::store::postgres
