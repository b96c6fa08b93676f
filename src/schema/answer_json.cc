#include "schema/answer_json.h"

#include <fmt/core.h>

#include <string>
#include <utility>

#include "json/json.h"

namespace ae {
namespace {

bool was_refused(const Value& answer) {
  const std::string_view end = answer.text("finish_reason");
  return answer.find("refusal") != nullptr || end == "refusal" || end == "content_filter";
}

}  // namespace

Result<Value> parse_answer_json(const Schema& schema, const Value& answer, std::size_t* work) {
  const std::string why = answer.find("refusal") != nullptr
                              ? fmt::format(" (the model refused: {})", answer.text("refusal"))
                          : answer.text("finish_reason") == "length"
                              ? " (it was cut off: `max_tokens` is too small)"
                              : "";
  auto json = parse_json(answer.text("text"), {.big_integers_as_strings = true});
  if (!json) {
    return fail(Code::tool_output_invalid, "is {}{}", json.error().message, why);
  }
  if (auto fits = schema.check(*json, work); !fits) {
    return fail(Code::tool_output_invalid, "breaks the schema: {}", fits.error().message);
  }
  return json;
}

bool is_repairable(const Value& answer) {
  return !was_refused(answer) && answer.text("finish_reason") != "length";
}

}  // namespace ae
