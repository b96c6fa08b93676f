// Sighting: what somebody saw who looked whether a thing outside is still as it was left (SPEC §8).
//
// Threads: values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ae {

// unconfirmed: nobody could look, since there is no verifier or nothing was recorded that it could compare.
enum class CheckVerdict : std::uint8_t {
  match,
  mismatch,
  unreachable,
  unconfirmed
};  // spelled as stored
// clang-format off
constexpr std::string_view to_text(CheckVerdict verdict) {
  switch (verdict) {
    case CheckVerdict::match: return "match";
    case CheckVerdict::mismatch: return "mismatch";
    case CheckVerdict::unreachable: return "unreachable";
    case CheckVerdict::unconfirmed: return "unconfirmed";
  }
  return "unconfirmed";
}
// clang-format on

inline constexpr std::size_t kCheckTextMax = 1024;

struct CheckResult {
  CheckVerdict verdict = CheckVerdict::unconfirmed;
  std::string expected,
      observed;        // of a match or mismatch, for people: at most kCheckTextMax bytes each
  std::string reason;  // why nothing could be seen
};

}  // namespace ae
