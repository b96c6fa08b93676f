// Ids (SPEC §3): each kind of id is a separate type, and all ids are made here.
// Ids are hashed as lower-case text. Threads: values, pure functions.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/hash.h"
#include "base/inline_text.h"

namespace ae {

// `Size` is the length of most ids of its kind, which then need no allocation. An id of another
// length is kept as it is: logs and stores may hold any text.
template <class Tag, std::size_t Size>
struct Id {
  InlineText<Size> text;
  Id() = default;
  explicit Id(std::string_view t) : text(t) {}
  bool empty() const noexcept { return text.empty(); }
  friend auto operator<=>(const Id&, const Id&) = default;
};

using JobId = Id<struct JobTag, 36>;  // [A-Za-z0-9._:-]{1,64}; a UUID, unless the creator names it
using StepId = Id<struct StepTag, 16>;  // 16 hex digits; a command_id is the step_id of its command
using InvocationId = Id<struct InvocationTag, 16>;  // 16 hex digits
// Of each call there are many copies of these two, which share their text.
using IdempotencyKey = Id<struct IdempotencyTag, 8>;  // 64 hex digits
using ExternalKey = Id<struct ExternalTag, 8>;        // aetheris:<job>:<step>:<0 or 16 hex digits>
using AttemptId = Id<struct AttemptTag, 36>;          // UUID text
using DecisionId = Id<struct DecisionTag, 16>;        // 16 hex digits

struct Uuid {
  std::array<std::uint8_t, 16> bytes{};
  friend auto operator<=>(const Uuid&, const Uuid&) = default;
};
inline constexpr std::size_t kUuidTextSize = 36;
std::string to_text(const Uuid& uuid);
void append_text(const Uuid& uuid, std::string& out);
std::optional<Uuid> uuid_from_text(std::string_view text);  // lower case, with dashes
// UUIDv7 of a millisecond count since 1970 and 74 random bits.
Uuid uuid_v7(std::uint64_t unix_ms, std::uint64_t random_a, std::uint64_t random_b);
// The n-th id after `base`: increments the low 62 bits (RFC 9562 §6.2, method 2). The event ids of
// one commit are base, base+1, …: only the base is stored.
Uuid uuid_plus(const Uuid& base, std::uint64_t n);

Result<JobId> job_id_from_text(std::string_view text);  // Fails with input_invalid
// UUIDv8 of SHA256(parent ␀ command ␀ "child"): creating a child job twice gives the same id.
JobId child_job_id(const JobId& parent, const StepId& command);

// The first 16 hex digits of the plan's hash.
DecisionId decision_id(const Hash& plan_hash);

// First 16 hex digits of SHA256(job ␀ decision ␀ path ␀ node_type);
// node_type ∈ tool llm wait map job loop code planner.
StepId step_id(const JobId& job, const DecisionId& decision, std::string_view path,
               std::string_view node_type);
// A model is called as a tool with this prefix; tools of an agents file cannot have such a name.
constexpr std::string_view kModelToolPrefix = "model:";
std::string model_tool_name(std::string_view model);
// SHA256(text); in a job with a blind, SHA256("aetheris.blind.v1" ‖ blind ‖ text). A blind
// is 32 random hex digits. Once it is erased, a guess of the hashed value can no longer be
// confirmed.
// See docs/decisions/0072-blind-and-erasure.md.
inline constexpr std::size_t kBlindDigits = 32;
Hash blinded_digest(std::string_view blind, std::string_view text);
// In hex.
using DigestText = InlineText<64>;
DigestText blinded_hash(std::string_view blind, std::string_view text);
// hex SHA256(job ␀ command ␀ tool ␀ canonical arguments [␀ blind])
IdempotencyKey idempotency_key(const JobId& job, const StepId& command, std::string_view tool,
                               std::string_view canonical_args, std::string_view blind);
// First 16 hex digits of SHA256(job ␀ command ␀ idempotency_key)
InvocationId invocation_id(const JobId& job, const StepId& command, const IdempotencyKey& key);
// aetheris:<job>:<step>:0. It contains no attempt, so a restored store repeats a call with the same
// key.
ExternalKey external_key(const JobId& job, const StepId& step);
// aetheris:<job>:<step>:<first 16 hex digits of the idempotency key>, for a call whose arguments a
// model, a planner or code chose: after a restore it may choose different ones, and a different
// request must not carry an earlier key.
ExternalKey chosen_external_key(const JobId& job, const StepId& step, const IdempotencyKey& key);
// aetheris:<job>:<step>:<attempt>, "0" without an attempt: the key of a call that was declared by
// schema 1 of tool_invocation_started.
ExternalKey attempt_external_key(const JobId& job, const StepId& step, const AttemptId& attempt);

}  // namespace ae

template <std::size_t Size>
struct std::hash<ae::InlineText<Size>> {
  std::size_t operator()(const ae::InlineText<Size>& text) const noexcept { return text.hash(); }
};
// Not noexcept: then the tables of libstdc++ keep the hash of each entry, and a search does not
// compute those of the entries that it passes.
template <class Tag, std::size_t Size>
struct std::hash<ae::Id<Tag, Size>> {
  std::size_t operator()(const ae::Id<Tag, Size>& id) const { return id.text.hash(); }
};
template <>
struct std::hash<ae::Hash> {
  std::size_t operator()(const ae::Hash& h) const noexcept {
    std::size_t first = 0;  // all bytes of a digest are as good
    std::memcpy(&first, h.bytes.data(), sizeof first);
    return first;
  }
};
