#include "engine/questions/questions.h"

#include <fmt/core.h>

#include <utility>

#include "base/hash.h"
#include "log/field_names.h"

namespace ae::engine {

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

}  // namespace ae::engine
