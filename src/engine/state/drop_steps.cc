// Drops steps that no later event refers to: requests inside of scopes of code that have ended.
#include <utility>

#include "engine/state/state.h"

namespace ae::engine {
namespace {

constexpr std::uint32_t kFoldedMin = 64;  // fewer are not worth the work

bool may_drop(const Step& step) {
  return step.request && step.request->folded && step.phase == StepPhase::done && !step.call &&
         step.probe == kNoStep && step.undo == kNoStep && step.changed == 0 &&
         (!step.committed || step.barrier);
}

// Renumbers every index of a step. `to`: the new index by the old one; kNoStep: dropped.
void renumber(State& state, const std::vector<std::uint32_t>& to) {
  const auto moved = [&](std::uint32_t& index) {
    if (index != kNoStep) index = to[index];
  };
  for (NumberSet* set : {&state.todo, &state.startable, &state.calling, &state.routines}) {
    set->renumber(moved);
  }
  for (auto* list : {&state.undoable, &state.undone, &state.given_up}) {
    for (std::uint32_t& index : *list) moved(index);
  }
  for (auto& [key, wait] : state.waits) moved(wait.step);
  for (auto& [key, change] : state.changes) moved(change.step);
  for (Step& step : state.steps) {
    for (std::uint32_t* index : {&step.of, &step.probe, &step.undo}) moved(*index);
    if (step.code) step.code->outcomes.renumber(moved);
    if (!step.loop) continue;
    for (LoopTurn& turn : step.loop->turns) {
      moved(turn.step);
      for (LoopCall& call : turn.calls) moved(call.step);
    }
  }
}

}  // namespace

void drop_folded_steps(State& state) {
  const bool are_many =
      state.folded_steps >= kFoldedMin && 2 * std::size_t{state.folded_steps} >= state.steps.size();
  if (are_many && !state.keeps_folded) drop_all_folded_steps(state);
}

void drop_all_folded_steps(State& state) {
  state.folded_steps = 0;
  Steps kept;
  std::vector<std::uint32_t> to(state.steps.size(), kNoStep);
  for (std::uint32_t i = 0; i < to.size(); ++i) {
    if (may_drop(state.steps[i])) continue;
    to[i] = static_cast<std::uint32_t>(kept.size());
    kept.add(std::move(state.steps[i]));
  }
  state.steps = std::move(kept);
  renumber(state, to);
}

}  // namespace ae::engine
