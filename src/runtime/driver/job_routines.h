// JobRoutines: the routines of one job in this process: starts them, gives them outcomes once these
// are durable, and keeps what they want for `decide`.
//
// Owned by the job's driver, which records the advances in their order, each after the ends of its
// functions. Threads: the loop's.
#pragma once

#include <cstdint>
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
#include "runtime/driver/performed_calls.h"
#include "runtime/world.h"

namespace ae::runtime {

class JobRoutines final : public routines::RoutineClient {
 public:
  struct Callbacks {
    // An advance, after the outcomes of its functions.
    std::function<void(ObservedAdvance)> on_advance;
    // The routine of this node was dropped: nothing that it did since the last recorded advance
    // counts.
    std::function<void(std::uint32_t node)> on_dropped;
    // A routine wants something else. It may be called while this object is used.
    std::function<void()> on_input;
    // No version of the code can be started; another one may be tried after this time.
    std::function<void(Duration)> on_version_wait;
  };
  JobRoutines(const World& world, Callbacks callbacks)
      : world_(world), callbacks_(std::move(callbacks)) {}

  // What the routines want, for DecisionContext::routines; valid until the next call.
  const engine::Routines& wanted(const engine::State& state);
  bool empty() const { return running_.empty(); }
  // Performs a call of the code's functions. `worker`: as its declaration names it. nullptr: the
  // routine of this node is not here, or runs in another worker.
  tools::Tool* functions_of(std::uint32_t node, const Boxed<engine::WorkerName>& worker) const;

  // Starts the routines of running code nodes that have none, and drops those of others. Gives
  // durable outcomes to the routines, and forgets requests that are in the log. REQUIRES: `durable`
  // holds only durable events. Fails with needs_version, unavailable: a routine cannot run here.
  Status on_durable(const JobId& job, const engine::State& durable);
  // A routine was lost: the job is to be released once no call is in flight.
  bool has_lost() const { return lost_.has_value(); }
  // The events of an advance: first the start of a new routine. Fails with payload_too_large,
  // input_invalid, tool_not_granted: the routine broke a rule, and nothing of the advance counts.
  Result<std::vector<EventBody>> events_of(const engine::State& state,
                                           const ObservedAdvance& observed) const;
  // The events of the advance are in `state`: what it requests is wanted from now on.
  void on_recorded(const engine::State& state, std::uint32_t node, routines::Advance& advance);
  // The success of this function, which its routine was given, is in the drafts.
  void on_recorded(const engine::Step& function);
  // Does its code not need the outcome of this call any more?
  bool has_cancelled(const engine::Step& step) const;
  // Another outcome of a call is recorded than the one that its routine was given.
  void drop(std::uint32_t node);
  void drop_all();
  // The routine broke a rule: it is dropped, and its code has ended with this exception.
  void fail_routine(std::uint32_t node, const Error& why);
  void clear();

  void on_advance(std::uint32_t node, routines::Advance advance) override;
  void on_diverged(std::uint32_t node, Divergence divergence) override;
  void on_lost(std::uint32_t node, Error why) override;
  void on_refused(std::uint32_t node, Error why) override;

 private:
  struct Running {
    std::unique_ptr<routines::Routine> routine;  // nullptr: it broke a rule
    std::string version;
    std::size_t requests = 0;  // of its record
    std::uint64_t given = 0;   // the outcomes of the log before this one were given, or are known
    std::set<StepId> given_early;  // successes that it was given before they were durable
    bool noted = false;            // its start is in an advance
    // Of its newest recorded advance:
    std::uint64_t delivered = 0;
    bool has_settled = false;
  };

  Status start_missing(const JobId& job, const engine::State& durable);
  void drop_replaced(const engine::State& durable);
  void give_outcomes(const engine::State& durable);
  void forget_admitted(const engine::State& durable);

  const World& world_;
  const Callbacks callbacks_;
  std::map<std::uint32_t, Running> running_;
  engine::Routines wanted_;
  std::optional<Error> lost_;  // a routine cannot go on in this process
};

}  // namespace ae::runtime
