// What can be asked of a state, and folding a whole log.
#include "engine/state.h"

#include <utility>

namespace ae::engine {

Result<State> fold(const JobId& job, const std::vector<Event>& events, const PlanSource& plans) {
  State state;
  state.job = job;
  for (const Event& event : events) {
    AE_TRY(apply(state, {event.type, event.payload}, event.created_at, plans));
  }
  return state;
}

PlanSource compile_each_time() {
  return [](const Value& task_graph, std::string_view) { return Plan::compile(task_graph); };
}

bool State::may_have_happened(const Step& step) const {
  if (!step.call || step.committed || step.phase == StepPhase::redo) return false;
  if (plan->tools[node_of(step).tool].effect == EffectClass::read) return false;
  return step.call->open || step.call->doubted;
}

std::string State::approval_id(const Wait& wait) const {
  if (wait.type != WaitType::human || wait.resolve) return {};
  const Step& step = steps[wait.step];
  return wait.approval ? step.approval->id : step.id.text;
}

std::string State::path_of(const Step& step) const {
  return step.item == kNoItem ? Plan::path(plan_number, step.node)
                              : Plan::path(plan_number, step.node, step.item);
}

StepId State::item_step_id(const Node& map_node, std::uint32_t item) const {
  return step_id(job, plan->decision, Plan::path(plan_number, map_node.index, item), "tool");
}

std::optional<Instant> State::next_due() const {
  std::optional<Instant> due;
  const auto earlier = [&](const std::optional<Instant>& at) {
    if (at && (!due || *at < *due)) due = at;
  };
  if (!deadline_fired) earlier(deadline);
  if (!ending && !is_paused()) {  // what comes due in a pause fires after it
    for (const auto& [key, wait] : waits) {
      earlier(wait.due_at);
      earlier(wait.expires_at);
    }
  }
  return due;
}

Value State::seen_result(const Step& step) const {
  if (step.failure) {
    return Value::object({{"error", Value::object({{"code", step.failure->code},
                                                   {"message", step.failure->message}})}});
  }
  return step.result;
}

}  // namespace ae::engine
