// Instants and durations as text, hand-written: the formats are few and fixed, and every log line
// uses one.
#include "base/time.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <optional>

#include "base/fixed_text.h"
#include "base/utf8.h"

namespace ae {
namespace {

constexpr std::int64_t kUsPerSecond = 1'000'000;
constexpr std::int64_t kSecondsPerDay = 86'400;
constexpr std::int64_t kDaysMax = 36'500;

using Days = std::chrono::sys_days;

constexpr auto kPairs = [] {
  std::array<std::array<char, 2>, 100> pairs{};
  for (std::size_t i = 0; i < pairs.size(); ++i)
    pairs[i] = {static_cast<char>('0' + i / 10), static_cast<char>('0' + i % 10)};
  return pairs;
}();

// Writes two digits. REQUIRES: value < 100.
void write_pair(char* out, std::uint32_t value) { std::memcpy(out, kPairs[value].data(), 2); }

// Removes `width` digits from the front of `text` and returns their value, or -1.
int parse_digits(std::string_view& text, std::size_t width) {
  if (text.size() < width) return -1;
  int value = 0;
  for (const char c : text.substr(0, width)) {
    if (c < '0' || c > '9') return -1;
    value = value * 10 + (c - '0');
  }
  text.remove_prefix(width);
  return value;
}

bool skip(std::string_view& text, char wanted) {
  if (text.empty() || text.front() != wanted) return false;
  text.remove_prefix(1);
  return true;
}

// 0 to 6 digits after a dot as microseconds; -1 for anything else.
int parse_fraction(std::string_view& text) {
  if (!skip(text, '.')) return 0;
  std::size_t digits = 0;
  while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9') ++digits;
  if (digits == 0 || digits > 6) return -1;
  int us = parse_digits(text, digits);
  for (; digits < 6; ++digits) us *= 10;
  return us;
}

std::optional<Instant> parse(std::string_view text) {
  const int year = parse_digits(text, 4);
  const bool dash1 = skip(text, '-');
  const int month = parse_digits(text, 2);
  const bool dash2 = skip(text, '-');
  const int day = parse_digits(text, 2);
  const bool t = skip(text, 'T') || skip(text, 't');
  const int hour = parse_digits(text, 2);
  const bool colon1 = skip(text, ':');
  const int minute = parse_digits(text, 2);
  const bool colon2 = skip(text, ':');
  const int second = parse_digits(text, 2);
  if (!(dash1 && dash2 && t && colon1 && colon2)) return std::nullopt;
  if (year < 0 || month < 0 || day < 0 || hour < 0 || minute < 0 || second < 0) return std::nullopt;
  if (hour > 23 || minute > 59 || second > 59) return std::nullopt;
  const int fraction = parse_fraction(text);
  if (fraction < 0 || (text != "Z" && text != "z" && text != "+00:00")) return std::nullopt;
  const std::chrono::year_month_day date(std::chrono::year(year),
                                         std::chrono::month(static_cast<unsigned>(month)),
                                         std::chrono::day(static_cast<unsigned>(day)));
  if (!date.ok()) return std::nullopt;
  const std::int64_t days = Days(date).time_since_epoch().count();
  const std::int64_t seconds = days * kSecondsPerDay + hour * 3600 + minute * 60 + second;
  return Instant{seconds * kUsPerSecond + fraction};
}

struct Unit {
  std::string_view name;
  std::int64_t ms;
};
constexpr auto kUnits = std::to_array<Unit>({
    {"d", 86'400'000},
    {"h", 3'600'000},
    {"m", 60'000},
    {"s", 1'000},
    {"ms", 1},
});

}  // namespace

void write_text(Instant instant, char* out) {
  instant = std::clamp(instant, kInstantMin, kInstantMax);
  const std::chrono::sys_time<Duration> time{Duration(instant.us)};
  const Days day = std::chrono::floor<std::chrono::days>(time);
  const std::chrono::year_month_day date(day);
  const auto of_day = static_cast<std::uint64_t>((time - day).count());
  const auto second = static_cast<std::uint32_t>(of_day / kUsPerSecond);
  const auto us = static_cast<std::uint32_t>(of_day % kUsPerSecond);
  const auto year = static_cast<std::uint32_t>(static_cast<int>(date.year()));
  constexpr std::string_view kShape = "0000-00-00T00:00:00.000000Z";
  std::memcpy(out, kShape.data(), kInstantTextSize);
  write_pair(out, year / 100);
  write_pair(out + 2, year % 100);
  write_pair(out + 5, static_cast<unsigned>(date.month()));
  write_pair(out + 8, static_cast<unsigned>(date.day()));
  write_pair(out + 11, second / 3600);
  write_pair(out + 14, second / 60 % 60);
  write_pair(out + 17, second % 60);
  write_pair(out + 20, us / 10'000);
  write_pair(out + 22, us / 100 % 100);
  write_pair(out + 24, us % 100);
}

std::string to_text(Instant instant) {
  std::string text(kInstantTextSize, '\0');
  write_text(instant, text.data());
  return text;
}

Result<Instant> instant_from_text(std::string_view text) {
  if (const auto instant = parse(text)) return *instant;
  return fail(Code::input_invalid,
              "\"{}\" is not a valid time; write it in UTC, as in 2025-01-31T09:30:00Z, with at "
              "most six digits after the second",
              truncate_utf8(text, 64));
}

Result<Duration> duration_from_text(std::string_view text) {
  std::int64_t count = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  const bool digits = !text.empty() && text.front() >= '0' && text.front() <= '9';
  const std::string_view name = text.substr(static_cast<std::size_t>(rest - text.data()));
  for (const Unit& unit : kUnits) {
    if (!digits || name != unit.name) continue;
    if (error != std::errc() || count > kDaysMax * kUnits[0].ms / unit.ms) {
      return fail(Code::input_invalid, "\"{}\" is too long a duration; at most 36500d",
                  truncate_utf8(text, 64));
    }
    return std::chrono::milliseconds(count * unit.ms);
  }
  return fail(
      Code::input_invalid,
      "\"{}\" is not a valid duration; write a whole number and ms, s, m, h or d, as in 90s",
      truncate_utf8(text, 64));
}

std::string to_text(Duration duration) {
  const std::int64_t ms = std::max<std::int64_t>(0, duration.count() / 1000);
  if (ms == 0) return "0s";
  for (const Unit& unit : kUnits) {
    if (ms % unit.ms == 0) return fmt::format("{}{}", ms / unit.ms, unit.name);
  }
  return {};  // not reached: every duration is a whole number of milliseconds
}

}  // namespace ae
