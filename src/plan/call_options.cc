// The options of a call: their form in a log, and the bounds that a tool's policy sets.
#include "plan/call_options.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "plan/plan_read.h"

namespace ae::engine {
namespace {

constexpr char kTimeout[] = "timeout";
constexpr char kRetry[] = "retry";
constexpr char kInitialBackoff[] = "initial_backoff";
constexpr char kMaxBackoff[] = "max_backoff";
constexpr char kOnInDoubt[] = "on_in_doubt";
constexpr Duration kDurationMax = std::chrono::days(36'500);

Result<CallOptions> read(const Value& json) {
  CallOptions options;
  if (json.is_null()) return options;
  AE_TRY(only_keys(json, {kTimeout, kRetry, kOnInDoubt}));
  AE_ASSIGN(options.timeout, optional_duration_at(json, kTimeout, std::chrono::milliseconds(1)));
  if (const Value* retry = json.find(kRetry)) {
    AE_TRY(only_keys(*retry, {kMaxAttempts, kInitialBackoff, kMaxBackoff}));
    if (retry->find(kMaxAttempts) != nullptr) {
      AE_ASSIGN(options.max_attempts, count_at(*retry, kMaxAttempts, kMaxAttemptsMax));
    }
    AE_ASSIGN(options.initial_backoff, optional_duration_at(*retry, kInitialBackoff, Duration(0)));
    AE_ASSIGN(options.max_backoff, optional_duration_at(*retry, kMaxBackoff, Duration(0)));
  }
  if (json.find(kOnInDoubt) != nullptr) {
    AE_ASSIGN(const std::size_t action,
              word_at(json, kOnInDoubt, {"resend", "park", "fail", "probe"}));
    options.on_in_doubt = static_cast<OnInDoubt>(action);
  }
  return options;
}

// What happens by itself, from most to least.
int order_of(OnInDoubt action) {
  switch (action) {
    case OnInDoubt::resend:
      return 0;
    case OnInDoubt::probe:
      return 1;
    case OnInDoubt::fail:
      return 2;
    case OnInDoubt::park:
      return 3;
  }
  return 0;
}

Status check_duration(std::string_view name, std::optional<Duration> duration, Duration min,
                      Duration max) {
  if (!duration) return {};
  if (*duration < min || *duration > max) {
    return fail(Code::input_invalid, "`{}` of this call must be from {} to {}", name,
                ae::to_text(min), ae::to_text(max));
  }
  if (*duration % std::chrono::milliseconds(1) == Duration(0)) return {};
  return fail(Code::input_invalid, "`{}` of this call must be whole milliseconds", name);
}

}  // namespace

std::string_view to_text(OnInDoubt action) {
  constexpr std::string_view kNames[] = {"resend", "park", "fail", "probe"};
  return kNames[static_cast<std::size_t>(action)];
}

Value to_json(const CallOptions& options) {
  std::vector<Member> members, retry;
  const auto add = [](std::vector<Member>& to, const char* name, std::optional<Duration> duration) {
    if (duration) to.emplace_back(name, ae::to_text(*duration));
  };
  if (options.on_in_doubt) members.emplace_back(kOnInDoubt, to_text(*options.on_in_doubt));
  if (options.max_attempts) {
    retry.emplace_back(kMaxAttempts, std::int64_t{*options.max_attempts});
  }
  add(retry, kInitialBackoff, options.initial_backoff);
  add(retry, kMaxBackoff, options.max_backoff);
  if (!retry.empty()) members.emplace_back(kRetry, Value::object(std::move(retry)));
  add(members, kTimeout, options.timeout);
  return members.empty() ? Value() : Value::object(std::move(members));
}

Result<CallOptions> call_options_of(const Value& json) {
  auto options = read(json);
  if (!options) return fail(Code::input_invalid, std::move(options).error().message);
  return options;
}

Status check_options(const CallOptions& options, const ToolPolicy& tool) {
  if (!options.any()) return {};
  if (!tool.makes_call()) {
    return fail(Code::input_invalid, "\"{}\" makes no call: it has no options", tool.name);
  }
  AE_TRY(check_duration(kTimeout, options.timeout, std::chrono::milliseconds(1), tool.timeout));
  if (options.max_attempts &&
      (*options.max_attempts < 1 || *options.max_attempts > tool.retry.max_attempts)) {
    return fail(Code::input_invalid, "`max_attempts` of this call must be from 1 to {}",
                tool.retry.max_attempts);
  }
  AE_TRY(check_duration(kInitialBackoff, options.initial_backoff, tool.retry.initial_backoff,
                        kDurationMax));
  AE_TRY(check_duration(kMaxBackoff, options.max_backoff, tool.retry.max_backoff, kDurationMax));
  if (!options.on_in_doubt || *options.on_in_doubt == tool.on_in_doubt) return {};
  const bool is_stricter = order_of(*options.on_in_doubt) > order_of(tool.on_in_doubt);
  if (is_stricter && *options.on_in_doubt != OnInDoubt::probe && !tool.is_model()) return {};
  return fail(Code::input_invalid,
              "`on_in_doubt` of this call must not be {}, because that of its tool is {}",
              to_text(*options.on_in_doubt), to_text(tool.on_in_doubt));
}

}  // namespace ae::engine
