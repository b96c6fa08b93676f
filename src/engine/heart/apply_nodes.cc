// How events of nodes change the state.
#include "engine/heart/features.h"
#include "engine/state/applier.h"

namespace ae::engine {
namespace {

constexpr std::int64_t kItemsLeftMax = 1'000'000;  // more than the limit of a map

}  // namespace

ResultType result_type_of(std::string_view text) {
  for (auto type :
       {ResultType::pure, ResultType::side_effect_committed, ResultType::permanent_failure,
        ResultType::compensatable_failure, ResultType::compensated}) {
    if (to_text(type) == text) return type;
  }
  return ResultType::none;
}

void Applier::open_node(std::uint32_t node) {
  Step& step = s_.steps[node];
  if (step.phase == StepPhase::blocked && step.needs_left == 0) set_phase(step, StepPhase::ready);
}

Status Applier::apply(const NodeStarted& event) {
  Step* step = step_or_new_part(event);
  if (!step || step->phase != StepPhase::ready || step->started)
    return corrupt_event("cannot start here");
  if (s_.ending) return corrupt_event("nothing starts in a job that ends");
  if (s_.status != JobStatus::running) return corrupt_event("no worker holds the job");
  if (s_.node_of(*step).when && !step->is_part() && step->branch && !*step->branch) {
    return corrupt_event("its branch was not taken");
  }
  step->started = true;
  if (step->map) {
    set_phase(*step, StepPhase::mapping);
  } else if (s_.node_of(*step).loop && !step->is_part()) {
    if (!step->loop) step->loop = std::make_unique<LoopProgress>();  // else it is imported
    set_phase(*step, StepPhase::looping);
  } else if (s_.node_of(*step).code && !step->is_part()) {
    step->code = std::make_unique<CodeProgress>();
    step->code->version = s_.node_of(*step).code->version;
    set_phase(*step, StepPhase::running);
  } else if (step->request && is_scope(step->request->kind)) {
    set_phase(*step, StepPhase::running);
  } else if (step->is_part()) {  // a new one; a node is in its set since it became ready
    update_work_sets(index_of(*step));
  }
  return {};
}

// Does the log justify this end of a step?
bool Applier::may_finish(const NodeFinished& event, ResultType type, const Step& step) const {
  if (step.call && step.call->open) return false;
  const bool failed = event.error.has_value();
  switch (type) {
    case ResultType::pure:
      if (failed) return false;
      if (event.skipped.value_or(false)) {
        return step.phase == StepPhase::ready && step.branch && !*step.branch;
      }
      if (step.phase == StepPhase::mapping) {
        return step.map->done == step.map->results.size() && !step.map->failure;
      }
      if (step.phase == StepPhase::looping) return may_conclude(event, step);
      if (step.phase == StepPhase::running) return may_finish_code(event, step);
      if (step.phase == StepPhase::committed) {
        return !step.failure && s_.kind_of(step) == NodeKind::llm;
      }
      return step.phase == StepPhase::answered && s_.kind_of(step) == NodeKind::wait;
    case ResultType::side_effect_committed:
      return step.phase == StepPhase::committed && !step.failure && !failed &&
             s_.kind_of(step) != NodeKind::llm;
    case ResultType::compensatable_failure:
      if (s_.undoable.empty() && !(step.committed && s_.tool_of(step).compensate)) return false;
      [[fallthrough]];
    case ResultType::permanent_failure:
      if (!failed || !step.started) return false;
      if (step.phase == StepPhase::mapping) return step.map->active == 0;
      if (step.phase == StepPhase::looping) return step.loop->active == 0;
      if (step.phase == StepPhase::running) return may_finish_code(event, step);
      if (step.phase == StepPhase::settled) return step.call->outcome != OutcomeKind::success;
      return step.phase == StepPhase::ready || step.phase == StepPhase::backoff ||
             step.phase == StepPhase::redo || step.phase == StepPhase::refused ||
             step.phase == StepPhase::answered ||
             (step.phase == StepPhase::committed && step.failure);
    default:
      return false;
  }
}

Status Applier::apply(const NodeFinished& event) {
  Step* step = this->step(event.step_id);
  const ResultType type = result_type_of(event.result_type);
  if (!step || !may_finish(event, type, *step)) return corrupt_event("no such step to finish so");
  if (event.delivered && !(step->request && is_scope(step->request->kind))) {
    return corrupt_event("only the result of a scope has a position");
  }
  const bool has_result = step->code || (step->request && is_scope(step->request->kind));
  if (!event.result.is_null() && !has_result) {
    return corrupt_event("the result of this step is in another event");
  }
  step->result_type = type;
  step->skipped = event.skipped.value_or(false);
  step->failure.reset();
  if (event.error) step->failure = failure_of(*event.error);
  if (step->skipped) step->result = Value();
  if (!event.result.is_null()) {
    step->result = event.result.value;
    step->erased = event.result.erased;
  }
  const Node& node = s_.node_of(*step);
  if (step->map) {
    if (!step->failure) {
      step->result = Value::array(std::move(step->map->results));
      step->erased = step->map->erased;
    }
    step->map.reset();
  }
  if (step->loop) {
    if (!step->failure) AE_TRY(loop_concluded(*step));
    step->loop.reset();
  }
  set_phase(*step, StepPhase::done);
  if (step->code) s_.routines.set(index_of(*step), false);
  if (step->request) {
    if (!step->request->ended) AE_TRY(add_outcome(*step, event.delivered));
    return request_finished(*step);
  }
  if (step->item != kNoItem) return item_finished(*step);
  if (step->turn != kNoTurn) return loop_part_finished(*step);

  s_.nodes_left--;
  if (step->failure && !node.continue_on_error) {
    if (!s_.ending) {
      begin_ending({.cancelled = false,
                    .code = step->failure->code,
                    .message = step->failure->message,
                    .node_id = node.id,
                    .by = {}});
    }
    return {};
  }
  open_dependents(node);
  return {};
}

void Applier::open_dependents(const Node& node) {
  for (std::uint32_t dependent : node.dependents) {
    s_.steps[dependent].needs_left--;
    open_node(dependent);
  }
}

// The result of a loop is derived from the model's last answer.
Status Applier::loop_concluded(Step& loop) {
  auto result = loop_result_of(s_, loop);
  const Step& answer = s_.steps[loop.loop->turns.back().step];
  if (!result && !answer.erased) {
    return corrupt_event("the model's last answer is not what its plan wants");
  }
  loop.result = result ? *std::move(result) : answer.result;
  loop.erased = answer.erased;
  return {};
}

Status Applier::item_finished(Step& step) {
  Step& map_step = s_.steps[step.node];
  MapProgress& map = *map_step.map;
  map.active--;
  map.done++;
  map.finished[step.item] = true;
  if (step.failure && !s_.node_of(step).collect_errors) {
    if (!map.failure) map.failure = step.failure;
  } else {
    map.results[step.item] = s_.result_for_dependents(step);
    map.erased = map.erased || (step.erased && !step.failure);
  }
  if (!step.committed && !s_.may_have_happened(step)) {
    step.call.reset();
    step.approval.reset();
  }
  // The compensation reads the result.
  if (!step.committed || !s_.tool_of(step).compensate) step.result = Value();
  update_work_sets(step.node);
  return {};
}

void Applier::begin_map(Step& map, Value over) {
  s_.map_items += over.size();
  map.map = std::make_unique<MapProgress>();
  map.map->over = std::move(over);
  map.map->results.resize(map.map->over.size());
  map.map->finished.resize(map.map->over.size());
}

Status Applier::apply(const BranchTaken& branch, const DecisionRecorded&, Step* step) {
  if (!step || step->phase != StepPhase::ready) return corrupt_event("no such step to branch");
  if (!s_.node_of(*step).when || step->branch) return corrupt_event("the plan has no such branch");
  step->branch = branch.taken;
  update_work_sets(index_of(*step));
  return {};
}

Status Applier::apply(const MapListed& map, const DecisionRecorded&, Step* step) {
  if (!step || step->phase != StepPhase::ready) return corrupt_event("no such step to branch");
  const Node& node = s_.node_of(*step);
  if (node.when && !step->branch) return corrupt_event("a branch that is not a boolean");
  Value over = map.list;
  if (map.erased) {
    const auto items = retained_item_count(map);
    if (!items || *items < 0 || *items > kItemsLeftMax)
      return corrupt_event("a map without its items");
    over = Value::array(std::vector<Value>(static_cast<std::size_t>(*items)));
  }
  if (node.kind != NodeKind::map || step->map || (step->branch && !*step->branch) ||
      !over.is_array()) {
    return corrupt_event("the plan has no such branch");
  }
  begin_map(*step, std::move(over));
  return {};
}

Status Applier::apply(const RetryScheduled&, const DecisionRecorded& event, Step* step) {
  if (!step || step->phase != StepPhase::settled || step->call->outcome == OutcomeKind::success) {
    return corrupt_event("no such try to repeat");
  }
  if (open_question(*step->call))
    return corrupt_event("the question of its tool has no answer yet");
  step->not_before = event.not_before.value_or(Instant{});
  set_phase(*step, StepPhase::backoff);
  return {};
}

Status Applier::apply(const DecisionRecorded& event) {
  const auto decision = decision_body(event);
  if (!decision) return corrupt_event(decision.error().message);
  Step* step = event.step_id ? this->step(*event.step_id) : nullptr;
  return std::visit([&](const auto& body) { return apply(body, event, step); }, *decision);
}

}  // namespace ae::engine
