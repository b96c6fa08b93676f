// retained_values: lists what stays readable of a job after its values were erased, so that the
// operator has the complete list.
//
// Names, keys and texts that are not value fields, by field and event; side records; copies
// elsewhere.
// Threads: pure functions. See docs/guarantees.md, "What hashes give away".
#pragma once

#include <vector>

#include "log/event.h"
#include "runtime/service/redact.h"
#include "store/store.h"

namespace ae::runtime {

// Of a job whose values are being erased. With `request.all` also what its log retains, else only
// the copies.
std::vector<RetainedValue> retained_values(const JobId& job, const std::vector<Event>& events,
                                           const store::LoadedJob& loaded,
                                           const RedactRequest& request);

}  // namespace ae::runtime
