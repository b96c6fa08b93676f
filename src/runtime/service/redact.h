// redact: erases values of a job that has ended. The value and its salt are deleted; the commitment
// stays, and with it the chain. Copies in side records (effect records, checkpoint) and blobs that
// no other job references are deleted too.
//
// With any value the job's blind (base/ids.h) is erased, so that no hash in this job's log can
// confirm a guess of a value. A fork has the blind of its origin: the result lists each job that
// still has it, and everything else that is kept.
// A job that has not ended is refused, because it still uses its values.
// Threads: the loop's. See docs/decisions/0026-redaction-and-audit.md,
// docs/decisions/0072-blind-and-erasure.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "async/loop.h"
#include "base/error.h"
#include "base/ids.h"
#include "log/event.h"
#include "store/store.h"

namespace ae::runtime {

struct ValueName {
  std::uint64_t seq = 0;
  std::string field;  // as in `Event::salts`; "" = every value of the event
  friend auto operator<=>(const ValueName&, const ValueName&) = default;
};

struct RedactRequest {
  JobId job;
  std::vector<ValueName> values;
  bool all = false;         // every erasable value of the job
  bool keep_blind = false;  // keeps the job's blind, so that its hashes can still confirm a guess
  // Forks hold copies, or only the blind: `tree` redacts them too (requires `all`), `keep_forks`
  // leaves them. Without either the request is refused.
  bool tree = false, keep_forks = false;
  std::string by, reason;
};

// Something that stays readable.
struct RetainedValue {
  std::string what, where, why;
};

struct RedactResult {
  JobId job;
  std::vector<ValueName> erased;          // by this request
  std::vector<ValueName> already_erased;  // requested, but erased before
  std::vector<RetainedValue> retained;
  std::vector<RedactResult> forks;  // with `tree`; each fork precedes its origin
};

// The erased values of these events.
std::vector<ValueName> redacted_values(const std::vector<Event>& events);

// The redaction of each job is recorded in the audit log, in the same transaction. Fails with
// not_settled (the job or one of its forks has not ended) · input_invalid (no such value, or the
// job's course follows from it; there are forks, and neither `tree` nor `keep_forks` is set) ·
// not_found · log_corrupt · needs_version · unavailable · unknown_outcome.
void redact(store::Store& store, RedactRequest request, async::Done<Result<RedactResult>> done);

}  // namespace ae::runtime
