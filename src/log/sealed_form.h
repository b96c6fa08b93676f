// Sealed form: constants shared by the writer (seal.cc) and the reader (open.cc) of sealed batches.
// Stored: permanent.
// Threads: constants and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/ids.h"
#include "log/events.h"
#include "log/field_names.h"

namespace ae {

inline constexpr std::uint8_t kSealedVersion = 1;
inline constexpr std::uint8_t kNoAttempt = 0, kUuidAttempt = 1, kTextAttempt = 2;
inline constexpr std::size_t kSaltSize = 16;
inline constexpr std::size_t kHashSize = 32;
inline constexpr std::uint64_t kSeqMax = (std::uint64_t{1} << 53) - 1;  // exact as a JSON number

// The first byte of a field: its number in the low bits, its form above.
inline constexpr std::uint8_t kFieldNumberMax = 31;
inline constexpr int kFormShift = 5;
// Forms of json, value and the message of an error. Only values can be redacted.
inline constexpr std::uint8_t kInline = 0, kAsBlob = 1, kRedacted = 2;
// Form of the arguments of a model call: message by message, each inline or a blob.
inline constexpr std::uint8_t kByMessage = 3;
// Form of an erased decision with a retained part: commitment ‖ its canonical text.
inline constexpr std::uint8_t kRetained = 4;
// Added to the form in events with named members, because no table lists their value fields.
inline constexpr std::uint8_t kNamedValue = 4;

// Numbers from here are narrative: programs preserve those they do not know.
inline constexpr std::uint8_t kNarrativeFrom = 128;
constexpr bool is_narrative(EventType type) {
  return static_cast<std::uint8_t>(type) >= kNarrativeFrom;
}

constexpr bool holds_value(const Field& field) {
  return field.kind == FieldKind::value || field.kind == FieldKind::error;
}

// Only the arguments of a model call can be stored message by message.
constexpr bool may_be_by_message(EventType type, std::string_view name) {
  return type == EventType::tool_invocation_started && name == field::arguments;
}
// Only decisions can have a retained part (engine/state/retained_value.h).
constexpr bool may_retain_value(EventType type, std::string_view name) {
  return type == EventType::decision_recorded && name == field::payload;
}
inline bool calls_model(const ToolInvocationStarted& event) {
  return event.tool_name.starts_with(kModelToolPrefix);
}

// Forms of an external key. All but kKeyAsText store no bytes: the key is derived from this job,
// the event's step, and …
inline constexpr std::uint8_t kKeyFromAttempt = 0,  // … the batch's attempt
    kKeyAsText = 1,                                 // stored as text
    kKeyFromStep = 2,                               // … nothing else (since schema 2)
    kKeyFromIdempotencyKey = 3;  // … the event's idempotency key (since schema 2)

// The key for a form other than kKeyAsText.
inline ExternalKey derived_external_key(std::uint8_t form, const JobId& job, const StepId& step,
                                        const IdempotencyKey& idempotency_key,
                                        const std::optional<AttemptId>& attempt) {
  if (form == kKeyFromStep) return ae::external_key(job, step);
  if (form == kKeyFromIdempotencyKey) return chosen_external_key(job, step, idempotency_key);
  return attempt_external_key(job, step, attempt.value_or(AttemptId()));
}

inline constexpr std::string_view kExternalKeyPrefix = "aetheris:";  // base/ids.cc

// Is this the external key of the job and the step that ends with `last`?
inline bool is_external_key(std::string_view key, std::string_view job, std::string_view step,
                            std::string_view last) {
  const auto skip = [&key](std::string_view part) {
    if (!key.starts_with(part)) return false;
    key.remove_prefix(part.size());
    return true;
  };
  return skip(kExternalKeyPrefix) && skip(job) && skip(":") && skip(step) && skip(":") &&
         key == last;
}

// The form to store a key in: the first of the schema's forms that derives it, or kKeyAsText.
inline std::uint8_t external_key_form(std::uint8_t schema, std::string_view key, const JobId& job,
                                      std::string_view step, std::string_view idempotency_key,
                                      const std::optional<AttemptId>& attempt) {
  const auto ends_with = [&](std::string_view last) {
    return is_external_key(key, job.text, step, last);
  };
  if (schema >= 2 && ends_with("0")) return kKeyFromStep;
  if (schema >= 2 && ends_with(idempotency_key.substr(0, 16))) return kKeyFromIdempotencyKey;
  const std::string_view attempt_text = attempt ? std::string_view(attempt->text) : "";
  return ends_with(attempt_text.empty() ? "0" : attempt_text) ? kKeyFromAttempt : kKeyAsText;
}

}  // namespace ae
