// Boxed: an optional value in one pointer, for a part that is almost always absent. It is used and
// copied like a std::optional.
//
// Threads: a value; one owner.
#pragma once

#include <concepts>
#include <memory>
#include <optional>
#include <utility>

namespace ae {

template <class T>
class Boxed {
 public:
  Boxed() = default;
  Boxed(std::nullopt_t) {}
  Boxed(T value) : value_(std::make_unique<T>(std::move(value))) {}
  Boxed(std::optional<T> value)
      : value_(value ? std::make_unique<T>(*std::move(value)) : nullptr) {}
  template <class U>
    requires(std::convertible_to<const U&, T> && !std::same_as<U, T>)
  Boxed(const U& value) : Boxed(T(value)) {}
  Boxed(const Boxed& other) : value_(other ? std::make_unique<T>(*other) : nullptr) {}
  Boxed(Boxed&&) = default;
  Boxed& operator=(const Boxed& other) { return *this = Boxed(other); }
  Boxed& operator=(Boxed&&) = default;

  bool has_value() const { return value_ != nullptr; }
  explicit operator bool() const { return has_value(); }
  operator std::optional<T>() const { return value_ ? std::optional<T>(*value_) : std::nullopt; }
  T& operator*() { return *value_; }  // REQUIRES: it is present
  const T& operator*() const { return *value_; }
  T* operator->() { return value_.get(); }
  const T* operator->() const { return value_.get(); }
  T& emplace() { return *(value_ = std::make_unique<T>()); }
  void reset() { value_.reset(); }

  friend bool operator==(const Boxed& a, const Boxed& b) {
    return a && b ? *a == *b : a.has_value() == b.has_value();
  }
  template <class U>
    requires(!std::same_as<U, Boxed>)
  friend bool operator==(const Boxed& a, const U& b) {
    return a && *a == b;
  }

 private:
  std::unique_ptr<T> value_;
};

}  // namespace ae
