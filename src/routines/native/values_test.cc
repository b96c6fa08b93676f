// Recorded values: their forms, and the numbers that follow from a seed.
#include "routines/native/values.h"

#include "json/json.h"
#include "testing/test.h"

namespace ae::routines {
namespace {

AE_TEST("values/a time is recorded in milliseconds and as text") {
  const Instant at = *instant_from_text("2026-01-01T00:00:00.001500Z");
  EXPECT_EQ(canonical(time_value(at)),
            R"({"ms":1767225600001,"time":"2026-01-01T00:00:00.001500Z"})");
  EXPECT_EQ(time_of(time_value(at)), at);
  EXPECT_EQ(time_value(Instant{-1})["ms"], Value(-1));
  EXPECT_FALSE(time_of(Value()));
}

AE_TEST("values/a UUID has version 4") {
  Entropy entropy({1, 2, 3, 4});
  const std::string a = uuid_v4(entropy.next()), b = uuid_v4(entropy.next());
  EXPECT_NE(a, b);
  EXPECT_EQ(a.size(), 36u);
  EXPECT_EQ(a[14], '4');
  EXPECT_NE(std::string_view("89ab").find(a[19]), std::string_view::npos) << a;
}

AE_TEST("values/a value that no log can hold is refused") {
  EXPECT_TRUE(check_recordable(Value::array({1, "x"}), 100, "it"));
  EXPECT_EQ(check_recordable(std::string(200, 'x'), 100, "it").error().code,
            Code::payload_too_large);
  EXPECT_EQ(check_recordable("\xff", 100, "it").error().code, Code::input_invalid);
  EXPECT_FALSE(check_recordable(Value::object({{"\xff", 1}}), 100, "it"));
  Value deep;
  for (int i = 0; i < 1'000; ++i) deep = Value::array({deep});
  EXPECT_EQ(check_recordable(deep, 100'000, "it").error().code, Code::input_invalid);
}

}  // namespace
}  // namespace ae::routines
