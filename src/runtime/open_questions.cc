#include "runtime/open_questions.h"

namespace ae::runtime {

std::vector<OpenQuestion> open_questions_of(const engine::State& state) {
  std::vector<OpenQuestion> questions;
  for (const engine::Step& step : state.steps) {
    const engine::Invocation* call = step.call ? &*step.call : nullptr;
    if (call == nullptr || call->open || call->outcome != OutcomeKind::input_required) continue;
    questions.push_back({step.id, call->tool, call->id, call->try_no});
  }
  return questions;
}

void abandon_question(ToolRegistry& tool_registry, const OpenQuestion& question) {
  for (auto* entry : tool_registry.all(question.tool)) {
    entry->tool->abandon(question.invocation, question.try_no);
  }
}

}  // namespace ae::runtime
