// kept: what stays readable of a job after its values were erased, for whoever must know that it is all.
//
// Names, keys and texts that are no value fields, by field and event; what is beside the log; what is elsewhere.
// Threads: pure functions. See docs/guarantees.md, "What hashes give away".
#pragma once

#include <vector>

#include "log/event.h"
#include "runtime/redact.h"
#include "store/store.h"

namespace ae::runtime {

// Of a job whose values go. `all`: what is in its log too, not only what holds copies.
std::vector<RetainedValue> retained_values(const JobId& job, const std::vector<Event>& events,
                                           const store::LoadedJob& loaded,
                                           const RedactRequest& request);

}  // namespace ae::runtime
