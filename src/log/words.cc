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

std::uint8_t word_number(std::string_view word) noexcept {
  for (std::size_t i = 1; i < kWords.size(); ++i) {
    if (kWords[i] == word) return static_cast<std::uint8_t>(i);
  }
  return 0;
}

std::string_view word_text(std::uint8_t number) noexcept {
  return number < kWords.size() ? kWords[number] : std::string_view();
}

}  // namespace ae
