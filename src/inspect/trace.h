// trace_view: the execution tree of a job, for display (GET /api/jobs/{id}/trace).
//
//  {id, agent, status, created_at, ended_at, duration_us, result, error, plan_hash, seq,
//   forked_from,
//   attempts: [{attempt_id, epoch, worker, from_seq, to_seq, started_at, ended_at, ended, lost}],
//   budget:   [{at, by, kind, payload, reason, seq, state}],   when it was exceeded or raised
//   nodes:    [node…],    in plan order, each with its items: of a map in item order; of a loop its
//                         turns, with the calls that they requested; of code its requests, in the
//                         order of their events, those inside of a recorded scope as its items
//   dropped:  [node…],    steps that a re-plan dropped after they had begun, as they were then: in
//                         the order of those plans
//   effects:  [{kind, seq, type, at, effect_id, node_id, step_id, try}],    (inspect/effects.h)
//   drift:    [{tool, what, from, to, since, seq}],                         (inspect/drift.h)
//   trace:    {trace_id, span_id, parent_id, tracestate},     W3C trace context
//                                                             (base/trace_context.h)
//   totals:   {nodes, done, failed, skipped, tries, repeated, in_doubt, refused},
//                         tries, repeated, refused: including those of `dropped`
//   usage:    as in job_view}
//
//  node: {node_id, step_id, path, kind, tool, needs, item, status, phase, result_type, world,
//         result, error, try, started_at, finished_at, duration_us, executed_by, replayed,
//         imported, effect, model, tries, waits, decisions, items, turn, turn_call, calls,
//         position, delivered, code, code_end, dropped_by, role, probes: [node…],
//         compensation: node or null, changes}
//                         kind: of the plan; of a request tool llm wait scope
//                         role: node probe compensation
//  position, delivered: of a request of code: its name within the code, and how many outcomes its
//           routine had been given when it made it
//  code: {agent, language, version} of a code node, else null
//  code_end: how the code ended, if its job is parked because of that: {diverged: {delivered,
//           finding, found, position}} (log/records.def) or {exception: {name, message, stack}};
//           else null
//  calls: [{turn_call, call_id, tool, status, error}] of a turn: all calls that its answer
//           requested, in that order. Those that began are also in `items`; status of the
//           others: refused (error: {code, message}) pending not_run
//  dropped_by: the number of the plan that dropped the step (the first plan has 0), else null
//  changes: [{resource_type, resource_id, operation, version, etag, external_ref, verdict, detail}]
//           verdict of the last verification: match mismatch unreachable unconfirmed, or null if
//           there was none
//  effect: {invocation_id, idempotency_key, external_key, effect_class, tool, tool_version,
//           arguments, arguments_hash, external_id}
//  model: {provider, requested, answered, temperature, prompt_hash, usage} of a model call, else null
//  try:  {try, attempt, outcome, result_type, definite, error, started_at, finished_at,
//         duration_us, world, caught_up, progress, seq, source, span_id, tool_version, resolution,
//         request_schema_hash, response_schema_hash}
//         progress: the last report, {at, report}; result_type: success, retryable_failure (another
//         try followed), how the step failed, or null; resolution: by an operator or a probe,
//         or null
//  wait: {correlation_key, wait_type, channel, opened_at, due_at, expires_at, completed_at,
//         outcome, payload, by, reason, approval}     approval: the id of an open approval, or null
//  decision: {kind, state, at, by, reason, payload, not_before, seq}
//
// status: pending running backoff waiting in_doubt done skipped failed not_run. world: the external
// effect of the calls: unchanged | changed | unknown | rolled back. ended (of an attempt): released
// waiting parked lost completed failed cancelled, or null while it runs; lost: process_died
// code_worker_lost lease_expired, or null. Times come from the events' created_at, which the writer's clock sets:
// for display only. `executed_by` is the attempt that recorded the end of a step; `replayed`: a
// later attempt took it from the log.
// Threads: pure functions.
#pragma once

#include <string_view>
#include <vector>

#include "engine/state/state.h"
#include "inspect/step_tree.h"
#include "json/value.h"
#include "log/event.h"

namespace ae::engine {

// REQUIRES: `state` is the fold of `events`, which begin at seq 1.
Value trace_view(const State& state, const std::vector<Event>& events);

// One step, as a node of `nodes`, with `items` empty. `record` has the events of seqs_of, and
// `world` is that of world_of (inspect/step_list.h).
class TraceRecord;
Value step_trace_view(const State& state, TraceRecord& record, const Step& step,
                      ExternalEffect world);

}  // namespace ae::engine
