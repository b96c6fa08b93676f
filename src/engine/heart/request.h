// The parts of apply_request, an overload for each kind: ingest.cc (cancel and resolve),
// request_timers.cc (timers), request_signals.cc (signals and messages), request_approvals.cc
// (approvals of all kinds, and answers to approval requests of calls), request_pause.cc (pause and resume), request_confirm.cc (answers
// to a failed verification), request_plan.cc (another plan), request_budget.cc (more budget),
// request_questions.cc (answers to questions of tools), request_children.cc (ends of child jobs),
// request_version.cc (the versions that a process offers).
//
// Only `apply_request` and `decide` use it. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/heart/ingest.h"

namespace ae::engine {

// REQUIRES: the body is that of the request.
Result<AppliedRequest> apply_request(const State& state, const ControlRequest& request,
                                     const SignalRequest& signal, const DecisionContext& context);
Result<AppliedRequest> apply_request(const State& state, const ControlRequest& request,
                                     const CancelRequest& cancel, const DecisionContext& context);
Result<AppliedRequest> apply_request(const State& state, const ControlRequest& request,
                                     const ResolveRequest& resolve, const DecisionContext& context);
Result<AppliedRequest> apply_request(const State& state, const ControlRequest& request,
                                     const TimersRequest& timers, const DecisionContext& context);
Result<AppliedRequest> apply_request(const State& state, const ControlRequest& request,
                                     const MessageRequest& message, const DecisionContext& context);
Result<AppliedRequest> apply_request(const State& state, const ControlRequest& request,
                                     const PauseRequest& pause, const DecisionContext& context);
Result<AppliedRequest> apply_request(const State& state, const ControlRequest& request,
                                     const ResumeRequest& resume, const DecisionContext& context);
Result<AppliedRequest> apply_request(const State& state, const ControlRequest& request,
                                     const PlanRequest& plan, const DecisionContext& context);
Result<AppliedRequest> apply_request(const State& state, const ControlRequest& request,
                                     const BudgetRequest& budget, const DecisionContext& context);
Result<AppliedRequest> apply_request(const State& state, const ControlRequest& request,
                                     const VersionRequest& version, const DecisionContext& context);
Result<AppliedRequest> apply_request(const State& state, const ControlRequest& request,
                                     const ApproveRequest& approve, const DecisionContext& context);
Result<AppliedRequest> apply_request(const State& state, const ControlRequest& request,
                                     const ChildEndedRequest& ended,
                                     const DecisionContext& context);
// The members of the event that a fold reads, from the end of a child.
void set_child_end(const Value& payload, WaitCompleted& event);
// An answer to a wait, of a signal or an approver. Borrows the texts of the request.
struct WaitAnswer {
  std::string_view wait_type;  // "" = any
  Value payload;
  std::optional<Value> arguments;  // of an approver
  std::string_view traceparent;
};
WaitAnswer answer_of(const SignalRequest& signal);
WaitAnswer answer_of(const ApproveRequest& approve);
// Answers the wait with this key. REQUIRES: `answer` is of the body of the request.
Result<AppliedRequest> apply_wait_answer(const State& state, const std::string& key,
                                         const ControlRequest& request, const WaitAnswer& answer,
                                         const DecisionContext& context);
// The key of the open wait that the request names; null = there is none.
const std::string* open_wait_key(const State& state, const SignalRequest& signal);
const std::string* open_wait_key(const State& state, const ApproveRequest& approve);
// Is this approval or resolution the answer to a failed verification of a change?
bool answers_confirmation(const State& state, const ApproveRequest& approve);
bool answers_confirmation(const State& state, const ResolveRequest& resolve);
Result<AppliedRequest> apply_confirmation_answer(const State& state, const ControlRequest& request,
                                                 const ApproveRequest& approve,
                                                 const DecisionContext& context);
Result<AppliedRequest> apply_confirmation_answer(const State& state, const ControlRequest& request,
                                                 const ResolveRequest& resolve,
                                                 const DecisionContext& context);
// Answers the question of this wait. Fails with input_invalid, payload_too_large.
Result<AppliedRequest> apply_question_answer(const State& state, const std::string& key,
                                             const Wait& wait, const ControlRequest& request,
                                             const WaitAnswer& answer);
// Is `answer` the recorded answer to a question?
bool is_same_answer(const WaitAnswer& answer, const Value& recorded);
// The answer to the approval request of this wait.
Result<AppliedRequest> apply_approval_answer(const State& state, const std::string& key,
                                             const Wait& wait, const ControlRequest& request,
                                             const WaitAnswer& answer,
                                             const DecisionContext& context);
// An answer as its wait records it: with the hash of edited arguments.
Value recorded_answer(const State& state, const WaitAnswer& answer);
// The consequence of rejecting this step's call or wait, once a process runs the job.
std::string after_rejection(const State& state, const Step& step);
// Keys that no wait of a plan may have, and that cannot be answered early.
bool is_reserved_key(std::string_view key);
// `by` of a request without an author. Logs of earlier builds have "somebody".
inline constexpr std::string_view kUnnamedActor = "operator";
// The author of a request, or kUnnamedActor.
inline std::string author_of(const ControlRequest& request) {
  return request.by.empty() ? std::string(kUnnamedActor) : request.by;
}
// Did the call succeed and its result break the tool's result_schema, or a limit? The effect took
// place and was not compensated; its result is unknown.
bool is_result_refused(const State& state, const Step& step);

// The event that ends a wait, without who ended it and with which payload.
WaitCompleted wait_completed_event(const State& state, const std::string& key, const Wait& wait,
                                   std::string_view outcome);

// The same event with the request that ended it, and with what is recorded of its answer.
WaitCompleted with_answer(WaitCompleted event, const ControlRequest& request,
                          const WaitAnswer& answer, const Value& payload);
// The reply to the request that ended the wait of this key.
Value delivered_reply(const std::string& key, std::string_view outcome);

// The outcome of a wait with this payload: signalled, approved or rejected. `rules`: nullptr: it is
// the approval of a call. Fails with input_invalid: a human answer without a decision.
Result<std::string_view> outcome_of_answer(const WaitRules* rules, const Value& payload);

// The first early signal that answers such a wait; nullptr = none.
const BufferedMessage* first_fitting_signal(const std::deque<BufferedMessage>& early,
                                            const WaitRules& rules);

}  // namespace ae::engine
