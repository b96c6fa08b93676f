// UTF-8, hand-written: ASCII 64 or eight bytes at a time, everything else sequence by sequence.
#include "base/utf8.h"

#include <cstring>
#include <utility>

namespace ae {
namespace {

// The length of the well-formed UTF-8 sequence at `i`, or 0.
std::size_t utf8_sequence(std::string_view s, std::size_t i) noexcept {
  const auto at = [&](std::size_t k) {
    return i + k < s.size() ? static_cast<unsigned char>(s[i + k]) : 0u;
  };
  const auto tail = [&](std::size_t k) { return (at(k) & 0xC0) == 0x80; };
  const unsigned a = at(0);
  const unsigned b = at(1);
  if (a < 0x80) return 1;
  if (a >= 0xC2 && a <= 0xDF) return tail(1) ? 2 : 0;
  if (a >= 0xE0 && a <= 0xEF) {
    const unsigned low = a == 0xE0 ? 0xA0 : 0x80;   // no overlong form
    const unsigned high = a == 0xED ? 0x9F : 0xBF;  // no surrogate
    return b >= low && b <= high && tail(2) ? 3 : 0;
  }
  if (a >= 0xF0 && a <= 0xF4) {
    const unsigned low = a == 0xF0 ? 0x90 : 0x80;
    const unsigned high = a == 0xF4 ? 0x8F : 0xBF;  // at most U+10FFFF
    return b >= low && b <= high && tail(2) && tail(3) ? 4 : 0;
  }
  return 0;
}

std::uint64_t eight_bytes(const char* at) noexcept {
  std::uint64_t bytes = 0;
  std::memcpy(&bytes, at, sizeof bytes);
  return bytes;
}

// True if the 8 · Words bytes are ASCII. A fold: g++ does not unroll the loop.
template <std::size_t... Word>
bool is_ascii(const char* text, std::index_sequence<Word...>) noexcept {
  return ((eight_bytes(text + 8 * Word) | ...) & 0x8080808080808080u) == 0;
}

// The end of the ASCII from `i` on: the end of the text or of a block of 8 · Words bytes.
template <std::size_t Words>
std::size_t skip_ascii(std::string_view s, std::size_t i) noexcept {
  constexpr std::size_t kBlock = 8 * Words;
  constexpr std::make_index_sequence<Words> kWords;
  while (s.size() - i >= kBlock && is_ascii(s.data() + i, kWords)) i += kBlock;
  const bool at_end = s.size() - i < kBlock && s.size() >= kBlock;
  if (at_end && is_ascii(s.data() + s.size() - kBlock, kWords)) return s.size();
  if constexpr (Words > 1) return skip_ascii<1>(s, i);
  return i;
}

}  // namespace

std::size_t valid_utf8_prefix(std::string_view s) noexcept {
  std::size_t i = 0;
  while (i < s.size()) {
    const std::size_t ascii = skip_ascii<8>(s, i);
    if (ascii == i) {
      const std::size_t length = utf8_sequence(s, i);
      if (length == 0) return i;
      i += length;
    } else {
      i = ascii;
    }
  }
  return i;
}

bool is_utf8(std::string_view bytes) noexcept { return valid_utf8_prefix(bytes) == bytes.size(); }

std::string_view truncate_utf8(std::string_view text, std::size_t bytes) noexcept {
  if (text.size() <= bytes) return text;
  while (bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xC0u) == 0x80u) --bytes;
  return text.substr(0, bytes);
}

void append_utf8(std::uint32_t c, std::string& out) {
  const auto append_byte = [&out](std::uint32_t byte) { out += static_cast<char>(byte); };
  if (c < 0x80) {
    append_byte(c);
  } else if (c < 0x800) {
    append_byte(0xC0 | c >> 6);
    append_byte(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    append_byte(0xE0 | c >> 12);
    append_byte(0x80 | (c >> 6 & 0x3F));
    append_byte(0x80 | (c & 0x3F));
  } else {
    append_byte(0xF0 | c >> 18);
    append_byte(0x80 | (c >> 12 & 0x3F));
    append_byte(0x80 | (c >> 6 & 0x3F));
    append_byte(0x80 | (c & 0x3F));
  }
}

}  // namespace ae
