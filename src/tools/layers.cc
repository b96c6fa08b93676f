#include "tools/layers.h"

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

// What stands at the beginning of a text.
struct Found {
  std::size_t bytes = 0;  // 0: no escape
  std::uint32_t is = 0;
  bool open = false;  // the text ends before it is known
};

// `\uXXXX`, one half of a pair or all of a character.
Found unit_at(std::string_view text) {
  for (std::size_t i = 0; i < kUnitSize; ++i) {
    if (i == text.size()) return {.open = true};
    const bool fits = i == 0 ? text[i] == '\\' : i == 1 ? text[i] == 'u' : hex_digit(text[i]) >= 0;
    if (!fits) return {};
  }
  std::uint32_t is = 0;
  for (std::size_t i = 2; i < kUnitSize; ++i) {
    is = is << 4 | static_cast<std::uint32_t>(hex_digit(text[i]));
  }
  return {.bytes = kUnitSize, .is = is};
}

// REQUIRES: it begins with a backslash.
Found escape_at(std::string_view text) {
  constexpr std::string_view kEscapes = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
  if (text.size() < 2) return {.open = true};
  if (const std::size_t simple = kEscapes.find(text[1]); simple != kEscapes.npos) {
    return {.bytes = 2, .is = static_cast<unsigned char>(kMeanings[simple])};
  }
  const Found first = unit_at(text);
  if (first.bytes == 0 || first.is < 0xD800 || first.is > 0xDFFF) return first;
  if (first.is > 0xDBFF) return {};  // the second half of nothing
  const Found second = unit_at(text.substr(kUnitSize));
  if (second.open) return second;
  if (second.bytes == 0 || second.is < 0xDC00 || second.is > 0xDFFF) return {};
  return {.bytes = 2 * kUnitSize,
          .is = 0x10000 + ((first.is - 0xD800) << 10) + (second.is - 0xDC00)};
}

}  // namespace

Layers::Layers(std::string_view whole, Behind behind) : text_(whole), read_to_(whole.size()) {
  AE_CHECK(whole.size() <= UINT32_MAX, "a text of less than 4 GiB");
  if (whole.find('\\') == whole.npos) return;
  layers_.reserve(kLevelsMax);  // what is read stays where it is
  while (layers_.size() < kLevelsMax) {
    const std::size_t level = layers_.size();
    const std::string_view from = text(level);
    Layer layer = read(from, behind);
    const bool cut = layer.read_to < from.size();
    if (!cut && layer.escapes.empty()) return;
    if (cut) {
      const std::size_t at = below(level, {layer.read_to, layer.read_to}).begin;
      read_to_ = std::min(read_to_, at);
    }
    layers_.push_back(std::move(layer));
  }
}

Layers::Layer Layers::read(std::string_view below, Behind behind) {
  Layer layer{.read_to = below.size()};
  for (std::size_t at = 0; at < below.size();) {
    const std::size_t slash = std::min(below.find('\\', at), below.size());
    layer.text += below.substr(at, slash - at);
    if (slash == below.size()) break;
    const Found found = escape_at(below.substr(slash));
    if (found.open && behind == Behind::more) {
      layer.read_to = slash;
      break;
    }
    at = slash + std::max<std::size_t>(found.bytes, 1);
    if (found.bytes == 0) {
      layer.text += '\\';
      continue;
    }
    const std::size_t begin = layer.text.size();
    append_utf8(found.is, layer.text);
    layer.escapes.push_back({.at = static_cast<std::uint32_t>(begin),
                             .below = static_cast<std::uint32_t>(slash),
                             .bytes = static_cast<std::uint8_t>(layer.text.size() - begin),
                             .bytes_below = static_cast<std::uint8_t>(found.bytes)});
  }
  return layer;
}

std::size_t Layers::begin_below(const Layer& layer, std::size_t at) {
  auto next = std::ranges::upper_bound(layer.escapes, at, {}, &Escape::at);
  if (next == layer.escapes.begin()) return at;
  const Escape& escape = *std::prev(next);
  const std::size_t end = escape.at + std::size_t{escape.bytes};
  return at < end ? escape.below : escape.below + escape.bytes_below + (at - end);
}

Layers::Span Layers::below(std::size_t level, Span span) const {
  for (; level > 0; --level) {
    const Layer& layer = layers_[level - 1];
    if (span.end == span.begin) {
      span.begin = span.end = begin_below(layer, span.begin);
      continue;
    }
    // The end of its last byte: of the whole escape, if that is one.
    const std::size_t last = span.end - 1;
    const auto next = std::ranges::upper_bound(layer.escapes, last, {}, &Escape::at);
    const bool escaped = next != layer.escapes.begin() &&
                         last < std::prev(next)->at + std::size_t{std::prev(next)->bytes};
    span.end = escaped ? std::prev(next)->below + std::size_t{std::prev(next)->bytes_below}
                       : begin_below(layer, last) + 1;
    span.begin = begin_below(layer, span.begin);
  }
  return span;
}

const Layers::Escape* Layers::before(const Layer& layer, std::size_t below) {
  auto next = std::ranges::lower_bound(layer.escapes, below, {}, &Escape::below);
  return next == layer.escapes.begin() ? nullptr : &*std::prev(next);
}

std::size_t Layers::between(std::size_t at) const {
  for (std::size_t level = 0, here = at; level < layers_.size();) {
    if (const Escape* const escape = before(layers_[level], here)) {
      const std::size_t end = escape->below + std::size_t{escape->bytes_below};
      if (here < end) {  // back to where it begins, which may be within one of a lower level
        at = here = below(level, {escape->below, escape->below}).begin;
        level = 0;
        continue;
      }
      here = escape->at + escape->bytes + (here - end);
    }
    ++level;
  }
  return at;
}

std::size_t Layers::above(std::size_t level, std::size_t at) const {
  for (std::size_t i = 0; i < level; ++i) {
    const Escape* const escape = before(layers_[i], at);
    if (escape == nullptr) continue;
    at = escape->at + escape->bytes + (at - escape->below - escape->bytes_below);
  }
  return at;
}

}  // namespace ae::tools
