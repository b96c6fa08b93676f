// Redact: drops values of a job that has ended. Value and salt go, the commitment stays, and with it the chain; so do the
// copies beside the log (effect records, checkpoint) and a value that stood apart and that nobody else names.
//
// A job that has not ended goes on with its values and is refused. A fork has copies of its own.
// Threads: the loop's. See docs/decisions/0026-redaction-and-audit.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/event.h"
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
  bool all = false;  // every value of the job
  std::string by, reason;
};

struct Redacted {
  std::vector<ValueName> dropped;  // now
  std::vector<ValueName> gone;     // those that were asked for and had been dropped before
};

// Values of these events that were dropped.
std::vector<ValueName> redacted_values(const std::vector<Event>& events);

// Written to the audit log in the same transaction. Fails with not_settled (the job has not ended) · input_invalid (no such
// value, or one that the job's course follows from) · not_found · log_corrupt · needs_version · unavailable · unknown_outcome.
void redact(store::Store& store, RedactRequest request, async::Done<Result<Redacted>> done);

}  // namespace ae::runtime
