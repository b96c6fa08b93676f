// Params and Column: the values that a statement sends, in the server's binary format.
//
// Texts and bytes are copied.
// Threads: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/inline_text.h"
#include "base/time.h"

namespace ae::store::postgres {

struct Bytes {  // sent as bytea; a string_view is sent as text
  std::string_view bytes;
};

// The parameters of one statement, in order.
class Params {
 public:
  Params& add(std::int64_t value);
  Params& add(std::uint64_t value) { return add(static_cast<std::int64_t>(value)); }
  Params& add(Instant value) { return add(value.us); }
  Params& add(std::string_view text);
  Params& add(const std::string& text) { return add(std::string_view(text)); }
  template <std::size_t Size>
  Params& add(const InlineText<Size>& text) {
    return add(text.view());
  }
  Params& add(const char* text) { return add(std::string_view(text)); }
  Params& add(Bytes bytes) { return add(bytes.bytes); }
  Params& add(const Hash& hash);  // as bytea
  Params& add(std::nullopt_t);
  template <class T>
  Params& add(const std::optional<T>& value) {
    return value ? add(*value) : add(std::nullopt);
  }
  template <class Array>
    requires requires(const Array& array) { array.encoded(); }
  Params& add(const Array& array) {
    return add_encoded(array.encoded());
  }

 private:
  friend class Connection;
  Params& add_encoded(std::string bytes);
  std::vector<std::optional<std::string>> values_;
};

// One column of many rows: an array in the server's binary format.
class Column {
 public:
  enum class Type : std::uint32_t { boolean = 16, bytes = 17, integer = 20, text = 25 };
  explicit Column(Type type) : type_(type) {}

  void add(bool value);
  void add(std::int64_t value);
  void add(std::uint64_t value) { add(static_cast<std::int64_t>(value)); }
  void add(Instant value) { add(value.us); }
  void add(std::string_view bytes);
  void add(const std::string& text) { add(std::string_view(text)); }
  template <std::size_t Size>
  void add(const InlineText<Size>& text) {
    add(text.view());
  }
  void add(const char*) = delete;  // it would convert to bool
  void add(const Hash& hash);
  void add(std::nullopt_t);
  template <class T>
  void add(const std::optional<T>& value) {
    if (value) {
      add(*value);
    } else {
      add(std::nullopt);
    }
  }
  bool empty() const { return count_ == 0; }
  std::string encoded() const;

 private:
  Type type_;
  std::uint32_t count_ = 0;
  bool nulls_ = false;
  std::string body_;
};

// The items, or what the projection gives of each.
template <class Items, class Projection = std::identity>
Column column_of(Column::Type type, const Items& items, Projection projection = {}) {
  Column column(type);
  for (const auto& item : items) column.add(std::invoke(projection, item));
  return column;
}

}  // namespace ae::store::postgres
