// CheckpointWriter, CheckpointReader: numbers and texts as bytes. The reader refuses what no writer
// wrote.
//
// Only checkpoint.cc uses them. Threads: values; one owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/utf8.h"

namespace ae::engine {

class CheckpointWriter {
 public:
  static constexpr bool kReads = false;
  explicit CheckpointWriter(std::string& out) : out_(out) {}
  void number(std::uint64_t n) { put_varint(n, out_); }
  void fixed(std::uint64_t n) { put_big_endian64(n, out_); }
  void text(std::string_view text) { put_text(text, out_); }

 private:
  std::string& out_;
};

class CheckpointReader {
 public:
  static constexpr bool kReads = true;
  explicit CheckpointReader(std::string_view bytes) : in_(bytes) {}
  std::uint64_t number() { return in_.varint(); }
  std::uint64_t fixed() { return in_.big_endian64(); }
  std::string text() {
    const std::string_view text = in_.text();
    if (!is_utf8(text)) refuse();
    return std::string(text);
  }
  // The number of elements that follow; each takes at least one byte.
  std::uint64_t count() {
    const std::uint64_t n = in_.varint();
    if (n > in_.left()) refuse();
    return ok() ? n : 0;
  }
  bool flag() {
    const std::uint64_t n = in_.varint();
    if (n > 1) refuse();
    return n == 1;
  }
  // All further reads fail.
  void refuse() { in_.bytes(in_.left() + 1); }
  std::string_view bytes(std::size_t n) { return in_.bytes(n); }
  bool ok() const { return in_.ok(); }
  bool at_end() const { return in_.ok() && in_.left() == 0; }

 private:
  ByteReader in_;
};

}  // namespace ae::engine
