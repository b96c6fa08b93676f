// The end of a child job, as its parent receives it.
#include "engine/children/request_children.h"

#include <fmt/core.h>

#include "engine/children/children.h"
#include "engine/heart/request.h"
#include "log/records.h"

namespace ae::engine {

ControlRequest child_ended_request(const State& child) {
  return {.id = child.job.text.string(),
          .by = std::string(kRuntimeActor),
          .checked_at = {},
          .body = ChildEndedRequest{.command_id = child.parent->command_id.text.string(),
                                    .end = record_json(end_of_child(child))}};
}

ControlRequest child_cancel_request(const State& parent) {
  CancelRequest cancel{
      .reason = fmt::format("its parent {} does not need it any more", parent.job.text),
      .compensate = {}};
  if (parent.ending) {
    cancel.reason = fmt::format("its parent {} {}", parent.job.text,
                                parent.ending->cancelled ? "is cancelled" : "fails");
    if (!parent.ending->compensate) cancel.compensate = false;
  }
  return {.id = parent.job.text.string(),
          .by = std::string(kRuntimeActor),
          .checked_at = {},
          .body = std::move(cancel)};
}

void set_child_end(const Value& payload, WaitCompleted& event) {
  auto end = record_from_json<ChildEnd>(payload);
  if (!end) return;  // erased
  if (end->child_use) event.child_use = *end->child_use;
  if (end->in_doubt) event.children_in_doubt = *std::move(end->in_doubt);
}

Result<AppliedRequest> apply_request(const State& state, const ControlRequest& request,
                                     const ChildEndedRequest& ended, const DecisionContext&) {
  if (is_terminal(state.status)) return fail(Code::job_terminal, "the job has ended");
  const Step* const step = state.find_step(StepId(ended.command_id));
  if (step == nullptr || !state.awaits_child(*step) ||
      child_of(state, *step).text.view() != request.id) {
    return fail(Code::wait_mismatch, "the job has no such child");
  }
  AppliedRequest applied{.events = {}, .answer = Value::object({{"applied", true}})};
  if (const auto wait = state.open_wait_of(*step);
      wait != state.waits.end() && wait->second.type == WaitType::job) {
    WaitCompleted event = wait_completed_event(state, wait->first, wait->second, "signalled");
    event.payload = ended.end;
    set_child_end(ended.end, event);
    applied.events.emplace_back(std::move(event));
    return applied;
  }
  // The child ended before its call did: kept until the wait opens.
  const bool has_end = step->call && step->call->questions &&
                       step->call->questions->answers.find(kChildAnswer) != nullptr;
  const bool is_needed =
      step->call && !has_end && step->phase != StepPhase::done && !step->committed;
  const std::string key = child_wait_key(state, *step);
  if (!is_needed || state.message_keys.contains(message_key({}, key, request.id))) return applied;
  applied.events.emplace_back(AgentMessage{.by = request.by,
                                           .correlation_key = key,
                                           .message_id = request.id,
                                           .payload = ended.end,
                                           .wait_type = std::string(to_text(WaitType::job))});
  return applied;
}

}  // namespace ae::engine
