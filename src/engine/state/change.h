// Change: the last change that a job made to an external resource, and its newest verification.
//
// Only `apply` changes it. Threads: a value; one owner.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/ids.h"

namespace ae::engine {

// A verification that found a resource changed, or that could not be made.
struct Deviation {
  std::string verdict;   // mismatch | unreachable
  std::string observed;  // of a mismatch
};

// The last change by this job of an external resource, and its newest verification
// (engine/confirm/confirm.h).
struct Change {
  std::string resource_type, resource_id, operation;
  std::string version, etag, external_ref;  // "" = not recorded
  std::string tool;
  std::uint32_t step = 0;
  std::uint64_t seq = 0;               // of its state_changed
  AttemptId attempt;                   // made the call
  std::string verdict;                 // of the newest verification; "" = none yet
  std::optional<Deviation> escalated;  // an operator is asked
  std::optional<Deviation> accepted;   // an operator accepted it
};

}  // namespace ae::engine
