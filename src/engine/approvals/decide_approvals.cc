// How a decision requests an approval for a call: nothing is declared before it is approved, and an
// approval is valid for exactly the requested call (SPEC §10).
#include <fmt/core.h>

#include "engine/heart/decider.h"
#include "engine/heart/features.h"

namespace ae::engine {

bool is_approved(const State& state, const Step* step, const ToolPolicy& tool,
                 const CallRequest& request) {
  if (tool.is_model()) return true;
  // Without the arguments no policy can be evaluated.
  if (!request.arguments)
    return !tool.may_require_approval() && tool.rules.empty() && !state.planned_by_model;
  const auto policy_decision = evaluate_policy(state, step, tool, *request.arguments, request.work);
  // A failing condition has normally failed the step already; otherwise an approval is requested.
  const PolicyAction action =
      policy_decision ? policy_decision->action : PolicyAction::require_approval;
  if (action != PolicyAction::require_approval) return action == PolicyAction::allow;
  if (!step || !step->approval || step->approval->state != ApprovalState::approved) return false;
  const Approval& approval = *step->approval;
  const bool same =
      approval.tool == request.tool && approval.arguments_hash == to_hex(request.arguments_hash) &&
      approval.tool_version == request.tool_version && approval.schema_digest == tool.schema_digest;
  // The expiry limits the start of the call, not its later tries.
  const bool in_time = approval.used || !approval.expires_at || request.now < *approval.expires_at;
  return same && in_time;
}

bool Decider::is_call_approved(const Declaration& d, const Value& args, const Hash& hash) const {
  if (d.of != nullptr) return true;  // probes and compensations belong to their call
  const ToolPolicy& tool = s_.plan->tools[d.tool];
  return is_approved(s_, d.known, tool,
                     {.step = d.known ? s_.index_of(*d.known) : kNewItem,
                      .tool = tool.name,
                      .arguments_hash = hash,
                      .arguments = &args,
                      .tool_version = offered_version(d.tool),
                      .now = context_.now,
                      .work = &work_});
}

std::string Decider::path_of(const Declaration& d) const {
  if (!d.path.empty()) return d.path;
  return d.known ? s_.path_of(*d.known) : s_.item_path(d.node, d.item);
}

// True: a policy denies this call, and the denial is recorded. The consequence is
// decided when it is applied.
bool Decider::deny_if_forbidden(const Declaration& d, const Value& args, const Hash& hash) {
  const ToolPolicy& tool = s_.plan->tools[d.tool];
  if (tool.is_model() || d.of != nullptr) return false;
  const auto policy_decision = evaluate_policy(s_, d.known, tool, args, &work_);
  if (!policy_decision || policy_decision->action != PolicyAction::deny) return false;
  emit(decision_event(CallDenied{.arguments = args,
                                 .arguments_hash = to_hex(hash),
                                 .command_id = d.step,
                                 .schema_digest = tool.schema_digest,
                                 .tool = tool.name,
                                 .tool_version = offered_version(d.tool)},
                      {.decision_id = decision_at(s_, path_of(d) + "#denied"),
                       .node_id = d.node.id,
                       .reason = none_if_empty(policy_decision->reason),
                       .step_id = d.step}));
  return true;
}

void Decider::request_approval(const Declaration& d, const Value& args, const Hash& hash) {
  const Approval* earlier = d.known ? d.known->approval.get() : nullptr;
  const ToolPolicy& tool = s_.plan->tools[d.tool];
  const auto policy_decision = evaluate_policy(s_, d.known, tool, args, &work_);
  const std::uint32_t number = earlier ? earlier->request_count + 1 : 1;
  const std::string again = earlier ? fmt::format("#{}", number) : "";
  std::optional<Instant> expires;
  if (policy_decision && policy_decision->expires) {
    expires = cap_at_deadline(context_.now + *policy_decision->expires);
  }
  const std::optional<std::string> reason =
      policy_decision ? none_if_empty(policy_decision->reason) : std::nullopt;
  const CallOptions* const options = options_of(d);
  emit(decision_event(
      ApprovalRequested{.arguments = args,
                        .arguments_hash = to_hex(hash),
                        .command_id = d.step,
                        .expires_at = expires,
                        .options = options ? to_json(*options) : Value(),
                        .schema_digest = tool.schema_digest,
                        .tool = tool.name,
                        .tool_version = offered_version(d.tool)},
      {.decision_id = decision_at(s_, fmt::format("{}#approval{}", path_of(d), number)),
       .node_id = d.node.id,
       .reason = reason,
       .step_id = d.step}));
  emit(WaitOpened{.correlation_key = fmt::format("approval/{}{}", d.step.text, again),
                  .expires_at = expires,
                  .node_id = d.node.id,
                  .reason = reason,
                  .step_id = d.step,
                  .wait_type = std::string(to_text(WaitType::human))});
}

std::string Decider::denied_text(const std::string& tool, const std::string& reason) {
  const std::string why = reason.empty() ? " by a policy" : ": " + reason;
  return fmt::format("the call of \"{}\" is denied{}", tool, why);
}

// A policy or an approver rejected the call, or the request expired: the node fails without a call.
namespace {

bool is_interrupted(const State& state, const Step& step) {
  const Step& loop = state.steps[step.node];
  return step.turn != kNoTurn && loop.loop && loop.loop->interrupted;
}

}  // namespace

void Decider::finish_refused(const Step& step) {
  const Approval& approval = *step.approval;
  const std::string call = fmt::format("the call of \"{}\"", approval.tool);
  switch (approval.state) {
    case ApprovalState::rejected: {
      const std::string by = approval.by.empty() ? "" : " by " + approval.by;
      const std::string note = approval.note.empty() ? "" : ": " + approval.note;
      return fail_step(step, code_name(Code::rejected),
                       fmt::format("{} was rejected{}{}", call, by, note));
    }
    case ApprovalState::denied:
      return fail_step(step, code_name(Code::denied), denied_text(approval.tool, approval.note));
    case ApprovalState::withdrawn:
      return fail_step(step, code_name(Code::rejected),
                       fmt::format("{} was not made: {}", call,
                                   step.request               ? "its code does not need it any more"
                                   : is_interrupted(s_, step) ? "the user interrupted"
                                   : step.turn != kNoTurn     ? "its loop had failed"
                                                          : "another item of its map had failed"));
    default:
      return fail_step(step, code_name(Code::wait_expired),
                       fmt::format("nobody approved {} before the request expired", call));
  }
}

// A map or loop fails: the open approvals and questions of its other parts are withdrawn.
void Decider::withdraw_requests(const Step& parent) {
  for (const auto& [key, wait] : s_.waits) {
    if (!wait.approval && !wait.question && wait.type != WaitType::job) continue;
    const Step& step = s_.steps[wait.step];
    if (step.is_part() && step.node == parent.node) cancel_wait(key, wait);
  }
}

}  // namespace ae::engine
