// The words by number. Stored: nothing is ever changed, removed or added.
#include "log/words.h"

#include <array>
#include <cstddef>

namespace ae {
namespace {

constexpr auto kWords = std::to_array<std::string_view>({
    "",  // 0: the text follows
    // outcomes of an invocation
    "success",
    "failure",
    "timeout",
    "unknown",
    // result types of a node
    "pure",
    "side_effect_committed",
    "retryable_failure",
    "permanent_failure",
    "compensatable_failure",
    "compensated",
    // effect classes
    "read",
    "idempotent",
    "at_most_once",
    // kinds of commands
    "llm",
    "tool",
    "workflow",
    "external",
    // kinds of decisions
    "branch",
    "retry",
    "re_plan",
    "tool_choice",
    "approval",
    "confirmation",
    "in_doubt",
    "route",
    "budget",
    // kinds of waits
    "webhook",
    "human",
    "timer",
    "signal",
    "message",
    // outcomes of a wait
    "signalled",
    "fired",
    "timed_out",
    "cancelled",
    "approved",
    "rejected",
    // what ends a park
    "resume",
    "resolve",
    "version",
    // states of a decision
    "requested",
    "accept",
    "fail",
    "happened",
    "not_happened",
    "absent",
    // where a late result came from
    "effect_store",
    "ledger",
    "probe",
    "person",
});
static_assert(kWords.size() <= 256);

}  // namespace

namespace {

constexpr std::size_t kPlaces = 256;  // more than twice the words: few share a place

// Where the search for a word begins.
constexpr std::size_t place_of(std::string_view word) {
  const auto at = [&](std::size_t i) { return std::size_t{static_cast<unsigned char>(word[i])}; };
  return word.empty() ? 0 : (word.size() + 7 * at(0) + 31 * at(word.size() / 2)) % kPlaces;
}

// The numbers of the words, each at its place or at the next that is free; 0: free.
constexpr auto kNumbers = [] {
  std::array<std::uint8_t, kPlaces> numbers{};
  for (std::size_t i = 1; i < kWords.size(); ++i) {
    std::size_t place = place_of(kWords[i]);
    while (numbers[place] != 0) place = (place + 1) % kPlaces;
    numbers[place] = static_cast<std::uint8_t>(i);
  }
  return numbers;
}();
static_assert(2 * kWords.size() < kPlaces);

}  // namespace

std::uint8_t word_number(std::string_view word) noexcept {
  std::size_t place = place_of(word);
  while (kNumbers[place] != 0 && kWords[kNumbers[place]] != word) place = (place + 1) % kPlaces;
  return kNumbers[place];
}

std::string_view word_text(std::uint8_t number) noexcept {
  return number < kWords.size() ? kWords[number] : std::string_view();
}

}  // namespace ae
