#include "tools/unescaped_views.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"

namespace ae::tools {
namespace {

constexpr std::size_t kUnitSize = 6;  // of \uXXXX

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

// The escape at the beginning of a text.
struct ParsedEscape {
  std::size_t bytes = 0;  // 0: no escape
  std::uint32_t code_unit = 0;
  bool is_incomplete = false;  // the text ends too early to tell
};

// `\uXXXX`: a whole character, or half of a surrogate pair.
ParsedEscape unit_at(std::string_view text) {
  for (std::size_t i = 0; i < kUnitSize; ++i) {
    if (i == text.size()) return {.is_incomplete = true};
    const bool fits = i == 0 ? text[i] == '\\' : i == 1 ? text[i] == 'u' : hex_digit(text[i]) >= 0;
    if (!fits) return {};
  }
  std::uint32_t code_unit = 0;
  for (std::size_t i = 2; i < kUnitSize; ++i) {
    code_unit = code_unit << 4 | static_cast<std::uint32_t>(hex_digit(text[i]));
  }
  return {.bytes = kUnitSize, .code_unit = code_unit};
}

// REQUIRES: text begins with a backslash.
ParsedEscape escape_at(std::string_view text) {
  constexpr std::string_view kEscapes = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
  if (text.size() < 2) return {.is_incomplete = true};
  if (const std::size_t simple = kEscapes.find(text[1]); simple != kEscapes.npos) {
    return {.bytes = 2, .code_unit = static_cast<unsigned char>(kMeanings[simple])};
  }
  const ParsedEscape first = unit_at(text);
  if (first.bytes == 0 || first.code_unit < 0xD800 || first.code_unit > 0xDFFF) return first;
  if (first.code_unit > 0xDBFF) return {};  // a low surrogate without a high one
  const ParsedEscape second = unit_at(text.substr(kUnitSize));
  if (second.is_incomplete) return second;
  if (second.bytes == 0 || second.code_unit < 0xDC00 || second.code_unit > 0xDFFF) return {};
  return {.bytes = 2 * kUnitSize,
          .code_unit = 0x10000 + ((first.code_unit - 0xD800) << 10) + (second.code_unit - 0xDC00)};
}

}  // namespace

UnescapedViews::UnescapedViews(std::string_view source_text, Continuation continuation)
    : text_(source_text), complete_to_(source_text.size()) {
  AE_CHECK(source_text.size() <= UINT32_MAX, "a text of less than 4 GiB");
  if (source_text.find('\\') == source_text.npos) return;
  views_.reserve(kLevelsMax);  // the texts must not move
  while (views_.size() < kLevelsMax) {
    const std::size_t level = views_.size();
    const std::string_view from = text(level);
    View view = unescape(from, continuation);
    const bool cut = view.complete_to < from.size();
    if (!cut && view.escapes.empty()) return;
    if (cut) {
      const std::size_t at = to_source(level, {view.complete_to, view.complete_to}).begin;
      complete_to_ = std::min(complete_to_, at);
    }
    views_.push_back(std::move(view));
  }
}

UnescapedViews::View UnescapedViews::unescape(std::string_view below, Continuation continuation) {
  View view{.complete_to = below.size()};
  for (std::size_t at = 0; at < below.size();) {
    const std::size_t slash = std::min(below.find('\\', at), below.size());
    view.text += below.substr(at, slash - at);
    if (slash == below.size()) break;
    const ParsedEscape found = escape_at(below.substr(slash));
    if (found.is_incomplete && continuation == Continuation::more) {
      view.complete_to = slash;
      break;
    }
    at = slash + std::max<std::size_t>(found.bytes, 1);
    if (found.bytes == 0) {
      view.text += '\\';
      continue;
    }
    const std::size_t begin = view.text.size();
    append_utf8(found.code_unit, view.text);
    view.escapes.push_back({.at = static_cast<std::uint32_t>(begin),
                            .source_at = static_cast<std::uint32_t>(slash),
                            .bytes = static_cast<std::uint8_t>(view.text.size() - begin),
                            .source_bytes = static_cast<std::uint8_t>(found.bytes)});
  }
  return view;
}

std::size_t UnescapedViews::begin_in_source(const View& view, std::size_t at) {
  auto next = std::ranges::upper_bound(view.escapes, at, {}, &Escape::at);
  if (next == view.escapes.begin()) return at;
  const Escape& escape = *std::prev(next);
  const std::size_t end = escape.at + std::size_t{escape.bytes};
  return at < end ? escape.source_at : escape.source_at + escape.source_bytes + (at - end);
}

UnescapedViews::Span UnescapedViews::to_source(std::size_t level, Span span) const {
  for (; level > 0; --level) {
    const View& view = views_[level - 1];
    if (span.end == span.begin) {
      span.begin = span.end = begin_in_source(view, span.begin);
      continue;
    }
    // The end of the last byte; of the whole escape if that byte belongs to one.
    const std::size_t last = span.end - 1;
    const auto next = std::ranges::upper_bound(view.escapes, last, {}, &Escape::at);
    const bool escaped = next != view.escapes.begin() &&
                         last < std::prev(next)->at + std::size_t{std::prev(next)->bytes};
    span.end = escaped ? std::prev(next)->source_at + std::size_t{std::prev(next)->source_bytes}
                       : begin_in_source(view, last) + 1;
    span.begin = begin_in_source(view, span.begin);
  }
  return span;
}

const UnescapedViews::Escape* UnescapedViews::last_escape_before(const View& view,
                                                                 std::size_t below) {
  auto next = std::ranges::lower_bound(view.escapes, below, {}, &Escape::source_at);
  return next == view.escapes.begin() ? nullptr : &*std::prev(next);
}

std::size_t UnescapedViews::boundary_at_or_before(std::size_t at) const {
  for (std::size_t level = 0, position = at; level < views_.size();) {
    if (const Escape* const escape = last_escape_before(views_[level], position)) {
      const std::size_t end = escape->source_at + std::size_t{escape->source_bytes};
      if (position < end) {  // back to its begin, which may be inside an escape of a lower level
        at = position = to_source(level, {escape->source_at, escape->source_at}).begin;
        level = 0;
        continue;
      }
      position = escape->at + escape->bytes + (position - end);
    }
    ++level;
  }
  return at;
}

std::size_t UnescapedViews::to_level(std::size_t level, std::size_t at) const {
  for (std::size_t i = 0; i < level; ++i) {
    const Escape* const escape = last_escape_before(views_[i], at);
    if (escape == nullptr) continue;
    at = escape->at + escape->bytes + (at - escape->source_at - escape->source_bytes);
  }
  return at;
}

}  // namespace ae::tools
