// IndexedState: the state of a job after an event, with the index and the tree of its steps. Pages
// about steps are read from one that is kept (runtime/service/history.h): they cost their rows.
//
// Threads: one owner while it grows; then any number of readers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "base/hash.h"
#include "base/ids.h"
#include "engine/state/state.h"
#include "inspect/step_index.h"
#include "inspect/step_tree.h"
#include "log/event.h"
#include "plan/plan.h"

namespace ae::engine {

class IndexedState {
 public:
  explicit IndexedState(const JobId& job) {
    state_.job = job;
    state_.keeps_folded = true;
  }
  IndexedState(const IndexedState&) = delete;  // the tree has pointers into the state
  IndexedState& operator=(const IndexedState&) = delete;

  // The next events of the log. Fails as `apply`; it is then unusable.
  Status add(std::span<const Event> events, const PlanSource& plans);

  const State& state() const { return state_; }
  const StepIndex& index() const { return index_; }
  const StepTree& tree() const { return tree_; }
  const Hash& head() const { return head_; }                           // of event state().seq
  std::size_t bytes() const { return state_bytes_ + index_.bytes(); }  // approximate size

 private:
  State state_;
  StepIndex index_;
  StepTree tree_{state_};
  Hash head_;
  std::size_t state_bytes_ = 0;
  std::uint64_t measured_seq_ = 0;  // the last event before state_bytes_ was computed
};

// The memory that a state uses, roughly. Values that steps share count at each step.
std::size_t approximate_bytes(const State& state);

}  // namespace ae::engine
