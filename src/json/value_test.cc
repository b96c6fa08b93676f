#include "json/value.h"

#include <fmt/core.h>

#include <cmath>
#include <limits>

#include "json/json.h"
#include "testing/test.h"

namespace ae {
namespace {

AE_TEST("json/value/a value returns its type and content") {
  EXPECT_TRUE(Value().is_null());
  EXPECT_TRUE(Value(nullptr).is_null());
  EXPECT_TRUE(Value(true).as_bool());
  EXPECT_EQ(Value(2.5).as_number(), 2.5);
  EXPECT_EQ(Value(-7).as_int(), -7);
  EXPECT_EQ(Value(std::uint64_t{9007199254740991}).as_int(), 9007199254740991);
  EXPECT_EQ(Value("text").as_string(), "text");
  EXPECT_EQ(Value::array({1, 2}).items()[1].as_int(), 2);
  EXPECT_EQ(Value::object({{"a", 1}}).members()[0].first, "a");
}

AE_TEST("json/value/an integer is a whole number within 2^53-1") {
  EXPECT_TRUE(Value(9007199254740991.0).is_integer());
  EXPECT_TRUE(Value(-9007199254740991.0).is_integer());
  EXPECT_FALSE(Value(9007199254740992.0).is_integer());
  EXPECT_FALSE(Value(0.5).is_integer());
  EXPECT_FALSE(Value("1").is_integer());
}

AE_TEST("json/value/negative zero becomes zero") {
  EXPECT_FALSE(std::signbit(Value(-0.0).as_number()));
}

AE_TEST("json/value/a non-finite number aborts") {
  const double not_a_number = std::numeric_limits<double>::quiet_NaN();
  const double infinite = std::numeric_limits<double>::infinity();
  EXPECT_DEATH(Value{not_a_number}, "isfinite");
  EXPECT_DEATH(Value{infinite}, "isfinite");
}

AE_TEST("json/value/access as the wrong type aborts") {
  EXPECT_DEATH((void)Value(1).as_string(), "is_string");
  EXPECT_DEATH((void)Value("a").as_int(), "is_integer");
  EXPECT_DEATH((void)Value(1).items(), "is_array");
}

AE_TEST("json/value/members are sorted by UTF-16 code units, regardless of insertion order") {
  // U+FB33 sorts after U+1F600, whose UTF-16 form starts with a surrogate.
  const Value v = Value::object({{"\uFB33", 1},
                                 {"\U0001F600", 2},
                                 {"b", 3},
                                 {"", 4},
                                 {"a\x01", 5},
                                 {"a", 6},
                                 {"\u00f6", 7},
                                 {"\u20ac", 8}});
  std::vector<std::string> keys;
  for (const auto& [key, value] : v.members()) keys.push_back(key);
  EXPECT_EQ(keys, (std::vector<std::string>{"", "a", "a\x01", "b", "\u00f6", "\u20ac", "\U0001F600",
                                            "\uFB33"}));
}

AE_TEST("json/value/key_less compares by UTF-16 code units for every pair of code points") {
  const std::vector<std::uint32_t> points = {0x0,    0x41,   0x7F,   0x80,    0x7FF,   0x800,
                                             0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x1F600, 0x10FFFF};
  const auto utf8 = [](std::uint32_t c) {
    std::string s;
    if (c < 0x80) return s += static_cast<char>(c);
    if (c < 0x800) {
      s += static_cast<char>(0xC0 | c >> 6);
    } else if (c < 0x10000) {
      s += static_cast<char>(0xE0 | c >> 12);
      s += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    } else {
      s += static_cast<char>(0xF0 | c >> 18);
      s += static_cast<char>(0x80 | (c >> 12 & 0x3F));
      s += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    }
    return s += static_cast<char>(0x80 | (c & 0x3F));
  };
  const auto utf16 = [](std::uint32_t c) {
    std::u16string s;
    if (c < 0x10000) return s += static_cast<char16_t>(c);
    s += static_cast<char16_t>(0xD800 + ((c - 0x10000) >> 10));
    return s += static_cast<char16_t>(0xDC00 + ((c - 0x10000) & 0x3FF));
  };
  for (const std::uint32_t a : points) {
    for (const std::uint32_t b : points) {
      EXPECT_EQ(key_less("x" + utf8(a), "x" + utf8(b)), utf16(a) < utf16(b)) << a << " " << b;
    }
  }
}

AE_TEST("json/value/a duplicate key aborts") {
  EXPECT_DEATH((void)Value::object({{"a", 1}, {"b", 2}, {"a", 3}}), "a");
}

AE_TEST("json/value/members are found in small and in large objects") {
  for (const int size : {0, 1, 12, 13, 200}) {
    std::vector<Member> members;
    for (int i = 0; i < size; ++i) members.emplace_back(fmt::format("key{}", i), i);
    const Value v = Value::object(std::move(members));
    EXPECT_EQ(v.size(), static_cast<std::size_t>(size));
    for (int i = 0; i < size; ++i) EXPECT_EQ(v[fmt::format("key{}", i)].as_int(), i);
    EXPECT_EQ(v.find("key"), nullptr);
    EXPECT_TRUE(v["other"].is_null());
  }
}

AE_TEST("json/value/find distinguishes absent from null, and operator[] accepts any value") {
  const Value v = Value::object({{"nothing", nullptr}, {"text", "t"}});
  EXPECT_NE(v.find("nothing"), nullptr);
  EXPECT_EQ(v.find("absent"), nullptr);
  EXPECT_TRUE(Value(1)["x"]["y"].is_null());
  EXPECT_EQ(v.text("text"), "t");
  EXPECT_EQ(v.text("nothing", "else"), "else");
  EXPECT_EQ(Value("x").size(), 0u);
}

AE_TEST("json/value/with() sets or replaces a member in a copy") {
  const Value v = Value::object({{"b", 1}});
  EXPECT_EQ(canonical(v.with("a", 2)), R"({"a":2,"b":1})");
  EXPECT_EQ(canonical(v.with("b", 2)), R"({"b":2})");
  EXPECT_EQ(canonical(v.with("c", 2).with("b", nullptr)), R"({"b":null,"c":2})");
  EXPECT_EQ(canonical(v), R"({"b":1})");
}

AE_TEST("json/value/equality is by content") {
  const auto make = [] {
    return Value::object({{"a", Value::array({1, "x", true, nullptr})}, {"b", Value::object({})}});
  };
  EXPECT_EQ(make(), make());
  EXPECT_NE(make(), make().with("b", 1));
  EXPECT_NE(Value(0), Value(false));
  EXPECT_NE(Value(), Value::object({}));
}

AE_TEST("json/value/assigning a part of a value to the value keeps the part alive") {
  Value v = Value::object({{"inner", Value::array({"deep"})}});
  v = v["inner"];
  EXPECT_EQ(canonical(v), R"(["deep"])");
  v = v.items()[0];
  EXPECT_EQ(v.as_string(), "deep");
  Value& self = v;
  v = self;
  EXPECT_EQ(v.as_string(), "deep");
  v = std::move(self);
  EXPECT_EQ(v.as_string(), "deep");
}

AE_TEST("json/value/a moved-from value is null") {
  Value a("text");
  const Value b = std::move(a);
  EXPECT_TRUE(a.is_null());  // NOLINT(bugprone-use-after-move): that is what is tested
  EXPECT_EQ(b.as_string(), "text");
}

AE_TEST("json/value/a deeply nested value is destroyed without recursion") {
  Value v = "bottom";
  for (int i = 0; i < 100'000; ++i) {
    v = i % 2 == 0 ? Value::array({std::move(v)}) : Value::object({{"k", std::move(v)}});
  }
  v = Value();
  EXPECT_TRUE(v.is_null());
}

AE_TEST("json/value/a shared part outlives its container") {
  Value part;
  {
    const Value value = Value::array({Value::array({"kept"}), "gone"});
    part = value.items()[0];
  }
  EXPECT_EQ(part.items()[0].as_string(), "kept");
}

}  // namespace
}  // namespace ae
