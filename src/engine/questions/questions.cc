#include "engine/questions/questions.h"

#include <fmt/core.h>

#include <utility>

#include "base/hash.h"
#include "engine/heart/request.h"
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

std::string question_wait_key(const Step& step, std::uint32_t number) {
  return fmt::format("input/{}#{}", step.id.text, number);
}

bool is_question_wait_key(std::string_view key) {
  constexpr std::string_view kBegin = "input/";
  constexpr std::size_t kId = 16;  // digits of a step's id
  return key.starts_with(kBegin) && key.size() > kBegin.size() + kId + 1 &&
         from_hex(key.substr(kBegin.size(), kId)).has_value() && key[kBegin.size() + kId] == '#';
}

Value inputs_of(const Invocation& call) {
  if (!call.questions || call.questions->rounds == 0) return {};
  std::vector<Member> inputs{{"answers", call.questions->answers}};
  if (const Value* state = call.questions->input_required.find(field::state))
    inputs.emplace_back(field::state, *state);
  return Value::object(std::move(inputs));
}

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
