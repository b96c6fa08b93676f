// Requests, answers and their cost.
#include "engine/model_calls.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/hash.h"
#include "core/json.h"

namespace ae::engine {
namespace {

constexpr std::size_t kMessagesMax = 10'000;
constexpr std::uint64_t kTokensMax = (std::uint64_t{1} << 53) - 1;  // what a JSON number holds

std::unexpected<Error> bad(std::size_t index, std::string_view what) {
  return fail(Code::expression_failed,
              "messages[" + std::to_string(index) + "] " + std::string(what));
}

Result<Value> message_of(const Value& message, std::size_t index) {
  constexpr std::string_view kRoles[] = {"system", "user", "assistant", "developer"};
  if (!message.is_object()) return bad(index, "is no object {role, content}");
  for (const auto& [key, value] : message.members()) {
    if (key != "role" && key != "content")
      return bad(index, "has the unknown member `" + key + "`");
  }
  if (std::ranges::find(kRoles, message.text("role")) == std::end(kRoles)) {
    return bad(index, "has no role: system, user, assistant or developer");
  }
  const Value& content = message["content"];
  if (content.is_string()) return message;
  if (content.is_null()) return bad(index, "says nothing: its content is null");
  return message.with("content", canonical(content));
}

// Of a turn of a loop, whose messages stand elsewhere, it is the end of their chain (engine/loop.h).
std::string prompt_hash_of(const Value& arguments) {
  const std::string_view chain = arguments.text("conversation");
  return chain.empty() ? to_hex(sha256(canonical(arguments["messages"]))) : std::string(chain);
}

std::uint64_t tokens(const Value& usage, std::string_view name) {
  const Value& n = usage[name];
  return n.is_integer() && n.as_int() > 0 ? static_cast<std::uint64_t>(n.as_int()) : 0;
}

}  // namespace

Result<Value> request_of(Value args) {
  const Value& messages = args["messages"];
  if (!messages.is_array() || messages.size() == 0 || messages.size() > kMessagesMax) {
    return fail(Code::expression_failed,
                "what a model is asked must be a list of 1 to 10,000 messages");
  }
  std::vector<Value> said;
  said.reserve(messages.size());
  for (std::size_t i = 0; i < messages.size(); ++i) {
    AE_ASSIGN(Value message, message_of(messages.items()[i], i));
    said.push_back(std::move(message));
  }
  return args.with("messages", Value::array(std::move(said)));
}

std::vector<Member> model_members(std::string_view provider, const Value& arguments,
                                  const Value& result) {
  if (provider.empty()) return {};
  std::vector<Member> members = {{"llm_provider", provider},
                                 {"llm_model", result.text("model", arguments.text("model"))},
                                 {"prompt_hash", prompt_hash_of(arguments)}};
  if (const Value* temperature = arguments.find("temperature")) {
    members.emplace_back("llm_temperature", *temperature);
  }
  if (const Value* usage = result.find("usage")) members.emplace_back("usage", *usage);
  return members;
}

Value model_metadata(std::string_view provider, const Value& arguments, const Value& result) {
  std::vector<Member> members = model_members(provider, arguments, result);
  for (auto& [name, value] : members) {
    if (name.starts_with("llm_")) name.erase(0, 4);
  }
  return Value::object(std::move(members));
}

void add_usage(const Value& usage, ModelUsage& total) {
  const auto add = [&](std::uint64_t& sum, std::uint64_t n) {
    sum = std::min(sum + n, kTokensMax);
  };
  const std::uint64_t input = tokens(usage, "input_tokens");
  const std::uint64_t output = tokens(usage, "output_tokens");
  add(total.input_tokens, input);
  add(total.output_tokens, output);
  add(total.total_tokens,
      usage.find("total_tokens") ? tokens(usage, "total_tokens") : input + output);
  add(total.cached_tokens, tokens(usage, "cached_tokens"));
  add(total.reasoning_tokens, tokens(usage, "reasoning_tokens"));
}

std::vector<Member> usage_members(const ModelUsage& usage) {
  return {
      {"model_calls", usage.tries - usage.withdrawn}, {"input_tokens", usage.input_tokens},
      {"output_tokens", usage.output_tokens},         {"total_tokens", usage.total_tokens},
      {"cached_tokens", usage.cached_tokens},         {"reasoning_tokens", usage.reasoning_tokens}};
}

}  // namespace ae::engine
