// fork: a new job that starts at an event of another job, its origin.
//
// The results of steps that were done at that event are imported, under their step ids. Steps that
// were pending, waiting, of unknown outcome or permanently failed are not imported: the fork runs
// them itself, with its own ids and keys. Steps whose effect the origin has undone are not imported
// either, nor are steps that depend on one. A map or loop that was unfinished or failed continues
// with its finished parts: a loop with its turns before the first incomplete one. The origin is
// only read, and may be deleted later: the fork's log holds all that it needs. Threads: pure
// functions. See docs/decisions/0017-forks.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/state/state.h"
#include "log/event.h"
#include "log/records.h"

namespace ae::engine {

// What became of an effect that the origin caused or may have caused.
enum class EffectState : std::uint8_t { committed, in_doubt, undone };
constexpr std::string_view to_text(EffectState state) {
  switch (state) {
    case EffectState::committed:
      return "committed";
    case EffectState::in_doubt:
      return "in_doubt";
    case EffectState::undone:
      return "undone";
  }
  return {};
}

struct Fork {
  std::string agent, execution_version;
  Value input, labels;
  bool input_erased = false;  // from the origin's log
  std::string blind;          // of the origin
  // The origin's blind was erased: the fork gets a new one, and compares no arguments.
  bool blind_erased = false;
  std::int64_t priority = 0;
  std::string queue;  // "" = the default queue
  std::vector<std::string> required_capabilities;
  std::shared_ptr<const Plan> plan;
  std::string planner_version;  // the compiler of the plan; "" = unknown
  ForkOrigin forked_from;
  Limits budget;  // of the origin at that event
  // The origin's use of that budget, which counts for the fork too: it keeps the
  // results that were paid for.
  Usage spent;
  std::vector<EventBody> imported;  // fork_imported, one or more
  // Effects, certain or possible, that the origin caused and the fork will repeat:
  // [{node_id, step_id, item, tool, effect_class, idempotency_key, external_key, seq,
  //   state: EffectState}]
  std::vector<Value> effects;
};

// REQUIRES: `now` is the fold of `events`, the whole log. Fails with input_invalid: no such event,
// or one before the plan; a result that has been erased; unsupported: the plan has code.
Result<Fork> fork_at(const State& now, const std::vector<Event>& events, std::uint64_t at,
                     const PlanSource& plans);

// The event at which a failed job is retried: its last one, where every branch keeps all that it
// did. The failed nodes are not imported. Fails with input_invalid: the job has not failed;
// unsupported: the plan has code. See docs/decisions/0076-retry-at-the-last-event.md.
Result<std::uint64_t> retry_point(const State& now, const std::vector<Event>& events);

}  // namespace ae::engine
