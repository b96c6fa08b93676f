#include "store/postgres/params.h"

#include <utility>

namespace ae::store::postgres {
namespace {

template <class Number>
void append_big_endian(std::string& to, Number value) {
  char bytes[sizeof value];
  for (std::size_t i = 0; i < sizeof value; ++i) {
    bytes[i] = static_cast<char>(value >> (8 * (sizeof value - 1 - i)));
  }
  to.append(bytes, sizeof value);
}
void append_u32(std::string& to, std::uint32_t value) { append_big_endian(to, value); }
void append_u64(std::string& to, std::uint64_t value) { append_big_endian(to, value); }

std::string_view view_of(const Hash& hash) {
  return {reinterpret_cast<const char*>(hash.bytes.data()), hash.bytes.size()};
}

}  // namespace

Params& Params::add(std::int64_t value) {
  std::string bytes;
  append_u64(bytes, static_cast<std::uint64_t>(value));
  return add_encoded(std::move(bytes));
}
Params& Params::add(std::string_view text) { return add_encoded(std::string(text)); }
Params& Params::add(const Hash& hash) { return add(view_of(hash)); }
Params& Params::add(std::nullopt_t) {
  values_.emplace_back(std::nullopt);
  return *this;
}
Params& Params::add_encoded(std::string bytes) {
  values_.emplace_back(std::move(bytes));
  return *this;
}

void Column::add(bool value) {
  append_u32(body_, 1);
  body_.push_back(value ? 1 : 0);
  ++count_;
}
void Column::add(std::int64_t value) {
  append_u32(body_, 8);
  append_u64(body_, static_cast<std::uint64_t>(value));
  ++count_;
}
void Column::add(std::string_view bytes) {
  append_u32(body_, static_cast<std::uint32_t>(bytes.size()));
  body_.append(bytes);
  ++count_;
}
void Column::add(const Hash& hash) { add(view_of(hash)); }
void Column::add(std::nullopt_t) {
  append_u32(body_, 0xFFFFFFFF);
  nulls_ = true;
  ++count_;
}

std::string Column::encoded() const {
  std::string bytes;
  bytes.reserve(body_.size() + 20);
  append_u32(bytes, count_ == 0 ? 0 : 1);  // dimensions
  append_u32(bytes, nulls_ ? 1 : 0);
  append_u32(bytes, static_cast<std::uint32_t>(type_));
  if (count_ == 0) return bytes;
  append_u32(bytes, count_);
  append_u32(bytes, 1);  // the first index
  bytes += body_;
  return bytes;
}

}  // namespace ae::store::postgres
