// A depth-first search for the order and the cycles; one bit for each pair of nodes.
#include "plan/plan_graph.h"

#include <algorithm>
#include <functional>

namespace ae::engine {

TopologicalOrder topological_order(const Needs& needs) {
  enum class Mark : std::uint8_t { fresh, open, done };
  std::vector<Mark> marks(needs.size(), Mark::fresh);
  std::vector<bool> reported(needs.size(), false);
  TopologicalOrder result;
  result.order.reserve(needs.size());
  struct Frame {
    std::uint32_t node;
    std::size_t next;
  };
  std::vector<Frame> stack;  // the path from the root of this search
  for (std::uint32_t root = 0; root < needs.size(); ++root) {
    if (marks[root] != Mark::fresh) continue;
    marks[root] = Mark::open;
    stack.push_back({root, 0});
    while (!stack.empty()) {
      Frame& top = stack.back();
      if (top.next == needs[top.node].size()) {
        marks[top.node] = Mark::done;
        result.order.push_back(top.node);
        stack.pop_back();
        continue;
      }
      const std::uint32_t need = needs[top.node][top.next++];
      if (marks[need] == Mark::fresh) {
        marks[need] = Mark::open;
        stack.push_back({need, 0});
      } else if (marks[need] == Mark::open && !reported[need] && !reported[top.node]) {
        auto begin = std::ranges::find(stack, need, &Frame::node);
        if (std::any_of(begin, stack.end(), [&](const Frame& f) { return reported[f.node]; })) {
          continue;
        }
        std::vector<std::uint32_t>& cycle = result.cycles.emplace_back();
        for (; begin != stack.end(); ++begin) {
          cycle.push_back(begin->node);
          reported[begin->node] = true;
        }
      }
    }
  }
  return result;
}

Reachability::Reachability(const Needs& needs, const std::vector<std::uint32_t>& order)
    : words_((needs.size() + 63) / 64), bits_(words_ * needs.size(), 0) {
  std::vector<std::uint32_t> rank(needs.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) rank[order[i]] = i;
  std::vector<std::uint32_t> latest_first;
  for (const std::uint32_t node : order) {
    std::uint64_t* node_bits = &bits_[words_ * node];
    latest_first = needs[node];
    // Latest need first: nodes that it reaches need no second visit.
    std::ranges::sort(latest_first, std::greater(), [&](std::uint32_t n) { return rank[n]; });
    for (const std::uint32_t need : latest_first) {
      if ((node_bits[need / 64] >> (need % 64) & 1) != 0) continue;
      const std::uint64_t* need_bits = &bits_[words_ * need];
      for (std::size_t i = 0; i < words_; ++i) node_bits[i] |= need_bits[i];
      node_bits[need / 64] |= std::uint64_t{1} << (need % 64);
    }
  }
}

bool Reachability::reaches(std::uint32_t node, std::uint32_t other) const {
  return (bits_[words_ * node + other / 64] >> (other % 64) & 1) != 0;
}

}  // namespace ae::engine
