#include "sim/task_graph.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "json/json.h"
#include "sim/tool_kinds.h"

namespace ae::sim {
namespace {

std::string_view recorded_by(std::string_view tool) {
  const auto known = std::ranges::find(kRecorded, tool, &Recorded::tool);
  return known == std::end(kRecorded) ? std::string_view() : known->what;
}

Value policy_of(const std::string& tool) {
  const std::string_view records = recorded_by(tool);
  return records.empty() ? tool_policy(*tool_kind(tool))
                         : tool_policy(*tool_kind("look")).with("records", records);
}

}  // namespace

Value with_tools(Value graph) {
  std::set<std::string> names;
  const std::function<void(std::string_view)> add = [&](std::string_view name) {
    if (name.empty() || !names.emplace(name).second || !recorded_by(name).empty()) return;
    add(tool_kind(name)->probe);
    add(tool_kind(name)->undo);
  };
  for (const Value& node : graph["nodes"].items()) {
    add(node.text("tool"));
    add(node["do"].text("tool"));
    for (const std::string_view leads :
         {std::string_view("loop"), std::string_view("planner"), to_text(engine::NodeKind::code)}) {
      add(node[leads].text("tool"));
      for (std::size_t i = 0; i < node[leads]["tools"].size(); ++i) {
        add(node[leads]["tools"].items()[i].as_string());
      }
    }
  }
  std::vector<Member> tools;
  tools.reserve(names.size());
  for (const std::string& name : names) tools.emplace_back(name, policy_of(name));
  return graph.with("tools", Value::object(std::move(tools)));
}

std::shared_ptr<const engine::Plan> compile_graph(const Value& graph) {
  auto plan = engine::Plan::compile(with_tools(graph));
  AE_CHECK(plan.has_value(),
           plan ? "" : fmt::format("{} in {}", plan.error().message, canonical(graph)));
  return *plan;
}

}  // namespace ae::sim
