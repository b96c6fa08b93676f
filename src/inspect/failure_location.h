// job_error_view: where a job or a step failed: node, item or turn, tool or model, field and
// expression.
//
// Nothing of this is stored. It is computed from the fold: an expression that failed fails again
// when it is re-evaluated, because it reads only values that cannot change. Threads: pure
// functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "engine/state/state.h"
#include "json/value.h"

namespace ae::engine {

// The error of a failed job, else null:
//  {code, message,      as recorded
//   committed,          nodes with a committed effect that was not compensated, in plan order
//   node_id,            null: the job failed outside of a node, for example by its deadline
//   item, turn,         from 0: the item of a map, the turn of a loop; else null
//   tool, model,        what the node called, or would have called; at most one of the two
//   field, expression,  what could not be evaluated, for example `args.id` and `.input.id`; else
//                       null
//   reads_input,       members of `.input` that the expression reads, [] = all of it; null: it does
//                       not read the input
//   reads_kept,         nodes whose results the expression reads and a retry or fork kept; else []
//   summary}            one line: "node trip (tool get_trip): args.id: .input.id is null"
Value job_error_view(const State& state);
// The `committed` member.
Value committed_nodes(const State& state);
// The nodes whose result, or a part of it, a fork or retry imported from its origin, in plan order.
Value imported_nodes(const State& state);

// Maximum number of steps of a trace that are re-evaluated to find the field: a map may have
// 100,000 failed items.
constexpr std::size_t kStepsLocated = 16;
// `error` ({code, message}) of a failed step, with `field` and `expression` added. Evaluates only
// while `left` > 0, and decrements it.
Value step_error_view(const State& state, const Step& step, const Value& error, std::size_t& left);

}  // namespace ae::engine
