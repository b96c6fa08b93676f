// InlineText: a text that never changes in Size + 1 bytes: at most `Size` bytes are inside the
// object, a longer text is in memory that its copies share. Copying allocates nothing. For ids and
// digests, whose length is fixed.
// It converts to std::string_view and std::string, and is compared with both.
// Threads: a value; one owner.
#pragma once

#include <algorithm>
#include <atomic>
#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iosfwd>
#include <new>
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
  InlineText(const InlineText& o) noexcept {
    copy_bytes(o);
    if (is_long()) shared()->owners.fetch_add(1, std::memory_order_relaxed);
  }
  // A short text stays where it was, too.
  InlineText(InlineText&& o) noexcept {
    copy_bytes(o);
    if (is_long()) o.become_empty();
  }
  // NOLINTNEXTLINE(bugprone-unhandled-self-assignment): it copies first
  InlineText& operator=(const InlineText& o) noexcept { return *this = InlineText(o); }
  InlineText& operator=(InlineText&& o) noexcept {
    if (this != &o) {
      drop();
      copy_bytes(o);
      if (is_long()) o.become_empty();
    }
    return *this;
  }
  ~InlineText() { drop(); }

  std::string_view view() const noexcept {
    if (is_long()) return {shared()->bytes(), shared()->size};
    return {inline_, size_};
  }
  operator std::string_view() const noexcept { return view(); }
  operator std::string() const { return std::string(view()); }
  std::string string() const { return std::string(view()); }

  bool empty() const noexcept { return size_ == 0; }
  std::size_t size() const noexcept { return view().size(); }
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
    if (std::memcmp(a.inline_, b.inline_, Size) == 0) return true;
    return a.is_long() && a.view() == b.view();
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
  // A long text. Its bytes follow.
  struct Shared {
    std::atomic<std::uint32_t> owners{1};
    std::size_t size;
    explicit Shared(std::size_t count) : size(count) {}
    char* bytes() { return reinterpret_cast<char*>(this + 1); }
  };
  static constexpr std::uint8_t kLong = 255;

  bool is_long() const noexcept { return size_ == kLong; }
  // REQUIRES: is_long(). Its address is in the first bytes.
  Shared* shared() const noexcept {
    Shared* address;
    // NOLINTNEXTLINE(bugprone-sizeof-expression): the bytes of the address itself
    std::memcpy(&address, inline_, sizeof address);
    return address;
  }
  void drop() noexcept {
    if (is_long() && shared()->owners.fetch_sub(1, std::memory_order_acq_rel) == 1)
      ::operator delete(shared());
  }
  void become_empty() noexcept {
    std::memset(inline_, 0, Size);
    size_ = 0;
  }
  void copy_bytes(const InlineText& o) noexcept {
    std::memcpy(inline_, o.inline_, Size);
    size_ = o.size_;
  }
  // REQUIRES: all bytes are zero.
  void set(std::string_view text) {
    if (text.size() > Size) return set_long(text);
    if (!text.empty()) std::memcpy(inline_, text.data(), text.size());
    size_ = static_cast<std::uint8_t>(text.size());
  }
  void set_long(std::string_view text) {
    auto* const made = new (::operator new(sizeof(Shared) + text.size())) Shared(text.size());
    std::memcpy(made->bytes(), text.data(), text.size());
    // NOLINTNEXTLINE(bugprone-sizeof-expression): the bytes of the address itself
    std::memcpy(inline_, &made, sizeof made);
    size_ = kLong;
  }

  static_assert(Size >= sizeof(Shared*) && Size < kLong);
  char inline_[Size];
  std::uint8_t size_ = 0;
};

}  // namespace ae
