// Outcome: the observed end of one try of a call. *Definite failure* and
// *unknown* are distinct (SPEC §6).
// Threads: a value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/time.h"
#include "json/value.h"

namespace ae {

// Spelled as stored. `input_required`: the call ended with a known outcome; the tool continues when
// it is called again with a user's answers (schema/question.h).
enum class OutcomeKind : std::uint8_t { success, failure, timeout, unknown, input_required };
// clang-format off
constexpr std::string_view to_text(OutcomeKind kind) {
  switch (kind) {
    case OutcomeKind::success: return "success";
    case OutcomeKind::failure: return "failure";
    case OutcomeKind::timeout: return "timeout";
    case OutcomeKind::unknown: break;
    case OutcomeKind::input_required: return "input_required";
  }
  return "unknown";
}
// clang-format on
struct Outcome {
  OutcomeKind kind = OutcomeKind::unknown;
  bool definite = false;   // failure: excludes any effect; input_required: always true
  bool retryable = false;  // a later try may succeed
  // Not definite, but the downstream sent a complete response: the request
  // has no effect after this.
  bool settled = false;
  Value result;  // success; input_required: {"requests": {KEY: question…}, "state"?}
  // Failure, timeout, unknown. Codes: not_sent connect tls timeout reset http_<status> exit_<n>
  // signal_<n> killed spawn_failed request_invalid native_error secret_missing …
  std::string error_code, error_message;
  // A success with an invalid output: {invalid: true, reason, sha256, size, head}.
  // The effect counts as done.
  std::optional<Value> invalid;
  std::string external_id;              // the downstream's id, if it returns one
  std::optional<Duration> retry_after;  // as requested by the downstream
  Duration elapsed{0};
  // Of a success that a routine was given before it is durable: how many outcomes it had been given
  // before (engine/code/code.h).
  std::optional<std::uint64_t> delivered;
  // Of a success of a function that called a model itself: the token_usage of its answer
  // (log/records.def); null: none.
  Value usage;
};

}  // namespace ae
