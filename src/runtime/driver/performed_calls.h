// The calls of a driver, from the moment they are handed to their tools until their outcomes are
// durable.
//
// Threads: the loop's.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "engine/heart/ingest.h"
#include "log/outcome.h"
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

struct ObservedOutcome {
  std::shared_ptr<const PerformedCall> call;
  Outcome outcome;
};

// Outcomes that are not durable yet, in the order of their arrival. The first ones are recorded: in
// the drafts or in a commit in flight.
class ObservedOutcomes {
 public:
  bool empty() const { return outcomes_.empty(); }
  void push(ObservedOutcome&& observed) { outcomes_.push_back(std::move(observed)); }
  std::span<const ObservedOutcome> pending() const {
    return std::span(outcomes_).subspan(recorded_);
  }
  // The first pending one is recorded, or dropped.
  void on_recorded() { ++recorded_; }
  void drop() { outcomes_.erase(at(recorded_)); }
  void on_durable() {
    outcomes_.erase(outcomes_.begin(), at(recorded_));
    recorded_ = 0;
  }
  // The commit failed: all are pending again.
  void record_again() { recorded_ = 0; }
  std::vector<ObservedOutcome> take() {
    recorded_ = 0;
    return std::exchange(outcomes_, {});
  }

 private:
  std::vector<ObservedOutcome>::iterator at(std::size_t index) {
    return outcomes_.begin() + static_cast<std::ptrdiff_t>(index);
  }

  std::vector<ObservedOutcome> outcomes_;
  std::size_t recorded_ = 0;
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
