// view: a state as JSON, for people, for the API and for comparing.
//
//   state_view   everything that matters: what two folds of one log must agree on; what `replay --at` shows
//   job_view     the engine's part of GET /api/jobs/{id}
//   approvals_view   what people are asked: calls to approve and human waits
//
// Members are always there: what does not apply is null, a list is empty. Threads: pure functions.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/state/state.h"
#include "json/value.h"

namespace ae::engine {

Value state_view(const State& state);

// {id, agent, status, input, result, error{code, message, node_id, item, turn, tool, model, field, expression, summary}, waiting{wait_type, correlation_key, expires_at, due_at,
//  node_id, command}, waits[], in_doubt[{idempotency_key, invocation_id, external_key, tool, node_id, step_id, item,
//  arguments, try, reason, since, resolvable_at, noted{resolution, by, at, note, result}}], parked{reason, until, since, command},
//  ending{kind, code, message, node_id}, attempt, attempt_id, deadline, not_before, next_due, created_at, updated_at,
//  compensated[{node_id, step_id, item?}], uncompensated[], labels,
//  trace_id, budget{limits{tokens, cost_micros, model_calls, tool_calls, wall, soft}, spent, reserved, exceeded, wall_until},
//  usage{tool_calls, model_calls, input_tokens, output_tokens, total_tokens, cached_tokens, reasoning_tokens}, progress{nodes, done}, plan_hash, execution_version, seq,
//  settling[{idempotency_key, tool, node_id, step_id, item, until}]}
//
// `settling` are calls in doubt whose requests may still take effect; from `until` on their probes ask.
// `waiting` is the first open wait of a job that is `waiting`; `waits` are all open ones, whatever the status;
// `in_doubt` are the calls a person is asked about, and those that stayed unknown when the job ended. `attempt` counts
// claims from 1, `attempt_id` is null before the first. A `command` is what answers on the command line.
Value job_view(const State& state);

// [{id, job_id, node_id, item, step_id, kind: call | wait, tool, tool_version, arguments, arguments_hash, editable, reason,
//   labels, answer: decision | data, correlation_key, opened_at, expires_at}], in order of the steps. The id is `<job id>.<16 hex digits>`: of the
// request for this very call, or of the waiting step; it needs no escaping in a URL.
std::vector<Value> approvals_view(const State& state);

// Spelled as in StepPhase.
std::string_view to_text(StepPhase phase);
std::string_view to_text(Role role);  // node probe compensation

}  // namespace ae::engine
