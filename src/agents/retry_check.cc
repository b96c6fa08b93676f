// check_retry: `retry` of a tool or a model.
#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <vector>

#include "agents/checks.h"
#include "base/ascii.h"
#include "log/field_names.h"

namespace ae::agents {
namespace {

constexpr std::uint32_t kTriesMax = 1'000;
constexpr std::size_t kEntriesMax = 1'000;

// Default for calls without a side effect: 3 retries, after about 1 s, 2 s and 4 s.
constexpr std::uint32_t kReadTries = 4;
constexpr Duration kReadInitialBackoff = std::chrono::seconds(1);
constexpr Duration kReadMaxBackoff = std::chrono::minutes(1);  // also the longest Retry-After

// An entry as written; "" if it is not one.
std::string entry_at(const SourceNode& source_node) {
  if (source_node->is_string()) return source_node->scalar.as_string();
  if (source_node->scalar.is_integer() && source_node->scalar.as_int() >= 0) {
    return std::to_string(source_node->scalar.as_int());  // 429 without quotes
  }
  return {};
}

void check_entry(CheckContext& check, const SourceNode& source_node,
                 std::vector<std::string>& entries, const MayRetry& may) {
  std::string entry = entry_at(source_node);
  const auto code_char = [](char c) { return (c >= 'a' && c <= 'z') || is_digit(c) || c == '_'; };
  const bool is_status = entry.size() == 3 && is_digit(entry[0]) && entry[0] >= '1' &&
                         entry[0] <= '5' &&
                         ((is_digit(entry[1]) && is_digit(entry[2])) || entry.ends_with("xx"));
  const bool is_code = !entry.empty() && entry.size() <= 64 && entry[0] >= 'a' && entry[0] <= 'z' &&
                       std::ranges::all_of(entry, code_char);
  if (!is_status && !is_code) {
    check.report(source_node,
                 "must be timeout, connect, an HTTP status such as 429 or 5xx, or an error "
                 "code such as exit_75");
    return;
  }
  ClosestName nearest(entry);
  for (const std::string_view word : {"timeout", "connect", "reset", "tls"}) {
    if (entry == word) nearest = ClosestName("");
    nearest.consider(word);
  }
  if (std::string suggestion = nearest.best();
      !is_status && !suggestion.empty() && entry != suggestion) {
    check.report(source_node, fmt::format("unknown error {}", quote(entry)), std::move(suggestion));
    return;
  }
  if (!may(entry)) {
    check.report(
        source_node,
        fmt::format("{} can mean that the call took effect; an at_most_once tool is retried "
                    "only after definite failures",
                    quote(entry)));
    return;
  }
  if (std::ranges::find(entries, entry) != entries.end()) {
    check.report(source_node, fmt::format("duplicate entry {}", quote(entry)));
    return;
  }
  entries.push_back(std::move(entry));
}

}  // namespace

void check_retry(CheckContext& check, const SourceNode& source_node, engine::RetryPolicy& retry,
                 const MayRetry& may) {
  if (!check.mapping(source_node, Mapping::retry)) {
    return;
  }
  if (const auto tries =
          check.required(source_node, field::max_attempts, "the total number of tries")) {
    retry.max_attempts = check.count(*tries, kTriesMax).value_or(1);
  }
  if (const auto backoff = source_node.find("initial_backoff")) {
    retry.initial_backoff = check.duration(*backoff, Duration(0)).value_or(retry.initial_backoff);
  }
  if (const auto backoff = source_node.find("max_backoff")) {
    retry.max_backoff = check.duration(*backoff, Duration(0)).value_or(retry.max_backoff);
  }
  if (const auto multiplier = source_node.find("multiplier")) {
    const Value& number = (*multiplier)->scalar;
    if (number.is_number() && number.as_number() >= 1 && number.as_number() <= 1'000) {
      retry.multiplier = number.as_number();
    } else {
      check.report(*multiplier, "must be a number from 1 to 1000");
    }
  }
  const auto on = source_node.find("retry_on");
  if (!on || !check.list(*on)) return;
  if ((*on)->items.size() > kEntriesMax) return check.report(*on, "at most 1,000 entries");
  retry.retry_on.clear();
  for (std::size_t i = 0; i < (*on)->items.size(); ++i) {
    check_entry(check, on->item(i), retry.retry_on, may);
  }
}

engine::RetryPolicy default_read_retry() {
  engine::RetryPolicy retry;
  retry.max_attempts = kReadTries;
  retry.initial_backoff = kReadInitialBackoff;
  retry.max_backoff = kReadMaxBackoff;
  retry.retry_on = {"connect", "timeout", "reset", "408", "429", "5xx"};
  return retry;
}

engine::RetryPolicy read_retry(const SourceNode& written, const engine::RetryPolicy& policy) {
  engine::RetryPolicy retry = default_read_retry();
  retry.max_attempts = policy.max_attempts;
  if (written.find("initial_backoff")) retry.initial_backoff = policy.initial_backoff;
  if (written.find("max_backoff")) retry.max_backoff = policy.max_backoff;
  if (written.find("multiplier")) retry.multiplier = policy.multiplier;
  if (written.find("retry_on")) retry.retry_on = policy.retry_on;
  return retry;
}

Value retry_value(const engine::RetryPolicy& retry) {
  return Value::object({{field::max_attempts, static_cast<double>(retry.max_attempts)},
                        {"initial_backoff", to_text(retry.initial_backoff)},
                        {"max_backoff", to_text(retry.max_backoff)},
                        {"multiplier", retry.multiplier},
                        {"retry_on", Value::array(std::vector<Value>(retry.retry_on.begin(),
                                                                     retry.retry_on.end()))}});
}

}  // namespace ae::agents
