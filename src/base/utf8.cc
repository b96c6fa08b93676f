// UTF-8, hand-written: ASCII 32 or eight bytes at a time, everything else sequence by sequence.
#include "base/utf8.h"

#include <array>
#include <cstring>

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

// The end of the ASCII from `i` on, in steps of 8 · Words bytes and then of 8.
template <std::size_t Words>
std::size_t skip_ascii(std::string_view s, std::size_t i) noexcept {
  constexpr std::uint64_t kTops = 0x8080808080808080u;
  for (std::array<std::uint64_t, Words> block; s.size() - i >= sizeof block; i += sizeof block) {
    std::memcpy(block.data(), s.data() + i, sizeof block);
    std::uint64_t all = 0;
    for (const std::uint64_t word : block) all |= word;
    if ((all & kTops) != 0) break;
  }
  if constexpr (Words > 1) return skip_ascii<1>(s, i);
  return i;
}

}  // namespace

std::size_t valid_utf8_prefix(std::string_view s) noexcept {
  std::size_t i = 0;
  while (i < s.size()) {
    const std::size_t ascii = skip_ascii<4>(s, i);
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
