// An operator's answer to a failed verification: accept or fail, for the changes of one step.
#include <fmt/core.h>

#include <utility>

#include "engine/confirm/confirm.h"
#include "engine/heart/request.h"
#include "engine/state/action.h"
#include "log/field_names.h"

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

// An answer, of either kind.
struct Answer {
  std::string_view step;  // its id, or that of its node
  std::string resolution;
  std::string note;
};

Result<AppliedRequest> apply_answer(const State& state, const ControlRequest& request,
                                    const Answer& answer, const DecisionContext& context) {
  const std::uint32_t index = state.ending ? kNoStep : escalated_step(state, answer.step);
  if (index == kNoStep) {
    return fail(Code::not_in_doubt, Action{.act = act::kJob, .job = state.job.text},
                "no confirmation is open for what the step \"{}\" changed", answer.step);
  }
  const Step& step = state.steps[index];
  std::vector<AnsweredResource> resources = resources_of(state, index);
  const bool last = resources.size() == state.escalated;
  AppliedRequest applied;
  applied.events.emplace_back(decision_event(
      ConfirmationAnswered{.resources = std::move(resources)},
      {.at = context.now,
       .by = none_if_empty(request.by),
       .decision_id =
           decision_at(state, fmt::format("confirmation/{}/{}", state.seq, step.id.text)),
       .node_id = state.node_of(step).id,
       .reason = none_if_empty(answer.note),
       .state = answer.resolution,
       .step_id = step.id}));
  // A park until `resume` stays: the next verification finds the answer.
  if (last && answer.resolution == "accept" && state.awaits_confirmation()) {
    applied.events.emplace_back(JobResumed{.by = author_of(request)});
  }
  applied.answer = Value::object({{field::node_id, state.node_of(step).id},
                                  {field::resolution, answer.resolution},
                                  {field::step_id, step.id.text}});
  if (last && answer.resolution == "accept" && !state.awaits_confirmation()) {
    applied.answer =
        applied.answer.with("next", action(act::kResume, {{"job_id", state.job.text}}));
  }
  return applied;
}

}  // namespace

bool answers_confirmation(const State& state, const ApproveRequest& approve) {
  return escalated_step(state, approve.approval_id) != kNoStep;
}

bool answers_confirmation(const State& state, const ResolveRequest& resolve) {
  return !resolve.step_id.empty() || resolve.resolution == "accept" ||
         (resolve.resolution == "fail" &&
          escalated_step(state, resolve.idempotency_key) != kNoStep);
}

Result<AppliedRequest> apply_confirmation_answer(const State& state, const ControlRequest& request,
                                                 const ApproveRequest& approve,
                                                 const DecisionContext& context) {
  if (is_terminal(state.status)) return fail(Code::job_terminal, "the job has ended");
  return apply_answer(state, request,
                      {.step = approve.approval_id,
                       .resolution = approve.decision == "approve" ? "accept" : "fail",
                       .note = approve.note},
                      context);
}

Result<AppliedRequest> apply_confirmation_answer(const State& state, const ControlRequest& request,
                                                 const ResolveRequest& resolve,
                                                 const DecisionContext& context) {
  if (is_terminal(state.status)) return fail(Code::job_terminal, "the job has ended");
  if (resolve.resolution != "accept" && resolve.resolution != "fail") {
    return fail(Code::input_invalid, "a confirmation is answered with accept or fail");
  }
  if (resolve.result) return fail(Code::input_invalid, "only `happened` takes a result");
  return apply_answer(state, request,
                      {.step = resolve.step_id.empty() ? resolve.idempotency_key : resolve.step_id,
                       .resolution = resolve.resolution,
                       .note = resolve.reason},
                      context);
}

}  // namespace ae::engine
