// The replay's proof: what the plan asks for at the state before an event, compared with what stands there. See verify.h.
// Threads: none of its own.
#pragma once

#include <cstddef>
#include <string>

#include "engine/state/state.h"
#include "log/event.h"
#include "plan/plan.h"

namespace ae::engine {

class ReplayProof {
 public:
  // Empty, or what is wrong.
  std::string before(const State& state, const Event& event);
  // The same of what only shows when it is applied.
  static std::string after(const State& state, const Event& event);
  std::size_t commands() const { return commands_; }

 private:
  static const Step* step_of(const State& state, const Event& event) {
    auto it = state.by_id.find(StepId(std::string(event.payload.text("step_id"))));
    return it == state.by_id.end() ? nullptr : &state.steps[it->second];
  }
  std::string emitted(const State& state, const Event& event);
  static Result<Value> asked_arguments(const State& state, const Step& step);
  static std::string recorded(const State& state, const Event& event);
  static std::string started(const State& state, const Event& event);
  static std::string finished(const State& state, const Event& event);
  static std::string fits(const ToolPolicy& tool, const Value& result);
  static std::string committed(const State& state, const Event& event);
  static std::string branch(const State& state, const Event& event);
  static std::string choice(const State& state, const Event& event);
  static std::string wait(const State& state, const Event& event);
  static std::string probe_says(const State& state, const Event& event);
  static std::string request(const State& state, const Event& event);
  static std::string changed(const State& state, const Event& event);
  static std::string plan(const State& state, const Event& event);

  std::size_t commands_ = 0;
};

}  // namespace ae::engine
