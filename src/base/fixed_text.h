// Texts of a fixed length, written to memory of the caller and read from it: hex digits, UUIDs,
// instants. The functions that return strings are in base/hash.h, base/ids.h and base/time.h.
// Threads: pure functions.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/ids.h"
#include "base/time.h"

namespace ae {

inline constexpr std::size_t kInstantTextSize = 27;

// Two lower-case digits for each byte. REQUIRES: `out` has room for them.
void write_hex(std::string_view bytes, char* out);
// False if a character is not a lower-case hex digit. REQUIRES: an even number of digits; `out` has
// room for the bytes.
bool read_hex(std::string_view hex, char* out);

// The same for a number of bytes that is known at compile time: the compiler makes vector
// instructions of these loops, which run over at least kHexBlock bytes for that.
inline constexpr std::size_t kHexBlock = 16;
template <std::size_t Bytes>
void write_hex(const std::uint8_t* bytes, char* out) {
  constexpr std::size_t kBlock = std::max(Bytes, kHexBlock);
  std::array<std::uint8_t, kBlock> block{};
  std::memcpy(block.data(), bytes, Bytes);
  std::array<std::uint8_t, 2 * kBlock> digits;
  const auto digit = [](unsigned n) {
    return static_cast<std::uint8_t>(n + '0' + (n > 9 ? 'a' - '0' - 10 : 0));
  };
  for (std::size_t i = 0; i < kBlock; ++i) {
    digits[2 * i] = digit(block[i] >> 4);
    digits[2 * i + 1] = digit(block[i] & 15U);
  }
  std::memcpy(out, digits.data(), 2 * Bytes);
}
template <std::size_t Bytes>
bool read_hex(const char* hex, char* out) {
  constexpr std::size_t kBlock = std::max(Bytes, kHexBlock);
  std::array<std::uint8_t, 2 * kBlock> values{};
  std::memcpy(values.data(), hex, 2 * Bytes);
  std::uint8_t wrong = 0;
  for (std::size_t i = 0; i < 2 * Bytes; ++i) {
    const auto digit = static_cast<std::uint8_t>(values[i] - '0');
    const auto letter = static_cast<std::uint8_t>(values[i] - 'a');
    values[i] = static_cast<std::uint8_t>(digit < 10 ? digit : letter + 10);
    wrong |= static_cast<std::uint8_t>(digit > 9 && letter > 5);
  }
  std::array<std::uint8_t, kBlock> bytes;
  for (std::size_t i = 0; i < kBlock; ++i) {
    bytes[i] = static_cast<std::uint8_t>(values[2 * i] << 4 | values[2 * i + 1]);
  }
  std::memcpy(out, bytes.data(), Bytes);
  return wrong == 0;
}

// kUuidTextSize characters.
void write_text(const Uuid& uuid, char* out);
// kInstantTextSize characters, as to_text.
void write_text(Instant instant, char* out);

}  // namespace ae
