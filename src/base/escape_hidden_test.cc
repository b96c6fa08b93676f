#include "base/escape_hidden.h"

#include <fmt/core.h>

#include <cstdint>
#include <string>

#include "json/json.h"
#include "testing/test.h"

namespace ae {
namespace {

std::string utf8(char32_t point) {
  const auto byte = [](char32_t bits) {
    return static_cast<char>(static_cast<std::uint8_t>(bits));
  };
  if (point < 0x80) return {byte(point)};
  if (point < 0x800) return {byte(0xC0 | point >> 6), byte(0x80 | (point & 0x3F))};
  if (point < 0x10000) {
    return {byte(0xE0 | point >> 12), byte(0x80 | (point >> 6 & 0x3F)),
            byte(0x80 | (point & 0x3F))};
  }
  return {byte(0xF0 | point >> 18), byte(0x80 | (point >> 12 & 0x3F)),
          byte(0x80 | (point >> 6 & 0x3F)), byte(0x80 | (point & 0x3F))};
}

struct Case {
  char32_t point;
  const char* shown;
  const char* in_json;
};

AE_TEST("base/escape_hidden/invisible characters are escaped, and escaped JSON keeps its value") {
  for (const Case& one : {
           Case{0x1B, "\\x1b", "\\u001b"},
           {0x7F, "\\x7f", "\\u007f"},
           {0x9B, "\\u{9B}", "\\u009b"},
           {0xAD, "\\u{AD}", "\\u00ad"},
           {0x34F, "\\u{034F}", "\\u034f"},
           {0x61C, "\\u{061C}", "\\u061c"},
           {0x115F, "\\u{115F}", "\\u115f"},
           {0x1160, "\\u{1160}", "\\u1160"},
           {0x17B4, "\\u{17B4}", "\\u17b4"},
           {0x180E, "\\u{180E}", "\\u180e"},
           {0x200B, "\\u{200B}", "\\u200b"},
           {0x200D, "\\u{200D}", "\\u200d"},
           {0x200F, "\\u{200F}", "\\u200f"},
           {0x2028, "\\u{2028}", "\\u2028"},
           {0x2029, "\\u{2029}", "\\u2029"},
           {0x202E, "\\u{202E}", "\\u202e"},
           {0x2060, "\\u{2060}", "\\u2060"},
           {0x2066, "\\u{2066}", "\\u2066"},
           {0x2800, "\\u{2800}", "\\u2800"},
           {0x3164, "\\u{3164}", "\\u3164"},
           {0xFE0F, "\\u{FE0F}", "\\ufe0f"},
           {0xFEFF, "\\u{FEFF}", "\\ufeff"},
           {0xFFA0, "\\u{FFA0}", "\\uffa0"},
           {0xFFF9, "\\u{FFF9}", "\\ufff9"},
           {0x1D173, "\\u{1D173}", "\\ud834\\udd73"},
           {0xE0000, "\\u{E0000}", "\\udb40\\udc00"},
           {0xE0041, "\\u{E0041}", "\\udb40\\udc41"},
           {0xE0100, "\\u{E0100}", "\\udb40\\udd00"},
       }) {
    const std::string raw = utf8(one.point);
    EXPECT_EQ(escape_hidden(fmt::format("a{}b", raw)), fmt::format("a{}b", one.shown));
    const std::string json = fmt::format("\"a{}b\"", raw);
    EXPECT_EQ(escape_hidden_json(json), fmt::format("\"a{}b\"", one.in_json));
    if (one.point < 0x20) continue;  // not valid JSON before it is escaped
    EXPECT_EQ(*parse_json(escape_hidden_json(json)), *parse_json(json));
  }
}

AE_TEST("base/escape_hidden/visible characters are unchanged") {
  for (const char32_t point : std::initializer_list<char32_t>{
           0x20,   0x7E,   0xA0,    0xAC,    0xAE,    0x34E,   0x350,  0x61B,
           0x61D,  0x115E, 0x1161,  0x200A,  0x2010,  0x2027,  0x202F, 0x205F,
           0x2070, 0x27FF, 0x2801,  0x3163,  0x3165,  0xFDFF,  0xFE10, 0xFEFE,
           0xFF9F, 0xFFFC, 0x1D172, 0x1D17B, 0x1F642, 0xDFFFF, 0xE1000}) {
    const std::string raw = utf8(point);
    EXPECT_EQ(escape_hidden(raw), raw) << static_cast<std::uint32_t>(point);
    EXPECT_EQ(escape_hidden_json(raw), raw) << static_cast<std::uint32_t>(point);
  }
  EXPECT_EQ(escape_hidden("na\xC3\xAFve 漢字 🙂"), "na\xC3\xAFve 漢字 🙂");
  EXPECT_EQ(escape_hidden("a\nb\tc"), "a\\nb\\tc");
  EXPECT_EQ(escape_hidden("a\nb\tc", true), "a\nb\tc");
}

}  // namespace
}  // namespace ae
