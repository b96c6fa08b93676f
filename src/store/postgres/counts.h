// Counts of the jobs that match a filter (JobCounts).
//
// Threads: as Connection.
#pragma once

#include "store/postgres/connection.h"
#include "store/store.h"

namespace ae::store::postgres {

Pg<JobCounts> count_matching(Connection& connection, const CountFilter& filter);

}  // namespace ae::store::postgres
