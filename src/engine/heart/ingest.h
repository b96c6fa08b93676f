// absorb and apply_request: what came from the world becomes events.
//
//   absorb(state, step, outcome)   a performer's observation of the open try of a step
//   apply_request(state, act)            what somebody outside wants: a signal, a message, an approval, a cancel, a pause, a
//                                  resolution, more budget, due timers, the versions of a process
//
// Both only translate; what follows from the events is decided by `decide`. Acts travel as canonical JSON through the
// inbox when somebody holds the job, and are taken in directly when nobody does (SPEC §10). Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/heart/decide.h"
#include "engine/state/state.h"
#include "log/event.h"
#include "log/outcome.h"
#include "schema/schema.h"

namespace ae::engine {

// `at`: the store's clock, when it was seen. REQUIRES: the step's newest try is open and is `try_no`.
std::vector<EventBody> record_outcome(const State& state, std::uint32_t step,
                                      const Outcome& outcome, Instant at);

// Which try it was that somebody performed: enough to say later what came of it, without the state.
struct SentTry {
  StepId step;
  InvocationId invocation;
  std::uint32_t try_no = 0;
  AttemptId attempt;
  IdempotencyKey key;
  std::string arguments_hash;
  // Of a model's call: who was asked, and what; and the blind of its job.
  std::string provider, blind;
  Value request;
  // What the plan says that a result must be; and its digest, "" = it says nothing.
  std::optional<Schema> result_schema;
  std::string result_digest;
  bool may_ask_user = true;  // a person something (schema/question.h)
};
SentTry sent_try_of(const State& state, const Step& step);
// The effect record of SPEC §5, for the effect store. `late`: written after the attempt had lost the job. As in `record_outcome`, a
// success that is too large to be kept, or breaks the schema of its tool's results, is recorded as what stands for it.
enum class Arrival : std::uint8_t { in_time, late };
Value effect_record(const JobId& job, const SentTry& sent, const Outcome& outcome, Instant at,
                    Arrival arrival = Arrival::in_time);
// Only what is certain is taken late (SPEC §6): a success, that its tool asks a person something, or that for sure nothing
// happened.
bool is_certain(const Outcome& outcome);

// The record of an effect without what was seen: that it happened, its outcome and the code of an error stay. `record` is
// as it was written in its place. Fails with log_corrupt.
Result<std::string> erased_effect(std::string_view location, std::string_view record);
// Is this the record of an effect whose values were erased?
bool is_erased_effect(const Value& record);

// What stands in the effect store and is not in the log yet (SPEC §5, W3; §6, late effects): the events that take it in.
// A try whose fate has been decided meanwhile gets a `finished{late}`, for people.
struct StoredEffect {
  InvocationId invocation;
  std::uint32_t try_no = 0;
  std::string_view record;
};
Result<std::vector<EventBody>> import_stored_effects(const State& state,
                                                     const std::vector<StoredEffect>& effects);

// The payload of the tool_invocation_finished that an effect record leads to, but for how it came into the log.
Result<ToolInvocationFinished> finished_payload(const Value& record);

// The slot in the effect store that this event decides about without having seen a result: the event may be written
// only while the slot is empty (SPEC §6). REQUIRES: the event is not yet applied, and follows from decide or apply_request.
std::optional<std::pair<InvocationId, std::uint32_t>> decided_effect_slot(const State& state,
                                                                          const EventBody& event);

// Signals and messages that one job accepts, taken in or in its inbox (SPEC §14).
inline constexpr std::size_t kSignalsMax = 10'000;

struct ControlRequest {
  enum class Kind : std::uint8_t {
    signal,
    cancel,
    resolve,
    timers,
    message,
    pause,
    resume,
    plan,
    budget,
    version  // the process of the stamp offers these versions: what waits for them goes on
  };
  Kind kind = Kind::timers;
  std::string id;           // of the writer; repeated acts with one id are one
  std::string by;           // who
  std::string traceparent;  // of whoever asked for a signal or a message; "" = none
  // signal
  std::string correlation_key, wait_type;
  std::string
      approval;  // instead of the key: the id under which the wait stands among the approvals
  // Of an approval: what is to be sent in place of what was asked for.
  std::optional<Value> arguments;
  bool buffer = false;  // keep it if no wait has had this key yet
  Value payload;
  // message, with a payload; plan: {task_graph, drop?: [node…]}; budget: limits (plan/budget.h)
  std::string channel;
  // cancel, pause; note of resolve
  std::string reason;
  std::optional<bool> compensate;  // of cancel: undo what was done; absent = yes
  // resolve
  std::string
      idempotency_key;  // or the start of it (at least 8 digits), when only one call in doubt matches
  std::string resolution;    // happened | not_happened | fail; of a confirmation accept | fail
  std::uint32_t try_no = 0;  // the try that it is about; 0 = whichever is in doubt
  std::optional<Value> result;
  // When the check was made, by the store's clock: `not_happened` is judged by that time. Absent = now.
  std::optional<Instant> looked_at;
  // resolve, of what a step changed: accept | fail
  std::string step_id;

  Value to_json() const;
  static Result<ControlRequest> from_json(const Value& json);
};

struct AppliedRequest {
  std::vector<EventBody> events;  // empty: nothing to write
  Value answer;                   // for the asker, e.g. {"delivered": true}
  std::uint32_t try_no = 0;       // of a resolution: the try in doubt
};
// Fails with wait_mismatch, not_in_doubt, not_settled, not_paused, not_found, input_invalid, signals_limit, job_terminal,
// call_pending, plan_invalid, denied, payload_too_large, approval_edited;
// nothing is to be written then.
Result<AppliedRequest> apply_request(const State& state, const ControlRequest& act,
                                     const DecisionContext& context);

// Did this act reach the log, or what it wants come to be? It answers who asks a second time, after the act was accepted.
bool is_handled(const State& state, const ControlRequest& act);

// What is left to say of an accepted act of which apply_request makes nothing. A signal that the end of the job overtakes closes
// its wait, an early one that its wait cannot take, or comes to when it has its answer, and a message that nobody will
// wait for are kept: the terminal event lists them as undelivered (SPEC §10). Empty when there is nothing to say.
std::vector<EventBody> expire_request(const State& state, const ControlRequest& act);

// Fails with wait_expired: the wait that would take this signal or message has expired, whether or not a process has
// recorded the expiry. For acts that have not been accepted yet: one that was came in time.
Status check_not_expired(const State& state, const ControlRequest& act, Instant now);

}  // namespace ae::engine
