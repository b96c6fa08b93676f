// Why the code of a parked job does not go on: its exception, or how it differs from the log.
//
// Read from the last routine_failed or routine_diverged. The likely cause of a divergence is a guess
// for the author of the code; nothing depends on it. Threads: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "engine/heart/routine.h"
#include "engine/state/state.h"
#include "json/value.h"
#include "log/event.h"

namespace ae::engine {

// Does the view of this job read events? Otherwise the next two views are null, and the state has all
// that the error of the job names.
bool needs_events(const State& state);
// {node_id, name, message, stack, where, version, seq}; null: the job is not parked because of an
// exception. `where`: the first line of the stack that is not of a library.
Value exception_view(const State& state, std::span<const Event> events);
// {node_id, position, finding, delivered, where, version, seq, likely,
//  recorded: {kind, tool, arguments, seq, version},   what the log has at the position
//  found: {kind, position, tool?, …} | null,          what the code did instead
//  pointers}                                          of arguments that code has probably made itself
// null: the job is not parked because of a divergence.
Value divergence_view(const State& state, std::span<const Event> events);
// The same of a divergence that is not in the log: `seq` is null.
Value divergence_view(const State& state, std::span<const Event> events,
                      const RoutineDiverged& diverged);
// The same of code that did not end as the log has it, in event `seq`.
Value end_divergence_view(const State& state, const Step& code, const NodeFinished& recorded,
                          std::uint64_t seq, std::string_view version, Value found);
// {result}, {failure: {code, message}} or {exception}
Value end_view(const RoutineEnd& end);
// {kind, position}
Value request_view(const NewRequest& request);

}  // namespace ae::engine
