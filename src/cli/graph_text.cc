#include "cli/graph_text.h"

#include <map>
#include <vector>

#include "core/json.h"
#include "engine/plan.h"

namespace ae::cli {
namespace {

std::string tool_words(std::string_view tool, const Value& task_graph) {
  std::string words = "tool " + safe(tool);
  const std::string_view effect = task_graph["tools"][tool].text("effect", "at_most_once");
  return words + " (" + safe(effect) + ")";
}

std::string template_words(const Value& value) {
  return value.is_string() ? safe(value.as_string()) : safe(canonical(value));
}

}  // namespace

std::string node_words(const Value& node, const Value& task_graph) {
  const std::string_view kind = node.text("kind");
  if (kind == "tool") return tool_words(node.text("tool"), task_graph);
  if (kind == "map") {
    return "for each of " + template_words(node["over"]) + ": " +
           tool_words(node["do"].text("tool"), task_graph);
  }
  const Value& wait = node["wait"];
  std::string words = "wait for " + safe(wait.text("type"));
  for (const char* key : {"key", "for", "until"}) {
    if (const Value* value = wait.find(key)) words += " " + template_words(*value);
  }
  return words;
}

// One line per node, indented by how deep it stands; what it needs is named behind it.
std::string graph_text(std::string_view agent, const Value& task_graph, const Paint& paint) {
  const auto nodes = task_graph["nodes"].items();
  std::map<std::string_view, std::uint32_t> by_id;
  for (std::uint32_t i = 0; i < nodes.size(); ++i) by_id[nodes[i].text("id")] = i;
  engine::Needs needs(nodes.size());
  for (std::uint32_t i = 0; i < nodes.size(); ++i) {
    if (!nodes[i]["needs"].is_array()) continue;
    for (const Value& need : nodes[i]["needs"].items()) {
      needs[i].push_back(by_id[need.as_string()]);
    }
  }
  std::vector<std::size_t> depth(nodes.size());
  const engine::Order order = engine::order_of(needs);
  for (const std::uint32_t node : order.order) {
    for (const std::uint32_t need : needs[node]) {
      depth[node] = std::max(depth[node], depth[need] + 1);
    }
  }
  std::string text = paint(Tint::bold, safe(agent)) + "\n";
  for (const std::uint32_t i : order.order) {
    const Value& node = nodes[i];
    text += "  ";
    for (std::size_t d = 0; d < depth[i]; ++d) text += d + 1 == depth[i] ? "└─ " : "   ";
    text += paint(Tint::accent, safe(node.text("id"))) + "  " + node_words(node, task_graph);
    if (!needs[i].empty()) {
      std::string names;
      for (const std::uint32_t need : needs[i]) {
        names += (names.empty() ? "" : ", ") + safe(nodes[need].text("id"));
      }
      text += paint(Tint::dim, "  after " + names);
    }
    if (const Value* when = node.find("when")) {
      text += paint(Tint::dim, "  when " + template_words(*when));
    }
    if (node.text("on_error") == "continue") text += paint(Tint::dim, "  goes on after errors");
    text += '\n';
  }
  return text;
}

}  // namespace ae::cli
