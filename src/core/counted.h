// Counts in messages: "1 job", "2 jobs", "1 try", "3 entries".
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ae {

// The noun alone, as it follows the count: "job", "jobs". `one` is its singular.
inline std::string noun_of(std::uint64_t count, std::string_view one) {
  std::string noun(one);
  if (count == 1 || one.empty()) return noun;
  constexpr std::string_view kVowels = "aeiou";
  const bool y = one.size() > 1 && one.back() == 'y' && !kVowels.contains(one[one.size() - 2]);
  if (!y) return noun + "s";
  noun.pop_back();
  return noun + "ies";
}

inline std::string counted(std::uint64_t count, std::string_view one) {
  return std::to_string(count) + " " + noun_of(count, one);
}

}  // namespace ae
