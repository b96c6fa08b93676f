#include "engine/state/indexes.h"

#include <algorithm>
#include <cstddef>

namespace ae::engine {
namespace {

bool has_valid_loop_indexes(const State& state, const Step& step) {
  const std::size_t tools = state.plan->tools.size();
  const Node& node = state.plan->nodes[step.node];
  if (step.turn != kNoTurn && !node.loop) return false;
  const bool names_tool = step.is_loop_call() || step.is_summary();
  if (names_tool && step.role == Role::node && step.tool >= tools) return false;
  const bool looping = step.phase == StepPhase::looping;
  // An imported running loop is ready to continue.
  const bool begun = looping || (step.phase == StepPhase::ready && step.loop);
  if (begun != (step.loop != nullptr) || (begun && (!node.loop || step.is_part()))) return false;
  if (!begun) return true;
  const LoopProgress& loop = *step.loop;
  for (std::uint32_t number = loop.first_turn; number < loop.turn_count(); ++number) {
    const LoopTurn& turn = loop.turn(number);
    if (turn.step == kNoStep && number < loop.context.from) continue;  // it was dropped
    if (turn.step >= state.steps.size() || !state.steps[turn.step].is_turn()) return false;
    for (const LoopCall& call : turn.calls) {
      if (call.tool >= tools || (call.step != kNoStep && call.step >= state.steps.size())) {
        return false;
      }
    }
  }
  if (loop.summary != kNoStep &&
      (loop.summary >= state.steps.size() || !state.steps[loop.summary].is_summary())) {
    return false;
  }
  const std::uint32_t from = loop.context.from;
  if (loop.first_turn > from || (from > 0 && from >= loop.turn_count())) return false;
  return loop.turns.empty() || loop.next <= loop.turns.back().calls.size();
}

bool has_valid_code_indexes(const State& state, const Step& step) {
  if ((step.code || step.request) && !state.plan->nodes[step.node].code) return false;
  if (step.request) {
    const NodeKind kind = step.request->kind;
    const bool calls = kind == NodeKind::tool || kind == NodeKind::llm;
    if (calls && step.tool >= state.plan->tools.size()) return false;
    if (step.code || !state.steps[step.node].code) return false;
  }
  if (step.phase == StepPhase::running && !step.code && !step.request) return false;
  if (!step.code) return true;
  const auto is_ended = [](const auto& loop) { return loop.second.ended > 0; };
  return step.code->outcomes.is_valid(state.steps.size()) &&
         std::ranges::all_of(
             step.code->outcomes.places(),
             [&](const auto& place) { return state.steps[place.step].request != nullptr; }) &&
         std::ranges::all_of(step.code->loops, is_ended);
}

}  // namespace

bool has_valid_indexes(const State& state) {
  const std::size_t nodes = state.plan->nodes.size();
  if (state.steps.size() < nodes) return false;
  for (std::uint32_t i = 0; i < state.steps.size(); ++i) {
    if (state.index_of(state.steps[i].id) != i) return false;  // two steps have one id
  }
  for (const Step& step : state.steps) {
    if (step.node >= nodes || (step.role != Role::node) != (step.of < state.steps.size())) {
      return false;
    }
    for (const std::uint32_t side_step : {step.probe, step.undo}) {
      if (side_step != kNoStep && side_step >= state.steps.size()) return false;
    }
    if (!has_valid_loop_indexes(state, step) || !has_valid_code_indexes(state, step)) return false;
  }
  for (const auto* indexes : {&state.undoable, &state.undone, &state.given_up}) {
    for (const std::uint32_t index : *indexes) {
      if (index >= state.steps.size()) return false;
    }
  }
  for (const auto* indexes : {&state.todo, &state.startable, &state.calling, &state.routines}) {
    if (!indexes->empty() && indexes->last() >= state.steps.size()) return false;
  }
  for (const auto& [key, wait] : state.waits) {
    if (wait.step >= state.steps.size()) return false;
    const Step& step = state.steps[wait.step];
    const bool of_call = wait.question || wait.type == WaitType::job;
    if (of_call && (!step.call || !step.call->questions)) return false;
  }
  for (const auto& [key, change] : state.changes) {
    if (change.step >= state.steps.size()) return false;
  }
  return std::ranges::all_of(state.to_confirm,
                             [&](const auto& key) { return state.changes.contains(key); });
}

}  // namespace ae::engine
