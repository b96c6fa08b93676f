// InlineText: a text that is kept inside the object if it has at most `Size` bytes, so that copying
// it allocates nothing. For ids and digests, whose length is fixed; a longer text is allocated.
// It converts to std::string_view and std::string, and is compared with both.
// Threads: a value; one owner.
#pragma once

#include <algorithm>
#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iosfwd>
#include <string>
#include <string_view>
#include <utility>

namespace ae {

template <std::size_t Size>
class InlineText;

// Any other text: std::string, std::string_view, a literal, an InlineText of another size.
template <class T, std::size_t Size>
concept OtherText =
    std::convertible_to<const T&, std::string_view> && !std::same_as<T, InlineText<Size>>;

template <std::size_t Size>
class InlineText {
 public:
  InlineText() noexcept : inline_{} {}
  InlineText(const OtherText<Size> auto& text) : inline_{} { set(text); }
  InlineText(const InlineText& o) { copy(o); }
  InlineText(InlineText&& o) noexcept { take(o); }
  InlineText& operator=(const InlineText& o) {
    if (this != &o) {
      free_long();
      copy(o);
    }
    return *this;
  }
  InlineText& operator=(InlineText&& o) noexcept {
    if (this != &o) {
      free_long();
      take(o);
    }
    return *this;
  }
  ~InlineText() { free_long(); }

  std::string_view view() const noexcept { return {is_long() ? long_ : inline_, size_}; }
  operator std::string_view() const noexcept { return view(); }
  operator std::string() const { return std::string(view()); }
  std::string string() const { return std::string(view()); }

  bool empty() const noexcept { return size_ == 0; }
  std::size_t size() const noexcept { return size_; }
  const char* data() const noexcept { return view().data(); }
  char operator[](std::size_t at) const noexcept { return view()[at]; }
  char back() const noexcept { return view().back(); }
  bool starts_with(std::string_view text) const noexcept { return view().starts_with(text); }
  bool ends_with(std::string_view text) const noexcept { return view().ends_with(text); }
  std::string substr(std::size_t from, std::size_t size = std::string::npos) const {
    return std::string(view().substr(from, size));
  }
  std::size_t find(auto what, std::size_t from = 0) const noexcept {
    return view().find(what, from);
  }

  // For hash tables: eight bytes at a time.
  std::size_t hash() const noexcept {
    if (is_long()) return std::hash<std::string_view>()(view());
    std::uint64_t mixed = size_;
    for (std::size_t at = 0; at < Size; at += sizeof mixed) {
      std::uint64_t word = 0;
      std::memcpy(&word, inline_ + at, std::min(sizeof word, Size - at));
      mixed = (mixed ^ word) * 0x9E3779B97F4A7C15u;  // odd, with bits at random: the golden ratio
      mixed ^= mixed >> 32;
    }
    return mixed;
  }

  friend bool operator==(const InlineText& a, const InlineText& b) noexcept {
    if (a.size_ != b.size_) return false;
    // The bytes behind a short text are zero.
    return a.is_long() ? a.view() == b.view() : std::memcmp(a.inline_, b.inline_, Size) == 0;
  }
  friend bool operator==(const InlineText& a, const OtherText<Size> auto& b) noexcept {
    return a.view() == std::string_view(b);
  }
  friend std::strong_ordering operator<=>(const InlineText& a, const InlineText& b) noexcept {
    return a.view() <=> b.view();
  }
  friend std::strong_ordering operator<=>(const InlineText& a,
                                          const OtherText<Size> auto& b) noexcept {
    return a.view() <=> std::string_view(b);
  }
  friend std::ostream& operator<<(std::ostream& out, const InlineText& text) {
    return out << text.view();
  }
  friend std::string operator+(std::string a, const InlineText& b) {
    return std::move(a.append(b.view()));
  }
  friend std::string operator+(const char* a, const InlineText& b) { return std::string(a) + b; }
  friend std::string operator+(const InlineText& a, char b) { return std::string(a) + b; }
  friend std::string operator+(const InlineText& a, const OtherText<Size> auto& b) {
    return std::string(a).append(std::string_view(b));
  }

 private:
  bool is_long() const noexcept { return size_ > Size; }
  void free_long() noexcept {
    if (is_long()) delete[] long_;
  }
  void copy(const InlineText& o) {
    if (o.is_long()) return set_long(o.view());
    copy_bytes(o);
  }
  // A short text stays where it was, too.
  void take(InlineText& o) noexcept {
    copy_bytes(o);
    if (!is_long()) return;
    std::memset(o.inline_, 0, Size);
    o.size_ = 0;
  }
  void copy_bytes(const InlineText& o) noexcept {
    std::memcpy(inline_, o.inline_, Size);
    size_ = o.size_;
  }
  void set_long(std::string_view text) {
    std::memset(inline_, 0, Size);
    long_ = new char[text.size()];
    std::memcpy(long_, text.data(), text.size());
    size_ = text.size();
  }
  // REQUIRES: all bytes are zero.
  void set(std::string_view text) {
    if (text.size() > Size) return set_long(text);
    if (!text.empty()) std::memcpy(inline_, text.data(), text.size());
    size_ = text.size();
  }

  static_assert(Size >= sizeof(char*));
  std::size_t size_ = 0;
  union {
    char inline_[Size];
    char* long_;
  };
};

}  // namespace ae
