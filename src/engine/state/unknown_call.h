// UnknownCall: a call whose outcome is unknown, as operators see it, and an outcome that is noted
// for such a call after the job continued without it.
//
// Threads: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/ids.h"
#include "base/time.h"
#include "engine/state/number_set.h"
#include "engine/state/step.h"
#include "json/value.h"

namespace ae::engine {

// An outcome noted later for a call that was given up or whose job has ended.
struct NotedOutcome {
  std::string resolution, by;  // happened | not_happened
  Instant at;
  Value result, note;  // null = none was given
};

// A call whose outcome is unknown or is being probed: what an operator needs
// to check and to name it.
struct UnknownCall {
  StepId step;
  std::string node_id, tool;
  std::uint32_t item = kNoItem;
  InvocationId invocation;
  IdempotencyKey key;
  ExternalKey external_key;   // "" = the arguments could not be evaluated
  std::uint32_t try_no = 0;   // the newest try; 0 = none
  NumberSet uncertain_tries;  // tries that ended without a certain result
  Failure error;
  Value arguments;
  std::optional<Instant> ended_at;  // of the newest try
  // The time from which a check shows what the newest try did; nullopt = at any time.
  std::optional<Instant> checkable_at;
  StepId compensates;     // "" = it is no compensation
  bool given_up = false;  // the job continued without its outcome
};

}  // namespace ae::engine
