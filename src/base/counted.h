// Counts in messages: "1 job", "2 jobs", "1 try", "3 entries".
//
// Threads: pure functions.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace ae {

// The noun as it follows the count: "job", "jobs". `singular` is the singular.
inline std::string noun_of(std::uint64_t count, std::string_view singular) {
  std::string noun(singular);
  if (count == 1 || singular.empty()) return noun;
  constexpr std::string_view kVowels = "aeiou";
  const bool y = singular.size() > 1 && singular.back() == 'y' &&
                 !kVowels.contains(singular[singular.size() - 2]);
  if (!y) return noun + "s";
  noun.pop_back();
  return noun + "ies";
}

inline std::string counted(std::uint64_t count, std::string_view singular) {
  return fmt::format("{} {}", count, noun_of(count, singular));
}

}  // namespace ae
