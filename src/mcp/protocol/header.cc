#include "mcp/protocol/header.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>

#include "base/utf8.h"

namespace ae::mcp {
namespace {

constexpr std::string_view kBegin = "=?base64?", kEnd = "?=";
constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

bool is_plain(std::string_view text) {
  const bool visible =
      std::ranges::all_of(text, [](char c) { return c == '\t' || (c >= 0x20 && c <= 0x7E); });
  const auto is_blank = [](char c) { return c == ' ' || c == '\t'; };
  return visible && !text.empty() && !is_blank(text.front()) && !is_blank(text.back());
}

bool is_encoded(std::string_view text) {
  return text.size() >= kBegin.size() + kEnd.size() && text.starts_with(kBegin) &&
         text.ends_with(kEnd);
}

std::string base64(std::string_view bytes) {
  std::string out;
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    const std::size_t have = std::min<std::size_t>(3, bytes.size() - at);
    std::uint32_t bits = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      bits = bits << 8 | (i < have ? static_cast<unsigned char>(bytes[at + i]) : 0u);
    }
    for (std::size_t i = 0; i < 4; ++i) {
      out += i <= have ? kDigits[bits >> (18 - 6 * i) & 0x3F] : '=';
    }
  }
  return out;
}

// Requires padding and zero unused bits, so that each text has exactly one encoding.
std::optional<std::string> from_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  std::string out;
  for (std::size_t at = 0; at < text.size(); at += 4) {
    const std::string_view four = text.substr(at, 4);
    const std::size_t digits = std::min(four.find('='), four.size());
    const bool last = at + 4 == text.size();
    const bool padded = four.find_first_not_of('=', digits) == four.npos;
    if (digits < 2 || !padded || (digits < 4 && !last)) return std::nullopt;
    std::uint32_t bits = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      const std::size_t digit = i < digits ? kDigits.find(four[i]) : 0;
      if (digit == kDigits.npos) return std::nullopt;
      bits = bits << 6 | static_cast<std::uint32_t>(digit);
    }
    for (std::size_t i = 0; i + 1 < digits; ++i)
      out += static_cast<char>(bits >> (16 - 8 * i) & 0xFF);
    if (digits < 4 && (bits & (digits == 2 ? 0xFFFFu : 0xFFu)) != 0) return std::nullopt;
  }
  return out;
}

}  // namespace

std::string encode_header_value(std::string_view text) {
  if (is_plain(text) && !is_encoded(text)) return std::string(text);
  return fmt::format("{}{}{}", kBegin, base64(text), kEnd);
}

std::optional<std::string> decode_header_value(std::string_view value) {
  if (!is_encoded(value)) return is_plain(value) ? std::optional(std::string(value)) : std::nullopt;
  value.remove_prefix(kBegin.size());
  value.remove_suffix(kEnd.size());
  auto text = from_base64(value);
  if (!text || !is_utf8(*text)) return std::nullopt;
  return text;
}

}  // namespace ae::mcp
