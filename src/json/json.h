// The JSON door: text from outside becomes a Value, or is refused; and the canonical text of a Value (RFC 8785).
//
// Refused, so that a hash never depends on a parser's taste: duplicate keys (also by escapes), invalid UTF-8, a
// byte order mark, lone surrogates, NaN and infinities, numbers that overflow (1e400), numbers whose canonical
// form is an integer literal beyond ±(2^53−1), integers of any length that are written out and beyond it, nesting above
// the limit, anything after the value. `1e21` is taken: its canonical form has an exponent, as what is read has.
// Underflow (1e-400) becomes 0, as IEEE 754 rounds it. Threads: pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/error.h"
#include "json/value.h"

namespace ae {

// No value of this program nests deeper: the reader refuses it whatever its limits say, the writer calls it a bug.
inline constexpr std::size_t kJsonDepthMax = 1000;

struct JsonLimits {
  std::size_t bytes_max = 64u << 20;
  std::size_t depth_max = 64;
  // Integer literals beyond ±(2^53−1) become strings of their digits.
  bool big_integers_as_strings = false;
  // Takes those integers as doubles instead: only for text that we wrote ourselves.
  bool big_integers = false;
};

// Fails with input_invalid (the message ends with "at byte N") or payload_too_large.
Result<Value> parse_json(std::string_view text, const JsonLimits& limits = {});

// Takes the text only when it is canonical(value), byte for byte: for text that we wrote ourselves. Fails with
// input_invalid.
Result<Value> parse_canonical(std::string_view text, const JsonLimits& limits = {});

// RFC 8785. REQUIRES of both writers: the extent of the value is not saturated. Appends to `out`; the second form returns it.
void write_canonical(const Value& value, std::string& out);
std::string canonical(const Value& value);
// Is canonical(value) longer than `bytes`? Stops counting as soon as it is; knows at once of most that are.
bool canonical_exceeds(const Value& value, std::size_t bytes);
// The two parts of the writer, for those that write JSON without building a Value.
void write_canonical_string(std::string_view text, std::string& out);
void write_canonical_number(double number, std::string& out);

// Indented by two spaces, keys in canonical order: for people. Ends without a newline.
std::string pretty(const Value& value);

// Has the text characters that JSON writes with a backslash?
bool has_escapes(std::string_view text) noexcept;

}  // namespace ae
