#include "json/json.h"
#include "base/utf8.h"

#include <fmt/core.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <sstream>

#include "testing/test.h"

namespace ae {
namespace {

std::string reread(std::string_view text, const JsonLimits& limits = {}) {
  const auto value = parse_json(text, limits);
  return value ? canonical(*value) : fmt::format("rejected: {}", value.error().message);
}

std::string rejection(std::string_view text, const JsonLimits& limits = {}) {
  const auto value = parse_json(text, limits);
  return value ? fmt::format("accepted: {}", canonical(*value)) : value.error().message;
}

bool ends_with_byte(std::string_view message, std::size_t byte) {
  return message.ends_with(fmt::format(" at byte {}", byte));
}

std::string file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

// The folder with public test data, or empty.
std::filesystem::path testdata(std::string_view folder) {
  const char* root = std::getenv("AETHERIS_TESTDATA");
  return root == nullptr ? std::filesystem::path() : std::filesystem::path(root) / folder;
}

AE_TEST("json/json/every type of value is parsed") {
  EXPECT_EQ(reread("null"), "null");
  EXPECT_EQ(reread(" true\n"), "true");
  EXPECT_EQ(reread("\t[ false , 1 ,\r\"x\" , {} , [] ]"), R"([false,1,"x",{},[]])");
  EXPECT_EQ(reread(R"({"b":{"d":[],"c":null},"a":[[1],[2]]})"),
            R"({"a":[[1],[2]],"b":{"c":null,"d":[]}})");
  EXPECT_EQ(reread(R"("")"), R"("")");
}

AE_TEST("json/json/parse_canonical accepts exactly the text that canonical() writes") {
  const JsonLimits limits{.big_integers = true};
  int canonical_ones = 0;
  for (const std::string_view text :
       {"null", " null", "null\n", "true", "0", "-0", "-1", "7", "10", "1.5", "1.50", "0.1", "1e3",
        "1000", "1E3", "1e21", "1e+21", "123456789012345", "1234567890123456", "9007199254740993",
        "12345678901234567890", "12345678901234567000", "\"\"", "\"a b\"", "\"\\n\"", "\"\\u000a\"",
        "\"\\/\"", "\"/\"", "\"\\u0041\"", "\"\\\"\"", "\"\x7f\"", "\"\xc3\xa9\"", "[]", "[ ]",
        "[1,2]", "[1, 2]", "{}", "{ }", "{\"a\":1,\"b\":2}", "{\"b\":2,\"a\":1}", "{\"a\" :1}",
        "{\"a\":{\"c\":[],\"b\":0}}", "{\"a\":{\"b\":[],\"c\":0}}",
        // UTF-16: the surrogates of U+10000 sort before U+E000; in UTF-8 they sort after it.
        "{\"\xf0\x90\x80\x80\":1,\"\xee\x80\x80\":2}",
        "{\"\xee\x80\x80\":2,\"\xf0\x90\x80\x80\":1}", "[1", "{\"a\":1,\"a\":1}", "1 2"}) {
    const auto read = parse_json(text, limits);
    const bool is_canonical = read && canonical(*read) == text;
    canonical_ones += is_canonical ? 1 : 0;
    const auto canonical_value = parse_canonical(text, limits);
    EXPECT_EQ(canonical_value.has_value(), is_canonical) << text;
    if (canonical_value && read) {
      EXPECT_EQ(*canonical_value, *read) << text;
    }
  }
  EXPECT_EQ(canonical_ones, 26);
}

AE_TEST("json/json/strings round-trip with an escaped character at any position") {
  for (std::size_t size = 0; size < 40; ++size) {
    for (std::size_t at = 0; at <= size; ++at) {
      std::string text(size, 'x');
      if (at < size) text[at] = at % 3 == 0 ? '"' : at % 3 == 1 ? '\\' : '\t';
      std::string written = "before";
      write_canonical_string(text, written);
      ASSERT_TRUE(written.starts_with("before\"")) << written;
      const auto read = parse_json(std::string_view(written).substr(6));
      ASSERT_TRUE(read) << written;
      EXPECT_EQ(*read, Value(text));
    }
  }
}

AE_TEST("json/json/all escapes are parsed, and only required ones are written") {
  EXPECT_EQ(reread(R"("\"\\\/\b\f\n\r\t")"), R"("\"\\/\b\f\n\r\t")");
  EXPECT_EQ(reread(R"("\u0041\u00e9\u20AC\ud83d\ude00")"), "\"A\u00e9\u20ac\U0001F600\"");
  EXPECT_EQ(reread(R"("\u0000\u001f\u007f")"), "\"\\u0000\\u001f\x7f\"");
}

AE_TEST("json/json/a parse error reports the byte offset") {
  EXPECT_TRUE(ends_with_byte(rejection(""), 0));
  EXPECT_TRUE(ends_with_byte(rejection("  "), 2));
  EXPECT_TRUE(ends_with_byte(rejection("[1,]"), 3));
  EXPECT_TRUE(ends_with_byte(rejection("[1 2]"), 3));
  EXPECT_TRUE(ends_with_byte(rejection("{\"a\" 1}"), 5));
  EXPECT_TRUE(ends_with_byte(rejection("{\"a\":1,}"), 7));
  EXPECT_TRUE(ends_with_byte(rejection("{1:2}"), 1));
  EXPECT_TRUE(ends_with_byte(rejection("nul"), 0));
  EXPECT_TRUE(ends_with_byte(rejection("1 2"), 2));
  EXPECT_TRUE(ends_with_byte(rejection("\"ab"), 0));
  EXPECT_TRUE(ends_with_byte(rejection("\"a\nb\""), 2));
  EXPECT_TRUE(ends_with_byte(rejection("\"\\x\""), 1));
  EXPECT_TRUE(ends_with_byte(rejection("[1}"), 2));
  EXPECT_TRUE(ends_with_byte(rejection("-"), 1));
  EXPECT_TRUE(ends_with_byte(rejection("1."), 2));
  EXPECT_TRUE(ends_with_byte(rejection("1e+"), 3));
  EXPECT_TRUE(ends_with_byte(rejection("012"), 1));
  EXPECT_TRUE(ends_with_byte(rejection("\"ab\xff\""), 3));
  EXPECT_EQ(parse_json("[").error().code, Code::input_invalid);
}

AE_TEST("json/json/a duplicate key is rejected, also when one is escaped") {
  EXPECT_TRUE(ends_with_byte(rejection(R"([{"a":1,"b":2,"a":3}])"), 1));
  EXPECT_TRUE(ends_with_byte(rejection(R"({"a":1,"\u0061":1})"), 0));
  EXPECT_EQ(reread(R"({"a":{"a":1}})"), R"({"a":{"a":1}})");
}

AE_TEST("json/json/truncation and error messages never split a character") {
  EXPECT_EQ(truncate_utf8("abc", 3), "abc");
  EXPECT_EQ(truncate_utf8("abc", 2), "ab");
  EXPECT_EQ(truncate_utf8("a\xC3\xA9z", 2), "a");
  EXPECT_EQ(truncate_utf8("a\xC3\xA9z", 3), "a\xC3\xA9");
  EXPECT_EQ(truncate_utf8("\xF0\x9F\x98\x80", 3), "");
  for (std::string key = "a"; key.size() < 70; key += "\xC3\xA9") {
    const auto twice = parse_json("{\"" + key + "\":1,\"" + key + "\":2}");
    ASSERT_FALSE(twice);
    EXPECT_TRUE(is_utf8(twice.error().message)) << key;
  }
}

AE_TEST("json/json/a lone surrogate is rejected") {
  for (const std::string_view invalid :
       {R"("\ud800")", R"("\udc00")", R"("\ud800x")", R"("\ud800\u0041")", R"("\ud800\ud800")",
        R"({"\udfff":1})"}) {
    EXPECT_NE(rejection(invalid).find("half a surrogate pair"), std::string::npos) << invalid;
  }
}

AE_TEST("json/json/invalid UTF-8 and a byte order mark are rejected") {
  for (const std::string_view invalid :
       {"\"\x80\"", "\"\xc0\x80\"", "\"\xe0\x80\x80\"", "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"",
        "\"\xf8\x88\x80\x80\x80\"", "\"\xc3\"", "\"\xe2\x82\"", "\xEF\xBB\xBF{}"}) {
    EXPECT_FALSE(parse_json(invalid)) << invalid;
  }
}

AE_TEST("json/json/numbers are converted to the nearest double") {
  EXPECT_EQ(reread("[0, -0, -0.0, 1.0, 1e2, 123e-2, 1E+2, -1.5]"), "[0,0,0,1,100,1.23,100,-1.5]");
  EXPECT_EQ(reread("9007199254740991"), "9007199254740991");
  EXPECT_EQ(reread("0.1"), "0.1");
  EXPECT_EQ(parse_json("2.2250738585072011e-308")->as_number(), 2.2250738585072011e-308);
  EXPECT_EQ(parse_json("1.7976931348623157e308")->as_number(), 1.7976931348623157e308);
  // Half-way between two doubles, and a digit above it.
  EXPECT_EQ(parse_json("1.00000000000000011102230246251565404236316680908203125")->as_number(), 1);
  EXPECT_EQ(parse_json("1.00000000000000011102230246251565404236316680908203126")->as_number(),
            std::nextafter(1.0, 2.0));
}

AE_TEST("json/json/underflow gives zero, overflow is rejected") {
  EXPECT_EQ(reread("[1e-400,-1e-400,4.9e-324,2e-324,0e99999,0.0e-99999999999999999999]"),
            "[0,0,5e-324,0,0,0]");
  EXPECT_EQ(reread(fmt::format("0.{}1e401", std::string(400, '0'))), "1");
  EXPECT_EQ(reread(fmt::format("0.{}1", std::string(500, '0'))), "0");
  EXPECT_EQ(reread(fmt::format("1{}e-401", std::string(400, '0'))), "0.1");
  for (const std::string& invalid :
       {std::string("1e400"), std::string("-1e400"), std::string("1e99999999999999999999"),
        "1" + std::string(400, '0'), fmt::format("0.{}1e500", std::string(100, '0'))}) {
    EXPECT_NE(rejection(invalid).find("largest double"), std::string::npos) << invalid;
  }
}

AE_TEST("json/json/an integer beyond 2^53-1 is rejected") {
  for (const std::string_view invalid :
       {"9007199254740992", "-9007199254740992", "9007199254740993", "9007199254740992.0", "1e16",
        "100000000000000000000", "9007199254740991.5", "999999999999999868928",
        "999999999999999999999", "1000000000000000000000", "-1000000000000000000000",
        "4111111111111111111111111", "4111111111111111111111112", "1e20", "123456789e12"}) {
    EXPECT_NE(rejection(invalid).find("2^53-1"), std::string::npos) << invalid;
  }
  // An exponent marks a number as possibly inexact.
  EXPECT_EQ(reread("1e21"), "1e+21");
  EXPECT_EQ(reread("1E+21"), "1e+21");
  EXPECT_EQ(reread("-1e300"), "-1e+300");
  EXPECT_EQ(reread("4111111111111111111111111.5"), "4.111111111111111e+24");
}

AE_TEST("json/json/big_integers_as_strings returns large integers as strings") {
  const JsonLimits limits{.big_integers_as_strings = true};
  EXPECT_EQ(reread("[9007199254740991,9007199254740993,-9007199254740993]", limits),
            R"([9007199254740991,"9007199254740993","-9007199254740993"])");
  const std::string huge = "1" + std::string(400, '0');
  EXPECT_EQ(reread(huge, limits), '"' + huge + '"');
  EXPECT_EQ(reread("1e21", limits), "1e+21");
  EXPECT_FALSE(parse_json("1e16", limits));
}

AE_TEST("json/json/canonical large numbers round-trip with big_integers") {
  const JsonLimits limits{.big_integers = true};
  for (const double d : {9007199254740992.0, 1e20, -123456789012345680000.0, 1e21}) {
    EXPECT_EQ(parse_json(canonical(Value(d)), limits)->as_number(), d);
  }
}

AE_TEST("json/json/size and depth are limited") {
  const auto nested = [](int depth) {
    std::string text;
    for (int i = 0; i < depth; ++i) text += i % 2 == 0 ? "[" : R"({"a":)";
    text += "1";
    for (int i = depth; i-- > 0;) text += i % 2 == 0 ? "]" : "}";
    return text;
  };
  EXPECT_TRUE(parse_json(nested(64)));
  EXPECT_NE(rejection(nested(65)).find("deeper than 64"), std::string::npos);
  EXPECT_TRUE(parse_json("[1]", {.depth_max = 1}));
  EXPECT_FALSE(parse_json("[[]]", {.depth_max = 1}));
  EXPECT_TRUE(parse_json("1", {.depth_max = 0}));
  EXPECT_FALSE(parse_json(std::string(1'000'000, '['), {.depth_max = 2'000'000}));
  const std::string deepest = nested(static_cast<int>(kJsonDepthMax));
  EXPECT_EQ(reread(deepest, {.depth_max = 2'000'000}), deepest);
  EXPECT_TRUE(parse_json("[1]", {.bytes_max = 3}));
  EXPECT_EQ(parse_json("[1] ", {.bytes_max = 3}).error().code, Code::payload_too_large);
}

AE_TEST("json/json/canonical_exceeds agrees with the canonical text") {
  const Value longest = -1.2345678901234567e-6;
  ASSERT_EQ(canonical(longest).size(), 25u);
  for (const Value& value :
       {Value(), Value(7), longest, Value(std::string(20, '\x01')), Value("\"\\"),
        Value::array({longest, longest, Value(false)}), Value::object({{"\x02", longest}})}) {
    const std::size_t size = canonical(value).size();
    for (std::size_t limit = 0; limit < 40 * size; ++limit)
      EXPECT_EQ(canonical_exceeds(value, limit), size > limit) << canonical(value) << limit;
  }
}

AE_TEST("json/json/canonical numbers are formatted as in ECMAScript") {
  const std::map<std::uint64_t, std::string> published = {
      // RFC 8785, appendix B
      {0x0000000000000000, "0"},
      {0x8000000000000000, "0"},
      {0x0000000000000001, "5e-324"},
      {0x8000000000000001, "-5e-324"},
      {0x7fefffffffffffff, "1.7976931348623157e+308"},
      {0xffefffffffffffff, "-1.7976931348623157e+308"},
      {0x4340000000000000, "9007199254740992"},
      {0xc340000000000000, "-9007199254740992"},
      {0x4430000000000000, "295147905179352830000"},
      {0x44b52d02c7e14af5, "9.999999999999997e+22"},
      {0x44b52d02c7e14af6, "1e+23"},
      {0x44b52d02c7e14af7, "1.0000000000000001e+23"},
      {0x444b1ae4d6e2ef4e, "999999999999999700000"},
      {0x444b1ae4d6e2ef4f, "999999999999999900000"},
      {0x444b1ae4d6e2ef50, "1e+21"},
      {0x3eb0c6f7a0b5ed8c, "9.999999999999997e-7"},
      {0x3eb0c6f7a0b5ed8d, "0.000001"},
      {0x41b3de4355555553, "333333333.3333332"},
      {0x41b3de4355555554, "333333333.33333325"},
      {0x41b3de4355555555, "333333333.3333333"},
      {0x41b3de4355555556, "333333333.3333334"},
      {0x41b3de4355555557, "333333333.33333343"},
      {0xbecbf647612f3696, "-0.0000033333333333333333"},
      {0x43143ff3c1cb0959, "1424953923781206.2"},
  };
  for (const auto& [bits, text] : published) {
    std::string out;
    write_canonical_number(std::bit_cast<double>(bits), out);
    EXPECT_EQ(out, text);
  }
}

AE_TEST("json/json/pretty() indents") {
  EXPECT_EQ(pretty(*parse_json(R"({"b":[1,{"c":[]}],"a":{}})")), R"({
  "a": {},
  "b": [
    1,
    {
      "c": []
    }
  ]
})");
  EXPECT_EQ(pretty(Value("x")), "\"x\"");
}

AE_TEST("json/json/is_utf8 detects invalid bytes at any position") {
  for (std::size_t before = 0; before < 20; ++before) {
    const std::string ascii(before, 'a');
    for (const std::string_view valid :
         {"", "\x7f", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80",
          "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
      EXPECT_TRUE(is_utf8(ascii + std::string(valid))) << before;
      EXPECT_TRUE(is_utf8(ascii + std::string(valid) + "tail of ascii")) << before;
      if (valid.size() > 1) {
        EXPECT_FALSE(is_utf8(ascii + std::string(valid.substr(0, valid.size() - 1)))) << before;
        EXPECT_FALSE(is_utf8(ascii + std::string(valid.substr(0, valid.size() - 1)) + "tail of a"));
        EXPECT_FALSE(is_utf8(ascii + std::string(valid.substr(1)))) << before;
      }
    }
    for (const std::string_view invalid :
         {"\x80", "\xbf", "\xc0\xaf", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xed\xbf\xbf",
          "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff"}) {
      EXPECT_FALSE(is_utf8(ascii + std::string(invalid) + "tail")) << before;
    }
  }
}

// The cases that JSONTestSuite leaves to the parser (its i_ files).
constexpr std::string_view kTooLarge = "overflows; rejected, a hash needs one number";
constexpr std::string_view kZero = "underflows: 0, as IEEE 754 rounds it";
constexpr std::string_view kBigInteger = "an integer beyond 2^53-1, written out; rejected";
constexpr std::string_view kSurrogate = "half a surrogate pair is no character; rejected";
constexpr std::string_view kNotUtf8 = "not UTF-8; rejected";
constexpr std::string_view kDeep = "nested deeper than 64; rejected";
constexpr std::string_view kByteOrderMark = "a byte order mark; rejected";

const std::map<std::string, std::string_view>& expected_decisions() {
  static const std::map<std::string, std::string_view> table = {
      {"i_number_double_huge_neg_exp.json", kZero},
      {"i_number_huge_exp.json", kTooLarge},
      {"i_number_neg_int_huge_exp.json", kTooLarge},
      {"i_number_pos_double_huge_exp.json", kTooLarge},
      {"i_number_real_neg_overflow.json", kTooLarge},
      {"i_number_real_pos_overflow.json", kTooLarge},
      {"i_number_real_underflow.json", kZero},
      {"i_number_too_big_neg_int.json", kBigInteger},
      {"i_number_too_big_pos_int.json", kBigInteger},
      {"i_number_very_big_negative_int.json", kBigInteger},
      {"i_object_key_lone_2nd_surrogate.json", kSurrogate},
      {"i_string_1st_surrogate_but_2nd_missing.json", kSurrogate},
      {"i_string_1st_valid_surrogate_2nd_invalid.json", kSurrogate},
      {"i_string_UTF-16LE_with_BOM.json", kNotUtf8},
      {"i_string_UTF-8_invalid_sequence.json", kNotUtf8},
      {"i_string_UTF8_surrogate_U+D800.json", kNotUtf8},
      {"i_string_incomplete_surrogate_and_escape_valid.json", kSurrogate},
      {"i_string_incomplete_surrogate_pair.json", kSurrogate},
      {"i_string_incomplete_surrogates_escape_valid.json", kSurrogate},
      {"i_string_invalid_lonely_surrogate.json", kSurrogate},
      {"i_string_invalid_surrogate.json", kSurrogate},
      {"i_string_invalid_utf-8.json", kNotUtf8},
      {"i_string_inverted_surrogates_U+1D11E.json", kSurrogate},
      {"i_string_iso_latin_1.json", kNotUtf8},
      {"i_string_lone_second_surrogate.json", kSurrogate},
      {"i_string_lone_utf8_continuation_byte.json", kNotUtf8},
      {"i_string_not_in_unicode_range.json", kNotUtf8},
      {"i_string_overlong_sequence_2_bytes.json", kNotUtf8},
      {"i_string_overlong_sequence_6_bytes.json", kNotUtf8},
      {"i_string_overlong_sequence_6_bytes_null.json", kNotUtf8},
      {"i_string_truncated-utf-8.json", kNotUtf8},
      {"i_string_utf16BE_no_BOM.json", kNotUtf8},
      {"i_string_utf16LE_no_BOM.json", kNotUtf8},
      {"i_structure_500_nested_arrays.json", kDeep},
      {"i_structure_UTF-8_BOM_empty_object.json", kByteOrderMark},
  };
  return table;
}

AE_TEST("json/json/every file of JSONTestSuite is accepted or rejected as expected") {
  const auto folder = testdata("JSONTestSuite/test_parsing");
  if (folder.empty()) GTEST_SKIP() << "set AETHERIS_TESTDATA to the folder of public test data";
  int cases = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const auto value = parse_json(file(entry.path()));
    bool is_valid = name.starts_with("y_") && !name.starts_with("y_object_duplicated_key");
    if (name.starts_with("i_")) {
      const auto decision = expected_decisions().find(name);
      ASSERT_NE(decision, expected_decisions().end()) << name << " has no expected result";
      is_valid = decision->second == kZero;
    }
    EXPECT_EQ(value.has_value(), is_valid) << name << (value ? "" : ": " + value.error().message);
    if (value) {
      EXPECT_EQ(parse_json(canonical(*value)), value) << name;
    }
    ++cases;
  }
  EXPECT_GE(cases, 318);
  std::printf("JSONTestSuite: %d cases\n", cases);
}

AE_TEST("json/json/canonical text matches the test vectors of RFC 8785") {
  const auto folder = testdata("jcs/testdata");
  if (folder.empty()) GTEST_SKIP() << "set AETHERIS_TESTDATA to the folder of public test data";
  int cases = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "input")) {
    const auto value = parse_json(file(entry.path()));
    ASSERT_TRUE(value) << entry.path() << ": " << value.error().message;
    EXPECT_EQ(canonical(*value), file(folder / "output" / entry.path().filename()));
    ++cases;
  }
  EXPECT_GE(cases, 6);
  std::printf("RFC 8785 vectors: %d cases\n", cases);
}

// A random double of the kind that `i` selects: any bits, a power of two or ten and its neighbours,
// few digits.
double random_double(std::uint64_t i, std::mt19937_64& random) {
  switch (i % 8) {
    case 0: {
      const double power = std::ldexp(1.0, static_cast<int>(random() % 2098) - 1074);
      return random() % 2 == 0 ? power : std::nextafter(power, random() % 2 == 0 ? 0.0 : 1e308);
    }
    case 1: {
      const double power = std::pow(10.0, static_cast<double>(random() % 616) - 308);
      return random() % 2 == 0 ? power : std::nextafter(power, random() % 2 == 0 ? 0.0 : 1e308);
    }
    case 2:
      return static_cast<double>(random() % 1'000'000'000) / 1000.0;
    case 3:
      return static_cast<double>(random() >> (random() % 64));
    default:
      return std::bit_cast<double>(random());
  }
}

// Passes the bits and the text of `count` doubles to Python, which formats each one independently.
void compare_with_python(std::uint64_t count) {
  const char* root = std::getenv("AETHERIS_ROOT");
  const std::filesystem::path script =
      std::filesystem::path(root == nullptr ? "." : root) / "scripts/jcs_numbers.py";
  if (!std::filesystem::exists(script)) GTEST_SKIP() << "no " << script << "; set AETHERIS_ROOT";
  if (std::system("python3 -c pass >/dev/null 2>&1") != 0) GTEST_SKIP() << "no python3";
  const char* seed_text = std::getenv("AETHERIS_SEED");
  const std::uint64_t seed =
      seed_text == nullptr ? std::random_device()() : std::strtoull(seed_text, nullptr, 10);
  std::mt19937_64 random(seed);
  FILE* const python = popen(("python3 " + script.string()).c_str(), "w");
  ASSERT_NE(python, nullptr);
  for (std::uint64_t i = 0; i < count; ++i) {
    const double d = random_double(i, random);
    if (!std::isfinite(d)) continue;
    std::string text;
    write_canonical_number(d, text);
    std::fprintf(python, "%016llx %s\n",
                 static_cast<unsigned long long>(std::bit_cast<std::uint64_t>(d)), text.c_str());
    const auto back = parse_json(text, {.big_integers = true});
    ASSERT_TRUE(back.has_value()) << text;
    ASSERT_EQ(back->as_number(), d) << text;
  }
  EXPECT_EQ(pclose(python), 0) << "repeat with: AETHERIS_SEED=" << seed << " ./dev test numbers";
}

AE_TEST("json/json/canonical numbers agree with Python on some random doubles") {
  compare_with_python(2'000);
}

AE_TEST_SLOW("json/json/canonical numbers agree with Python on a million random doubles") {
  compare_with_python(1'000'000);
}

}  // namespace
}  // namespace ae
