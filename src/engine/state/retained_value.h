// retained_value: the part of a decision that remains when its value is erased.
//
// A job that has ended is still folded: to display it, to verify it, to fork it. So the structure
// of the decision remains (how many items a map had, which tools a model chose), but nothing that
// an approver, a model or a tool wrote. Threads: pure functions. See
// docs/decisions/0072-blind-and-erasure.md.
#pragma once

#include <string_view>

#include "log/event.h"

namespace ae::engine {

// Why this value is never erased; "" = it can be erased.
std::string_view retention_reason(const Event& event, std::string_view field);

// The part of this value that remains; null = none. `blinded`: the job has a blind, so the
// remaining hashes cannot confirm a guess. REQUIRES: the value exists, and retention_reason is "".
Value retained_value(const Event& event, std::string_view field, bool blinded);

}  // namespace ae::engine
