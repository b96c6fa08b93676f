// left: what stays of a decision when its value is erased.
//
// A job that has ended is folded again and again: to show it, to prove it, to fork it. So the shape of what was decided stays
// (how many items a map had, which tools a model chose), and nothing that a person, a model or a tool said.
// Threads: pure functions. See docs/decisions/0072-blind-and-erasure.md.
#pragma once

#include <string_view>

#include "log/event.h"

namespace ae::engine {

// Why this value stays whole; "" = it can be erased.
std::string_view retention_reason(const Event& event, std::string_view field);

// What stays of this value; null = nothing need stay. `blinded`: the job has a blind, so that hashes in it confirm no guess.
// REQUIRES: it is there, and retention_reason says nothing.
Value retained_value(const Event& event, std::string_view field, bool blinded);

}  // namespace ae::engine
