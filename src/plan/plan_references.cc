// The references between the nodes of a plan: `needs`, and the steps that expressions read.
#include <algorithm>
#include <optional>

#include "log/field_names.h"
#include "plan/plan_read.h"

namespace ae::engine {
namespace {

class References {
 public:
  explicit References(Plan& plan) : plan_(plan) {}

  Status link(const Value& nodes) {
    needs_.resize(plan_.nodes.size());
    for (Node& node : plan_.nodes) {
      const Value* needs = nodes.items()[node.index].find("needs");
      if (needs == nullptr) continue;
      if (!needs->is_array()) {
        return fail(Code::plan_invalid, "node `{}`: `needs` must be a list", node.id);
      }
      for (const Value& need : needs->items()) {
        const auto found = plan_.by_id.find(need.is_string() ? need.as_string() : "");
        if (found == plan_.by_id.end()) {
          return fail(Code::plan_invalid, "node `{}` needs a node that does not exist", node.id);
        }
        node.needs.push_back(found->second);
      }
      std::vector<std::uint32_t>& sorted = needs_[node.index];
      sorted = node.needs;
      std::ranges::sort(sorted);
      if (std::ranges::adjacent_find(sorted) != sorted.end()) {
        return fail(Code::plan_invalid, "node `{}` needs a node twice", node.id);
      }
      for (const std::uint32_t need : sorted) {
        plan_.nodes[need].dependents.push_back(node.index);
      }
    }
    return {};
  }

  Status check() {
    const TopologicalOrder order = topological_order(needs_);
    if (!order.cycles.empty()) {
      return fail(Code::plan_invalid, "dependency cycle that begins at `{}`",
                  plan_.nodes[order.cycles.front().front()].id);
    }
    for (const Node& node : plan_.nodes) {
      AE_TRY(check_roots(node, node.when ? &*node.when : nullptr, false, order));
      AE_TRY(check_roots(node, node.wait_for ? &*node.wait_for : nullptr, false, order));
      AE_TRY(check_roots(node, node.wait_until ? &*node.wait_until : nullptr, false, order));
      AE_TRY(check_roots(node, node.wait_key ? &*node.wait_key : nullptr, false, order));
      AE_TRY(check_roots(node, node.wait_channel ? &*node.wait_channel : nullptr, false, order));
      AE_TRY(check_roots(node, node.kind == NodeKind::map ? &node.over : nullptr, false, order));
      AE_TRY(check_roots(node, node.has_args ? &node.args : nullptr, node.kind == NodeKind::map,
                         order));
      if (!node.loop) continue;
      AE_TRY(check_roots(node, &node.loop->prompt, false, order));
      AE_TRY(check_roots(node, node.loop->system ? &*node.loop->system : nullptr, false, order));
    }
    return {};
  }

 private:
  // SPEC §9: a node's expression reads only values that can no longer change when it is evaluated.
  Status check_roots(const Node& node, const Template* part, bool per_item,
                     const TopologicalOrder& order) {
    if (part == nullptr || part->is_constant()) return {};
    const ExprRoots& read = part->roots();
    for (const std::string& root : read.roots) {
      if (root == field::input || root == "job" || root == "steps") continue;
      if (per_item && (root == "item" || root == "index" || root == node.as)) continue;
      return fail(Code::plan_invalid, "node `{}` reads `.{}`, which is not available here", node.id,
                  root);
    }
    if (read.all_steps) {
      return fail(Code::plan_invalid, "node `{}` reads all of `.steps`; only `output` may",
                  node.id);
    }
    for (const std::string& step : read.steps) {
      const auto found = plan_.by_id.find(step);
      if (found == plan_.by_id.end() || !reaches(node.index, found->second, order)) {
        return fail(Code::plan_invalid, "node `{0}` reads `.steps.{1}` without needing `{1}`",
                    node.id, step);
      }
    }
    return {};
  }

  bool reaches(std::uint32_t node, std::uint32_t other, const TopologicalOrder& order) {
    if (std::ranges::binary_search(needs_[node], other)) return true;
    if (!reach_) reach_.emplace(needs_, order.order);
    return reach_->reaches(node, other);
  }

  Plan& plan_;
  Needs needs_;  // sorted
  std::optional<Reachability> reach_;
};

}  // namespace

Status link_nodes(const Value& nodes, Plan& plan) {
  References references(plan);
  AE_TRY(references.link(nodes));
  return references.check();
}

}  // namespace ae::engine
