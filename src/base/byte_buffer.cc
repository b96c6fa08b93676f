// ByteBuffer: growth, which is rare and so not inline.
#include "base/byte_buffer.h"

#include <algorithm>

namespace ae {

void ByteBuffer::grow(std::size_t count) {
  constexpr std::size_t kLeast = 64;
  const std::size_t capacity = std::max({size_ + count, 2 * capacity_, kLeast});
  auto data = std::make_unique_for_overwrite<char[]>(capacity);
  if (size_ > 0) std::memcpy(data.get(), data_, size_);
  allocated_ = std::move(data);
  data_ = allocated_.get();
  capacity_ = capacity;
}

}  // namespace ae
