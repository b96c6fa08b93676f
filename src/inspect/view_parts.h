// Parts of views (view.h) that several views have.
//
// Only the views use them. Threads: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/state/state.h"
#include "engine/state/view_values.h"
#include "json/value.h"
#include "plan/budget.h"

namespace ae::engine {

inline Value item_number(const Step& step) {
  return step.item == kNoItem ? Value() : number(step.item);
}
inline Value turn_number(const Step& step) {
  return step.turn == kNoTurn ? Value() : number(step.turn);
}
inline Value nth_number(const Step& step) {
  return step.is_loop_call() ? number(step.nth) : Value();
}
// Of a request of code: its position, and how many outcomes its routine had been given before it.
inline Value position_of(const Step& step) {
  return step.request ? Value(step.request->position) : Value();
}
inline Value delivered_to(const Step& step) {
  return step.request ? number(step.request->delivered) : Value();
}
// The code of a node: {agent, language, version}; null = none.
Value code_view(const Node& node);

// {code, message}; null = none.
Value failure_view(const Boxed<Failure>& failure);
// Limits, spent and reserved amounts; null = no budget.
Value budget_view(const Budget& budget);
// The requested pause; null = none.
Value pausing_view(const State& state);
// What ends an open wait: approve and reject, a message, or a signal; nothing for a timer.
std::vector<Value> wait_actions(const State& state, const std::string& key, const Wait& wait);
// An open wait, with its actions.
Value wait_view(const State& state, const std::string& key, const Wait& wait);
// {answer, exchanges, waiting, ending}: of a job that is a thread; null = it is none.
// answer: of the newest exchange, as the result of a loop; null while the model works.
Value thread_view(const State& state);
// {total, counts by status, open: the first ones, in_doubt}; null = none.
Value children_view(const State& state);
// Calls with an unknown outcome that are probed once their requests can no longer take effect.
std::vector<Value> settling_view(const State& state);

// The steps whose verification an operator must decide: a changed resource does not match or cannot
// be reached.
std::vector<std::uint32_t> escalated_steps(const State& state);
std::vector<Value> confirmation_actions(const State& state, std::uint32_t step);
// The confirmations among approvals_view: one per step, with all resources that it changed.
std::vector<Value> confirmations_view(const State& state);

// The action that resumes the job.
Value resume_action(const State& state);

}  // namespace ae::engine
