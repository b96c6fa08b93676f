// The JSON reader and writer: parses external text to a Value, and writes the canonical text of a
// Value (RFC 8785).
//
// A hash must not depend on the parser, so the reader rejects: duplicate keys (also written with
// escapes), invalid UTF-8, a byte order mark, lone surrogates, NaN and infinities, numbers that
// overflow (1e400), numbers whose canonical form is an integer literal beyond ±(2^53−1), integer
// literals of any length beyond it, nesting above the limit, and text after the value. `1e21` is
// accepted: its canonical form has an exponent too.
// Underflow (1e-400) becomes 0, as IEEE 754 rounds it. Threads: pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/error.h"
#include "json/value.h"

namespace ae {

// The absolute limit of nesting: the reader rejects deeper values whatever its limits are; in the
// writer they are a bug.
inline constexpr std::size_t kJsonDepthMax = 1000;

struct JsonLimits {
  std::size_t bytes_max = 64u << 20;
  std::size_t depth_max = 64;
  // Integer literals beyond ±(2^53−1) become strings of their digits.
  bool big_integers_as_strings = false;
  // Accepts those integers as doubles instead: only for text written by this program.
  bool big_integers = false;
};

// Fails with input_invalid (the message ends with "at byte N") or payload_too_large.
Result<Value> parse_json(std::string_view text, const JsonLimits& limits = {});

// Accepts the text only if it equals canonical(value) byte for byte: for text written by this
// program. Fails with input_invalid.
Result<Value> parse_canonical(std::string_view text, const JsonLimits& limits = {});

// RFC 8785. REQUIRES (both): the extent of the value is not saturated. The first form appends to
// `out`.
void write_canonical(const Value& value, std::string& out);
std::string canonical(const Value& value);
// True if canonical(value) is longer than `bytes`. Stops counting at the limit; most long values
// are recognised by their extent, without a walk.
bool canonical_exceeds(const Value& value, std::size_t bytes);
// The two parts of the writer, for callers that write JSON without building a Value.
void write_canonical_string(std::string_view text, std::string& out);
void write_canonical_number(double number, std::string& out);

// Indented by two spaces, keys in canonical order: for display. Ends without a newline.
std::string pretty(const Value& value);

// True if JSON writes some character of the text with a backslash.
bool has_escapes(std::string_view text) noexcept;

}  // namespace ae
