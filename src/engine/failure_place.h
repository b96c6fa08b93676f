// failure_place: where a job or a step failed: the node, its item or turn, the tool or model, the field and the expression.
//
// Nothing of this is stored. It is computed from the fold: an expression that failed fails again when it is evaluated again,
// because it reads only values that cannot change. Threads: pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "core/value.h"
#include "engine/state.h"

namespace ae::engine {

// The error of a job that failed, else null:
//   {code, message,      as recorded
//    committed,          nodes with a call that took effect and was not compensated, in the order of the plan
//    node_id,            null: the job failed outside of a node, such as by its deadline
//    item, turn,         from 0: the item of a map, the turn of a loop; else null
//    tool, model,        what the node called, or was to call; at most one of the two
//    field, expression,  what could not be evaluated, such as `args.id` and `.input.id`; else null
//    reads_input,        members of `.input` that the expression reads, [] for the whole; null: it does not read the input
//    reads_kept,         nodes whose results the expression reads and a retry or fork has kept; else []
//    summary}            one line: "node trip (tool get_trip): args.id: .input.id is null"
Value job_error_view(const State& state);
// Its `committed`.
Value committed_nodes(const State& state);
// The nodes whose result, or a part of it, a fork or retry has from its origin, in the order of the plan.
Value imported_nodes(const State& state);

// How many steps of a trace are evaluated again to find the field: a map may have 100,000 items that fail.
constexpr std::size_t kStepsLocated = 16;
// `error` ({code, message}) of a failed step, with its `field` and `expression`. Evaluates only while `left` > 0, and
// counts it down.
Value step_error_view(const State& state, const Step& step, const Value& error, std::size_t& left);

}  // namespace ae::engine
