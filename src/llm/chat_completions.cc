// The words of Chat Completions.
#include "llm/chat_completions.h"

#include <array>
#include <utility>
#include <vector>

#include "core/json.h"

namespace ae::llm {
namespace {

constexpr std::string_view kNewerName =
    "max_completion_tokens";  // the only one that newer models take

// Answers of a model are longer than most answers of tools: 128 Ki tokens of JSON, and their reasoning beside them.
constexpr int kAnswerMax = 4 << 20;

std::unexpected<Error> broken(std::string reason) {
  return fail(Code::tool_output_invalid, std::move(reason));
}

bool is_count(const Value& value) { return value.is_integer() && value.as_int() >= 0; }

// The words of an answer: a text, or the texts among its parts. Nothing is "".
Result<std::string> words_of(const Value& content) {
  if (content.is_null()) return std::string();
  if (content.is_string()) return content.as_string();
  if (!content.is_array()) return broken("the content of the answer is neither a text nor parts");
  std::string text;
  for (const Value& part : content.items()) {
    if (part.text("type") == "text") text += part.text("text");
  }
  return text;
}

Value usage_of(const Value& usage) {
  const struct {
    const char* ours;
    const Value& theirs;
  } counts[] = {
      {"input_tokens", usage["prompt_tokens"]},
      {"output_tokens", usage["completion_tokens"]},
      {"total_tokens", usage["total_tokens"]},
      {"cached_tokens", usage["prompt_tokens_details"]["cached_tokens"]},
      {"reasoning_tokens", usage["completion_tokens_details"]["reasoning_tokens"]},
  };
  std::vector<Member> members;
  for (const auto& count : counts) {
    if (is_count(count.theirs)) members.emplace_back(count.ours, count.theirs);
  }
  return members.empty() ? Value() : Value::object(std::move(members));
}

}  // namespace

Value chat_transport(const Value& settings) {
  std::string url(settings.text("base_url"));
  while (url.ends_with('/')) url.pop_back();
  std::vector<Member> http = {
      {"method", "POST"}, {"url", url + "/chat/completions"}, {"output_max", kAnswerMax}};
  if (const std::string_view key = settings.text("api_key"); !key.empty()) {
    http.emplace_back("headers", Value::object({{"Authorization", "Bearer " + std::string(key)}}));
  }
  return Value::object(std::move(http));
}

Result<Value> chat_request(const Value& recorded, const Value& settings) {
  const Value& messages = recorded["messages"];
  if (!recorded["model"].is_string() || !messages.is_array() || messages.size() == 0) {
    return fail(Code::input_invalid, "a model is asked with its name and at least one message");
  }
  std::vector<Member> body = {{"model", recorded["model"]}, {"messages", messages}};
  if (const Value* temperature = recorded.find("temperature")) {
    body.emplace_back("temperature", *temperature);
  }
  if (const Value* most = recorded.find("max_tokens")) {
    body.emplace_back(settings.text("max_tokens_name", kNewerName), *most);
  }
  return Value::object(std::move(body));
}

Result<Value> chat_answer(const Value& body) {
  const Value& choices = body["choices"];
  if (!choices.is_array() || choices.size() == 0) return broken("the answer has no choices");
  const Value& choice = choices.items()[0];
  const Value& message = choice["message"];
  if (!message.is_object()) return broken("the answer has no message");
  AE_ASSIGN(std::string text, words_of(message["content"]));
  std::vector<Member> result = {{"text", std::move(text)}};
  const std::pair<const char*, const Value&> texts[] = {{"finish_reason", choice["finish_reason"]},
                                                        {"model", body["model"]},
                                                        {"refusal", message["refusal"]}};
  for (const auto& [name, value] : texts) {
    if (value.is_string()) result.emplace_back(name, value);
  }
  if (Value usage = usage_of(body["usage"]); !usage.is_null()) {
    result.emplace_back("usage", std::move(usage));
  }
  return Value::object(std::move(result));
}

}  // namespace ae::llm
