// seal / open: the stored form of a commit, and the hash chain over it (SPEC §13).
//
// One commit of a job = one sealed batch of bytes: common data of its events (first event id, time,
// attempt) is stored once, payloads are packed by field number, values above a limit are blobs.
// Drivers store these bytes and do not interpret them, so logs are byte-equal in all stores. The
// trailer is the hash of the last event; the other hashes are computed. Stored: this is a permanent
// format, version byte 1.
//
//   hash = SHA256("aetheris.event.v1" ‖ prev (32 bytes, zero at seq 1) ‖ f(job_id) ‖ f(seq) ‖
//          f(id) ‖ f(type) ‖ f(schema) ‖ f(created_at) ‖ f(attempt_id) ‖ f(payload'))
//   f(x) = 8-byte big-endian length ‖ bytes, numbers as 8-byte big-endian, absent = length 2^64−1;
//   id as its text, type as its name; payload' is the canonical payload with every value field
//   replaced by {"$sha256": hex SHA256(salt ‖ canonical(value))}.
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

// A json field whose canonical text is known, as that of a plan, which jobs share. Borrows.
// REQUIRES: text is canonical(value), hash is SHA256(text).
struct KnownText {
  const Value* value = nullptr;  // nullptr = none is known
  std::string_view text;
  Hash hash;
};

struct SealInput {
  const JobId& job;
  std::uint64_t first_seq;
  Hash prev_hash;  // zero if first_seq is 1
  Uuid first_id;   // the ids are first_id, first_id+1, … (uuid_plus)
  Instant created_at;
  std::optional<AttemptId> attempt_id;
  std::uint64_t salt_seed_a,
      salt_seed_b;  // 128 random bits; the commit's salts are derived from them by SHA-256
  KnownText known = {};
};

struct SealedBatch {
  std::string bytes;
  std::vector<Blob> blobs;  // to be stored in the same commit
  std::uint64_t first_seq = 0, last_seq = 0;
  Instant created_at;         // of all its events
  Hash head;                  // hash of the last event
  std::vector<Event> events;  // as a reader will see them (with hash and prev_hash)
};

// Limit of one value, in bytes of canonical JSON (SPEC §14).
inline constexpr std::size_t kValueMax = 16u << 20;

struct SealLimits {
  std::size_t value_inline_max = 256u << 10;  // larger value fields are blobs
  std::size_t json_inline_max = 256;    // the same for `json` fields (plans), which jobs share
  std::size_t message_inline_max = 64;  // larger messages to a model are blobs, which turns share
  std::size_t value_max = kValueMax;
};

// Sets the members of the events except their bodies.
// REQUIRES: at least one event, none of an unknown type.
// Fails with payload_too_large.
Result<SealedBatch> seal(const SealInput& input, std::vector<Event> events,
                         const SealLimits& limits = {});
Result<SealedBatch> seal(const SealInput& input, std::vector<EventBody> bodies,
                         const SealLimits& limits = {});

// The canonical text of a blob. Fails with log_corrupt if it is missing.
using BlobSource = std::function<Result<std::string>(const Hash&)>;

// A cache of parsed blobs: the value whose canonical text has this hash; nullptr: not cached.
// REQUIRES: sha256(canonical(value)) is the hash.
using ValueLookup = std::function<const Value*(const Hash&)>;

struct OpenedBatch {
  std::uint64_t first_seq = 0, last_seq = 0;
  Hash head;  // recomputed
  std::vector<Event> events;
};

// Decodes and verifies a batch. `prev_hash` is the head before it. Fails with log_corrupt (naming
// the seq) if the bytes, a blob or the recomputed head differ from what was sealed; needs_version
// if a non-narrative type or a schema is newer than this program.
Result<OpenedBatch> open(const JobId& job, std::string_view bytes, const Hash& prev_hash,
                         const BlobSource& blobs, const ValueLookup& lookup = {});

// The hash of the last event of a batch, from its trailer, without verifying the batch. Fails with
// log_corrupt: the bytes are too short.
Result<Hash> head_of(std::string_view bytes);

// The same batch without the values that `drop` selects: content and salt are removed, commitments
// remain, so the chain stays valid. Fields are named as in `Event::salts`; `drop` is called once
// per value that is not erased yet. An erased value reads as {"$redacted": commitment}; the caller
// deletes the blob of a large value if it has no other reference. If `drop` is always false, the
// result equals `bytes`. Fails as `open` does.
using RedactFilter = std::function<bool(const Event&, std::string_view field)>;
// The part of an erased decision to retain, as {"$redacted": commitment, "left": …}; must be an
// object, else nothing is retained. It is not part of the chain.
using RetainFilter = std::function<Value(const Event&, std::string_view field)>;
Result<std::string> redact(const JobId& job, std::string_view bytes, const Hash& prev_hash,
                           const BlobSource& blobs, const RedactFilter& drop,
                           const RetainFilter& retained_value = {});

}  // namespace ae
