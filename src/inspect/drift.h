// Drift: what a job's log says of a tool or a model, and says otherwise later (SPEC §12).
//
// A plan names the version and the schemas of its tools; each call records those that it was made with, and what answered.
// Where two of these differ, between plan and call, call and call, or plan and plan, a line says so. From the log alone.
// Threads: pure functions.
#pragma once

#include <vector>

#include "json/value.h"
#include "log/event.h"

namespace ae::engine {

// [{tool, what, from, to, seq, since}] in the order of the log. `what`: tool_version, args_schema, result_schema (their
// SHA-256; null = none), provider, model (as it is asked for) or answered (by which model, when the same one was asked
// for). `seq`: the event that is the first to say `to`, `since` the last that said `from`.
Value drift_view(const std::vector<Event>& events);

}  // namespace ae::engine
