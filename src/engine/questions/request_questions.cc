// A signal that answers a question of a tool.
#include <fmt/core.h>

#include "engine/heart/request.h"
#include "engine/state/event_values.h"
#include "log/field_names.h"
#include "schema/question.h"

namespace ae::engine {
namespace {

// `approve` with arguments submits a form and `reject` declines it; or the
// payload has MCP's `action`.
std::string_view action_of(const SignalRequest& signal) {
  const std::string_view decision = signal.payload.text("decision");
  if (decision == "approve") return "accept";
  if (decision == "reject") return "decline";
  return signal.payload.text("action");
}

std::optional<Value> content_of(const SignalRequest& signal) {
  if (signal.arguments) return signal.arguments;
  const Value* content = signal.payload.find("content");
  return content != nullptr ? std::optional(*content) : std::nullopt;
}

}  // namespace

Result<AppliedRequest> apply_question_answer(const State& state, const std::string& key,
                                             const Wait& wait, const ControlRequest& request,
                                             const SignalRequest& signal) {
  const Step& step = state.steps[wait.step];
  const Member* question = step.call ? open_question(*step.call) : nullptr;
  if (question == nullptr) return fail(Code::wait_mismatch, "this question is no longer open");
  const std::string_view action = action_of(signal);
  auto answer = validate_answer(question->second, action, content_of(signal));
  if (!answer) {
    Error error = std::move(answer).error().with_context(
        fmt::format("\"{}\" has an open question", step.call->tool));
    error.action = Action{.act = act::kApprovals};
    return std::unexpected(std::move(error));
  }
  const std::string_view outcome = action == "accept" ? "approved" : "rejected";
  AppliedRequest applied{
      .events = {with_answer(wait_completed_event(state, key, wait, outcome), request, signal,
                             *answer)},
      .answer = Value::object(
          {{field::correlation_key, key}, {"delivered", true}, {field::outcome, outcome}})};
  if (outcome == "rejected") {
    applied.answer = applied.answer.with(
        "then", fmt::format("the tool \"{}\" gets the rejection as the answer", step.call->tool));
  }
  return applied;
}

bool is_same_answer(const SignalRequest& signal, const Value& answer) {
  if (action_of(signal) != answer.text("action")) return false;
  const auto content = content_of(signal);
  return !content || *content == answer["content"];
}

}  // namespace ae::engine
