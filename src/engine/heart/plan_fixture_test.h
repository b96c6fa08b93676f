// Plans for tests of the engine, written as JSON with ' for ".
//
//   const auto plan = compiled(graph("[{'id':'a', 'kind':'tool', 'tool':'pay'}]"));
//
// A plan can use the tools of `usual_tools` without declaring them. For tests only. Threads: pure
// functions.
#pragma once

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>

#include "base/error.h"
#include "json/json.h"
#include "plan/plan.h"

namespace ae {
inline void PrintTo(const Value& value, std::ostream* out) { *out << canonical(value); }
}  // namespace ae

namespace ae::engine::testing {

inline Value json(std::string_view text) {
  std::string quoted(text);
  std::ranges::replace(quoted, '\'', '"');
  auto value = parse_json(quoted);
  AE_CHECK(value.has_value(), fmt::format("{}: {}", quoted, value ? "" : value.error().message));
  return *value;
}

// A tool's policy in a plan; members of `changes` replace the defaults.
inline Value tool_policy(std::string_view effect, std::string_view on_in_doubt,
                         const Value& changes = {}) {
  Value policy = json(R"({'timeout': '30s', 'grace': '30s', 'dedupe_window': '24h',
      'version': '0123456789abcdef',
      'retry': {'max_attempts': 1, 'initial_backoff': '200ms', 'max_backoff': '10s',
                'multiplier': 2, 'retry_on': ['connect']}})");
  policy = policy.with("effect", effect).with("on_in_doubt", on_in_doubt);
  if (!changes.is_object()) return policy;
  for (const auto& [key, value] : changes.members()) {
    Value merged = value;
    if (key == "retry") {
      merged = policy["retry"];
      for (const auto& [name, part] : value.members()) merged = merged.with(name, part);
    }
    policy = policy.with(key, merged);
  }
  return policy;
}

inline Value usual_tools() {
  const Value thrice =
      json("{'retry': {'max_attempts': 3, 'retry_on': ['connect', 'timeout', '5xx', 'unknown']}}");
  return Value::object({{"look", tool_policy("read", "resend", thrice)},
                        {"put", tool_policy("idempotent", "resend", thrice)},
                        {"once", tool_policy("idempotent", "resend")},
                        {"pay", tool_policy("at_most_once", "park")},
                        {"risk", tool_policy("at_most_once", "fail")}});
}

// {"nodes": …, "tools": …}: a whole task graph from its nodes; `more` adds members and tools.
inline Value graph(std::string_view nodes, std::string_view more = "{}") {
  Value graph = Value::object({{"nodes", json(nodes)}, {"schema", 1}});
  Value tools = usual_tools();
  const Value extra = json(more);
  for (const auto& [key, value] : extra.members()) {
    if (key != "tools") {
      graph = graph.with(key, value);
      continue;
    }
    for (const auto& [name, changes] : value.members()) {
      tools = tools.with(name, tool_policy(changes.text("effect", "idempotent"),
                                           changes.text("on_in_doubt", "resend"), changes));
    }
  }
  return graph.with("tools", tools);
}

inline std::shared_ptr<const Plan> compiled(const Value& graph) {
  auto plan = Plan::compile(graph);
  AE_CHECK(plan.has_value(), plan ? "" : plan.error().message);
  return *plan;
}

}  // namespace ae::engine::testing
