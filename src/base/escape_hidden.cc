#include "base/escape_hidden.h"

#include <algorithm>
#include <array>
#include <iterator>

namespace ae {
namespace {

struct Range {
  char32_t first, last;
};

// Sorted, without overlaps. Unicode 15.
constexpr Range kHidden[] = {
    {0x0000, 0x001F},                        // controls, C0
    {0x007F, 0x009F},                        // delete; controls, C1
    {0x00AD, 0x00AD},                        // soft hyphen
    {0x034F, 0x034F},                        // combining grapheme joiner
    {0x0600, 0x0605},                        // Arabic number signs
    {0x061C, 0x061C},                        // Arabic letter mark
    {0x06DD, 0x06DD},                        // Arabic end of ayah
    {0x070F, 0x070F},                        // Syriac abbreviation mark
    {0x0890, 0x0891},                        // Arabic pound marks
    {0x08E2, 0x08E2},                        // Arabic disputed end of ayah
    {0x115F, 0x1160},                        // Hangul fillers
    {0x17B4, 0x17B5},                        // Khmer inherent vowels
    {0x180B, 0x180F},                        // Mongolian selectors and vowel separator
    {0x200B, 0x200F},                        // zero width, direction
    {0x2028, 0x202E},                        // line and paragraph separators, direction
    {0x2060, 0x206F},                        // word joiner, invisible operators, isolates
    {0x2800, 0x2800},                        // braille blank
    {0x3164, 0x3164},                        // Hangul filler
    {0xFE00, 0xFE0F},                        // variation selectors
    {0xFEFF, 0xFEFF},                        // byte order mark
    {0xFFA0, 0xFFA0},                        // halfwidth Hangul filler
    {0xFFF0, 0xFFFB},                        // specials
    {0x110BD, 0x110BD},                      // Kaithi number signs
    {0x110CD, 0x110CD}, {0x13430, 0x1343F},  // hieroglyph format controls
    {0x1BCA0, 0x1BCA3},                      // shorthand format controls
    {0x1D173, 0x1D17A},                      // musical format controls
    {0xE0000, 0xE0FFF},                      // tags, variation selectors supplement
};

std::string hex(char32_t number, int digits_min) {
  static constexpr char kDigits[] = "0123456789ABCDEF";
  std::string out;
  for (; number != 0 || digits_min > 0; number >>= 4, --digits_min) out += kDigits[number & 15];
  std::ranges::reverse(out);
  return out;
}

std::string lower_hex4(char32_t number) {
  std::string out = hex(number, 4);
  for (char& c : out) {
    if (c >= 'A') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

}  // namespace

CodePoint first_code_point(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  std::size_t length = 1;
  char32_t point = lead;
  if (lead >= 0xF0) {
    length = 4;
    point = lead & 0x07;
  } else if (lead >= 0xE0) {
    length = 3;
    point = lead & 0x0F;
  } else if (lead >= 0xC0) {
    length = 2;
    point = lead & 0x1F;
  }
  if (length > text.size()) return {0xFFFD, 1};
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {0xFFFD, 1};
    point = point << 6 | (byte(i) & 0x3F);
  }
  return {point, length};
}

bool is_hidden(char32_t point) {
  const auto* const after =
      std::ranges::upper_bound(kHidden, point, {}, [](const Range& range) { return range.first; });
  return after != std::begin(kHidden) && point <= std::prev(after)->last;
}

std::string escape_hidden(std::string_view text, bool keep_lines) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const CodePoint c = first_code_point(text);
    const bool line = c.point == '\n' || c.point == '\t';
    if (!is_hidden(c.point) || (line && keep_lines)) {
      out += text.substr(0, c.bytes);
    } else if (line) {
      out += c.point == '\n' ? "\\n" : "\\t";
    } else if (c.point < 0x80) {
      out += "\\x";
      out += lower_hex4(c.point).substr(2);
    } else {
      out += "\\u{";
      out += hex(c.point, c.point < 0x100 ? 2 : 4);
      out += '}';
    }
    text.remove_prefix(c.bytes);
  }
  return out;
}

std::string escape_hidden_json(std::string_view json) {
  std::string out;
  out.reserve(json.size());
  while (!json.empty()) {
    const CodePoint c = first_code_point(json);
    // Line breaks occur between values only: inside of a string they are already escaped.
    if (!is_hidden(c.point) || c.point == '\n') {
      out += json.substr(0, c.bytes);
    } else if (c.point < 0x10000) {
      out += "\\u" + lower_hex4(c.point);
    } else {
      const char32_t rest = c.point - 0x10000;
      out +=
          "\\u" + lower_hex4(0xD800 + (rest >> 10)) + "\\u" + lower_hex4(0xDC00 + (rest & 0x3FF));
    }
    json.remove_prefix(c.bytes);
  }
  return out;
}

}  // namespace ae
