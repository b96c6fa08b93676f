// Sighting: what somebody saw who looked whether a thing outside is still as it was left (SPEC §8).
//
// Threads: values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ae {

// unconfirmed: nobody could look, since there is no verifier or nothing was recorded that it could compare.
enum class Sight : std::uint8_t { match, mismatch, unreachable, unconfirmed };  // spelled as stored
// clang-format off
constexpr std::string_view to_text(Sight sight) {
  switch (sight) {
    case Sight::match: return "match";
    case Sight::mismatch: return "mismatch";
    case Sight::unreachable: return "unreachable";
    case Sight::unconfirmed: return "unconfirmed";
  }
  return "unconfirmed";
}
// clang-format on

inline constexpr std::size_t kSightTextMax = 1024;

struct Sighting {
  Sight sight = Sight::unconfirmed;
  std::string expected,
      observed;        // of a match or mismatch, for people: at most kSightTextMax bytes each
  std::string reason;  // why nothing could be seen
};

}  // namespace ae
