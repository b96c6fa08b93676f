// The calls of a driver, from the moment they are handed to their tools until their outcomes are
// durable, and the advances of its routines until they are.
//
// Threads: the loop's.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "engine/heart/ingest.h"
#include "log/outcome.h"
#include "routines/routine.h"
#include "tools/tool.h"

namespace ae::runtime {

class JobDriver;
class JobDriverHost;

// Shared by the callbacks of the call, which may outlive the driver.
struct PerformedCall {
  std::weak_ptr<JobDriver> driver;
  std::weak_ptr<JobDriverHost*> host;
  JobId job;
  engine::SentTry sent;
  std::string traceparent, tracestate;  // of the request that created the job
};

// What a tool notes about its call while that is in flight.
struct InFlightNote {
  InvocationId invocation;
  std::uint32_t try_no;
  Value note;
  async::Done<Status> on_written;
};

struct ObservedOutcome {
  std::shared_ptr<const PerformedCall> call;
  Outcome outcome;
};

// What the routine of a code node did between two deliveries (routines/routine.h), without the ends
// of its functions: they come before it.
struct ObservedAdvance {
  std::uint32_t node;
  bool starts = false;  // the first one of its routine
  routines::Advance advance;
};

// What is not durable yet, in the order of its arrival: first what is recorded, in the drafts or in a
// commit in flight; the rest is pending.
class Observations {
 public:
  using Entry = std::variant<ObservedOutcome, ObservedAdvance>;

  void push(Entry&& observed) { pending_.push_back(std::move(observed)); }
  bool has_pending() const { return !pending_.empty(); }
  // REQUIRES: has_pending().
  Entry take_next() {
    Entry next = std::move(pending_.front());
    pending_.pop_front();
    return next;
  }
  // It is recorded; it comes back if the commit fails.
  void add_recorded(Entry&& observed) { recorded_.push_back(std::move(observed)); }

  // Is there a pending outcome of a call that `matches`?
  template <class Matches>
  bool has_pending_outcome(Matches matches) const {
    return std::ranges::any_of(pending_, [&](const Entry& entry) {
      const auto* const outcome = std::get_if<ObservedOutcome>(&entry);
      return outcome != nullptr && matches(*outcome);
    });
  }
  bool has_outcome() const {
    const auto is_outcome = [](const Entry& entry) {
      return std::holds_alternative<ObservedOutcome>(entry);
    };
    return std::ranges::any_of(recorded_, is_outcome) || std::ranges::any_of(pending_, is_outcome);
  }
  // The routine of this code node is gone: its pending advances are dropped, and successes that it
  // was given are recorded like others. `is_its`: is this an outcome of one of its functions?
  template <class IsIts>
  void drop_routine(std::uint32_t node, IsIts is_its) {
    std::erase_if(pending_, [&](Entry& entry) {
      if (const auto* const advance = std::get_if<ObservedAdvance>(&entry)) {
        return advance->node == node;
      }
      auto& outcome = std::get<ObservedOutcome>(entry);
      if (is_its(outcome)) outcome.outcome.delivered.reset();
      return false;
    });
  }
  void on_durable() { recorded_.clear(); }
  // The commit failed: all are pending again.
  void record_again() {
    pending_.insert(pending_.begin(), std::make_move_iterator(recorded_.begin()),
                    std::make_move_iterator(recorded_.end()));
    recorded_.clear();
  }
  std::deque<Entry> take() {
    record_again();
    return std::exchange(pending_, {});
  }

 private:
  std::vector<Entry> recorded_;
  std::deque<Entry> pending_;
};

// Calls without an observed outcome, at most one for each step. A list: they are few.
class InFlightCalls {
 public:
  struct Call {
    StepId step;
    tools::Tool* tool;
    InvocationId invocation;
    std::uint32_t try_no;
    Instant sent;
  };

  bool empty() const { return calls_.empty(); }
  const std::vector<Call>& list() const { return calls_; }
  const Call* find(const StepId& step) const {
    const auto found = std::ranges::find(calls_, step, &Call::step);
    return found == calls_.end() ? nullptr : &*found;
  }
  // Replaces an earlier try.
  void put(Call&& call) {
    erase(call.step);
    calls_.push_back(std::move(call));
  }
  void erase(const StepId& step) {
    std::erase_if(calls_, [&](const Call& call) { return call.step == step; });
  }

 private:
  std::vector<Call> calls_;
};

}  // namespace ae::runtime
