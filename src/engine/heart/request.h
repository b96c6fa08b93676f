// What apply_request is made of, act by act: absorb.cc has cancel, resolve and timers, take_signals.cc what answers a wait or
// a pause, take_confirm.cc what answers a confirmation, apply_plan_request.cc another plan, apply_budget_request.cc more budget,
// apply_version_offer.cc a process that offers the versions that a job waits for.
//
// Only `apply_request` and `decide` use it. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/heart/ingest.h"

namespace ae::engine {

Result<AppliedRequest> apply_signal_request(const State& state, const ControlRequest& act,
                                            const DecisionContext& context);
// Keys that no wait of a plan may have, and that cannot be answered early.
bool is_reserved_key(std::string_view key);
Result<AppliedRequest> apply_message_request(const State& state, const ControlRequest& act,
                                             const DecisionContext& context);
Result<AppliedRequest> apply_pause_request(const State& state, const ControlRequest& act);
Result<AppliedRequest> apply_resume_request(const State& state, const ControlRequest& act);
// Is this act, a resolution or an approval, about what a confirmation showed?
bool answers_confirmation(const State& state, const ControlRequest& act);
Result<AppliedRequest> apply_confirmation_answer(const State& state, const ControlRequest& act,
                                                 const DecisionContext& context);
Result<AppliedRequest> apply_plan_request(const State& state, const ControlRequest& act,
                                          const DecisionContext& context);
Result<AppliedRequest> apply_budget_request(const State& state, const ControlRequest& act,
                                            const DecisionContext& context);
Result<AppliedRequest> apply_version_offer(const State& state, const ControlRequest& act,
                                           const DecisionContext& context);
// Did the call succeed and its result break the tool's result_schema, or a limit? The effect took place; its result is unknown.
bool is_result_refused(const State& state, const Step& step);
// May the job use as much as this act wanted?
bool is_budget_granted(const State& state, const Value& wanted);

// The end of a wait. Who ended it, and with what, is for the caller to fill in.
WaitCompleted wait_closed(const State& state, const std::string& key, const Wait& wait,
                          std::string_view outcome);

// The same with what ended it: the request, and the payload that it gave.
WaitCompleted answered(WaitCompleted event, const ControlRequest& act, const Value& payload);

// How this payload answers a wait of this node: signalled, approved or rejected. Fails with input_invalid: a person's
// answer without a decision.
Result<std::string_view> outcome_of_answer(const Node& node, const Value& payload);

// The first early signal that answers a wait of this type and node; nullptr = none does.
const BufferedMessage* first_fitting_signal(const std::deque<BufferedMessage>& early,
                                            const Node& node);

// A message, or a signal that nobody waits for yet, as the log keeps it.
EventBody buffered_event(const ControlRequest& act);

// The name under which a message or an early signal is known for ever: the same again is the same.
std::string message_key(std::string_view channel, std::string_view key, std::string_view id);

}  // namespace ae::engine
