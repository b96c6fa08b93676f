// aetheris::Value: a JSON value. What code agents receive, request and return.
//
// Numbers are integers of 53 bits (-(2^53 - 1) to 2^53 - 1) or finite doubles; texts are UTF-8;
// the members of an object are sorted by name. Threads: a value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace aetheris {

// Why an operation failed. `code`: a stable word, such as input_invalid, http_503 or rejected
// (docs/errors); `message`: a sentence.
struct Error {
  std::string code, message;
};
template <class T>
using Result = std::expected<T, Error>;
using Status = Result<void>;

class Value {
 public:
  using Array = std::vector<Value>;
  using Object = std::map<std::string, Value, std::less<>>;

  Value() = default;  // null
  Value(std::nullptr_t) {}
  Value(bool value) : value_(value) {}
  Value(int value) : value_(std::int64_t{value}) {}
  Value(std::int64_t value) : value_(value) {}
  Value(double value) : value_(value) {}
  Value(const char* text) : value_(std::string(text)) {}
  Value(std::string_view text) : value_(std::string(text)) {}
  Value(std::string text) : value_(std::move(text)) {}
  Value(Array items) : value_(std::move(items)) {}
  Value(Object members) : value_(std::move(members)) {}
  static Value array(std::initializer_list<Value> items) { return Array(items); }
  static Value object(std::initializer_list<std::pair<const std::string, Value>> members) {
    return Object(members);
  }

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_integer() const { return std::holds_alternative<std::int64_t>(value_); }
  bool is_number() const { return is_integer() || std::holds_alternative<double>(value_); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  bool is_object() const { return std::holds_alternative<Object>(value_); }

  // Of another type: false, 0, "", an empty list.
  bool as_bool() const { return is_bool() && std::get<bool>(value_); }
  std::int64_t as_int() const {
    if (is_integer()) return std::get<std::int64_t>(value_);
    return is_number() ? static_cast<std::int64_t>(std::get<double>(value_)) : 0;
  }
  double as_double() const {
    if (is_integer()) return static_cast<double>(std::get<std::int64_t>(value_));
    return is_number() ? std::get<double>(value_) : 0;
  }
  const std::string& as_string() const { return get_or_empty<std::string>(); }
  const Array& items() const { return get_or_empty<Array>(); }
  const Object& members() const { return get_or_empty<Object>(); }

  // Number of items or members; 0 for other types.
  std::size_t size() const { return is_object() ? members().size() : items().size(); }
  // null: there is no such member or item.
  const Value& operator[](std::string_view name) const {
    const auto found = members().find(name);
    return found == members().end() ? null_value() : found->second;
  }
  const Value& operator[](const char* name) const { return (*this)[std::string_view(name)]; }
  const Value& operator[](std::size_t index) const {
    return index < items().size() ? items()[index] : null_value();
  }
  // The text of a member; "" = it is absent, or not a text.
  const std::string& text(std::string_view name) const { return (*this)[name].as_string(); }
  // This object with the member set.
  Value with(std::string name, Value value) const {
    Object members = this->members();
    members.insert_or_assign(std::move(name), std::move(value));
    return members;
  }

  // Compact JSON, members sorted.
  std::string to_json() const;
  // Fails with input_invalid: not JSON, or a number outside of the limits above.
  static Result<Value> from_json(std::string_view json);

  bool operator==(const Value&) const = default;

 private:
  static const Value& null_value() {
    static const Value kNull;
    return kNull;
  }
  template <class T>
  const T& get_or_empty() const {
    static const T kEmpty{};
    const T* const value = std::get_if<T>(&value_);
    return value == nullptr ? kEmpty : *value;
  }

  std::variant<std::monostate, bool, std::int64_t, double, std::string, Array, Object> value_;
};

}  // namespace aetheris
