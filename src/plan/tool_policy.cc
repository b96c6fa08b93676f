// The texts of a tool's policy, and the arithmetic of its retries.
#include "plan/tool_policy.h"

#include <algorithm>
#include <cmath>

namespace ae::engine {
namespace {

bool all_digits(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

std::string_view to_text(EffectClass effect) {
  constexpr std::string_view kText[] = {"read", "idempotent", "at_most_once"};
  return kText[static_cast<std::size_t>(effect)];
}

std::string_view to_text(ConfirmMode mode) {
  constexpr std::string_view kText[] = {"strict", "warn", "human"};
  return kText[static_cast<std::size_t>(mode)];
}

bool RetryPolicy::covers(std::string_view error_code) const {
  const std::string_view status =
      error_code.starts_with("http_") ? error_code.substr(5) : std::string_view();
  return std::ranges::any_of(retry_on, [&](std::string_view entry) {
    if (entry == error_code) return true;
    if (status.size() != 3 || !all_digits(status) || entry.size() != 3) return false;
    return entry == status || (entry.ends_with("xx") && entry[0] == status[0]);
  });
}

Duration RetryPolicy::backoff(std::uint32_t next, std::uint64_t jitter_seed,
                              std::optional<Duration> retry_after) const {
  const auto max = static_cast<double>(max_backoff.count());
  auto wait = static_cast<double>(initial_backoff.count());
  // The product stops growing at `most`; with a multiplier near 1 the loop ends at kMaxAttemptsMax.
  const std::uint32_t times = std::min(next < 2 ? 0 : next - 2, kMaxAttemptsMax);
  for (std::uint32_t i = 0; i < times && wait < max; ++i) wait *= multiplier;
  wait = std::min(wait, max);
  const double part = static_cast<double>(jitter_seed >> 11) * 0x1p-53;  // [0, 1)
  const Duration jittered(std::llround(wait / 2 + wait / 2 * part));
  return std::min(std::max(jittered, retry_after.value_or(Duration(0))), max_backoff);
}

}  // namespace ae::engine
