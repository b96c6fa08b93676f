// TranscriptBuilder: the requests and answers of a job's models, and each call with its result (GET
// /api/jobs/{id}/transcript).
//
//  {id, agent, status, seq, ended, error, forked_from, totals, entries: [entry…], next}
//  totals: {answers, tool_calls, input_tokens, output_tokens, total_tokens, cost_micros}
//          of the whole job, without its origin, with late answers; cost_micros is null if no
//          answer has a price
//  next:   the seq after which the next page begins, or null
//
//  entry: {seq, at, kind, node_id, step_id, path, item, turn, turn_call, position, role, imported,
//    redacted, …}, in log order. seq identifies its event; one event may have several entries. turn
//    counts from 0. position: of a request of code. role: node probe compensation. redacted: names
//    of the entry's members that were erased from the log; those are null.
//  kind, with its members:
//    input      {input}                                    of the job
//    plan       {plan_number, planned_by, nodes: [node_id…]}       each plan after the first
//    message    {from, content, origin}                 from: system developer user assistant tool;
//                                                          origin: prompt repair budget
//    model_call {model, try}                               a try of a model call begins
//    answer  {model, answered_by, try, outcome, definite, text, refusal, finish_reason, tool_calls,
//                usage, cost_micros, duration_us, error, late}     the try ended
//    tool_call  {tool, call_id, arguments, effect_class, try, refused}
//                                                          refused: {code, message} of a call that
//                                                          is not made
//    result     {tool, try, outcome, definite, result, duration_us, error, late}
//    approval   {state, tool, arguments, by, note, expires_at}
//                                                          state: requested approved edited
//                                                          rejected denied expired withdrawn
//    question   {tool, mode, message, schema, url}         asked by a tool during its call
//    wait       {wait_type, correlation_key, channel, due_at, expires_at}
//    reply      {wait_type, correlation_key, outcome, payload, by}
//                                                          ends a wait or answers a question
//    resolution {resolution, result, by, note}             of a call with an unknown outcome
//    received   {channel, correlation_key, payload, by}  a message or signal before its wait opened
//    budget     {state, payload, by, note}                 exceeded or raised
//    emitted    {name, scope, published, value}            a value that code emitted
//    skipped    {}                                         the node's `when` was false
//    failed     {error}                                    the node failed, for a reason that no
//                                                          earlier entry has
//    end        {status, result, error, by, reason}        of the job
//  outcome: success failure timeout unknown input_required. Only `definite` excludes an effect.
//
// Threads: a value. See docs/api.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/error.h"
#include "base/ids.h"
#include "engine/state/state.h"
#include "json/value.h"
#include "log/event.h"

namespace ae::engine {

struct TranscriptPage {
  std::uint64_t after = 0;  // only entries of events after this seq
  // Maximum number of entries, and of their bytes as canonical JSON. The page ends before the event
  // that would exceed either. The entries of one event are not divided: those of the first event
  // are always on the page.
  std::size_t limit = 1000;
  std::size_t bytes_max = 8u << 20;
};

class Transcript;

// Builds a page from the events of a log, one at a time. Holds the state, the entries of the page
// and what later entries refer to; does not hold the events.
class TranscriptBuilder {
 public:
  TranscriptBuilder(const JobId& job, const TranscriptPage& page, PlanSource plans);
  ~TranscriptBuilder();

  // REQUIRES: the event after the previous one, from seq 1; no earlier call failed. Fails as
  // `apply` does.
  Status add(const Event& event);
  // The page, with the totals of all events so far. REQUIRES: at least one event.
  Value take() &&;

 private:
  std::unique_ptr<Transcript> transcript_;
};

}  // namespace ae::engine
