// Drops steps that no later event refers to: requests inside of scopes of code that have ended, and
// turns of loops that later requests leave out.
#include <utility>

#include "engine/state/state.h"

namespace ae::engine {
namespace {

constexpr std::uint32_t kFoldedMin = 64;  // fewer are not worth the work

// A part of a turn that later requests leave out. A re-plan compares the prompt of turn 0, and names
// the nodes whose effects it drops, so effects stay.
bool is_left_out(const State& state, const Step& step) {
  if (step.turn == kNoTurn || step.role != Role::node || step.imported) return false;
  if (step.turn == 0 && step.is_turn()) return false;
  const auto& loop = state.steps[step.node].loop;
  if (!loop || step.turn >= loop->context.from || state.may_have_happened(step)) return false;
  const ToolPolicy& tool = state.tool_of(step);
  return !step.committed || (tool.effect == EffectClass::read && !tool.compensate);
}

bool may_drop(const State& state, const Step& step) {
  const bool is_folded = step.request && step.request->folded && !step.call;
  return (is_folded || is_left_out(state, step)) && step.phase == StepPhase::done &&
         step.probe == kNoStep && step.undo == kNoStep && step.changed == 0 &&
         (!step.committed || step.barrier);
}

// Forgets the left out turns whose steps were dropped.
void forget_turns(const State& state, LoopProgress& loop) {
  const auto is_dropped = [&](std::uint32_t turn) {
    const std::uint32_t step = loop.turn(turn).step;
    return step == kNoStep || (turn == 0 && !state.steps[step].imported);
  };
  std::uint32_t first = loop.first_turn;
  while (first < loop.context.from && is_dropped(first)) first++;
  loop.turns.erase(loop.turns.begin(), loop.turns.begin() + (first - loop.first_turn));
  loop.first_turn = first;
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
    moved(step.loop->summary);
    forget_turns(state, *step.loop);
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
  std::vector<bool> dropped;
  dropped.reserve(state.steps.size());
  for (const Step& step : state.steps) dropped.push_back(may_drop(state, step));
  Steps kept;
  std::vector<std::uint32_t> to(state.steps.size(), kNoStep);
  for (std::uint32_t i = 0; i < to.size(); ++i) {
    if (dropped[i]) continue;
    to[i] = static_cast<std::uint32_t>(kept.size());
    kept.add(std::move(state.steps[i]));
  }
  state.steps = std::move(kept);
  renumber(state, to);
}

}  // namespace ae::engine
