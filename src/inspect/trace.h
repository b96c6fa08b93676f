// trace: the execution tree of a job, for people (GET /api/jobs/{id}/trace).
//
//   {id, agent, status, created_at, ended_at, duration_us, result, error, plan_hash, seq, forked_from,
//    attempts: [{attempt_id, epoch, worker, from_seq, to_seq, started_at, ended_at, ended}],
//    budget:   [{at, by, kind, payload, reason, seq, state}],               when it was used up, and when raised
//    nodes:    [node…],            in plan order; below each stand its items: of a map, in item order; of a loop its turns,
//                               and below those the calls that they asked for
//    dropped:  [node…],            what other plans (a re-plan) let go after it had begun, as it was then: in the order of those plans
//    effects:  [{kind, seq, type, at, effect_id, node_id, step_id, try}],   all recorded effects (inspect/effects.h)
//    drift:    [{tool, what, from, to, since, seq}],                        what the log says otherwise later (inspect/drift.h)
//    trace:    {trace_id, span_id, parent_id, tracestate},                   W3C trace context (base/trace_context.h)
//    totals:   {nodes, done, failed, skipped, tries, repeated, in_doubt, refused},   tries, repeated, refused: with those of `dropped`
//    usage:    as in job_view}
//
//   node: {node_id, step_id, path, kind, tool, needs, item, status, result_type, world, result, error, try,
//          started_at, finished_at, duration_us, executed_by, replayed, imported, effect, model, tries, waits, decisions,
//          items, turn, turn_call, calls, dropped_by, role, probes: [node…], compensation: node or null, changes}      role: node probe compensation
//   calls: [{turn_call, call_id, tool, status, error}] of a turn: all that its answer asked for, in that order. Those that
//            began are among `items`; status of the others: refused (error: {code, message}) pending not_run
//   dropped_by: the number of the plan that let it go (the first plan has 0), else null
//   changes: [{resource_type, resource_id, operation, version, etag, external_ref, verdict, detail}]   what was last seen
//            of each: match mismatch unreachable unconfirmed, or null when nobody has looked
//   effect: {invocation_id, idempotency_key, external_key, effect_class, tool, tool_version, arguments,
//            arguments_hash, external_id}
//   model: {provider, asked, answered, temperature, prompt_hash, usage} of a call of a model, else null
//   try:  {try, attempt, outcome, result_type, definite, error, started_at, finished_at, duration_us, world, caught_up,
//          progress, seq, source, span_id, tool_version, request_schema_hash, response_schema_hash}     progress: {at, report}, the
//          last one; result_type: success, retryable_failure (another try followed), how the step failed, or null
//   wait: {correlation_key, wait_type, opened_at, due_at, expires_at, completed_at, outcome, payload, by, reason}
//   decision: {kind, state, at, by, reason, payload, not_before, seq}
//
// status: pending running backoff waiting in_doubt done skipped failed not_run. world: what the calls did outside:
// unchanged | changed | unknown | rolled back. ended (of an attempt): released waiting parked lost completed failed
// cancelled, or null while it runs. Times come from events' created_at, which is the writer's claim: for people only.
// `executed_by` is the attempt that recorded the end of a step; `replayed` says that a later one took it from the log.
// Threads: pure functions.
#pragma once

#include <vector>

#include "engine/state/state.h"
#include "json/value.h"
#include "log/event.h"

namespace ae::engine {

// REQUIRES: `state` is the fold of `events`, which begin at seq 1.
Value trace_view(const State& state, const std::vector<Event>& events);

}  // namespace ae::engine
