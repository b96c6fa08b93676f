// EventHasher: the hash of one event (SPEC §13), for writing and verifying sealed batches.
//
//   hash = SHA256("aetheris.event.v1" ‖ prev (32 bytes, zero at seq 1) ‖ f(job_id) ‖ f(seq) ‖
//          f(id) ‖ f(type) ‖ f(schema) ‖ f(created_at) ‖ f(attempt_id) ‖ f(payload'))
//
// f(x) is the 8-byte big-endian length of x, then x; a number is 8 bytes big-endian; an absent
// value has length 2^64−1 and no bytes. Stored: never changes. Threads: one user at a time.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

#include "base/byte_buffer.h"
#include "log/event.h"

namespace ae {

// Hashes the events of one batch, which share job, time and attempt. Reuses its buffers.
class EventHasher {
 public:
  EventHasher(const JobId& job, Instant created_at, const std::optional<AttemptId>& attempt);

  // Starts an event, whose type has this name; then append payload' to `text()`.
  void begin(const Event& event, std::string_view type);
  ByteBuffer& text() { return text_; }
  // The bytes appended since `begin`.
  std::string_view payload() const { return text_.view(payload_, text_.size()); }
  Hash finish();

 private:
  // All hashed bytes of the current event. Its head remains: domain ‖ prev ‖ f(job_id) ‖ f(seq) ‖
  // f(id).
  std::array<char, 2048> first_text_;
  ByteBuffer text_{first_text_};
  std::size_t head_size_ = 0;
  // What follows f(type): f(schema) ‖ f(created_at) ‖ f(attempt_id) ‖ length of payload'.
  std::array<char, 192> first_tail_;
  ByteBuffer tail_{first_tail_};
  std::size_t payload_ = 0;  // where payload' begins
};

// SHA256(salt ‖ canonical(value)): represents a value field in the chain.
Hash commitment(std::string_view salt_and_canonical_value);
// Appends {"$sha256":"…"}.
void write_commitment(const Hash& commitment, ByteBuffer& out);

}  // namespace ae
