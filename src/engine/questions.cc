#include "engine/questions.h"

#include <utility>

#include "core/hash.h"
#include "core/question.h"
#include "engine/take.h"

namespace ae::engine {
namespace {

// A yes with arguments is a form that is filled in, a no declines; or the answer stands in the payload, in MCP's words.
std::string_view action_of(const Act& act) {
  const std::string_view decision = act.payload.text("decision");
  if (decision == "approve") return "accept";
  if (decision == "reject") return "decline";
  return act.payload.text("action");
}

std::optional<Value> content_of(const Act& act) {
  if (act.arguments) return act.arguments;
  const Value* content = act.payload.find("content");
  return content != nullptr ? std::optional(*content) : std::nullopt;
}

}  // namespace

std::string question_wait_key(const Step& step, std::uint32_t number) {
  return "input/" + step.id.text + "#" + std::to_string(number);
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
  if (const Value* state = call.questions->asked.find("state"))
    inputs.emplace_back("state", *state);
  return Value::object(std::move(inputs));
}

Result<Taken> take_answer(const State& state, const std::string& key, const Wait& wait,
                          const Act& act) {
  const Step& step = state.steps[wait.step];
  const Member* question = step.call ? open_question(*step.call) : nullptr;
  if (question == nullptr) return fail(Code::wait_mismatch, "this question is no longer open");
  const std::string_view action = action_of(act);
  auto answer = answer_to(question->second, action, content_of(act));
  if (!answer) {
    return std::unexpected(
        std::move(answer).error().in("\"" + step.call->tool +
                                     "\" has an open question: `aetheris approvals` shows it, "
                                     "`aetheris approve ID --arguments JSON` answers it"));
  }
  const std::string_view outcome = action == "accept" ? "approved" : "rejected";
  std::vector<Member> more{{"outcome", outcome}, {"payload", *std::move(answer)}};
  if (!act.by.empty()) more.emplace_back("by", act.by);
  if (!act.id.empty()) more.emplace_back("signal_id", act.id);
  if (!act.traceparent.empty()) more.emplace_back("traceparent", act.traceparent);
  Taken taken{
      .events = {{EventType::wait_completed, wait_members(state, key, wait, std::move(more))}},
      .answer =
          Value::object({{"correlation_key", key}, {"delivered", true}, {"outcome", outcome}})};
  if (outcome == "rejected") {
    taken.answer = taken.answer.with(
        "then", "the tool \"" + step.call->tool + "\" gets the rejection as the answer");
  }
  return taken;
}

bool says_again(const Act& act, const Value& answer) {
  if (action_of(act) != answer.text("action")) return false;
  const auto content = content_of(act);
  return !content || *content == answer["content"];
}

}  // namespace ae::engine
