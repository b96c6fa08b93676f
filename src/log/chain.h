// The hash of one event (SPEC §13), for the writer and the verifier of sealed batches.
//
//   hash = SHA256("aetheris.event.v1" ‖ prev (32 bytes, zero at seq 1) ‖ f(job_id) ‖ f(seq) ‖ f(id) ‖ f(type) ‖
//          f(schema) ‖ f(created_at) ‖ f(attempt_id) ‖ f(payload'))
//
// f(x) is the 8-byte big-endian length of x, then x; a number is 8 bytes big-endian; what is absent has length 2^64−1
// and no bytes. Stored: never changes. Threads: one user at a time.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "log/event.h"

namespace ae {

// Hashes the events of one batch, which share job, time and attempt. Keeps its buffer from one event to the next.
class EventHasher {
 public:
  EventHasher(const JobId& job, Instant created_at, const std::optional<AttemptId>& attempt);

  // Starts an event; afterwards append payload' to `text()`, from its present end on.
  void begin(const Event& event);
  std::string& text() { return text_; }
  // What was appended since `begin`.
  std::string_view payload() const { return std::string_view(text_).substr(payload_); }
  Hash finish();

 private:
  std::string job_;   // f(job_id)
  std::string tail_;  // f(created_at) ‖ f(attempt_id)
  std::string text_;  // all that is hashed of the event at hand
  std::size_t payload_ = 0;
};

// SHA256(salt ‖ canonical(value)): what stands in the chain for a value field.
Hash commitment(std::string_view salt_and_canonical_value);
// Appends {"$sha256":"…"}.
void write_commitment(const Hash& commitment, std::string& out);

}  // namespace ae
