// The parts of the server's messages that hold what is recorded (docs/worker-protocol.md).
//
// Threads: pure functions.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/time.h"
#include "engine/code/code.h"
#include "json/value.h"

namespace ae::routines {

inline constexpr std::size_t kPartMax = 1u << 20;  // bytes of a part, unless one outcome is larger

inline std::int64_t milliseconds(Duration duration) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
}

// {position, kind, result | failure, timed_out?, rejected?, erased?}, or {passed_over}
Value outcome_value(const engine::Delivery& outcome);
// Outcomes in parts, for `deliver`.
std::vector<std::vector<Value>> outcome_parts(const std::vector<engine::Delivery>& outcomes);

// The record, in parts for `start` and `record`; at least one. All values and counts of emitted
// values are in the first part, because a routine does not wait for them. Each outcome follows the
// requests that must be made before it is delivered.
std::vector<Value> record_parts(const engine::CodeRecord& record);

}  // namespace ae::routines
