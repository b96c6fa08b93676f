// ByteBuffer: bytes that are appended and read again, for code that writes many small parts, like
// the codec of events. Appending is inline and never writes a byte twice; `clear` keeps the memory.
// Threads: one owner.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>

namespace ae {

class ByteBuffer {
 public:
  ByteBuffer() = default;
  // Allocates only when these bytes are full. Borrows them.
  explicit ByteBuffer(std::span<char> first) : data_(first.data()), capacity_(first.size()) {}
  ByteBuffer(const ByteBuffer&) = delete;
  ByteBuffer& operator=(const ByteBuffer&) = delete;

  std::size_t size() const { return size_; }
  std::string_view view() const { return {data_, size_}; }
  // REQUIRES: begin <= end <= size().
  std::string_view view(std::size_t begin, std::size_t end) const {
    return {data_ + begin, end - begin};
  }
  char* data() { return data_; }

  void clear() { size_ = 0; }
  // REQUIRES: size <= this->size().
  void truncate(std::size_t size) { size_ = size; }
  // Adds bytes that the caller sets. Valid until the next addition.
  char* extend(std::size_t count) {
    if (count > capacity_ - size_) [[unlikely]]
      grow(count);
    char* const at = data_ + size_;
    size_ += count;
    return at;
  }
  void append(const char* bytes, std::size_t count) {
    char* const at = extend(count);
    if (count > 0) std::memcpy(at, bytes, count);
  }
  ByteBuffer& operator+=(std::string_view bytes) {
    append(bytes.data(), bytes.size());
    return *this;
  }
  ByteBuffer& operator+=(char byte) {
    *extend(1) = byte;
    return *this;
  }

 private:
  void grow(std::size_t count);

  char* data_ = nullptr;
  std::size_t size_ = 0, capacity_ = 0;
  std::unique_ptr<char[]> allocated_;
};

}  // namespace ae
