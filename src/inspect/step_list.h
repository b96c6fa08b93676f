// StepIndex: where the events of each step are, and what a list of steps shows of them. Lists of
// steps, one by one parent: a job of 100,000 events costs what one of 100 events costs.
//
//  list_steps: {parent, seq, total, by_status{STATUS: n}, steps: [row…], next}
//    total, by_status: of all steps of the parent; steps: those that match, in the order of the
//    plan, the items, the turns or the calls, then probes and the compensation
//    next: step_id of the last row, or null if it is the last page
//  row: {badges[], children{by_status, total}, duration_us, error{code}, finished_at, item, kind,
//    node_id, parent, path, phase, role, seq_first, seq_last, started_at, status, step_id, tool,
//    tries, turn, turn_call, usage{cost_micros, total_tokens}, world}
//    badges: imported, replayed, caught_up, late, compensated
//    status, phase, role, world: as in inspect/trace.h. parent: step_id, or null for a node
//    seq_first, seq_last: of its own events; null before the first one
//
// The index holds no value of the log that can be erased.
// Threads: a value; functions are pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "base/time.h"
#include "engine/state/state.h"
#include "inspect/step_tree.h"
#include "inspect/timeline.h"
#include "json/value.h"
#include "log/event.h"

namespace ae::engine {

struct IndexedStep {
  std::vector<std::uint64_t> seqs;  // of its events, ascending
  std::optional<Instant> started_at, finished_at;
  std::uint64_t first_try_seq = 0;  // of its first tool_invocation_started; 0 = none
  std::uint64_t finished_seq = 0;
  std::vector<TryOutcome> tries;
  std::uint64_t total_tokens = 0;
  std::optional<std::uint64_t> cost_micros;
  bool caught_up = false, late = false;
};

class StepIndex {
 public:
  // REQUIRES: called for all earlier events of the log, in order.
  void add(const Event& event);
  // nullptr: the step has no events.
  const IndexedStep* find(const StepId& step) const;
  // The events with which the attempts began, and the last of them; 0 = none yet.
  const std::vector<std::uint64_t>& attempts() const { return attempts_; }
  std::uint64_t attempt_from() const { return attempts_.empty() ? 0 : attempts_.back(); }
  // The events that record the imports of a fork.
  const std::vector<std::uint64_t>& imports() const { return imports_; }
  const Timeline& timeline() const { return timeline_; }
  std::size_t bytes() const { return bytes_; }  // approximate size

 private:
  IndexedStep& at(std::string_view step);
  void add_seq(std::string_view step, std::uint64_t seq);
  static void add_resolution(IndexedStep& step, std::string_view resolution, bool is_note);

  std::unordered_map<std::string, IndexedStep> steps_;
  std::unordered_map<std::string, std::string> turns_;  // step of a model call, by invocation
  std::vector<std::uint64_t> imports_, attempts_;
  Timeline timeline_;
  std::size_t bytes_ = 0;
};

struct StepQuery {
  std::string parent;               // step_id; "" = the nodes of the plan
  std::set<std::string> statuses;   // empty = all
  std::string after;                // step_id of the last row of the page before; "" = first page
  std::uint64_t changed_since = 0;  // only steps with a later event, also of their parts
  std::size_t limit = 100;
};
// Fails with not_found: the current plan has no step `parent` or `after`.
Result<Value> list_steps(const State& state, const StepIndex& index, const StepQuery& query);

// The step with this id in the current plan. Fails with not_found.
Result<const Step*> find_step(const State& state, std::string_view id);
// The seqs of the events that step_trace_view (inspect/trace.h) needs, ascending.
std::vector<std::uint64_t> seqs_of(const StepTree& tree, const StepIndex& index, const Step& step);
// The external effect of the step and its parts.
ExternalEffect world_of(const State& state, const StepIndex& index, const StepTree& tree,
                        const Step& step);

}  // namespace ae::engine
