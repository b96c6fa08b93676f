// fork: a new job that begins where another one stood.
//
// What was done at that event is brought in: results, under the step ids they had. A step that was pending, in doubt,
// failed for good, or waiting is not: the fork does it itself, with ids and keys of its own. Nor is one whose effect the
// origin has undone, and none that needs such a one. A map or a loop that was not over, or failed, goes on with what was done of
// it: of a loop, its turns up to the first of which something is missing. The origin is only read, and may be gone tomorrow: the fork's log
// holds what it stands on. Threads: pure functions. See docs/decisions/0017-forks.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/state/state.h"
#include "log/event.h"

namespace ae::engine {

struct Fork {
  std::string agent, execution_version;
  Value input, labels;
  bool input_erased = false;  // from the origin's log
  std::string blind;          // the origin's
  bool blind_erased =
      false;  // the origin's was erased: the fork gets another, and compares no arguments
  std::int64_t priority = 0;
  std::string queue;  // "" = the default one
  std::vector<std::string> required_capabilities;
  std::shared_ptr<const Plan> plan;
  std::string planner_version;  // what wrote it; "" = the origin does not say
  Value forked_from;            // {job_id, seq, hash}
  Limits budget;                // that the origin had then
  Usage spent;  // of it by the origin, and so by the fork: it keeps what that paid for
  std::vector<EventBody> imported;  // fork_imported, one or more
  // What the origin did, or may have done, and the fork does again:
  // [{node_id, step_id, item, tool, effect_class, idempotency_key, external_key, seq, state: committed | in_doubt | undone}]
  std::vector<Value> effects;
};

// REQUIRES: `now` is the fold of `events`, the whole log. Fails with input_invalid: no such event, or one before there was a
// plan; a result that has been erased.
Result<Fork> fork_at(const State& now, const std::vector<Event>& events, std::uint64_t at,
                     const PlanSource& plans);

// Where a job that failed is tried again: its last event, at which every branch has all that it did. The nodes that failed
// are not brought in. Fails with input_invalid: it has not failed. See docs/decisions/0076-retry-at-the-last-event.md.
Result<std::uint64_t> retry_point(const State& now, const std::vector<Event>& events);

}  // namespace ae::engine
