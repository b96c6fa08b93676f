// CallOptions: what a request of code sets for its own call, within the policy of its tool.
//
// An option may only be as strict as the policy, or stricter: a shorter timeout, fewer tries, longer
// delays, and an `on_in_doubt` that does less by itself. The order is resend, probe, fail, park;
// `probe` is possible only where the tool has a probe. See docs/decisions/0100-code-agents.md.
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/time.h"
#include "json/value.h"
#include "plan/tool_policy.h"

namespace ae::engine {

struct CallOptions {
  std::optional<Duration> timeout = {};
  std::optional<std::uint32_t> max_attempts = {};  // of `retry`, as the next two
  std::optional<Duration> initial_backoff = {}, max_backoff = {};
  std::optional<OnInDoubt> on_in_doubt = {};

  bool any() const { return *this != CallOptions(); }
  bool operator==(const CallOptions&) const = default;
};

std::string_view to_text(OnInDoubt action);

// Stored: {timeout, retry: {max_attempts, initial_backoff, max_backoff}, on_in_doubt}, as in an
// agents file, without what is not set. null: nothing is set. REQUIRES: check_options.
Value to_json(const CallOptions& options);
// Fails with input_invalid.
Result<CallOptions> call_options_of(const Value& json);

// May a call of this tool have these options? Fails with input_invalid.
Status check_options(const CallOptions& options, const ToolPolicy& tool);

}  // namespace ae::engine
