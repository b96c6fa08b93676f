// absorb and take_in: what came from the world becomes events.
//
//   absorb(state, step, outcome)   a performer's observation of the open try of a step
//   take_in(state, act)            what somebody outside wants: a signal, a cancel, a resolution, due timers
//
// Both only translate; what follows from the events is decided by `decide`. Acts travel as canonical JSON through the
// inbox when somebody holds the job, and are taken in directly when nobody does (SPEC §10). Pure.
#pragma once

#include <string>
#include <vector>

#include "core/event.h"
#include "core/outcome.h"
#include "engine/decide.h"
#include "engine/state.h"

namespace ae::engine {

// REQUIRES: the step's newest try is open and is `try_no`.
std::vector<EventDraft> absorb(const State& state, std::uint32_t step, const Outcome& outcome,
                               bool caught_up = false);
// The effect record of SPEC §5, for the effect store.
Value effect_record(const State& state, const Step& step, const Outcome& outcome, Instant at);
// And back: what a record says was seen.
Result<Outcome> outcome_of_record(const Value& record);

struct Act {
  enum class Kind : std::uint8_t { signal, cancel, resolve, timers };
  Kind kind = Kind::timers;
  std::string id;  // of the writer; repeated acts with one id are one
  std::string by;  // who
  // signal
  std::string correlation_key, wait_type;
  Value payload;
  // cancel; note of resolve
  std::string reason;
  // resolve
  std::string
      idempotency_key;  // or the start of it (at least 8 digits), when only one call in doubt matches
  std::string resolution;  // happened | not_happened | fail
  std::optional<Value> result;

  Value to_json() const;
  static Result<Act> from_json(const Value& json);
};

struct Taken {
  std::vector<EventDraft> events;  // empty: nothing to write
  Value answer;                    // for the asker, e.g. {"delivered": true}
};
// Fails with wait_mismatch, not_in_doubt, not_settled, input_invalid, job_terminal; nothing is to be written then.
// `settled`: the in-doubt try can no longer be under way whatever the clock says (its process is gone).
Result<Taken> take_in(const State& state, const Act& act, const Stamp& stamp, bool settled);

}  // namespace ae::engine
