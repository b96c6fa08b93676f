// Encoding and decoding of stored bytes: big-endian numbers, varints, length-prefixed texts.
//
// Decoding is safe on any input: it never reads past the end, and checks each length against the
// bytes that are left. Each number and text has exactly one encoding, so equal content gives equal
// bytes.
// Threads: plain values, no sharing.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace ae {

// `Out` is a std::string or a ByteBuffer (base/byte_buffer.h).
template <class Out>
void put_byte(std::uint8_t byte, Out& out) {
  out += static_cast<char>(byte);
}

// REQUIRES: `out` has room for 8 bytes.
inline void write_big_endian64(std::uint64_t value, char* out) {
  if constexpr (std::endian::native == std::endian::little) value = std::byteswap(value);
  std::memcpy(out, &value, sizeof value);
}
inline std::uint64_t read_big_endian64(const char* bytes) {
  std::uint64_t value = 0;
  std::memcpy(&value, bytes, sizeof value);
  if constexpr (std::endian::native == std::endian::little) value = std::byteswap(value);
  return value;
}

template <class Out>
void put_big_endian64(std::uint64_t value, Out& out) {
  char bytes[8];
  write_big_endian64(value, bytes);
  out.append(bytes, sizeof bytes);
}

// Seven bits per byte, lowest first; the top bit means that more bytes follow.
template <class Out>
void put_varint(std::uint64_t value, Out& out) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7F) | 0x80);
  out += static_cast<char>(value);
}

// 0, −1, 1, −2, … become 0, 1, 2, 3, …
inline std::uint64_t zig_zag(std::int64_t value) {
  return static_cast<std::uint64_t>(value) << 1 ^ static_cast<std::uint64_t>(value >> 63);
}
inline std::int64_t un_zig_zag(std::uint64_t value) {
  return static_cast<std::int64_t>(value >> 1) ^ -static_cast<std::int64_t>(value & 1);
}

template <class Out>
void put_text(std::string_view text, Out& out) {
  put_varint(text.size(), out);
  out += text;
}

// After the first decoding error `ok` is false, nothing is left, and all reads return zero or
// empty.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : rest_(bytes) {}

  bool ok() const { return ok_; }
  std::size_t left() const { return rest_.size(); }

  std::string_view bytes(std::size_t count) {
    if (count > rest_.size()) return refuse();
    const std::string_view read = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return read;
  }
  std::uint8_t byte() {
    const std::string_view one = bytes(1);
    return one.empty() ? std::uint8_t{0} : static_cast<std::uint8_t>(one.front());
  }
  std::uint64_t big_endian64() {
    const std::string_view eight = bytes(8);
    return eight.empty() ? 0 : read_big_endian64(eight.data());  // NOLINT: it has 8 bytes
  }
  // Accepts the shortest form only.
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const std::uint8_t next = byte();
      const std::uint64_t bits = next & 0x7F;
      if (shift == 63 && bits > 1) break;
      value |= bits << shift;
      if (next < 0x80) {
        if (next == 0 && shift > 0) break;
        return value;
      }
    }
    refuse();
    return 0;
  }
  std::string_view text() {
    const std::uint64_t size = varint();
    return size <= rest_.size() ? bytes(static_cast<std::size_t>(size)) : refuse();
  }

 private:
  std::string_view refuse() {
    ok_ = false;
    rest_ = {};
    return {};
  }

  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace ae
