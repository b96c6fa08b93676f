// JobRoutines: the routines of one job in this process: starts them, gives them outcomes once these
// are durable, and keeps what they want for `decide`.
//
// Owned by the job's driver. Threads: the loop's.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/code/code.h"
#include "engine/heart/routine.h"
#include "engine/state/state.h"
#include "routines/routine.h"

namespace ae::runtime {

class JobRoutines final : public routines::RoutineClient {
 public:
  // `on_input`: a routine wants something new. It may be called while this object is used.
  JobRoutines(routines::RoutineProvider* provider, std::function<void()> on_input)
      : provider_(provider), on_input_(std::move(on_input)) {}

  // What the routines want, for DecisionContext::routines.
  const engine::Routines& wanted() const { return wanted_; }
  bool empty() const { return running_.empty(); }
  bool has_input() const { return recorded_ < advances_.size(); }
  // Performs the calls of the code's functions. nullptr: no routine of this node is here.
  tools::Tool* functions_of(std::uint32_t node) const;

  // Starts the routines of running code nodes that have none, and drops those of others. Gives
  // durable outcomes to the routines, and forgets requests that are in the log. REQUIRES: `durable`
  // holds only durable events. Fails with needs_version, unavailable: a routine cannot run here.
  Status on_durable(const JobId& job, const engine::State& durable);
  // The events of the advances that are not recorded yet: first the start of a new routine. Fails
  // with payload_too_large, input_invalid: the routine of `node` broke a rule, and is dropped.
  Result<std::vector<EventBody>> take_events(const engine::State& state);
  // The success of a function, which its routine was given, is in the drafts.
  void on_recorded(const engine::Step& step);
  // The success of a function is not recorded, because another outcome of the call is: the routine
  // took a path that the log does not hold.
  void drop(std::uint32_t node);
  // The drafts were not committed.
  void record_again() { recorded_ = 0; }
  void clear();

  void on_advance(std::uint32_t node, routines::Advance advance) override;
  void on_diverged(std::uint32_t node, Divergence divergence) override;
  void on_lost(std::uint32_t node, Error why) override;

 private:
  struct Running {
    std::unique_ptr<routines::Routine> routine;
    std::size_t given = 0;  // the outcomes of the log before this one were given, or are known
    std::set<StepId> given_early;  // successes that it was given before they were durable
    bool noted = false;            // its start is in an advance
  };
  struct Pending {
    std::uint32_t node;
    engine::Advance recorded;
    bool starts = false;  // the first one of its routine
  };

  Status start_missing(const JobId& job, const engine::State& durable);
  void give_outcomes(const engine::State& durable);
  void forget_admitted(const engine::State& durable);

  routines::RoutineProvider* const provider_;
  const std::function<void()> on_input_;
  std::map<std::uint32_t, Running> running_;
  engine::Routines wanted_;
  std::deque<Pending> advances_;  // not durable; the first `recorded_` are in the drafts
  std::size_t recorded_ = 0;
  std::optional<Error> lost_;  // a routine cannot go on in this process
};

}  // namespace ae::runtime
