// PlanNodes: see plan_nodes.h. The graph itself: plan/plan_graph.h.
#include "agents/plan_nodes.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

namespace ae::agents {
namespace {

constexpr std::size_t kCycleShown = 12;            // nodes of a cycle in a message
constexpr std::size_t kCycleWorkMax = 10'000'000;  // edges followed if there is a cycle

}  // namespace

void PlanNodes::add(const SourceNode& source_node) {
  const auto index = static_cast<std::uint32_t>(nodes_.size());
  nodes_.push_back({.source_node = source_node, .id = {}});
  needs_.emplace_back();
  if (!source_node->is_mapping()) return;
  const auto id = check_.required(source_node, "id", "the node id, used as .steps.ID");
  if (!id) return;
  const auto text = check_.text(*id);
  if (!text || !check_.name("a node", *text, id->at(), id->path)) return;
  nodes_[index].id = *text;
  const auto [twin, fresh] = by_id_.emplace(*text, index);
  if (!fresh) {
    check_.report(*id, fmt::format("duplicate node id {}, also used by plan[{}]", quote(*text),
                                   twin->second));
  }
}

void PlanNodes::add_only(const SourceNode& source_node, std::string_view id) {
  nodes_.push_back({.source_node = source_node, .id = std::string(id)});
  needs_.emplace_back();
  by_id_.emplace(id, 0);
}

std::optional<std::uint32_t> PlanNodes::find(const std::string& id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? std::nullopt : std::optional(found->second);
}

void PlanNodes::read_needs(std::uint32_t node, std::vector<Member>& members) {
  const auto list = nodes_[node].source_node.find("needs");
  if (!list) return;
  if (!check_.list(*list)) {
    nodes_[node].has_unknown_needs = true;
    return;
  }
  std::vector<Value> ids;
  std::vector<std::uint32_t>& indices = needs_[node];
  for (std::size_t i = 0; i < (*list)->items.size(); ++i) {
    const SourceNode item = list->item(i);
    const auto id = check_.text(item);
    const auto found = id ? by_id_.find(*id) : by_id_.end();
    if (found == by_id_.end()) {
      nodes_[node].has_unknown_needs = true;
      if (id) check_.report(item, fmt::format("unknown node {}", quote(*id)), nearest_node(*id));
      continue;
    }
    if (found->second == node) {
      check_.report(item, "a node cannot depend on itself");
      continue;
    }
    indices.push_back(found->second);
    ids.emplace_back(*id);
  }
  std::ranges::sort(indices);
  if (const auto twin = std::ranges::adjacent_find(indices); twin != indices.end()) {
    check_.report(*list, fmt::format("duplicate entry {}", quote(nodes_[*twin].id)));
    const auto rest = std::ranges::unique(indices);
    indices.erase(rest.begin(), rest.end());
  }
  if (!ids.empty()) members.emplace_back("needs", Value::array(std::move(ids)));
}

std::string PlanNodes::nearest_node(std::string_view id) const {
  return check_.nearest(id, nodes_, [](const PlanNode& node) { return std::string_view(node.id); });
}

// `.steps.send-mail` is a subtraction; the hint is .steps["send-mail"].
std::string PlanNodes::steps_hint(const std::string& step) const {
  for (const PlanNode& node : nodes_) {
    if (node.id.starts_with(step + "-")) return fmt::format(".steps[\"{}\"]", node.id);
  }
  return nearest_node(step);
}

void PlanNodes::check() {
  const engine::TopologicalOrder order = engine::topological_order(needs_);
  for (const std::vector<std::uint32_t>& cycle : order.cycles) report_cycle(cycle);
  if (reads_.empty()) return;
  if (!order.cycles.empty()) return check_reads_with_cycles();
  for (const std::uint32_t node : order.order) {
    for (const std::uint32_t need : needs_[node]) {
      nodes_[node].has_unknown_needs =
          nodes_[node].has_unknown_needs || nodes_[need].has_unknown_needs;
    }
  }
  std::optional<engine::Reachability> reach;
  for (const Read& read : reads_) {
    if (nodes_[read.node].has_unknown_needs ||
        std::ranges::binary_search(needs_[read.node], read.step)) {
      continue;
    }
    if (!reach) reach.emplace(needs_, order.order);
    if (!reach->reaches(read.node, read.step)) report_unreachable_read(read);
  }
}

void PlanNodes::report_unreachable_read(const Read& read) {
  const std::string& step = nodes_[read.step].id;
  check_.report_root(
      read.where, ".steps",
      read.node == read.step
          ? "a node cannot read its own result"
          : fmt::format(".steps.{} is read here, so add {} to `needs`", step, quote(step)));
}

// Breaking a cycle only removes needs. So a read of a step that is not
// reachable now is an error anyway.
void PlanNodes::check_reads_with_cycles() {
  std::size_t work = 0;
  std::optional<std::uint32_t> from;  // the start node of `reached`
  bool unknown = false;               // one of the reached nodes has unknown needs
  std::vector<bool> reached;
  std::vector<std::uint32_t> next;
  for (const Read& read : reads_) {
    if (from != read.node) {
      if (work > kCycleWorkMax) return;  // the rest is reported once there is no cycle
      from = read.node;
      reached.assign(nodes_.size(), false);
      unknown = nodes_[read.node].has_unknown_needs;
      work += nodes_.size() / 64;
      next = {read.node};
      while (!next.empty()) {
        const std::uint32_t node = next.back();
        next.pop_back();
        unknown = unknown || nodes_[node].has_unknown_needs;
        work += needs_[node].size();
        for (const std::uint32_t need : needs_[node]) {
          if (!reached[need]) next.push_back(need);
          reached[need] = true;
        }
      }
    }
    if (unknown || (reached[read.step] && read.step != read.node)) continue;
    report_unreachable_read(read);
  }
}

void PlanNodes::report_cycle(std::vector<std::uint32_t> cycle) {
  std::ranges::rotate(cycle, std::ranges::min_element(cycle));
  std::string path;
  for (std::size_t i = 0; i < cycle.size(); ++i) {
    if (i == kCycleShown) {
      path += fmt::format("… ({} nodes) → ", cycle.size());
      break;
    }
    path += nodes_[cycle[i]].id + " → ";
  }
  path += nodes_[cycle[0]].id;
  const SourceNode& source_node = nodes_[cycle[0]].source_node;
  const SourceNode list = *source_node.find("needs");
  const std::string& next = nodes_[cycle[1 % cycle.size()]].id;
  for (std::size_t i = 0; i < list->items.size(); ++i) {
    if (!list->items[i].is_string() || list->items[i].scalar.as_string() != next) continue;
    check_.report(list.item(i), fmt::format("dependency cycle: {}", path));
    return;
  }
}

}  // namespace ae::agents
