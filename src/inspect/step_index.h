// StepIndex: where the events of each step are, and what lists show of a step that its state does
// not have: when it ran and how its tries ended.
//
// It is built with one walk through a log of a million events, so an event costs one search in a
// table of numbers, and no text. It holds no value of the log that can be erased.
// Threads: a value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "inspect/step_tree.h"
#include "inspect/timeline.h"
#include "log/event.h"

namespace ae::engine {

struct IndexedStep {
  StepId id;
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
  // nullptr: the step has no events. Valid until the next `add`.
  const IndexedStep* find(const StepId& step) const;
  // The events with which the attempts began, and the last of them; 0 = none yet.
  const std::vector<std::uint64_t>& attempts() const { return attempts_; }
  std::uint64_t attempt_from() const { return attempts_.empty() ? 0 : attempts_.back(); }
  // The events that record the imports of a fork.
  const std::vector<std::uint64_t>& imports() const { return imports_; }
  const Timeline& timeline() const { return timeline_; }
  std::size_t bytes() const { return bytes_; }  // approximate size

 private:
  static constexpr std::uint32_t kFree = 0xffffffff;
  // The slot of this id, or the free one where it belongs. REQUIRES: there are slots.
  std::size_t slot_of(const StepId& id) const;
  IndexedStep& at(const StepId& id);
  void grow();
  void add_seq(IndexedStep& step, std::uint64_t seq);
  void add_tool_event(IndexedStep& step, const Event& event);

  std::vector<IndexedStep> steps_;                  // by their first event
  std::vector<std::uint32_t> slots_;                // a power of two of indexes into steps_
  std::unordered_map<InvocationId, StepId> turns_;  // the step of a model call
  std::vector<std::uint64_t> imports_, attempts_;
  Timeline timeline_;
  std::size_t bytes_ = 0;
};

}  // namespace ae::engine
