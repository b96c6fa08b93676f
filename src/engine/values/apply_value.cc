// How a recorded time, random number or UUID changes the state: it becomes the
// result of its step, once.
#include "engine/heart/evaluate.h"
#include "engine/heart/features.h"
#include "engine/state/applier.h"
#include "engine/values/recorded_value.h"

namespace ae::engine {

Status Applier::apply(const TimeRecorded& event) {
  return value_recorded(event.effect_id, event.value);
}
Status Applier::apply(const RandomRecorded& event) {
  return value_recorded(event.effect_id, event.value);
}
Status Applier::apply(const UuidRecorded& event) {
  return value_recorded(event.effect_id, event.value);
}

Status Applier::value_recorded(const std::string& effect_id, const Erasable& value) {
  if (const std::size_t colon = effect_id.find(':'); colon != effect_id.npos) {
    Step* const code = this->step(StepId(std::string_view(effect_id).substr(0, colon)));
    if (code != nullptr && code->code) {
      const std::string_view name = std::string_view(effect_id).substr(colon + 1);
      if (name.substr(0, name.find(':')) != to_text(recorded_kind_of(type_))) {
        return corrupt_event("the event records another kind of value");
      }
      return code_value_recorded(*code, name, value);
    }
  }
  const RecordedKind records = recorded_kind_of(type_);
  const auto id = step_of_effect(effect_id, records);
  if (!id) return {};  // the jitter of a back-off
  Step* const known = this->step(*id);
  if (known == nullptr) return corrupt_event("no such step");
  Step& step = *known;
  const bool calls = step.role == Role::node && s_.has_tool(step) &&
                     (step.is_part() || s_.node_of(step).is_single_call());
  if (!calls || s_.tool_of(step).records != records)
    return corrupt_event("the step records no such value");
  if (step.phase != StepPhase::ready || !step.started) {
    return corrupt_event("the step has its value, or is not to have one");
  }
  if (s_.ending) return corrupt_event("nothing starts in a job that ends");
  if (s_.status != JobStatus::running) return corrupt_event("no worker holds the job");
  if (!s_.to_confirm.empty()) return corrupt_event("what was changed before is not confirmed");
  AE_TRY(value_approved(step));
  step.result = value.value;
  step.erased = value.erased;
  set_phase(step, StepPhase::recorded);
  return {};
}

// Policies and approvals apply to a recorded value as to a call. The event has no arguments: they
// come from the plan or the approval. In a stored log they may depend on erased values; there the
// replay verification checks them.
Status Applier::value_approved(Step& step) {
  const ToolPolicy& tool = s_.tool_of(step);
  Approval* approval = step.approval.get();
  const bool approved = approval && approval->state == ApprovalState::approved;
  // The arguments of code are in no event, unless they were to be approved.
  const bool is_known = approved || !step.request;
  if (!depends_on_arguments(tool) || (logged_ == nullptr && is_known)) {
    Value args;
    if (approved) {
      args = approval->arguments;
    } else if (depends_on_arguments(tool)) {
      args = arguments_of(s_, step).value_or(Value());
    }
    const auto policy_decision = evaluate_policy(s_, &step, tool, args);
    const PolicyAction action =
        policy_decision ? policy_decision->action : PolicyAction::require_approval;
    if (action == PolicyAction::deny) return corrupt_event("a policy denies this step");
    if (action != PolicyAction::allow && !approved)
      return corrupt_event("this step was not approved");
  }
  if (!approved) return {};
  approval->used = true;
  approval->arguments = Value();
  return {};
}

}  // namespace ae::engine
