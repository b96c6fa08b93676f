// Redact: drops values of a job that has ended. Value and salt go, the commitment stays, and with it the chain; so do the
// copies beside the log (effect records, checkpoint) and a value that stood apart and that nobody else names.
//
// With any value goes the job's blind (base/ids.h), so that no hash of a value confirms a guess with what this job's log holds.
// A fork has the blind of its origin: each job that still has it is listed, as is all else that stays.
// A job that has not ended goes on with its values and is refused.
// Threads: the loop's. See docs/decisions/0026-redaction-and-audit.md, docs/decisions/0072-blind-and-erasure.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "log/event.h"
#include "runtime/runtime.h"

namespace ae::runtime {

struct ValueName {
  std::uint64_t seq = 0;
  std::string field;  // as in `Event::salts`; "" = every value of the event
  friend auto operator<=>(const ValueName&, const ValueName&) = default;
};

struct RedactRequest {
  JobId job;
  std::vector<ValueName> values;
  bool all = false;  // every value of the job that may go
  bool keep_blind =
      false;  // the job's blind stays: its hashes can still be computed, and a guess be confirmed by them
  // Of forks, which hold copies, or only the blind: `tree` redacts them too (with `all`), `keep_forks` leaves them. Else the
  // request is refused.
  bool tree = false, keep_forks = false;
  std::string by, reason;
};

// Something that stays readable.
struct RetainedValue {
  std::string what, where, why;
};

struct RedactResult {
  JobId job;
  std::vector<ValueName> dropped;  // now
  std::vector<ValueName> gone;     // those that were asked for and had been dropped before
  std::vector<RetainedValue> kept;
  std::vector<RedactResult> forks;  // with `tree`, each before what it was forked from
};

// Values of these events that were dropped.
std::vector<ValueName> redacted_values(const std::vector<Event>& events);

// Each job's is written to the audit log in the same transaction. Fails with not_settled (the job, or one of its forks, has
// not ended) · input_invalid (no such value, or one that the job's course follows from; forks, and neither `tree` nor
// `keep_forks`) · not_found · log_corrupt · needs_version · unavailable · unknown_outcome.
void redact(store::Store& store, RedactRequest request, async::Done<Result<RedactResult>> done);

}  // namespace ae::runtime
