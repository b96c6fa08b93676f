// The JSON reader and the canonical writer, both hand-written (docs/decisions/0003-json-door.md).
//
// The reader is one loop with an explicit stack of open containers, so nesting uses counted memory
// and no call stack. The text is validated as UTF-8 once, before the loop.
#include "json/json.h"

#include "base/ascii.h"
#include "base/utf8.h"
#include "json/canonical_buffer.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <vector>

namespace ae {
namespace {

constexpr double kExactMax = 9007199254740991.0;  // 2^53−1
constexpr double kPlainMax = 1e21;  // from here on, canonical numbers have an exponent

// True if one of the bytes needs an escape. Without an early exit: the compiler makes vector
// instructions of the loop.
template <std::size_t Size>
bool has_escape(const char* text) {
  std::array<std::uint8_t, Size> escaped;
  for (std::size_t i = 0; i < Size; ++i) {
    const auto c = static_cast<std::uint8_t>(text[i]);
    escaped[i] = static_cast<std::uint8_t>((c < 0x20) | (c == '"') | (c == '\\'));
  }
  std::uint64_t any = 0;
  for (std::size_t i = 0; i < Size; i += sizeof any) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, escaped.data() + i, sizeof eight);
    any |= eight;
  }
  return any != 0;
}

// A lower bound of the number of bytes from `i` on that need no escape, as their end: the end of
// the text or of a block.
template <std::size_t Block>
std::size_t skip_plain(std::string_view text, std::size_t i) {
  while (text.size() - i >= Block && !has_escape<Block>(text.data() + i)) i += Block;
  const bool at_end = text.size() - i < Block && text.size() >= Block;
  if (at_end && !has_escape<Block>(text.data() + text.size() - Block)) return text.size();
  if constexpr (Block > 8) return skip_plain<Block / 2>(text, i);
  return i;
}
std::size_t unescaped_prefix_bound(std::string_view text) { return skip_plain<16>(text, 0); }

// For a well-formed number text that no double can represent: true if it is too large, false if it
// is too close to zero. REQUIRES: at least one digit that is not 0.
bool overflows(std::string_view number) {
  std::int64_t exponent = 0;
  const std::size_t e = number.find_first_of("eE");
  if (e != number.npos) {
    std::size_t i = e + 1;
    const bool negative = number[i] == '-';
    if (number[i] == '-' || number[i] == '+') ++i;
    for (; i < number.size(); ++i) {
      exponent = std::min<std::int64_t>(exponent * 10 + (number[i] - '0'), 1'000'000'000'000);
    }
    if (negative) exponent = -exponent;
  }
  const std::string_view mantissa = number.substr(0, e);
  const std::size_t dot = std::min(mantissa.find('.'), mantissa.size());
  const std::size_t first = mantissa.find_first_of("123456789");
  const auto magnitude = static_cast<std::int64_t>(dot) - static_cast<std::int64_t>(first);
  return magnitude + exponent > 0;
}

class Reader {
 public:
  Reader(std::string_view text, const JsonLimits& limits) : text_(text), limits_(limits) {}

  Result<Value> read() {
    if (text_.size() > limits_.bytes_max) {
      return fail(Code::payload_too_large, "JSON text of {} bytes; at most {} are allowed",
                  text_.size(), limits_.bytes_max);
    }
    if (text_.starts_with("\xEF\xBB\xBF")) return error_at("a byte order mark (remove it)", 0);
    const std::size_t valid = valid_utf8_prefix(text_);
    if (valid != text_.size()) return error_at("text that is not UTF-8", valid);
    for (;;) {
      AE_ASSIGN(const bool opened, open_containers());
      if (!opened) AE_TRY(read_scalar());
      AE_ASSIGN(const bool ended, close_containers());
      if (ended) break;
    }
    if (at_ != text_.size()) return error_at("more text after the value", at_);
    return std::move(done_);
  }
  // After reading: true if the text is certainly canonical. If false, only writing the canonical
  // text can tell.
  bool is_certainly_canonical() const { return plain_; }

 private:
  // An open container. Its content is at the end of members_ or items_, above that of the enclosing
  // containers.
  struct Open {
    std::size_t start = 0;
    bool is_object = false;
    std::size_t below = 0;
  };

  std::unexpected<Error> error_at(std::string_view what, std::size_t where) const {
    return fail(Code::input_invalid, "invalid JSON: {} at byte {}", what, where);
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool consume(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void skip_space() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) {
      ++at_;
      plain_ = false;
    }
  }

  // Descends to the next scalar (false) or to the end of an empty container (true).
  Result<bool> open_containers() {
    for (;;) {
      skip_space();
      const std::size_t start = at_;
      const bool object = consume('{');
      if (!object && !consume('[')) return false;
      if (stack_.size() >= std::min(limits_.depth_max, kJsonDepthMax)) {
        return error_at(
            fmt::format("nesting deeper than {}", std::min(limits_.depth_max, kJsonDepthMax)),
            start);
      }
      if (stack_.capacity() == 0) {
        stack_.reserve(8);
        members_.reserve(16);
      }
      stack_.push_back({start, object, object ? members_.size() : items_.size()});
      skip_space();
      if (peek() == (object ? '}' : ']')) return true;
      if (object) AE_TRY(read_key());
    }
  }

  // Adds the value to its container, and closes each container that ends here. True at the end of
  // the outermost value; false if another value follows.
  Result<bool> close_containers() {
    for (;;) {
      skip_space();
      if (stack_.empty()) return true;
      Open& open = stack_.back();
      if (consume(',')) {
        skip_space();
        if (open.is_object) AE_TRY(read_key());
        return false;
      }
      if (!consume(open.is_object ? '}' : ']')) {
        return error_at(open.is_object ? "no ',' or '}'" : "no ',' or ']'", at_);
      }
      AE_ASSIGN(Value value, finish(open));
      stack_.pop_back();
      add_value(std::move(value));
    }
  }

  Result<Value> finish(const Open& open) {
    if (!open.is_object) return Value::array(pop_above(items_, open.below));
    std::vector<Member> members = pop_above(members_, open.below);
    const auto less = [](const Member& a, const Member& b) { return key_less(a.first, b.first); };
    const auto not_rising = [&](const Member& a, const Member& b) { return !less(a, b); };
    if (std::ranges::adjacent_find(members, not_rising) != members.end()) {
      plain_ = false;
      std::ranges::sort(members, less);
      const auto twice = std::ranges::adjacent_find(members, not_rising);
      if (twice != members.end()) {
        return error_at(fmt::format("duplicate key \"{}\"", truncate_utf8(twice->first, 64)),
                        open.start);
      }
    }
    return Value::object(std::move(members));
  }

  // The elements above `below`, in a vector of exactly their size.
  template <class T>
  static std::vector<T> pop_above(std::vector<T>& stack, std::size_t below) {
    const auto begin = stack.begin() + static_cast<std::ptrdiff_t>(below);
    std::vector<T> popped(std::make_move_iterator(begin), std::make_move_iterator(stack.end()));
    stack.erase(begin, stack.end());
    return popped;
  }

  void add_value(Value value) {
    if (stack_.empty()) {
      done_ = std::move(value);
    } else if (stack_.back().is_object) {
      members_.back().second = std::move(value);  // read_key has added the key
    } else {
      items_.push_back(std::move(value));
    }
  }

  Status read_key() {
    if (peek() != '"') return error_at("no key in quotes", at_);
    std::string& key = members_.emplace_back().first;
    AE_TRY(read_string(key));
    skip_space();
    if (!consume(':')) return error_at("no ':' after a key", at_);
    return {};
  }

  Status read_scalar() {
    const char c = peek();
    if (c == '"') {
      std::string text;
      AE_TRY(read_string(text));
      add_value(Value(std::move(text)));
      return {};
    }
    if (c == '-' || is_digit(c)) {
      AE_ASSIGN(Value number, read_number());
      add_value(std::move(number));
      return {};
    }
    if (consume_word("true")) {
      add_value(Value(true));
    } else if (consume_word("false")) {
      add_value(Value(false));
    } else if (consume_word("null")) {
      add_value(Value());
    } else {
      return error_at(at_ == text_.size() ? "the text ends where a value is expected" : "no value",
                      at_);
    }
    return {};
  }

  bool consume_word(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }

  // Appends to `out`.
  Status read_string(std::string& out) {
    const std::size_t start = at_++;
    for (;;) {
      const std::size_t from = at_;
      at_ += unescaped_prefix_bound(text_.substr(at_));
      while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\' &&
             static_cast<unsigned char>(text_[at_]) >= 0x20) {
        ++at_;
      }
      out.append(text_, from, at_ - from);
      if (consume('"')) return {};
      if (at_ == text_.size()) return error_at("an unterminated string", start);
      if (!consume('\\')) return error_at("an unescaped control character", at_);
      AE_TRY(read_escape(out));
    }
  }

  // The character after a backslash.
  Status read_escape(std::string& out) {
    plain_ = false;
    const std::size_t start = at_ - 1;
    constexpr std::string_view kEscapes = "\"\\/bfnrt";
    constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
    const std::size_t simple = at_ < text_.size() ? kEscapes.find(text_[at_]) : kEscapes.npos;
    if (simple != kEscapes.npos) {
      out += kMeanings[simple];
      ++at_;
      return {};
    }
    const std::int32_t first = consume('u') ? read_hex4() : -1;
    if (first < 0) return error_at("an unknown escape", start);
    auto c = static_cast<std::uint32_t>(first);
    if (c >= 0xD800 && c <= 0xDFFF) {
      const std::int32_t low = c <= 0xDBFF && consume('\\') && consume('u') ? read_hex4() : -1;
      if (low < 0xDC00 || low > 0xDFFF) return error_at("half a surrogate pair", start);
      c = 0x10000 + ((c - 0xD800) << 10) + (static_cast<std::uint32_t>(low) - 0xDC00);
    }
    append_utf8(c, out);
    return {};
  }

  // Four hex digits, or −1.
  std::int32_t read_hex4() {
    if (text_.size() - at_ < 4) return -1;
    std::uint32_t value = 0;
    const char* const begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, begin + 4, value, 16);
    if (error != std::errc() || end != begin + 4) return -1;
    at_ += 4;
    return static_cast<std::int32_t>(value);
  }

  void skip_digits() {
    while (is_digit(peek())) ++at_;
  }

  Result<Value> read_number() {
    const std::size_t start = at_;
    consume('-');
    if (!is_digit(peek())) return error_at("a digit is expected", at_);
    if (!consume('0')) skip_digits();
    bool integer = true;
    if (consume('.')) {
      integer = false;
      if (!is_digit(peek())) return error_at("a digit is expected", at_);
      skip_digits();
    }
    if (peek() == 'e' || peek() == 'E') {
      integer = false;
      ++at_;
      if (peek() == '+' || peek() == '-') ++at_;
      if (!is_digit(peek())) return error_at("a digit is expected", at_);
      skip_digits();
    }
    const std::string_view text = text_.substr(start, at_ - start);
    if (!integer || text.front() == '-' || text.size() > kPlainDigits) plain_ = false;
    return number(text, integer, start);
  }

  Result<Value> number(std::string_view text, bool integer, std::size_t start) const {
    double d = 0;
    const auto converted = std::from_chars(text.data(), text.data() + text.size(), d);
    const bool too_large =
        converted.ec == std::errc::result_out_of_range ? overflows(text) : std::isinf(d);
    if (converted.ec != std::errc()) d = 0;
    const bool exact = !too_large && (std::fabs(d) <= kExactMax || d != std::trunc(d));
    if (exact) return Value(d);
    if (integer && limits_.big_integers_as_strings) return Value(text);
    if (too_large) return error_at("a number beyond the largest double", start);
    // A number with an exponent may be rounded; an integer literal would be rounded silently.
    if ((std::fabs(d) >= kPlainMax && !integer) || limits_.big_integers) return Value(d);
    return error_at(
        "an integer beyond 2^53-1, which some programs read differently; write it as a string",
        start);
  }

  static constexpr std::size_t kPlainDigits = 15;  // all such integers are below 2^53

  const std::string_view text_;
  const JsonLimits& limits_;
  std::size_t at_ = 0;
  bool plain_ = true;  // no space, no escape, keys in order, only small natural numbers
  std::vector<Open> stack_;
  std::vector<Member> members_;
  std::vector<Value> items_;
  Value done_;
};

// Adds bytes that the caller sets.
char* extend(std::string& out, std::size_t count) {
  const std::size_t end = out.size() + count;  // g++ 12 passes a larger number to the function
  out.resize_and_overwrite(end, [end](char*, std::size_t) { return end; });
  return out.data() + (end - count);
}
char* extend(ByteBuffer& out, std::size_t count) { return out.extend(count); }

// The character after the backslash for a character that needs an escape; 'u' for \u00xx, 0 if none
// is needed.
constexpr auto kEscapeOf = [] {
  std::array<char, 256> table{};
  for (std::size_t c = 0; c < 0x20; ++c) table[c] = 'u';
  table['\b'] = 'b';
  table['\t'] = 't';
  table['\n'] = 'n';
  table['\f'] = 'f';
  table['\r'] = 'r';
  table['"'] = '"';
  table['\\'] = '\\';
  return table;
}();

// The number of bytes at the front that need no escape.
std::size_t unescaped_prefix(std::string_view text) {
  std::size_t i = text.size() < 8 ? 0 : unescaped_prefix_bound(text);
  while (i < text.size() && kEscapeOf[static_cast<unsigned char>(text[i])] == 0) ++i;
  return i;
}

// REQUIRES: `to` has room for the escaped text. Returns its end.
char* write_escaped(std::string_view text, char* to) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const char escape = kEscapeOf[byte];
    if (escape == 0) {
      *to++ = c;
      continue;
    }
    *to++ = '\\';
    *to++ = escape;
    if (escape != 'u') continue;
    *to++ = '0';
    *to++ = '0';
    *to++ = kDigits[byte >> 4];
    *to++ = kDigits[byte & 15];
  }
  return to;
}

// In quotes, with escapes after `plain` bytes.
template <class Out>
void write_escaped_string(std::string_view text, std::size_t plain, Out& out) {
  std::size_t size = text.size();
  for (const char c : text.substr(plain)) {
    const char escape = kEscapeOf[static_cast<unsigned char>(c)];
    size += escape == 0 ? 0 : escape == 'u' ? 5 : 1;
  }
  char* to = extend(out, size + 2);
  *to++ = '"';
  if (plain > 0) std::memcpy(to, text.data(), plain);
  to = write_escaped(text.substr(plain), to + plain);
  *to = '"';
}

template <class Out>
void write_string(std::string_view text, Out& out) {
  const std::size_t plain = unescaped_prefix(text);
  if (plain != text.size()) return write_escaped_string(text, plain, out);
  char* to = extend(out, plain + 2);
  *to++ = '"';
  if (plain > 0) std::memcpy(to, text.data(), plain);
  to[plain] = '"';
}

// before, key in quotes, colon.
template <class Out>
void write_key(char before, std::string_view key, Out& out) {
  if (has_escapes(key)) {
    out += before;
    write_string(key, out);
    out += ':';
    return;
  }
  char* to = extend(out, key.size() + 4);
  *to++ = before;
  *to++ = '"';
  if (!key.empty()) std::memcpy(to, key.data(), key.size());
  to[key.size()] = '"';
  to[key.size() + 1] = ':';
}

// REQUIRES: it is exact as a JSON number.
template <class Out>
void write_integer(std::int64_t number, Out& out) {
  if (number >= 0 && number < 10) {
    out += static_cast<char>('0' + number);
    return;
  }
  std::array<char, 20> text;
  char* const end = std::to_chars(text.data(), text.data() + text.size(), number).ptr;
  out.append(text.data(), static_cast<std::size_t>(end - text.data()));
}

void write_number(double number, std::string& out) { write_canonical_number(number, out); }
void write_number(double number, ByteBuffer& out) {
  if (std::fabs(number) <= kExactMax && number == std::trunc(number))
    return write_integer(static_cast<std::int64_t>(number), out);
  std::string text;
  write_canonical_number(number, text);
  out += text;
}

template <class Out>
void write(const Value& value, std::size_t depth, Out& out) {
  switch (value.kind()) {
    case Value::Kind::null:
      out += std::string_view("null");
      return;
    case Value::Kind::boolean:
      out += std::string_view(value.as_bool() ? "true" : "false");
      return;
    case Value::Kind::number:
      write_number(value.as_number(), out);
      return;
    case Value::Kind::string:
      write_string(value.as_string(), out);
      return;
    case Value::Kind::array: {
      AE_CHECK(depth < kJsonDepthMax, "a value nested too deep to be written");
      char before = '[';
      for (const Value& item : value.items()) {
        out += std::exchange(before, ',');
        write(item, depth + 1, out);
      }
      out += std::string_view(before == '[' ? "[]" : "]");
      return;
    }
    case Value::Kind::object: {
      AE_CHECK(depth < kJsonDepthMax, "a value nested too deep to be written");
      char before = '{';
      for (const auto& [key, member] : value.members()) {
        write_key(std::exchange(before, ','), key, out);
        write(member, depth + 1, out);
      }
      out += std::string_view(before == '{' ? "{}" : "}");
      return;
    }
  }
}

void new_line(std::size_t depth, std::string& out) {
  out += '\n';
  out.append(depth * 2, ' ');
}

void write_pretty(const Value& value, std::size_t depth, std::string& out) {
  if (value.size() == 0) return write(value, depth, out);
  AE_CHECK(depth < kJsonDepthMax, "a value nested too deep to be written");
  const bool object = value.is_object();
  char before = object ? '{' : '[';
  const auto begin_item = [&] {
    out += std::exchange(before, ',');
    new_line(depth + 1, out);
  };
  if (object) {
    for (const auto& [key, member] : value.members()) {
      begin_item();
      write_canonical_string(key, out);
      out += ": ";
      write_pretty(member, depth + 1, out);
    }
  } else {
    for (const Value& item : value.items()) {
      begin_item();
      write_pretty(item, depth + 1, out);
    }
  }
  new_line(depth, out);
  out += object ? '}' : ']';
}

}  // namespace

Result<Value> parse_json(std::string_view text, const JsonLimits& limits) {
  return Reader(text, limits).read();
}

Result<Value> parse_canonical(std::string_view text, const JsonLimits& limits) {
  Reader reader(text, limits);
  auto value = reader.read();
  if (value && !reader.is_certainly_canonical() && canonical(*value) != text) {
    return fail(Code::input_invalid, "not in canonical form");
  }
  return value;
}

void write_canonical_string(std::string_view text, std::string& out) { write_string(text, out); }
void write_canonical_string(std::string_view text, ByteBuffer& out) { write_string(text, out); }

bool has_escapes(std::string_view text) noexcept { return unescaped_prefix(text) != text.size(); }

// ECMAScript's Number::toString: the shortest digits that read back as the same double; plain from
// 1e-6 to below 1e21, otherwise with an exponent.
void write_canonical_number(double number, std::string& out) {
  AE_CHECK(std::isfinite(number));
  if (std::fabs(number) <= kExactMax && number == std::trunc(number))
    return write_integer(static_cast<std::int64_t>(number), out);
  std::array<char, 40> text;
  char* const begin = text.data();
  char* const end = begin + text.size();
  if (number < 0) out += '-';
  const char* const last =
      std::to_chars(begin, end, std::fabs(number), std::chars_format::scientific).ptr;
  // "d.ddde±xx": extract the digits, and the number of digits before the point.
  const char* const e = std::find<const char*>(begin, last, 'e');
  std::array<char, 40> digit_buffer;
  digit_buffer[0] = *begin;
  char* digits_end = digit_buffer.data() + 1;
  if (e - begin > 2) digits_end = std::copy(static_cast<const char*>(begin) + 2, e, digits_end);
  const std::string_view digits(digit_buffer.data(), digits_end);
  int exponent = 0;
  std::from_chars(e + (e[1] == '+' ? 2 : 1), last, exponent);
  const int count = static_cast<int>(digits.size());
  const int point = exponent + 1;
  if (point > 21 || point <= -6) {
    out += digits[0];
    if (count > 1) out.append(1, '.').append(digits, 1);
    out += exponent < 0 ? "e-" : "e+";
    out += std::to_string(std::abs(exponent));
  } else if (point >= count) {
    out += digits;
    out.append(static_cast<std::size_t>(point - count), '0');
  } else if (point > 0) {
    out.append(digits, 0, static_cast<std::size_t>(point)).append(1, '.');
    out.append(digits, static_cast<std::size_t>(point));
  } else {
    out.append("0.").append(static_cast<std::size_t>(-point), '0').append(digits);
  }
}

void write_canonical_integer(std::int64_t number, ByteBuffer& out) { write_integer(number, out); }

namespace {

template <class Out>
void write_checked(const Value& value, Out& out) {
  // Such a text does not fit in memory: the code that made the value did not check a limit.
  AE_CHECK(value.extent().bytes < Value::kExtentMax, "a value too large to be written");
  write(value, 0, out);
}

}  // namespace

void write_canonical(const Value& value, std::string& out) { write_checked(value, out); }
void write_canonical(const Value& value, ByteBuffer& out) { write_checked(value, out); }

std::string canonical(const Value& value) {
  std::string out;
  // A lower bound of the length. Growing by doubling would use up to three times the memory.
  if (const auto least = value.extent().bytes; least < Value::kExtentMax) out.reserve(least + 1);
  write_canonical(value, out);
  return out;
}

namespace {

// Subtracts the length of the value's canonical text from `bytes_left`; false if that is too small.
bool consume_size(const Value& value, std::size_t& bytes_left) {
  const auto consume = [&bytes_left](std::size_t bytes) {
    if (bytes > bytes_left) return false;
    bytes_left -= bytes;
    return true;
  };
  const auto consume_string = [&](std::string_view text) {
    if (!consume(text.size() + 2)) return false;
    for (std::size_t i = unescaped_prefix_bound(text); i < text.size(); ++i) {
      const char escape = kEscapeOf[static_cast<unsigned char>(text[i])];
      if (escape != 0 && !consume(escape == 'u' ? 5 : 1)) return false;
    }
    return true;
  };
  switch (value.kind()) {
    case Value::Kind::null:
      return consume(4);
    case Value::Kind::boolean:
      return consume(value.as_bool() ? 4 : 5);
    case Value::Kind::number: {
      std::string text;
      write_canonical_number(value.as_number(), text);
      return consume(text.size());
    }
    case Value::Kind::string:
      return consume_string(value.as_string());
    case Value::Kind::array: {
      const auto items = value.items();
      if (!consume(2 + (items.empty() ? 0 : items.size() - 1))) return false;
      return std::ranges::all_of(items,
                                 [&](const Value& item) { return consume_size(item, bytes_left); });
    }
    case Value::Kind::object: {
      const auto& members = value.members();
      if (!consume(2 + (members.empty() ? 0 : 2 * members.size() - 1))) return false;
      return std::ranges::all_of(members, [&](const auto& member) {
        return consume_string(member.first) && consume_size(member.second, bytes_left);
      });
    }
  }
  return false;
}

}  // namespace

bool canonical_exceeds(const Value& value, std::size_t bytes) {
  // The longest number has 25 characters and counts 1; a string has at most 6 for each byte.
  constexpr std::size_t kCharactersPerByte = 25;
  const std::size_t least = value.extent().bytes;
  if (least > bytes) return true;
  if (least < Value::kExtentMax && least <= bytes / kCharactersPerByte) return false;
  return !consume_size(value, bytes);
}

std::string pretty(const Value& value) {
  AE_CHECK(value.extent().bytes < Value::kExtentMax, "a value too large to be written");
  std::string out;
  write_pretty(value, 0, out);
  return out;
}

}  // namespace ae
