// Readers of the parts of a task graph: strict, with messages that state what is invalid.
//
// Only `Plan::compile` uses it. Threads: pure functions.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/time.h"
#include "expr/expr.h"
#include "json/value.h"
#include "log/field_names.h"
#include "plan/plan.h"

namespace ae::engine {

inline constexpr std::string_view kMaxAttempts = field::max_attempts;  // of a `retry`

using Keys = std::initializer_list<std::string_view>;

inline Status only_keys(const Value& object, Keys keys) {
  if (!object.is_object()) return fail(Code::plan_invalid, "must be an object");
  for (const auto& [key, value] : object.members()) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      return fail(Code::plan_invalid, "unknown member `{}`", key);
    }
  }
  return {};
}

inline Result<std::string> text_at(const Value& object, std::string_view key) {
  const Value* value = object.find(key);
  if (value == nullptr) return fail(Code::plan_invalid, "without `{}`", key);
  if (!value->is_string()) return fail(Code::plan_invalid, "`{}` must be a string", key);
  return value->as_string();
}

// Absent = "".
inline Result<std::string> optional_text_at(const Value& object, std::string_view key) {
  if (object.find(key) == nullptr) return std::string();
  return text_at(object, key);
}

inline Result<Duration> duration_at(const Value& object, std::string_view key, Duration min) {
  AE_ASSIGN(const std::string text, text_at(object, key));
  auto duration = duration_from_text(text);
  if (!duration || *duration < min) {
    return fail(Code::plan_invalid, "`{}` must be a duration of at least {}, not `{}`", key,
                ae::to_text(min), text);
  }
  return *duration;
}

inline Result<std::optional<Duration>> optional_duration_at(const Value& object,
                                                            std::string_view key, Duration min) {
  if (object.find(key) == nullptr) return std::nullopt;
  AE_ASSIGN(const Duration duration, duration_at(object, key, min));
  return duration;
}

inline Result<std::uint32_t> count_at(const Value& object, std::string_view key,
                                      std::uint32_t max) {
  const Value& value = object[key];
  if (!value.is_integer() || value.as_int() < 1 || value.as_int() > max) {
    return fail(Code::plan_invalid, "`{}` must be a whole number from 1 to {}", key, max);
  }
  return static_cast<std::uint32_t>(value.as_int());
}

// Index of one of a few words; absent = the first.
inline Result<std::size_t> word_at(const Value& object, std::string_view key, Keys words) {
  const Value* value = object.find(key);
  if (value == nullptr) return std::size_t{0};
  const auto found =
      std::find(words.begin(), words.end(), value->is_string() ? value->as_string() : "");
  if (found == words.end()) return fail(Code::plan_invalid, "`{}` has no such value", key);
  return static_cast<std::size_t>(found - words.begin());
}

// As word_at, for a required member.
inline Result<std::size_t> required_word_at(const Value& object, std::string_view key, Keys words) {
  if (object.find(key) == nullptr) return fail(Code::plan_invalid, "without `{}`", key);
  return word_at(object, key, words);
}

inline Result<Template> template_of(const Value& value, std::string_view key) {
  auto compiled = Template::compile(value);
  if (!compiled)
    return std::unexpected(std::move(compiled).error().with_context(fmt::format("`{}`", key)));
  return compiled;
}

inline Result<std::optional<Template>> template_at(const Value& object, std::string_view key) {
  const Value* value = object.find(key);
  if (value == nullptr) return std::nullopt;
  AE_ASSIGN(Template compiled, template_of(*value, key));
  return compiled;
}

// Is it a string that consists of exactly one `${ … }`? Only such a template can yield a value that
// is not a string.
inline bool is_one_expression(const Value& value) {
  if (!value.is_string()) return false;
  const auto parts = Template::parts(value.as_string());
  return parts && parts->size() == 1 && std::holds_alternative<Expr>(parts->front());
}

// The index of each tool in Plan::tools.
using ToolsByName = std::unordered_map<std::string, std::uint32_t>;

// The index of the tool that `value` names (`tool`).
inline Result<std::uint32_t> find_tool(const Value& value, const ToolsByName& tool_by_name) {
  AE_ASSIGN(const std::string tool, text_at(value, "tool"));
  const auto found = tool_by_name.find(tool);
  if (found == tool_by_name.end()) {
    return fail(Code::plan_invalid, "there is no tool `{}`", tool);
  }
  return found->second;
}

// Reads `tools`: adds each to Plan::tools and to `tool_by_name`.
Status read_plan_tools(const Value& tools, Plan& plan, ToolsByName& tool_by_name);
// Reads the probe and the compensation of a tool. REQUIRES: all tools are in `plan`.
Status read_side_calls(const Value& value, const Plan& plan, const ToolsByName& tool_by_name,
                       ToolPolicy& tool);
// Reads `nodes`, without the references between them.
Status read_nodes(const Value& nodes, const ToolsByName& tool_by_name, const PlanLimits& limits,
                  Plan& plan);
// Reads `needs`, and checks that each expression reads only steps that its node needs.
// REQUIRES: read_nodes.
Status link_nodes(const Value& nodes, Plan& plan);

// Reads the policy rules of a tool (`rules`) and its `capabilities`.
Status read_policies(const Value& value, ToolPolicy& tool);
// A list of capabilities, sorted; absent = none.
Result<std::vector<std::string>> capabilities_at(const Value& object, std::string_view key);

// Reads the members of a loop node. The caller finds the model.
Result<std::shared_ptr<const LoopSpec>> read_loop(const Value& value, const Plan& plan,
                                                  const ToolsByName& tool_by_name);
// As read_loop, for a planner.
Result<std::shared_ptr<const LoopSpec>> read_planner(const Value& value, const Plan& plan,
                                                     const ToolsByName& tool_by_name);
// Reads the members of a code node.
Result<std::shared_ptr<const CodeSpec>> read_code(const Value& value, const Plan& plan,
                                                  const ToolsByName& tool_by_name);
// As read_loop, for a node of kind llm with `repair`: its request is sent once, and at most once
// more.
Result<std::shared_ptr<const LoopSpec>> read_repair_loop(const Value& node);

}  // namespace ae::engine
