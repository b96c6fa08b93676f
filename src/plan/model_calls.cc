// Model calls: requests, answers and their cost.
#include "plan/model_calls.h"

#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/hash.h"
#include "json/json.h"
#include "log/field_names.h"
#include "plan/price.h"
#include "schema/schema.h"

namespace ae::engine {
namespace {

constexpr std::size_t kMessagesMax = 10'000;
constexpr std::size_t kPartsMax = 256;
constexpr std::size_t kUrlMax = 4 << 20;  // for images embedded as data: URLs
// The largest integer of a JSON number
constexpr std::uint64_t kTokenCountMax = (std::uint64_t{1} << 53) - 1;

std::unexpected<Error> message_error(std::size_t index, std::string_view what) {
  return fail(Code::expression_failed, "messages[{}] {}", index, what);
}

Status check_parts(const Value& parts, const std::string& where) {
  if (parts.size() == 0 || parts.size() > kPartsMax) {
    return fail(Code::plan_invalid, "{} has 1 to 256 parts", where);
  }
  for (const Value& part : parts.items()) {
    const bool image = part.text("type") == "image";
    const std::string_view key = image ? "url" : "text";
    if ((!image && part.text("type") != "text") || part.size() != 2 || !part[key].is_string()) {
      return fail(Code::plan_invalid, "{}: a part is {{type: text, text}} or {{type: image, url}}",
                  where);
    }
    if (image && !has_literal_host(part.text("url"))) {
      return fail(Code::plan_invalid,
                  "{}: the url of an image begins with its scheme and host, or with "
                  "data:image/…;base64, and no ${{ in them",
                  where);
    }
  }
  return {};
}

// Converts the evaluated parts of a content to text; each part keeps the type that it has in the
// plan.
Result<Value> parts_of(const Value& parts, std::size_t index) {
  std::vector<Value> text_parts;
  text_parts.reserve(parts.size());
  for (const Value& part : parts.items()) {
    const std::string_view key = part.text("type") == "image" ? "url" : "text";
    const Value& value = part[key];
    if (value.is_null())
      return message_error(index, fmt::format("has a part whose {} is null", key));
    Value text = value.is_string() ? value : Value(canonical(value));
    if (key == "url") {
      const std::string& url = text.as_string();
      if (url.size() > kUrlMax)
        return message_error(index, "has an image whose url is longer than 4 MiB");
      const auto blank = [](char c) { return static_cast<unsigned char>(c) <= ' ' || c == 0x7f; };
      if (std::ranges::any_of(url, blank))
        return message_error(index, "has an image whose url has blanks");
    }
    text_parts.push_back(part.with(key, std::move(text)));
  }
  return Value::array(std::move(text_parts));
}

Result<Value> message_of(const Value& written, const Value& message, std::size_t index) {
  constexpr std::string_view kRoles[] = {"system", "user", "assistant", "developer"};
  if (!message.is_object()) return message_error(index, "is no object {role, content}");
  for (const auto& [key, value] : message.members()) {
    if (key != "role" && key != "content")
      return message_error(index, fmt::format("has the unknown member `{}`", key));
  }
  if (std::ranges::find(kRoles, message.text("role")) == std::end(kRoles)) {
    return message_error(index, "has no role: system, user, assistant or developer");
  }
  const Value& content = message["content"];
  if (content.is_string()) return message;
  if (content.is_null()) return message_error(index, "says nothing: its content is null");
  if (written["content"].is_array()) {
    AE_ASSIGN(Value parts, parts_of(content, index));
    return message.with("content", std::move(parts));
  }
  return message.with("content", canonical(content));
}

// A turn of a loop does not hold its messages; its prompt hash is the end of their hash chain
// (engine/loop/loop.h), blinded if the job has a blind.
DigestText prompt_hash_of(std::string_view blind, const Value& arguments) {
  const std::string_view chain = arguments.text("conversation");
  if (chain.empty()) return blinded_hash(blind, canonical(arguments["messages"]));
  return blind.empty() ? DigestText(chain) : blinded_hash(blind, chain);
}

std::uint64_t count_of(std::optional<std::int64_t> n) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(n.value_or(0), 0));
}

std::vector<Member> members_of(std::string_view blind, std::string_view provider,
                               const Value& arguments, const Value& result) {
  if (provider.empty()) return {};
  std::vector<Member> members = {{field::llm_provider, provider},
                                 {field::llm_model, result.text("model", arguments.text("model"))},
                                 {field::prompt_hash, prompt_hash_of(blind, arguments)}};
  if (const Value* temperature = arguments.find("temperature")) {
    members.emplace_back(field::llm_temperature, *temperature);
  }
  if (const Value* usage = result.find(field::usage)) members.emplace_back(field::usage, *usage);
  return members;
}

}  // namespace

bool has_literal_host(std::string_view url) {
  const std::size_t literal = std::min(url.find("${"), url.size());
  const std::string_view begin = url.substr(0, literal);
  if (begin.starts_with("data:image/")) return begin.find(";base64,") != begin.npos;
  for (const std::string_view scheme : {"https://", "http://"}) {
    if (!begin.starts_with(scheme)) continue;
    const std::size_t end = begin.find('/', scheme.size());
    return literal == url.size() ? begin.size() > scheme.size()
                                 : end != begin.npos && end > scheme.size();
  }
  return false;
}

Status check_model_args(const Value& args) {
  if (const Value* schema = args.find("schema")) {
    if (canonical(*schema).find("${") != std::string::npos) {
      return fail(Code::plan_invalid, "`schema` holds no ${ … }");
    }
    if (auto compiled = Schema::compile(*schema); !compiled) {
      return std::unexpected(std::move(compiled).error().with_context("`schema`"));
    }
  }
  const Value& messages = args["messages"];
  if (messages.is_string()) return {};
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Value& message = messages.items()[i];
    if (!message["content"].is_array()) continue;
    const std::string where = fmt::format("messages[{}].content", i);
    if (message.text("role") == "assistant") {
      return fail(Code::plan_invalid,
                  "{}: the content of an assistant message is a string, not parts", where);
    }
    AE_TRY(check_parts(message["content"], where));
  }
  return {};
}

Result<Value> build_model_request(const Value& written, Value args) {
  const Value& messages = args["messages"];
  if (!messages.is_array() || messages.size() == 0 || messages.size() > kMessagesMax) {
    return fail(Code::expression_failed,
                "what a model is asked must be a list of 1 to 10,000 messages");
  }
  const Value& list = written["messages"];
  std::vector<Value> request_messages;
  request_messages.reserve(messages.size());
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Value& as_written = list.is_array() ? list.items()[i] : Value();
    AE_ASSIGN(Value message, message_of(as_written, messages.items()[i], i));
    request_messages.push_back(std::move(message));
  }
  return args.with("messages", Value::array(std::move(request_messages)));
}

void set_committed_answer(std::string_view blind, const ToolPolicy& tool, const Value& arguments,
                          const Value& result, CommandCommitted& event) {
  if (!tool.is_model()) return;
  const Value members = Value::object(members_of(blind, tool.provider, arguments, result));
  const auto text = [&members](std::string_view name) { return none_if_empty(members.text(name)); };
  event.llm_model = text(field::llm_model);
  event.llm_provider = text(field::llm_provider);
  event.llm_temperature = members[field::llm_temperature];
  event.prompt_hash = hash_from_hex(members.text(field::prompt_hash));
  if (const Value* usage = members.find(field::usage)) {
    event.usage = JsonOf<TokenUsage>(with_cost(tool, *usage));
  }
}

bool is_model_request(const Value& arguments) {
  if (arguments.text("method") != "POST") return false;
  std::string_view path = arguments.text("url");
  path = path.substr(0, path.find('?'));
  constexpr std::string_view kPaths[] = {"/chat/completions", "/responses", "/messages"};
  return std::ranges::any_of(kPaths, [&](std::string_view end) { return path.ends_with(end); });
}

Value with_cost(const Plan& plan, Value usage) {
  const auto found = plan.prices.find(usage.text("model"));
  if (found == plan.prices.end()) return usage;
  auto cost = cost_micros(found->second, usage);
  if (!cost) {  // only their sum is known: each may have the higher price
    const std::uint64_t highest = std::max(found->second.input, found->second.output);
    cost =
        cost_micros({.input = highest, .output = highest, .cached = {}},
                    Value::object({{"input_tokens", usage["total_tokens"]}, {"output_tokens", 0}}));
  }
  return cost ? usage.with("cost_micros", *cost) : usage;
}

Value with_cost(const ToolPolicy& tool, Value usage) {
  if (!tool.price || !usage.is_object()) return usage;
  const auto cost = cost_micros(*tool.price, usage);
  return cost ? usage.with("cost_micros", *cost) : usage;
}

Value model_metadata(std::string_view blind, std::string_view provider, const Value& arguments,
                     const Value& result) {
  std::vector<Member> members = members_of(blind, provider, arguments, result);
  for (auto& [name, value] : members) {
    if (name.starts_with("llm_")) name.erase(0, 4);
  }
  return Value::object(std::move(members));
}

void add_usage(const TokenUsage& usage, ModelUsage& total) {
  const auto add = [&](std::uint64_t& sum, std::uint64_t n) {
    sum = std::min(sum + n, kTokenCountMax);
  };
  const std::uint64_t input = count_of(usage.input_tokens);
  const std::uint64_t output = count_of(usage.output_tokens);
  add(total.input_tokens, input);
  add(total.output_tokens, output);
  add(total.total_tokens, usage.total_tokens ? count_of(usage.total_tokens) : input + output);
  add(total.cached_tokens, count_of(usage.cached_tokens));
  add(total.reasoning_tokens, count_of(usage.reasoning_tokens));
  add(total.cost_micros, count_of(usage.cost_micros));
  if (!usage.cost_micros) total.unpriced_calls++;
}

std::vector<Member> usage_members(const ModelUsage& usage) {
  return {{"model_calls", usage.tries - usage.withdrawn},
          {"input_tokens", usage.input_tokens},
          {"output_tokens", usage.output_tokens},
          {"total_tokens", usage.total_tokens},
          {"cached_tokens", usage.cached_tokens},
          {"reasoning_tokens", usage.reasoning_tokens},
          {"cost_micros", usage.cost_micros},
          {"unpriced_calls", usage.unpriced_calls}};
}

}  // namespace ae::engine
