// record_outcome and apply_request: turn observations and requests into events.
//
//   record_outcome(state, step, outcome)  the observed outcome of the open try of a step
//   apply_request(state, request)         a control request: a signal, message, approval, cancel,
//                                         pause, resolution, more budget, due timers, the versions
//                                         of a process
//
// Both only translate; `decide` computes what follows from the events. While a worker holds the
// lease of the job, requests reach it as canonical JSON through the inbox. Otherwise they are
// applied directly (SPEC §10). Pure.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/heart/control_request.h"
#include "engine/heart/decide.h"
#include "engine/state/state.h"
#include "log/event.h"
#include "log/outcome.h"
#include "schema/schema.h"

namespace ae::engine {

// `at`: the store's clock at the observation. REQUIRES: the step's newest try is open.
std::vector<EventBody> record_outcome(const State& state, std::uint32_t step,
                                      const Outcome& outcome, Instant at);

// A performed try: enough to record its outcome later, without the state.
struct SentTry {
  StepId step;
  InvocationId invocation;
  std::uint32_t try_no = 0;
  AttemptId attempt;
  IdempotencyKey key;
  Hash arguments_hash;
  // Of a model call: the provider, the request, and the blind of the job.
  std::string provider, blind;
  Value request;
  // The plan's schema for results, and its digest; "" = there is none.
  std::optional<Schema> result_schema;
  std::string result_digest;
  std::shared_ptr<const Plan> plan;  // with prices of models that the call may use itself, or null
  bool awaits_child = false;         // creates a child job whose end is awaited
  bool may_ask_user = true;          // may end with questions to a user (schema/question.h)
};
SentTry sent_try_of(const State& state, const Step& step);
// The effect record of SPEC §5, for the effect store. `late`: written after its try was closed or
// its attempt lost the job. As in `record_outcome`, a success whose result is too large, or breaks
// the tool's result_schema, is recorded with a summary instead of the result.
enum class Arrival : std::uint8_t { in_time, late };
Value effect_record(const JobId& job, const SentTry& sent, const Outcome& outcome, Instant at,
                    Arrival arrival = Arrival::in_time);
// Only certain outcomes are accepted late (SPEC §6): a success, a question to a
// user, or a definite failure.
bool is_certain(const Outcome& outcome);

// An effect record without its values: only that it happened, its outcome and an error's code
// remain. `record`: the text stored at `location`. Fails with log_corrupt.
Result<std::string> erased_effect(std::string_view location, std::string_view record);

// The events that import effects which are stored but not in the log yet (SPEC §5, W3; §6, late
// effects). A try whose outcome has been decided meanwhile gets a `finished{late}`, for display.
struct StoredEffect {
  InvocationId invocation;
  std::uint32_t try_no = 0;
  std::string_view record;
};
Result<std::vector<EventBody>> import_stored_effects(const State& state,
                                                     const std::vector<StoredEffect>& effects);

// The tool_invocation_finished for an effect record, without the members that describe its import.
Result<ToolInvocationFinished> finished_payload(const EffectRecord& record);

// The slot in the effect store that this event decides about without a known result: the event may
// be written only while the slot is empty (SPEC §6). REQUIRES: the event is not yet applied, and is
// the result of `decide` or `apply_request`.
std::optional<std::pair<InvocationId, std::uint32_t>> decided_effect_slot(const State& state,
                                                                          const EventBody& event);

// Signals and messages that one job accepts, applied or in its inbox (SPEC §14).
inline constexpr std::size_t kSignalsMax = 10'000;
Error signals_limit_error();

struct AppliedRequest {
  std::vector<EventBody> events;  // empty: nothing to write
  Value answer;                   // for the client, e.g. {"delivered": true}
  std::uint32_t try_no = 0;       // of a resolution: the try with the unknown outcome
};
// Fails with wait_mismatch, not_in_doubt, not_settled, not_paused, not_found, input_invalid,
// job_terminal, call_pending, plan_invalid, plan_missing, denied, payload_too_large,
// approval_edited, expression_failed, needs_version; then nothing is to be written.
Result<AppliedRequest> apply_request(const State& state, const ControlRequest& request,
                                     const DecisionContext& context);

// As apply_request, for a request from the inbox, which counts as of the instant at which its
// author decided. The events are also those of expire_request. `answer`: what its sender receives.
struct AcceptedRequest {
  std::vector<EventBody> events;
  Result<Value> answer;
};
AcceptedRequest apply_accepted(const State& state, const ControlRequest& request,
                               const DecisionContext& context);

// The events for an accepted request that apply_request cannot apply any more. They record a signal
// that arrived after the job's end was decided (it closes its wait), an early signal that its wait
// does not accept or no longer needs, and a message that no wait will take. The terminal event
// lists them as undelivered (SPEC §10). Empty: nothing to record.
std::vector<EventBody> expire_request(const State& state, const ControlRequest& request);

// Fails with wait_expired: the wait for this signal or message has expired, whether or not the
// expiry is recorded. Only for requests that are not accepted yet: an accepted one came in time.
Status check_not_expired(const State& state, const ControlRequest& request, Instant now);

}  // namespace ae::engine
