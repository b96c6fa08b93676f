// Questions of tools that a job has not answered yet.
//
// Threads: the loop's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "engine/state/state.h"
#include "runtime/world.h"

namespace ae::runtime {

// A try that ended with a question: its tool may keep the call open for the answer (Tool::abandon).
struct OpenQuestion {
  StepId step;
  std::string tool;
  InvocationId invocation;
  std::uint32_t try_no;
};
std::vector<OpenQuestion> open_questions_of(const engine::State& state);
// The question will not be answered: abandons its call if this process keeps it open.
void abandon_question(ToolRegistry& tool_registry, const OpenQuestion& question);

}  // namespace ae::runtime
