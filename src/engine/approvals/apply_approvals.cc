// How approval requests and their answers change the state.
#include "base/hash.h"
#include "engine/heart/features.h"
#include "engine/state/applier.h"
#include "json/json.h"

namespace ae::engine {

namespace {

// Shown instead of a hash that was erased with its value.
constexpr std::string_view kErasedHash = "erased";

// Does this hash match the approval's arguments? An erased hash matches all.
bool matches_approval(const Hash& arguments_hash, const Approval& approval) {
  return approval.arguments_hash.empty() || approval.arguments_hash == to_hex(arguments_hash);
}

}  // namespace

// A new routine makes the request again with these arguments, whatever the approver sends instead.
void Applier::note_requested_arguments(Step& step, std::string_view arguments_hash) {
  if (step.request && !step.request->arguments_hash) {
    step.request->arguments_hash = hash_from_hex(arguments_hash);
  }
}

// An approval may be requested, or a call denied, only where a call could be declared.
Status Applier::check_may_request(const Step* step) const {
  if (!step || !step->started || (step->call && step->call->open))
    return corrupt_event("no call to approve");
  if (s_.ending) return corrupt_event("nothing starts in a job that ends");
  switch (step->phase) {
    case StepPhase::ready:
      if (!s_.has_tool(*step) || (!step->is_part() && !s_.node_of(*step).is_single_call())) {
        return corrupt_event("this step makes no call");
      }
      break;
    case StepPhase::backoff:
    case StepPhase::redo:
    case StepPhase::settled:
      break;
    default:
      return corrupt_event("no call is to be made here");
  }
  if (step->approval && step->approval->state != ApprovalState::approved) {
    return corrupt_event("it was requested before and not approved");
  }
  return {};
}

// The policy decision for a call; nullopt: it depends on arguments that are erased.
std::optional<PolicyAction> Applier::recorded_policy_action(const RecordedArguments& arguments,
                                                            const Step& step) const {
  const ToolPolicy& tool = s_.tool_of(step);
  if (arguments.erased && depends_on_arguments(tool)) return std::nullopt;
  const auto policy_decision = evaluate_policy(s_, &step, tool, arguments.value);
  return policy_decision ? policy_decision->action : PolicyAction::require_approval;
}

Status Applier::apply(const ApprovalRequested& request, const DecisionRecorded& event, Step* step) {
  AE_TRY(check_may_request(step));
  if (recorded_policy_action({request.arguments, request.erased}, *step) == PolicyAction::allow)
    return corrupt_event("no approval is required");
  note_requested_arguments(*step, request.arguments_hash);
  AE_TRY(note_options(*step, request.options));
  auto approval = std::make_unique<Approval>();
  approval->id = event.decision_id.text;
  approval->arguments = request.arguments;
  approval->arguments_hash = request.arguments_hash;
  approval->tool = request.tool;
  approval->tool_version = request.tool_version;
  approval->schema_digest = request.schema_digest;
  approval->expires_at = request.expires_at;
  approval->from = step->phase;
  approval->request_count = step->approval ? step->approval->request_count + 1 : 1;
  if (step->approval) approval->edited_from = step->approval->edited_from;
  if (approval->tool != s_.tool_of(*step).name) {
    return corrupt_event("another tool than the plan's");
  }
  if (step->call && (!matches_approval(step->call->arguments_hash, *approval) ||
                     step->call->tool != approval->tool)) {
    return corrupt_event("other arguments than those of its invocation");
  }
  step->approval = std::move(approval);
  return {};
}

// A policy denies the call: it is never declared.
Status Applier::apply(const CallDenied& denial, const DecisionRecorded& event, Step* step) {
  AE_TRY(check_may_request(step));
  if (step->phase != StepPhase::ready || step->role != Role::node) {
    return corrupt_event("only what has not begun is denied");
  }
  if (const auto policy_action = recorded_policy_action({denial.arguments, denial.erased}, *step);
      policy_action && *policy_action != PolicyAction::deny) {
    return corrupt_event("no policy denies this call");
  }
  note_requested_arguments(*step, denial.arguments_hash);
  auto denied = std::make_unique<Approval>();
  denied->id = event.decision_id.text;
  denied->state = ApprovalState::denied;
  denied->tool = s_.tool_of(*step).name;
  denied->arguments_hash = denial.arguments_hash;
  denied->note = or_empty(event.reason);
  step->approval = std::move(denied);
  set_phase(*step, StepPhase::answered);
  return {};
}

Status Applier::check_requested(const DecisionId& approval, const Step* step) const {
  if (step && step->phase == StepPhase::asking &&
      step->approval->state == ApprovalState::requested && step->approval->id == approval.text) {
    return {};
  }
  return corrupt_event("this approval was not requested");
}

Status Applier::apply(const ApprovalAnswered& answer, const DecisionRecorded& event, Step* step) {
  AE_TRY(check_requested(answer.approval_id, step));
  record_answer(event, *step->approval,
                event.state == "rejected" ? ApprovalState::rejected : ApprovalState::approved);
  return {};
}

void Applier::record_answer(const DecisionRecorded& event, Approval& approval,
                            ApprovalState state) {
  approval.state = state;
  approval.by = or_empty(event.by);
  approval.note = or_empty(event.reason);
}

// The approver edited the arguments: exactly these will be sent.
Status Applier::apply(const ArgumentsEdited& edit, const DecisionRecorded& event, Step* step) {
  AE_TRY(check_requested(edit.approval_id, step));
  AE_TRY(edit_arguments(edit, *step));
  record_answer(event, *step->approval, ApprovalState::approved);
  return {};
}

Status Applier::edit_arguments(const ArgumentsEdited& edit, Step& step) {
  Approval& approval = *step.approval;
  if (step.call) return corrupt_event("its call has its arguments already");
  if (edit.erased) {
    if (approval.edited_from.empty()) {
      approval.edited_from = edit.edited_from.empty() ? kErasedHash : edit.edited_from;
    }
    approval.arguments = Value();
    approval.arguments_hash = edit.arguments_hash;
    return {};
  }
  const Value& arguments = edit.arguments;
  // Without the blind the recorded hash is used.
  const std::string hash = s_.blind_erased ? edit.arguments_hash : s_.hash_of(arguments).string();
  if (!arguments.is_object()) return corrupt_event("without the arguments that are to be sent");
  if (hash != edit.arguments_hash || hash == approval.arguments_hash) {
    return corrupt_event("its arguments are not those of its arguments_hash");
  }
  if (auto policy_decision = evaluate_policy(s_, s_.tool_of(step), arguments);
      !policy_decision || policy_decision->action == PolicyAction::deny) {
    return corrupt_event("a policy denies what was made of the call");
  }
  if (approval.edited_from.empty()) approval.edited_from = approval.arguments_hash;
  approval.arguments = arguments;
  approval.arguments_hash = hash;
  if (step.is_loop_call()) {
    s_.steps[step.node].loop->turn(step.turn).calls[step.nth].edited = arguments;
  }
  return {};
}

// How many parts of its map or loop have an open request, or a child job that was not cancelled.
void Applier::count_asking(const Step& step, int change) {
  if (step.item != kNoItem) s_.steps[step.node].map->asking += static_cast<std::uint32_t>(change);
  if (step.turn != kNoTurn) s_.steps[step.node].loop->asking += static_cast<std::uint32_t>(change);
}

// The wait for an approval of a call.
Status Applier::request_opened(Step& step, Wait& wait) {
  if (!step.approval || step.approval->state != ApprovalState::requested ||
      step.phase != step.approval->from || wait.type != WaitType::human) {
    return corrupt_event("no approval was requested");
  }
  wait.approval = true;
  count_asking(step, 1);
  set_phase(step, StepPhase::asking);
  return {};
}

Status Applier::request_closed(Step& step, std::string_view outcome) {
  Approval& approval = *step.approval;
  const bool edited = outcome == "edited";
  const bool answered = outcome == "approved" || outcome == "rejected" || edited;
  if (edited && approval.edited_from.empty()) return corrupt_event("the decision differs");
  if (answered != (approval.state != ApprovalState::requested)) {
    return corrupt_event("the decision differs");
  }
  count_asking(step, -1);
  if (step.is_part()) update_work_sets(step.node);
  if (outcome == "timed_out") approval.state = ApprovalState::expired;
  if (outcome == "cancelled") approval.state = ApprovalState::withdrawn;
  const bool approved = approval.state == ApprovalState::approved;
  set_phase(step, approved ? approval.from : StepPhase::answered);
  return {};
}

// Was exactly the declared call approved?
Status Applier::check_approval(const ToolInvocationStarted& event, Step& step) {
  const ToolPolicy& tool = s_.tool_of(step);
  if (tool.is_model() || (!event.approval_id && always_allowed(s_, tool))) return {};
  const std::string& id = or_empty(event.approval_id);
  // Erased arguments cannot be evaluated again.
  if (!event.arguments.erased || !depends_on_arguments(tool)) {
    const auto policy_decision = evaluate_policy(s_, &step, tool, event.arguments.value);
    const PolicyAction action =
        policy_decision ? policy_decision->action : PolicyAction::require_approval;
    if (action == PolicyAction::deny) return corrupt_event("a policy denies this call");
    if (id.empty()) {
      return action == PolicyAction::allow ? Status() : corrupt_event("this call was not approved");
    }
  }
  if (id.empty()) return {};
  Approval* approval = step.approval.get();
  if (!approval || approval->state != ApprovalState::approved || approval->id != id ||
      approval->tool != event.tool_name || approval->tool_version != event.tool_version ||
      !matches_approval(event.arguments_hash, *approval) ||
      approval->schema_digest !=
          (event.request_schema_hash ? to_hex(*event.request_schema_hash) : "")) {
    return corrupt_event("its approval is that of another call");
  }
  approval->used = true;
  approval->arguments = Value();
  return {};
}

}  // namespace ae::engine
