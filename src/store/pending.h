// PendingKinds: the kinds of requests to an operator that a job has open, as a set of bits in its
// row. Lists of requests read only the jobs that have one.
//
// A set can contain a kind of which nothing is open any more, never less than what is open: the log
// decides.
// Threads: constants.
#pragma once

#include <cstdint>

namespace ae::store {

using PendingKinds = std::uint32_t;

namespace pending {
inline constexpr PendingKinds call = 1;              // approval of a call
inline constexpr PendingKinds wait = 2;              // a human wait
inline constexpr PendingKinds question = 4;          // of a tool, in the middle of its call
inline constexpr PendingKinds confirmation = 8;      // a recorded change is not there any more
inline constexpr PendingKinds unknown_outcome = 16;  // a call may have taken effect
inline constexpr PendingKinds budget = 32;           // used up
inline constexpr PendingKinds all = 63;
// The row was written before there were sets: any kind may be open.
inline constexpr PendingKinds not_computed = 64;
}  // namespace pending

}  // namespace ae::store
