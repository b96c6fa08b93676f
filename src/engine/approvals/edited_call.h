// check_edited_call: would an approval with other arguments be accepted, and what do the policies
// decide about the call?
//
// The answer to an approval request uses it, and the preview of one, which records nothing.
// Decision: 0095-one-shape-of-requests.md. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/state/state.h"
#include "json/value.h"

namespace ae::engine {

// Why the arguments are refused.
struct ArgumentsFault {
  Error error;
  std::string path;  // JSON pointer into the arguments; "" = the whole
};

struct EditedCall {
  std::string arguments_hash;           // "" = they are not an object, or too large
  bool changed = false;                 // they differ from the requested ones
  std::vector<ArgumentsFault> faults;   // at most 16; empty = an approval with them is accepted
  std::optional<PolicyAction> verdict;  // nullopt = another fault precedes, or a condition failed
};

// REQUIRES: the step waits for an approval of its call.
EditedCall check_edited_call(const State& state, const Step& step, const Value& arguments);

}  // namespace ae::engine
