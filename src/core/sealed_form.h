// The numbers that the writer (seal.cc) and the reader (open.cc) of sealed batches share. Stored: permanent.
// Threads: constants and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "core/event.h"
#include "core/ids.h"

namespace ae {

inline constexpr std::uint8_t kSealedVersion = 1;
inline constexpr std::uint8_t kNoAttempt = 0, kUuidAttempt = 1, kTextAttempt = 2;
inline constexpr std::size_t kSaltSize = 16;
inline constexpr std::size_t kHashSize = 32;
inline constexpr std::uint64_t kSeqMax =
    (std::uint64_t{1} << 53) - 1;  // it is shown as a JSON number

// The first byte of a field: its number, and above that its form.
inline constexpr std::uint8_t kFieldNumberMax = 31;
inline constexpr int kFormShift = 5;
// Forms of json, value and the message of an error. Values only can be redacted.
inline constexpr std::uint8_t kInline = 0, kApart = 1, kRedacted = 2;
// Form of the arguments of a model's call: each message by itself, here or apart.
inline constexpr std::uint8_t kByMessage = 3;
// Added to the form where members are named, because there no table says which are values.
inline constexpr std::uint8_t kNamedValue = 4;

// From this number up events are narrative: a program that does not know them carries them.
inline constexpr std::uint8_t kNarrativeFrom = 128;

constexpr bool holds_value(const Field& field) {
  return field.kind == FieldKind::value || field.kind == FieldKind::error;
}

// Only the arguments of an invocation can be stored by message; and only those of a model are.
constexpr bool may_be_by_message(EventType type, const Field& field) {
  return type == EventType::tool_invocation_started && field.name == "arguments";
}
inline bool calls_model(const Value& payload) {
  return payload.text("tool_name").starts_with(kModelToolPrefix);
}

// The external key that need not be stored: the one of this job, the payload's step and the batch's attempt.
inline std::string derived_external_key(const JobId& job, const Value& payload,
                                        const std::optional<AttemptId>& attempt) {
  return external_key(job, StepId(std::string(payload.text("step_id"))),
                      attempt.value_or(AttemptId()))
      .text;
}

}  // namespace ae
