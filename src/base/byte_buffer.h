// ByteBuffer: bytes that are appended and read again, for code that writes many small parts, like
// the codec of events. Appending is inline and never writes a byte twice; `clear` keeps the memory.
// Threads: a value; one owner.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string_view>

namespace ae {

class ByteBuffer {
 public:
  explicit ByteBuffer(std::size_t capacity = 0)
      : data_(capacity == 0 ? nullptr : std::make_unique_for_overwrite<char[]>(capacity)),
        capacity_(capacity) {}

  std::size_t size() const { return size_; }
  std::string_view view() const { return {data_.get(), size_}; }
  // REQUIRES: begin <= end <= size().
  std::string_view view(std::size_t begin, std::size_t end) const {
    return {data_.get() + begin, end - begin};
  }
  char* data() { return data_.get(); }

  void clear() { size_ = 0; }
  // REQUIRES: size <= this->size().
  void truncate(std::size_t size) { size_ = size; }
  // Adds bytes that the caller sets. Valid until the next addition.
  char* extend(std::size_t count) {
    if (count > capacity_ - size_) [[unlikely]]
      grow(count);
    char* const at = data_.get() + size_;
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
  void grow(std::size_t count) {
    const std::size_t capacity = std::max(size_ + count, 2 * capacity_);
    auto data = std::make_unique_for_overwrite<char[]>(capacity);
    if (size_ > 0) std::memcpy(data.get(), data_.get(), size_);
    data_ = std::move(data);
    capacity_ = capacity;
  }

  std::unique_ptr<char[]> data_;
  std::size_t size_ = 0, capacity_ = 0;
};

}  // namespace ae
