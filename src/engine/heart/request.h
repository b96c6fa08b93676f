// The parts of apply_request, by kind of request: ingest.cc (cancel, resolve and timers),
// request_signals.cc (signals, messages, pause and resume), request_confirm.cc (answers to a failed
// verification), request_plan.cc (another plan), request_budget.cc (more budget),
// request_version.cc (the versions that a process offers).
//
// Only `apply_request` and `decide` use it. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/heart/ingest.h"

namespace ae::engine {

Result<AppliedRequest> apply_signal_request(const State& state, const ControlRequest& request,
                                            const DecisionContext& context);
// Keys that no wait of a plan may have, and that cannot be answered early.
bool is_reserved_key(std::string_view key);
Result<AppliedRequest> apply_message_request(const State& state, const ControlRequest& request,
                                             const DecisionContext& context);
Result<AppliedRequest> apply_pause_request(const State& state, const ControlRequest& request);
Result<AppliedRequest> apply_resume_request(const State& state, const ControlRequest& request);
// Is this request, a resolution or an approval, the answer to a failed verification of a change?
bool answers_confirmation(const State& state, const ControlRequest& request);
Result<AppliedRequest> apply_confirmation_answer(const State& state, const ControlRequest& request,
                                                 const DecisionContext& context);
Result<AppliedRequest> apply_plan_request(const State& state, const ControlRequest& request,
                                          const DecisionContext& context);
Result<AppliedRequest> apply_budget_request(const State& state, const ControlRequest& request,
                                            const DecisionContext& context);
Result<AppliedRequest> apply_version_offer(const State& state, const ControlRequest& request,
                                           const DecisionContext& context);
// `by` of what the runtime records on its own.
inline constexpr std::string_view kRuntimeActor = "runtime";
// Did the call succeed and its result break the tool's result_schema, or a limit? The effect took
// place and was not compensated; its result is unknown.
bool is_result_refused(const State& state, const Step& step);
// Does the job's budget allow as much as this request wants?
bool is_budget_granted(const State& state, const Value& wanted);

// The event that ends a wait, without who ended it and with which payload.
WaitCompleted wait_completed_event(const State& state, const std::string& key, const Wait& wait,
                                   std::string_view outcome);

// The same event with the request that ended it and its payload.
WaitCompleted with_answer(WaitCompleted event, const ControlRequest& request, const Value& payload);

// The outcome of a wait of this node with this payload: signalled, approved or rejected. Fails with
// input_invalid: a human answer without a decision.
Result<std::string_view> outcome_of_answer(const Node& node, const Value& payload);

// The first early signal that answers a wait of this type and node; nullptr = none.
const BufferedMessage* first_fitting_signal(const std::deque<BufferedMessage>& early,
                                            const Node& node);

// The event that keeps a message, or a signal that arrived before its wait.
EventBody buffered_event(const ControlRequest& request);

// The permanent name of a message or an early signal: one with the same name is a duplicate.
std::string message_key(std::string_view channel, std::string_view key, std::string_view id);

}  // namespace ae::engine
