// drift_view: where the recorded version or schema of a tool, or a model, changes within one job's
// log (SPEC §12).
//
// A plan contains the version and the schemas of its tools; each call records those that it was
// made with, and the model that answered. Each difference between a recorded value and the previous
// one (of a plan or a call) is one entry. Computed from the log alone.
// Threads: pure functions.
#pragma once

#include <vector>

#include "json/value.h"
#include "log/event.h"

namespace ae::engine {

// [{tool, what, from, to, seq, since}] in log order. `what`: tool_version, args_schema,
// result_schema (their SHA-256; null = no schema), provider, model (as requested), answered (the
// model that answered, per requested model) or execution_version (of the processes that ran the
// job, and of its code; `tool` is null) or trial (the version `to` of the code did not fit, so the
// job kept `from`; `tool` is null). `seq`: the first event with `to`; `since`: the last event with
// `from`.
Value drift_view(const std::vector<Event>& events);

}  // namespace ae::engine
