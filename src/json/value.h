// Value: a JSON value, immutable and cheap to copy; used throughout the program.
//
// Numbers are doubles (RFC 8785). Objects are always in canonical order (UTF-16 code units of the
// keys) and have no duplicate keys, so equal values are written as equal bytes. Copies share their
// content. Text is valid UTF-8 without lone surrogates: the reader (json.h) checks external input.
// Threads: a Value may be read and copied from any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/inline_text.h"

namespace ae {

class Value;
using Member = std::pair<std::string, Value>;

class Value {
 public:
  enum class Kind : std::uint8_t { null, boolean, number, string, array, object };

  Value() noexcept = default;
  Value(std::nullptr_t) noexcept {}
  Value(bool b) noexcept;
  Value(double d) noexcept;  // REQUIRES: finite; −0 becomes 0
  Value(int i) noexcept : Value(static_cast<double>(i)) {}
  Value(std::int64_t i) noexcept : Value(static_cast<double>(i)) {}   // REQUIRES: |i| <= 2^53-1
  Value(std::uint64_t i) noexcept : Value(static_cast<double>(i)) {}  // REQUIRES: i <= 2^53-1
  Value(const char* s) : Value(std::string_view(s)) {}
  Value(std::string_view s) : Value(std::string(s)) {}
  Value(std::string s);
  template <std::size_t Size>
  Value(const InlineText<Size>& s) : Value(s.view()) {}
  Value(const Value& o) noexcept : kind_(o.kind_), bits_(o.bits_) {
    if (kind_ >= Kind::string) bits_.node->owners.fetch_add(1, std::memory_order_relaxed);
  }
  Value(Value&& o) noexcept : kind_(std::exchange(o.kind_, Kind::null)), bits_(o.bits_) {}
  Value& operator=(const Value& o) noexcept { return *this = Value(o); }
  Value& operator=(Value&& o) noexcept {
    Value moved(std::move(o));  // the old content is destroyed last: `o` may be inside of it
    std::swap(kind_, moved.kind_);
    std::swap(bits_, moved.bits_);
    return *this;
  }
  ~Value() {
    if (kind_ >= Kind::string) drop();
  }

  static Value array(std::vector<Value> items);
  // Sorts. A duplicate key is a bug of the caller (AE_CHECK).
  static Value object(std::vector<Member> members);
  static Value object(std::initializer_list<Member> members);

  Kind kind() const noexcept { return kind_; }
  bool is_null() const noexcept { return kind_ == Kind::null; }
  bool is_bool() const noexcept { return kind_ == Kind::boolean; }
  bool is_number() const noexcept { return kind_ == Kind::number; }
  bool is_string() const noexcept { return kind_ == Kind::string; }
  bool is_array() const noexcept { return kind_ == Kind::array; }
  bool is_object() const noexcept { return kind_ == Kind::object; }
  bool is_integer() const noexcept;  // a number without fraction, |n| <= 2^53-1

  // REQUIRES: the matching kind.
  bool as_bool() const;
  double as_number() const;
  std::int64_t as_int() const;  // REQUIRES: is_integer()
  const std::string& as_string() const;
  std::span<const Value> items() const;
  std::span<const Member> members() const;

  // The member of an object, or null if it is absent or this is no object. `find` distinguishes
  // absent from null.
  const Value& operator[](std::string_view key) const noexcept;
  const Value* find(std::string_view key) const noexcept;
  // Array or object size; 0 for other kinds.
  std::size_t size() const noexcept;
  // The member's text, or `otherwise` if it is absent or no string. The view is valid as long as
  // this value.
  std::string_view text(std::string_view key, std::string_view otherwise = {}) const noexcept;

  // A copy of this object with the member set (or replaced). REQUIRES: is_object().
  Value with(std::string_view key, Value value) const;

  // The size of the value when written, counting shared parts at each occurrence. Computed when the
  // value is made, so that a value of 2^60 leaves in a few bytes of memory is recognised without
  // walking it. The counts saturate.
  struct Extent {
    std::uint32_t values = 1;  // this one, and all items and members below it
    std::uint32_t bytes = 1;   // of its canonical text, a lower bound: numbers count 1, escapes 0
    std::uint32_t depth = 0;   // of nested arrays and objects; 0 for other kinds
    bool operator==(const Extent&) const = default;
  };
  static constexpr std::uint32_t kExtentMax = 0xffffffff;
  Extent extent() const noexcept;

  friend bool operator==(const Value& a, const Value& b);

 private:
  struct Node {
    std::atomic<std::uint32_t> owners{1};
    Extent extent;
    Node* next_dead = nullptr;  // the list of nodes that `drop` is destroying
  };
  struct StringNode;
  struct ArrayNode;
  struct ObjectNode;
  union Bits {
    double number = 0;
    bool boolean;
    Node* node;
  };
  void drop() noexcept;  // REQUIRES: a string, an array or an object

  Kind kind_ = Kind::null;
  Bits bits_;
};

// Order of object keys: UTF-16 code units, as RFC 8785 requires. Both texts are valid UTF-8.
bool key_less(std::string_view a, std::string_view b) noexcept;

}  // namespace ae
