// Checkpoints: a State as bytes, so that a long log need not be folded from its beginning.
//
//   fold(checkpoint + tail) == fold(whole), for every prefix
//
// A checkpoint names the event it covers, that event's hash, and the version of the fold that made
// it. It is used only if all three match. It proves nothing: `verify` never uses it to read the
// log, and compares it with the log. The version is a digest of the fold's source, so every change
// of that source invalidates earlier checkpoints; new ones are written as jobs run. Threads: pure
// functions. See docs/decisions/0013-checkpoints.md.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/hash.h"
#include "engine/state/state.h"

namespace ae::engine {

std::string_view fold_version();  // 16 hex digits

// REQUIRES: state.plan; `head` is the hash of event state.seq.
std::string checkpoint(const State& state, const Hash& head);

struct RestoredCheckpoint {
  State state;
  Hash head;
};
// Fails with needs_version (made by another fold) · log_corrupt (damaged, or
// of another job or event).
Result<RestoredCheckpoint> restore(const JobId& job, std::uint64_t seq, std::string_view bytes,
                                   const PlanSource& plans);

}  // namespace ae::engine
