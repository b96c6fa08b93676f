#include "tools/verify/compare.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <chrono>

#include "base/time.h"

namespace ae::tools {
namespace {

constexpr std::int64_t kSecond = 1'000'000;

std::string shortened(std::string_view text) { return std::string(text.substr(0, kCheckTextMax)); }

std::optional<std::int64_t> number(std::string_view text) {
  std::int64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return n;
}

std::optional<std::int64_t> instant_us(std::string_view text) {
  if (const auto instant = instant_from_text(text)) return instant->us;
  if (const auto date = http_date(text)) return date;
  const auto seconds = number(text);
  if (!seconds || *seconds < 0 || *seconds > 253'402'300'799) return std::nullopt;
  return *seconds * kSecond;
}

std::string_view bare_etag(std::string_view etag) {
  if (etag.starts_with("W/")) etag.remove_prefix(2);
  if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') {
    etag = etag.substr(1, etag.size() - 2);
  }
  return etag;
}

}  // namespace

bool same_text(std::string_view recorded, std::string_view observation) {
  return recorded == observation;
}

bool same_etag(std::string_view recorded, std::string_view observation) {
  return bare_etag(recorded) == bare_etag(observation);
}

bool same_time(std::string_view recorded, std::string_view observation) {
  const auto a = instant_us(recorded), b = instant_us(observation);
  if (!a || !b) return recorded == observation;
  if (*a == *b) return true;
  // A recorded time in whole seconds matches any time within that second.
  return *a % kSecond == 0 && *a / kSecond == *b / kSecond;
}

bool same_digest(std::string_view recorded, std::string_view observation) {
  if (recorded.starts_with("sha256:")) recorded.remove_prefix(7);
  return std::ranges::equal(recorded, observation, [](char a, char b) {
    return (a >= 'A' && a <= 'F' ? static_cast<char>(a | 0x20) : a) == b;
  });
}

CheckResult compare(const Value& change, std::string_view recorded, const Observation& observation,
                    SameFn same) {
  CheckResult check_result;
  if (!observation.unreachable.empty()) {
    check_result.verdict = CheckVerdict::unreachable;
    check_result.reason = shortened(observation.unreachable);
    return check_result;
  }
  const bool deleted = change.text("op") == "delete";
  const std::string_view expected = change.text(recorded);
  if (deleted || observation.absent) {
    check_result.verdict =
        deleted == observation.absent ? CheckVerdict::match : CheckVerdict::mismatch;
    check_result.expected = deleted ? "absent" : expected.empty() ? "present" : shortened(expected);
    check_result.observed = observation.absent ? "absent" : shortened(observation.value);
    return check_result;
  }
  if (expected.empty()) {
    check_result.reason = fmt::format("no {} was recorded", recorded);
    return check_result;
  }
  check_result.verdict =
      same(expected, observation.value) ? CheckVerdict::match : CheckVerdict::mismatch;
  check_result.expected = shortened(expected);
  check_result.observed = shortened(observation.value);
  return check_result;
}

std::optional<std::int64_t> http_date(std::string_view text) {
  constexpr std::string_view kMonths = "JanFebMarAprMayJunJulAugSepOctNovDec";
  if (text.size() != 29 || !text.ends_with(" GMT") || text.substr(3, 2) != ", ")
    return std::nullopt;
  const auto day = number(text.substr(5, 2)), year = number(text.substr(12, 4));
  const auto hour = number(text.substr(17, 2)), minute = number(text.substr(20, 2));
  const auto second = number(text.substr(23, 2));
  const std::size_t month = kMonths.find(text.substr(8, 3));
  if (!day || !year || !hour || !minute || !second || month == kMonths.npos || month % 3 != 0 ||
      text[19] != ':' || text[22] != ':' || *hour > 23 || *minute > 59 || *second > 60) {
    return std::nullopt;
  }
  const std::chrono::year_month_day date(std::chrono::year(static_cast<int>(*year)),
                                         std::chrono::month(static_cast<unsigned>(month / 3 + 1)),
                                         std::chrono::day(static_cast<unsigned>(*day)));
  if (!date.ok()) return std::nullopt;
  const std::int64_t days = std::chrono::sys_days(date).time_since_epoch().count();
  return (days * 86'400 + *hour * 3'600 + *minute * 60 + *second) * kSecond;
}

}  // namespace ae::tools
