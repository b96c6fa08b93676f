#include "api/etag.h"

#include <fmt/core.h>

#include "base/hash.h"

namespace ae::api {
namespace {

constexpr std::size_t kTagDigits = 32;  // of a SHA-256
constexpr std::string_view kBlank = " \t";

std::string_view trim(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kBlank);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

std::string_view without_weak_prefix(std::string_view tag) {
  return tag.starts_with("W/") ? tag.substr(2) : tag;
}

}  // namespace

std::string etag_of(std::string_view view, const store::JobRow& row, Instant now) {
  if (row.wake_at && *row.wake_at <= now) return {};
  std::string text = fmt::format("{}\n{}\n{}\n{}\n{}\n", view, row.id.text, row.last_seq,
                                 to_hex(row.head), row.status);
  if (row.claim) text += fmt::format("{}\n{}\n", row.claim->attempt.text, row.claim->epoch);
  return etag_of_text(text);
}

std::string etag_of_text(std::string_view text) {
  return fmt::format("W/\"{}\"", to_hex(sha256(text)).substr(0, kTagDigits));
}

bool matches_etag(std::string_view if_none_match, std::string_view etag) {
  while (!if_none_match.empty()) {
    const std::size_t comma = if_none_match.find(',');
    const std::string_view tag = trim(if_none_match.substr(0, comma));
    if (tag == "*" || without_weak_prefix(tag) == without_weak_prefix(etag)) return true;
    if (comma == if_none_match.npos) break;
    if_none_match.remove_prefix(comma + 1);
  }
  return false;
}

}  // namespace ae::api
