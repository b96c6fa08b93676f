// PlanNodes: the nodes of an agent's plan as a graph: their ids, their `needs`, and the steps that
// they read. Reports cycles, and reads of steps that a node does not need.
//
// Used by agent_check.cc only. Threads: one owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "agents/check_context.h"
#include "plan/plan_graph.h"

namespace ae::agents {

class PlanNodes {
 public:
  // A read of `.steps.<step>` by a node, at `where`.
  struct Read {
    std::uint32_t node = 0, step = 0;
    SourceNode where;
  };

  explicit PlanNodes(CheckContext& check) : check_(check) {}

  // Adds the next node; reports an invalid id.
  void add(const SourceNode& source_node);
  // Adds the only node of a plan that the file does not list.
  void add_only(const SourceNode& source_node, std::string_view id);
  // Reads the `needs` of a node, and adds them to its members. REQUIRES: all nodes are added.
  void read_needs(std::uint32_t node, std::vector<Member>& members);
  void add_read(Read read) { reads_.push_back(std::move(read)); }
  // Reports cycles, and reads without `needs`. REQUIRES: all needs are read.
  void check();

  std::size_t size() const { return nodes_.size(); }
  const SourceNode& source_node(std::uint32_t node) const { return nodes_[node].source_node; }
  const std::string& id(std::uint32_t node) const { return nodes_[node].id; }
  std::optional<std::uint32_t> find(const std::string& id) const;
  // What to write instead of `.steps.STEP`; "" = no suggestion.
  std::string steps_hint(const std::string& step) const;

 private:
  struct PlanNode {
    SourceNode source_node;
    std::string id;
    bool has_unknown_needs = false;  // its needs have errors, so its readable steps are unknown
  };

  std::string nearest_node(std::string_view id) const;
  void report_unreachable_read(const Read& read);
  void check_reads_with_cycles();
  void report_cycle(std::vector<std::uint32_t> cycle);

  CheckContext& check_;
  std::vector<PlanNode> nodes_;
  std::unordered_map<std::string, std::uint32_t> by_id_;
  engine::Needs needs_;  // sorted
  std::vector<Read> reads_;
};

}  // namespace ae::agents
