// transcript: what a job's models were sent and answered, and each call with its result (GET /api/jobs/{id}/transcript).
//
//   {id, agent, status, seq, ended, error, forked_from, totals, entries: [entry…], next}
//   totals: {answers, tool_calls, input_tokens, output_tokens, total_tokens, cost_micros}     of the whole job, without what
//           its origin did; cost_micros is null when no answer has a price
//   next:   the seq after which the next page begins, or null
//
//   entry: {seq, at, kind, node_id, step_id, path, item, turn, turn_call, role, imported, redacted, …}, in order of the log.
//     seq names its event; one event may have several entries. turn counts from 0. role: node probe compensation.
//     redacted: names of the entry's members that were erased from the log; those are null.
//   kind, with the members that follow:
//     input      {input}                                              the job's
//     plan       {plan_number, planned_by, nodes: [node_id…]}         each plan after the first
//     message    {from, content, origin}                              from: system developer user assistant tool; origin: prompt
//                                                                     repair budget
//     model_call {model, try}                                         a try of a model's call begins
//     answer     {model, answered_by, try, outcome, definite, text, refusal, finish_reason, tool_calls, usage, cost_micros,
//                 duration_us, error, late}                           how it ended
//     tool_call  {tool, call_id, arguments, effect_class, try, refused}   refused: {code, message} of a call that is not made
//     result     {tool, try, outcome, definite, result, duration_us, error, late}
//     approval   {state, tool, arguments, by, note, expires_at}       state: requested approved edited rejected denied expired
//                                                                     withdrawn
//     question   {tool, mode, message, schema, url}                   of a tool in the middle of its call
//     wait       {wait_type, correlation_key, channel, due_at, expires_at}
//     reply      {wait_type, correlation_key, outcome, payload, by}   ends a wait or answers a question
//     resolution {resolution, result, by, note}                       of a call whose outcome was unknown
//     received   {channel, correlation_key, payload, by}              a message or a signal before its wait
//     budget     {state, payload, by, note}                           exceeded or raised
//     skipped    {}                                                   the node's `when` was false
//     failed     {error}                                              the node failed, for a reason that no entry before has
//     end        {status, result, error, by, reason}                  of the job
//   outcome: success failure timeout unknown input_required. Only with `definite` nothing happened for sure.
//
// Threads: pure functions. See docs/api.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/event.h"
#include "core/value.h"
#include "engine/state.h"

namespace ae::engine {

struct TranscriptPage {
  std::uint64_t after = 0;  // only entries of events after this seq
  std::size_t limit =
      1000;  // entries; those of one event stay together, so a page may have a few more
};

// REQUIRES: `state` is the fold of `events`, which begin at seq 1.
Value transcript_view(const State& state, const std::vector<Event>& events,
                      const TranscriptPage& page);

}  // namespace ae::engine
