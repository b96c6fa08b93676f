#include "cli/graph_text.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "json/json.h"
#include "log/field_names.h"
#include "plan/plan.h"

namespace ae::cli {
namespace {

// What a node calls: a tool, or a model with the provider's name for it.
std::string call_words(const Value& call, const Value& task_graph) {
  const std::string_view tool = call.text("tool");
  if (task_graph["tools"][tool].find("provider") != nullptr) {
    return fmt::format("{} ({})", safe(tool), safe(call["args"].text("model")));
  }
  const std::string_view effect = task_graph["tools"][tool].text("effect", "at_most_once");
  return fmt::format("tool {} ({})", safe(tool), safe(effect));
}

// Without the functions that all code may run.
std::string tools_words(const Value& tools) {
  std::string words;
  for (const Value& one : tools.items()) {
    const std::string name = one.is_string() ? one.as_string() : "";
    if (name.starts_with("run:") || name.starts_with("fetch:")) continue;
    words += (words.empty() ? ", tools: " : ", ") + safe(name);
  }
  return words.empty() ? ", no tools" : words;
}

std::string template_words(const Value& value) {
  return value.is_string() ? safe(value.as_string()) : safe(canonical(value));
}

class Graph {
 public:
  Graph(const Value& task_graph, const Paint& paint, std::size_t width)
      : graph_(task_graph), paint_(paint), width_(width), nodes_(task_graph["nodes"].items()) {
    std::map<std::string_view, std::uint32_t> by_id;
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) by_id[nodes_[i].text("id")] = i;
    needs_.resize(nodes_.size());
    below_.resize(nodes_.size());
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
      if (!nodes_[i]["needs"].is_array()) continue;
      for (const Value& need : nodes_[i]["needs"].items()) {
        needs_[i].push_back(by_id[need.as_string()]);
      }
    }
    std::vector<std::size_t> depth(nodes_.size());
    for (const std::uint32_t i : engine::topological_order(needs_).order) {
      for (const std::uint32_t need : needs_[i]) depth[i] = std::max(depth[i], depth[need] + 1);
    }
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
      const auto deepest =
          std::ranges::max_element(needs_[i], {}, [&](auto n) { return depth[n]; });
      (deepest == needs_[i].end() ? roots_ : below_[*deepest]).push_back(i);
    }
  }

  std::string text(std::string_view agent) {
    out_ = paint_(Tint::bold, safe(agent)) + "\n";
    put(roots_, "", nodes_.size());
    return std::move(out_);
  }

 private:
  void put(const std::vector<std::uint32_t>& nodes, const std::string& trunk, std::size_t parent) {
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const bool last = i + 1 == nodes.size();
      Line line;
      line.add(Tint::dim, trunk + (last ? "└─ " : "├─ "));
      describe(nodes[i], parent, line);
      out_ += line.text(paint_, width_) + "\n";
      put(below_[nodes[i]], trunk + (last ? "   " : "│  "), nodes[i]);
    }
  }

  void describe(std::uint32_t i, std::size_t parent, Line& line) const {
    const Value& node = nodes_[i];
    line.add(Tint::accent, safe(node.text("id"))).add("  " + node_words(node, graph_));
    std::string others;
    for (const std::uint32_t need : needs_[i]) {
      if (need == parent) continue;
      others += (others.empty() ? "" : ", ") + safe(nodes_[need].text("id"));
    }
    if (!others.empty()) line.add(Tint::dim, fmt::format("  also after {}", others));
    if (const Value* when = node.find("when")) {
      line.add(Tint::dim, fmt::format("  when {}", template_words(*when)));
    }
    if (node.text("on_error") == "continue") line.add(Tint::dim, "  continues after errors");
  }

  const Value& graph_;
  const Paint& paint_;
  const std::size_t width_;
  std::span<const Value> nodes_;
  engine::Needs needs_;
  std::vector<std::vector<std::uint32_t>> below_;
  std::vector<std::uint32_t> roots_;
  std::string out_;
};

}  // namespace

std::string node_words(const Value& node, const Value& task_graph) {
  const std::string_view kind = node.text(field::kind);
  if (kind == "tool" || kind == "llm") return call_words(node, task_graph);
  if (kind == "map") {
    return fmt::format("for each of {}: {}", template_words(node["over"]),
                       call_words(node["do"], task_graph));
  }
  if (kind == field::code) {
    const Value& code = node[field::code];
    const std::string_view version = code.text(field::version);
    return fmt::format("{} code{}{}{}", safe(code.text("language")), version.empty() ? "" : " ",
                       safe(version), tools_words(code["tools"]));
  }
  if (kind == "loop" || kind == "planner") {
    const Value& loop = node[kind];
    const std::string_view tool = loop.text("tool");
    constexpr std::string_view kModel = "model:";
    return fmt::format("model {}{}{}",
                       safe(tool.starts_with(kModel) ? tool.substr(kModel.size()) : tool),
                       kind == "planner" ? " makes a plan" : "", tools_words(loop["tools"]));
  }
  const Value& wait = node["wait"];
  std::string words = fmt::format("wait for {}", safe(wait.text("type")));
  for (const char* key : {"key", "for", field::until}) {
    if (const Value* value = wait.find(key)) words += " " + template_words(*value);
  }
  return words;
}

// A node is printed below its deepest dependency; the others are named after it.
std::string graph_text(std::string_view agent, const Value& task_graph, const Paint& paint,
                       std::size_t width) {
  return Graph(task_graph, paint, width).text(agent);
}

}  // namespace ae::cli
