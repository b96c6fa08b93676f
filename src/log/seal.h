// seal / open: the stored form of a commit, and the hash chain over it (SPEC §13).
//
// One commit of a job = one sealed batch of bytes: what its events share (first event id, time, attempt) stands
// once, payloads are packed by field number, values above a limit are kept apart by content hash. Drivers store
// these bytes and never look inside, so every store gives byte-equal logs. The trailer holds the hash of the last
// event; the hashes between are computed. Stored: this is a permanent format, version byte 1.
//
//   hash = SHA256("aetheris.event.v1" ‖ prev (32 bytes, zero at seq 1) ‖ f(job_id) ‖ f(seq) ‖ f(id) ‖ f(type) ‖
//          f(schema) ‖ f(created_at) ‖ f(attempt_id) ‖ f(payload'))       f(x) = 8-byte big-endian length ‖ bytes,
//   numbers as 8-byte big-endian, absent = length 2^64−1; id as its text, type as its name; payload' is the canonical
//   payload with every value field replaced by {"$sha256": hex SHA256(salt ‖ canonical(value))}.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "log/event.h"

namespace ae {

struct Blob {
  Hash hash;          // SHA256(bytes)
  std::string bytes;  // canonical JSON
};

struct SealInput {
  const JobId& job;
  std::uint64_t first_seq;
  const Hash& prev_hash;  // zero when first_seq is 1
  Uuid first_id;          // the ids are first_id, first_id+1, … (uuid_plus)
  Instant created_at;
  std::optional<AttemptId> attempt_id;
  std::uint64_t salt_seed_a,
      salt_seed_b;  // 128 bits of chance; the salts of the commit are derived from it by SHA-256
};

struct SealedBatch {
  std::string bytes;
  std::vector<Blob> blobs;  // values that stand apart; store them in the same commit
  std::uint64_t first_seq = 0, last_seq = 0;
  Instant created_at;         // of all its events
  Hash head;                  // hash of the last event
  std::vector<Event> events;  // the events as a reader will see them (hash and prev_hash filled in)
};

// Of one value, as canonical JSON (SPEC §14).
inline constexpr std::size_t kValueMax = 16u << 20;

struct SealLimits {
  std::size_t value_inline_max = 256u << 10;  // larger value fields stand apart, by hash
  std::size_t json_inline_max = 256;          // the same for `json` fields (plans): jobs share them
  std::size_t message_inline_max = 64;  // larger messages to a model stand apart: turns share them
  std::size_t value_max = kValueMax;
};

// REQUIRES: at least one event, none of an unknown type.
// Fails with payload_too_large.
Result<SealedBatch> seal(const SealInput& input, std::vector<EventBody> events,
                         const SealLimits& limits = {});

// The canonical text of a blob. Fails with log_corrupt when it is missing.
using BlobSource = std::function<Result<std::string>(const Hash&)>;

// The value whose canonical text has this hash, where the caller has it already: it need not be read again. nullptr:
// it has not. REQUIRES: sha256(canonical(value)) is the hash.
using ValueLookup = std::function<const Value*(const Hash&)>;

struct OpenedBatch {
  std::uint64_t first_seq = 0, last_seq = 0;
  Hash head;  // recomputed
  std::vector<Event> events;
};

// The verifier's half. `prev_hash` is the head before this batch. Fails with log_corrupt (naming the seq) when the
// bytes, a blob or the recomputed head differ from what was sealed, needs_version when a non-narrative type or a
// schema is newer than this program.
Result<OpenedBatch> open(const JobId& job, std::string_view bytes, const Hash& prev_hash,
                         const BlobSource& blobs, const ValueLookup& known = {});

// The same batch without the values that `drop` names: their content and salt go, their commitments stay, and with
// them the chain. Fields are named as in `Event::salts`; asked once for each value that is still there. A dropped
// value shows as {"$redacted": commitment}; the blob of a large one is the caller's to remove when nothing else
// names it. With a `drop` that is always false the answer equals `bytes`. Fails as `open` does.
using RedactFilter = std::function<bool(const Event&, std::string_view field)>;
// Of a decision that is dropped something may stay readable, as {"$redacted": commitment, "left": …}: an object, else nothing
// stays. It is no part of the chain.
using RetainFilter = std::function<Value(const Event&, std::string_view field)>;
Result<std::string> redact(const JobId& job, std::string_view bytes, const Hash& prev_hash,
                           const BlobSource& blobs, const RedactFilter& drop,
                           const RetainFilter& retained_value = {});

}  // namespace ae
