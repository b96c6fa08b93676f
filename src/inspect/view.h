// view: a state as JSON, for the API, for display and for comparison.
//
//  state_view     the complete state: two folds of one log must agree on it; `replay --at` shows it
//  job_view         the engine's part of GET /api/jobs/{id}
//  approvals_view   the requests that are approved or rejected: calls to approve, human waits,
//                   questions of tools, and verifications of external changes
//  in_doubt_view    calls with an unknown outcome
//
// The last two have the `detail` of requests (requests_view.h). Every member is always present: null
// if it does not apply, or an empty list. `position` is that of a request of code. Threads: pure
// functions.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engine/state/state.h"
#include "json/value.h"
#include "plan/budget.h"

namespace ae::engine {

Value state_view(const State& state);

// {id, agent, status, input, result, error{code, message, committed, node_id, item, turn, position,
//  tool, model, field, expression, reads_input, reads_kept, summary, tries}, waiting,
//  waits[{wait_type, correlation_key, channel, reason, opened_at, expires_at, due_at, node_id,
//  step_id, position, actions[]}], in_doubt[{idempotency_key, invocation_id, external_key, tool,
//  node_id, step_id, item, position, arguments, try, reason, error_message, since, resolvable_at, given_up, compensates, actions[],
//  noted{resolution, by, at, note, result}}], settling[{idempotency_key, tool, node_id, step_id,
//  item, position, probes, until}], confirmations[], changes[], parked{reason, until, since, action}, pausing,
//  ending{kind, code, message, node_id, by}, attempt, attempt_id, deadline, not_before, next_due,
//  created_at, updated_at, compensated[{node_id, step_id, item?, turn?, turn_call?, position?}], uncompensated[], labels,
//  trace_id, budget{limits{tokens, cost_micros, model_calls, tool_calls, wall, soft}, spent,
//  reserved, exceeded, wall_until}, usage{tool_calls, model_calls, input_tokens, output_tokens,
//  total_tokens, cached_tokens, reasoning_tokens, cost_micros, unpriced_calls},
//  progress{nodes, done}, thread{answer, exchanges, waiting, ending}, plan, plan_hash, execution_version, needs_version, forked_from, seq}
//
// `waiting` is the first open wait of a job with the status `waiting`; `waits` are all open waits,
// whatever the status. `in_doubt` are the calls whose unknown outcome an operator must resolve,
// those that were given up, and after the end of the job all whose outcome stayed unknown.
// `settling` are calls with an unknown outcome whose requests may still take effect; at `until`
// their probes run, or without a probe (`probes`) the queued job continues. `confirmations` are as in approvals_view. `attempt` counts claims from 1;
// `attempt_id` is null before the first. Actions (engine/state/action.h) resolve the entry; the
// action of a parked job is null if this version has none. `needs_version` is always null here.
Value job_view(const State& state);

// [{id, job_id, node_id, item, turn, turn_call, position, step_id, kind: call | wait | question |
//   confirmation, tool, tool_version, arguments, arguments_hash, editable, reason, question,
//   labels, answer: decision | data, correlation_key, opened_at, expires_at}], in the order of the
//   steps.
// `question` is that of a tool (schema/question.h), or of a human wait of code: {message, data}.
// A confirmation also has `resources` and `actions`. The id is that of the request; it needs no
// escaping in a URL.
std::vector<Value> approvals_view(const State& state);

// Calls to be resolved, then those that were given up; after the end of the job, all with an
// unknown outcome.
std::vector<Value> in_doubt_view(const State& state);

// The action that raises each of these limits: to twice its value, or to what the pending call
// needs. null: none can be raised.
Value raise_action(const State& state, std::span<const ExceededLimit> exceeded);

// The names of StepPhase.
std::string_view to_text(StepPhase phase);
std::string_view to_text(Role role);  // node probe compensation

}  // namespace ae::engine
