// JobFilter: the filters and the order of a list of jobs, from the parameters of a query.
//
// Threads: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "api/target.h"
#include "base/error.h"
#include "base/time.h"
#include "store/rules.h"
#include "store/store.h"

namespace ae::api {

// The orders of a list: by creation, by the last change, by the end.
inline constexpr std::string_view kJobSorts[] = {"created", "changed", "ended"};

// Of GET /api/jobs. `now`, by the store's clock. Fails with input_invalid.
Result<store::Filter> job_filter(const Query& query, Instant now);

// Of GET /api/job-counts. Fails with input_invalid.
Result<store::CountFilter> count_filter(const Query& query, Instant now);

// The cursor of a list in this order, after this row: `ID@NUMBER`, or `ID@NUMBER@MICROSECONDS` in
// the order `changed`.
std::string list_cursor(const store::JobRow& row, store::JobOrder order);

}  // namespace ae::api
