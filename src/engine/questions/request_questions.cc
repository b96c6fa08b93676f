// The answer to a question of a tool.
#include <fmt/core.h>

#include "engine/heart/request.h"
#include "engine/state/event_values.h"
#include "log/field_names.h"
#include "schema/question.h"

namespace ae::engine {
namespace {

// `approve` with arguments submits a form and `reject` declines it; or the
// payload has MCP's `action`.
std::string_view action_of(const WaitAnswer& answer) {
  const std::string_view decision = answer.payload.text("decision");
  if (decision == "approve") return "accept";
  if (decision == "reject") return "decline";
  return answer.payload.text("action");
}

std::optional<Value> content_of(const WaitAnswer& answer) {
  if (answer.arguments) return answer.arguments;
  const Value* content = answer.payload.find("content");
  return content != nullptr ? std::optional(*content) : std::nullopt;
}

}  // namespace

Result<AppliedRequest> apply_question_answer(const State& state, const std::string& key,
                                             const Wait& wait, const ControlRequest& request,
                                             const WaitAnswer& answer) {
  const Step& step = state.steps[wait.step];
  const Member* question = step.call ? open_question(*step.call) : nullptr;
  if (question == nullptr) return fail(Code::wait_mismatch, "this question is no longer open");
  const std::string_view action = action_of(answer);
  auto validated = validate_answer(question->second, action, content_of(answer));
  if (!validated) {
    Error error = std::move(validated).error().with_context(
        fmt::format("\"{}\" has an open question", step.call->tool));
    error.action = Action{.act = act::kApprovals};
    return std::unexpected(std::move(error));
  }
  const std::string_view outcome = action == "accept" ? "approved" : "rejected";
  AppliedRequest applied{.events = {with_answer(wait_completed_event(state, key, wait, outcome),
                                                request, answer, *validated)},
                         .answer = delivered_reply(key, outcome)};
  if (outcome == "rejected") {
    applied.answer = applied.answer.with(
        "then", fmt::format("the tool \"{}\" gets the rejection as the answer", step.call->tool));
  }
  return applied;
}

bool is_same_answer(const WaitAnswer& answer, const Value& recorded) {
  if (action_of(answer) != recorded.text("action")) return false;
  const auto content = content_of(answer);
  return !content || *content == recorded["content"];
}

}  // namespace ae::engine
