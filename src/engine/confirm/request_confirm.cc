// An operator's answer to a failed verification: accept or fail, for the changes of one step.
#include <utility>

#include "engine/confirm/confirm.h"
#include "engine/heart/request.h"
#include "engine/state/action.h"

namespace ae::engine {
namespace {

// The escalated step with this step id, or with this node id if it is the only one of
// its node. kNoStep: none.
std::uint32_t escalated_step(const State& state, std::string_view name) {
  std::uint32_t found = kNoStep;
  for (const auto& [key, change] : state.changes) {
    if (!change.escalated) continue;
    const Step& step = state.steps[change.step];
    if (step.id.text == name) return change.step;
    if (state.node_of(step).id != name || found == change.step) continue;
    if (found != kNoStep) return kNoStep;
    found = change.step;
  }
  return found;
}

std::vector<AnsweredResource> resources_of(const State& state, std::uint32_t step) {
  std::vector<AnsweredResource> resources;
  for (const auto& [key, change] : state.changes) {
    if (change.step != step || !change.escalated) continue;
    const std::string& observed = change.escalated->observed;
    resources.push_back({.observed = observed.empty() ? Value() : Value(observed),
                         .resource_id = change.resource_id,
                         .resource_type = change.resource_type,
                         .verdict = change.escalated->verdict});
  }
  return resources;
}

}  // namespace

bool answers_confirmation(const State& state, const ControlRequest& request) {
  if (request.kind == ControlRequest::Kind::signal) {
    return !request.approval.empty() && escalated_step(state, request.approval) != kNoStep;
  }
  if (request.kind != ControlRequest::Kind::resolve) return false;
  return !request.step_id.empty() || request.resolution == "accept" ||
         (request.resolution == "fail" &&
          escalated_step(state, request.idempotency_key) != kNoStep);
}

Result<AppliedRequest> apply_confirmation_answer(const State& state, const ControlRequest& request,
                                                 const DecisionContext& context) {
  const bool listed = request.kind == ControlRequest::Kind::signal;  // in the list of approvals
  const std::string_view name = listed ? std::string_view(request.approval)
                                : request.step_id.empty()
                                    ? std::string_view(request.idempotency_key)
                                    : std::string_view(request.step_id);
  std::string resolution = request.resolution;
  if (listed) resolution = request.payload.text("decision") == "approve" ? "accept" : "fail";
  if (is_terminal(state.status)) return fail(Code::job_terminal, "the job has ended");
  if (resolution != "accept" && resolution != "fail") {
    return fail(Code::input_invalid, "a confirmation is answered with accept or fail");
  }
  if (request.result) return fail(Code::input_invalid, "only `happened` takes a result");
  const std::uint32_t index = state.ending ? kNoStep : escalated_step(state, name);
  if (index == kNoStep) {
    return fail(Code::not_in_doubt, "no confirmation is open for what the step \"" +
                                        std::string(name) + "\" changed; `aetheris job " +
                                        state.job.text + "` lists the open ones");
  }
  const Step& step = state.steps[index];
  std::vector<AnsweredResource> resources = resources_of(state, index);
  const bool last = resources.size() == state.escalated;
  const std::string note = listed ? std::string(request.payload.text("note")) : request.reason;
  AppliedRequest applied;
  applied.events.emplace_back(decision_event(
      ConfirmationAnswered{.resources = std::move(resources)},
      {.at = context.now,
       .by = none_if_empty(request.by),
       .decision_id =
           decision_at(state, "confirmation/" + std::to_string(state.seq) + "/" + step.id.text),
       .node_id = state.node_of(step).id,
       .reason = none_if_empty(note),
       .state = resolution,
       .step_id = step.id}));
  // A park until `resume` stays: the next verification finds the answer.
  if (last && resolution == "accept" && state.awaits_confirmation()) {
    applied.events.emplace_back(JobResumed{.by = request.by.empty() ? "somebody" : request.by});
  }
  applied.answer = Value::object(
      {{"node_id", state.node_of(step).id}, {"resolution", resolution}, {"step_id", step.id.text}});
  if (last && resolution == "accept" && !state.awaits_confirmation()) {
    applied.answer = applied.answer.with("next", action("resume", {{"job_id", state.job.text}}));
  }
  return applied;
}

}  // namespace ae::engine
