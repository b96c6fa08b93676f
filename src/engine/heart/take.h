// What take_in is made of, act by act: absorb.cc has cancel, resolve and timers, take_signals.cc what answers a wait or
// a pause, take_confirm.cc what answers a confirmation, take_plan.cc another plan, take_budget.cc more budget,
// take_version.cc a process that offers the versions that a job waits for.
//
// Only `take_in` and `decide` use it. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/heart/absorb.h"

namespace ae::engine {

Result<Taken> take_signal(const State& state, const Act& act, const Stamp& stamp);
// Keys that no wait of a plan may have, and that cannot be answered early.
bool is_own_key(std::string_view key);
Result<Taken> take_message(const State& state, const Act& act, const Stamp& stamp);
Result<Taken> take_pause(const State& state, const Act& act);
Result<Taken> take_resume(const State& state, const Act& act);
// Is this act, a resolution or an approval, about what a confirmation showed?
bool answers_confirmation(const State& state, const Act& act);
Result<Taken> take_confirmation(const State& state, const Act& act, const Stamp& stamp);
Result<Taken> take_plan(const State& state, const Act& act, const Stamp& stamp);
Result<Taken> take_budget(const State& state, const Act& act, const Stamp& stamp);
Result<Taken> take_version(const State& state, const Act& act, const Stamp& stamp);
// May the job use as much as this act wanted?
bool has_budget(const State& state, const Value& wanted);

// The end of a wait. Who ended it, and with what, is for the caller to fill in.
WaitCompleted wait_closed(const State& state, const std::string& key, const Wait& wait,
                          std::string_view outcome);

// The same with what ended it: the request, and the payload that it gave.
WaitCompleted answered(WaitCompleted event, const Act& act, const Value& payload);

// How this payload answers a wait of this node: signalled, approved or rejected. Fails with input_invalid: a person's
// answer without a decision.
Result<std::string_view> outcome_of_answer(const Node& node, const Value& payload);

// The first early signal that answers a wait of this type and node; nullptr = none does.
const Kept* fitting(const std::deque<Kept>& early, const Node& node);

// A message, or a signal that nobody waits for yet, as the log keeps it.
EventBody kept_event(const Act& act);

// The name under which a message or an early signal is known for ever: the same again is the same.
std::string message_name(std::string_view channel, std::string_view key, std::string_view id);

}  // namespace ae::engine
