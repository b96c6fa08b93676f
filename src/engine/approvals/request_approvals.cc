// Approvals: finds what an approver decides about, and answers the approval request of a call, whose
// arguments the approver may have edited.
#include <fmt/core.h>

#include <utility>

#include "base/hash.h"
#include "engine/approvals/edited_call.h"
#include "engine/heart/decide.h"
#include "engine/heart/features.h"
#include "engine/heart/request.h"
#include "json/json.h"
#include "log/field_names.h"
#include "log/seal.h"

namespace ae::engine {
namespace {

void add_fault(EditedCall& call, Code code, std::string message) {
  call.faults.push_back({.error = {code, std::move(message)}, .path = {}});
}

// Do the arguments match the tool's schema, and what the schema cannot express?
void check_schema(const ToolPolicy& tool, const Value& arguments, EditedCall& call) {
  if (tool.args_schema) {
    for (const SchemaViolation& violation : tool.args_schema->validate(arguments)) {
      call.faults.push_back({.error = violation.error(), .path = violation.instance_path});
    }
  }
  if (!call.faults.empty()) return;
  const Status recorded = check_recorded_args(tool.records, arguments);
  if (!recorded) call.faults.push_back({.error = recorded.error(), .path = {}});
}

void check_policies(const State& state, const ToolPolicy& tool, const Value& arguments,
                    EditedCall& call) {
  const auto decision = evaluate_policy(state, tool, arguments);
  if (!decision) {
    if (call.changed) call.faults.push_back({.error = decision.error(), .path = {}});
    return;
  }
  call.verdict = decision->action;
  if (!call.changed || decision->action != PolicyAction::deny) return;
  const std::string why = decision->reason.empty() ? "" : ": " + decision->reason;
  add_fault(call, Code::denied,
            fmt::format("a policy denies the call with these arguments{}", why));
}

}  // namespace

EditedCall check_edited_call(const State& state, const Step& step, const Value& arguments) {
  EditedCall call;
  if (!arguments.is_object()) {
    add_fault(call, Code::input_invalid,
              "\"arguments\" must be an object: all of them, as they are to be sent");
    return call;
  }
  if (canonical_exceeds(arguments, kValueMax)) {
    add_fault(call, Code::payload_too_large,
              "the arguments are longer than 16 MiB as canonical JSON");
    return call;
  }
  call.arguments_hash = state.hash_of(arguments).string();
  call.changed = call.arguments_hash != step.approval->arguments_hash;
  if (call.changed && step.call) {
    add_fault(call, Code::input_invalid,
              "this call was sent before with the arguments that it has: approve or reject it");
    return call;
  }
  const ToolPolicy& tool = state.tool_of(step);
  if (call.changed) check_schema(tool, arguments, call);
  if (call.faults.empty()) check_policies(state, tool, arguments, call);
  return call;
}

namespace {

// The arguments as edited by the approver; nullopt: unchanged.
Result<std::optional<Value>> edited_arguments(const State& state, const Wait& wait,
                                              const WaitAnswer& answer, std::string_view outcome) {
  if (answer.payload.find(field::arguments) != nullptr) {
    return fail(
        Code::input_invalid,
        Action{
            .act = act::kApprove,
            .arguments = {{"id", fmt::format("{}.{}", state.job.text, state.approval_id(wait))}}},
        R"(a signal changes no arguments: give them as "arguments" of the approval)");
  }
  if (!answer.arguments) return std::nullopt;
  if (outcome != "approved") {
    return fail(Code::input_invalid, "only a call that is approved can be given other arguments");
  }
  const EditedCall edited = check_edited_call(state, state.steps[wait.step], *answer.arguments);
  if (!edited.faults.empty()) return std::unexpected(edited.faults.front().error);
  return edited.changed ? answer.arguments : std::nullopt;
}

// Why the process that applies this approval would not make the call; "" = it
// would, as far as it can tell.
std::string unused_approval_reason(const State& state, const Wait& wait,
                                   const DecisionContext& context, std::string_view outcome) {
  if (outcome == "rejected" || context.tool_versions == nullptr) return {};
  const Step& step = state.steps[wait.step];
  const std::string& offered = (*context.tool_versions)[state.tool_index(step)];
  const Approval& approval = *step.approval;
  if (offered.empty() || offered == approval.tool_version) return {};
  return fmt::format(
      "the tool \"{}\" has changed since the request ({} is now {}), and an approval is good for "
      "one version: the call is requested again",
      approval.tool, approval.tool_version, offered);
}

// The decision of an approver about a call; recorded with the end of the wait.
DecisionRecorded approval_decision(const State& state, const Wait& wait,
                                   const ControlRequest& request, const WaitAnswer& answer,
                                   const DecisionContext& context, std::string_view outcome) {
  const Step& step = state.steps[wait.step];
  const Approval& approval = *step.approval;
  DecisionRecorded event{.at = context.now,
                         .by = none_if_empty(request.by),
                         .decision_id = decision_at(state, approval.id + "#answer"),
                         .node_id = state.node_of(step).id,
                         .reason = none_if_empty(answer.payload.text(field::note)),
                         .state = outcome,
                         .step_id = step.id};
  if (outcome == "edited") {
    return decision_event(ArgumentsEdited{.approval_id = DecisionId(approval.id),
                                          .arguments = *answer.arguments,
                                          .arguments_hash = state.hash_of(*answer.arguments),
                                          .command_id = step.id,
                                          .edited_from = approval.arguments_hash,
                                          .tool = approval.tool},
                          std::move(event));
  }
  return decision_event(ApprovalAnswered{.approval_id = DecisionId(approval.id),
                                         .arguments_hash = approval.arguments_hash,
                                         .command_id = step.id,
                                         .tool = approval.tool},
                        std::move(event));
}

// The key of the wait with this id in the list of approvals, also of a closed one. Fails with
// not_found.
Result<std::string> named_wait_key(const State& state, const ApproveRequest& approve) {
  if (const std::string* const open = open_wait_key(state, approve)) return *open;
  for (const auto& [key, wait] : state.closed_waits) {
    if (!wait.approval.empty() && wait.approval == approve.approval_id) return key;
  }
  return fail(Code::not_found, Action{.act = act::kApprovals},
              "no open approval request has this id");
}

}  // namespace

WaitAnswer answer_of(const ApproveRequest& approve) {
  return {.wait_type = to_text(WaitType::human),
          .payload = approve.payload(),
          .arguments = approve.arguments,
          .traceparent = approve.traceparent};
}

const std::string* open_wait_key(const State& state, const ApproveRequest& approve) {
  for (const auto& [key, wait] : state.waits) {
    const std::string id = state.approval_id(wait);
    if (!id.empty() && id == approve.approval_id) return &key;
  }
  return nullptr;
}

Result<AppliedRequest> apply_request(const State& state, const ControlRequest& request,
                                     const ApproveRequest& approve,
                                     const DecisionContext& context) {
  if (answers_confirmation(state, approve))
    return apply_confirmation_answer(state, request, approve, context);
  AE_ASSIGN(const std::string key, named_wait_key(state, approve));
  return apply_wait_answer(state, key, request, answer_of(approve), context);
}

Result<AppliedRequest> apply_approval_answer(const State& state, const std::string& key,
                                             const Wait& wait, const ControlRequest& request,
                                             const WaitAnswer& answer,
                                             const DecisionContext& context) {
  const Step& step = state.steps[wait.step];
  AE_ASSIGN(std::string_view outcome, outcome_of_answer(nullptr, answer.payload));
  AE_ASSIGN(const auto edited, edited_arguments(state, wait, answer, outcome));
  if (edited) outcome = "edited";
  AppliedRequest applied;
  applied.events.push_back(approval_decision(state, wait, request, answer, context, outcome));
  applied.events.emplace_back(
      with_answer(wait_completed_event(state, key, wait, outcome), request, answer,
                  edited ? recorded_answer(state, answer) : answer.payload));
  applied.answer = Value::object(
      {{field::correlation_key, key}, {field::delivered, true}, {field::outcome, outcome}});
  if (outcome == "rejected") {
    applied.answer = applied.answer.with("then", after_rejection(state, step));
  }
  if (const std::string why = unused_approval_reason(state, wait, context, outcome); !why.empty()) {
    applied.answer = applied.answer.with("applied", false).with(field::reason, why);
  }
  return applied;
}

}  // namespace ae::engine
