// The dependencies of a plan as a graph: an order of its nodes, cycles, and which node reaches
// which.
//
// Threads: pure functions; a Reachability is an immutable value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ae::engine {

// The needs of each node, by node index. The agents file and the log are checked with the same
// functions.
using Needs = std::vector<std::vector<std::uint32_t>>;

struct TopologicalOrder {
  std::vector<std::uint32_t> order;  // every node after its needs; meaningless if there is a cycle
  // Cycles without a common node: each node needs the next one, the last needs the first.
  std::vector<std::vector<std::uint32_t>> cycles;
};
TopologicalOrder topological_order(const Needs& needs);

// The nodes that a node can read in `.steps`: its needs, their needs, and so on. n²/8 bytes.
class Reachability {
 public:
  // REQUIRES: topological_order(needs) without cycles.
  Reachability(const Needs& needs, const std::vector<std::uint32_t>& order);
  bool reaches(std::uint32_t node, std::uint32_t other) const;

 private:
  std::size_t words_;
  std::vector<std::uint64_t> bits_;
};

}  // namespace ae::engine
