// CheckResult: the result of verifying that an external resource is as a job left it (SPEC §8).
//
// Threads: values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ae {

// unconfirmed: the check is not possible; there is no verifier, or no
// recorded value to compare with.
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
      observed;        // of match and mismatch, for display: kCheckTextMax bytes each
  std::string reason;  // why there is no match or mismatch
};

}  // namespace ae
