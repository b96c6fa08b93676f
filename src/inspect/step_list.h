// Lists of steps, one by one parent. With a tree and an index that are kept, a page costs its rows,
// and a look at the status of each step of its parent.
//
//  list_steps: {parent, seq, total, by_status{STATUS: n}, steps: [row…], next}
//    total, by_status: of all steps of the parent; steps: those that match, in the order of the
//    plan, the items, the turns, the calls or the requests, then probes and the compensation
//    next: step_id of the last row, or null if it is the last page
//  row: {badges[], children{by_status, total}, code, delivered, duration_us, error{code},
//    finished_at, item, kind, node_id, parent, path, phase, position, role, seq_first, seq_last,
//    started_at, status, step_id, tool, tries, turn, turn_call, usage{cost_micros, total_tokens},
//    world}
//    badges: imported, replayed, caught_up, late, compensated
//    code, delivered, phase, position, role, status, world: as in inspect/trace.h
//    parent: step_id, or null for a node
//    seq_first, seq_last: of its own events; null before the first one
//
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "engine/state/state.h"
#include "inspect/step_index.h"
#include "inspect/step_tree.h"
#include "json/value.h"

namespace ae::engine {

struct StepQuery {
  std::string parent;                           // step_id; "" = the nodes of the plan
  std::set<std::string, std::less<>> statuses;  // empty = all
  std::string after;                // step_id of the last row of the page before; "" = first page
  std::uint64_t changed_since = 0;  // only steps with a later event, also of their parts
  std::size_t limit = 100;
};
// Fails with not_found: the current plan has no step `parent` or `after`.
Result<Value> list_steps(const StepTree& tree, const StepIndex& index, const StepQuery& query);

// The step with this id in the current plan. Fails with not_found.
Result<const Step*> find_step(const State& state, std::string_view id);
// The seqs of the events that step_trace_view (inspect/trace.h) needs, ascending.
std::vector<std::uint64_t> seqs_of(const StepTree& tree, const StepIndex& index, const Step& step);
// The external effect of the step and its parts.
ExternalEffect world_of(const StepTree& tree, const StepIndex& index, const Step& step);

}  // namespace ae::engine
