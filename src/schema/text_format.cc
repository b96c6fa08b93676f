#include "schema/text_format.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>

#include "base/ascii.h"
#include "base/time.h"

namespace ae {
namespace {

constexpr std::size_t kLocalMax = 64;    // RFC 5321: bytes before the @
constexpr std::size_t kDomainMax = 255;  // bytes after it
constexpr std::size_t kLabelMax = 63;

bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }
bool is_one_of(char c, std::string_view all) { return all.find(c) != std::string_view::npos; }

// True if all parts between the dots are good.
template <typename IsGood>
bool dotted(std::string_view text, IsGood is_good) {
  for (;;) {
    const std::size_t dot = std::min(text.find('.'), text.size());
    if (dot == 0 || !is_good(text.substr(0, dot))) return false;
    if (dot == text.size()) return true;
    text.remove_prefix(dot + 1);
  }
}

// The common form: name@host. No quoted names, no numeric hosts.
bool is_email(std::string_view text) {
  const std::size_t at = text.find('@');
  if (at > kLocalMax) return false;  // also if there is no @
  const std::string_view domain = text.substr(at + 1);
  const bool named = dotted(text.substr(0, at), [](std::string_view part) {
    return std::ranges::all_of(part, [](char c) {
      return is_letter(c) || is_digit(c) || is_one_of(c, "!#$%&'*+/=?^_`{|}~-");
    });
  });
  return named && domain.size() <= kDomainMax && dotted(domain, [](std::string_view label) {
           return label.size() <= kLabelMax && label.front() != '-' && label.back() != '-' &&
                  std::ranges::all_of(
                      label, [](char c) { return is_letter(c) || is_digit(c) || c == '-'; });
         });
}

// RFC 3986: a scheme, and the characters allowed in a URI.
bool is_uri(std::string_view text) {
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos || colon == 0 || !is_letter(text.front())) return false;
  const bool scheme = std::ranges::all_of(text.substr(0, colon), [](char c) {
    return is_letter(c) || is_digit(c) || is_one_of(c, "+-.");
  });
  const std::string_view rest = text.substr(colon + 1);
  for (std::size_t i = 0; i < rest.size(); ++i) {
    const char c = rest[i];
    if (c == '%' && !(i + 2 < rest.size() && is_hex(rest[i + 1]) && is_hex(rest[i + 2])))
      return false;
    const bool good = is_letter(c) || is_digit(c) || is_one_of(c, "-._~:/?#[]@!$&'()*+,;=%");
    if (!good) return false;
  }
  return scheme && !rest.empty() && std::ranges::count(rest, '#') <= 1;
}

bool is_instant(const std::string& text) { return instant_from_text(text).has_value(); }

// RFC 3339: 2026-05-02
bool is_date(std::string_view text) { return is_instant(fmt::format("{}T00:00:00Z", text)); }

// RFC 3339: a date, a time with any number of fractional digits, and the offset from UTC.
bool is_date_time(std::string_view text) {
  constexpr std::size_t kToSecond = 19;  // 2026-05-02T09:30:00
  if (text.size() <= kToSecond) return false;
  if (!is_instant(fmt::format("{}Z", text.substr(0, kToSecond)))) return false;
  text.remove_prefix(kToSecond);
  if (text.front() == '.') {
    const auto end = std::ranges::find_if_not(text.substr(1), is_digit);
    const auto digits = static_cast<std::size_t>(end - text.begin()) - 1;
    if (digits == 0) return false;
    text.remove_prefix(1 + digits);
  }
  if (text == "Z" || text == "z") return true;
  if (text.empty() || !is_one_of(text.front(), "+-")) return false;
  return is_instant(fmt::format("2000-01-01T{}:00Z", text.substr(1)));
}

struct Format {
  std::string_view name, words;
  bool (*matches)(std::string_view text);
};
constexpr auto kFormats = std::to_array<Format>({
    {"date", "a date, as in 2026-05-02", is_date},
    {"date-time", "a date and time, as in 2026-05-02T09:30:00+02:00", is_date_time},
    {"email", "an email address", is_email},
    {"uri", "a URI, as in https://example.org/a", is_uri},
});

const Format* find(std::string_view name) {
  const auto* found = std::ranges::find(kFormats, name, &Format::name);
  return found == kFormats.end() ? nullptr : found;
}

}  // namespace

std::string_view describe_format(std::string_view format) {
  const Format* found = find(format);
  return found != nullptr ? found->words : std::string_view();
}

bool matches_format(std::string_view format, std::string_view text) {
  const Format* found = find(format);
  return found == nullptr || found->matches(text);
}

}  // namespace ae
