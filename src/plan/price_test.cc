// Tests of price texts and of the cost of answers, which is exact for all numbers.
#include "plan/price.h"

#include <string>

#include "json/json.h"
#include "testing/test.h"

namespace ae::engine {
namespace {

Value usage(const std::string& text) {
  auto value = parse_json(text);
  EXPECT_TRUE(value) << text;
  return value ? *value : Value();
}

AE_TEST("price/a decimal price per million tokens parses to whole micros") {
  const struct {
    const char* text;
    std::uint64_t micros;
  } cases[] = {{"0", 0},
               {"2.5", 2'500'000},
               {"2.50", 2'500'000},
               {"0.000001", 1},
               {"0.1", 100'000},
               {"15", 15'000'000},
               {"007.1", 7'100'000},
               {"1000000", kPriceMax},
               {"1000000.000000", kPriceMax}};
  for (const auto& c : cases) {
    const auto price = price_from_text(c.text);
    ASSERT_TRUE(price) << c.text;
    EXPECT_EQ(*price, c.micros) << c.text;
  }
  for (const char* text : {"", ".", "1.", ".5", "-1", "+1", "1e3", "1,5", " 1", "0.0000001",
                           "1000000.000001", "99999999", "1.2.3", "$1", "٣"}) {
    const auto price = price_from_text(text);
    ASSERT_FALSE(price) << text;
    EXPECT_EQ(price.error().code, Code::input_invalid) << text;
  }
}

AE_TEST("price/the cost of an answer prices cached tokens separately") {
  const Price price{.input = 2'500'000, .output = 10'000'000, .cached = 250'000};
  const auto cost = [&](const char* text) { return cost_micros(price, usage(text)); };
  EXPECT_EQ(cost(R"({"input_tokens":1000,"output_tokens":100})"), 3'500u);
  EXPECT_EQ(cost(R"({"input_tokens":1000,"output_tokens":100,"cached_tokens":400})"), 2'600u);
  EXPECT_EQ(cost(R"({"input_tokens":0,"output_tokens":0})"), 0u);
  // More cached than input tokens: the provider miscounts.
  EXPECT_EQ(cost(R"({"input_tokens":1000,"output_tokens":0,"cached_tokens":5000})"), 250u);
  const Price plain{.input = 2'500'000, .output = 10'000'000, .cached = {}};
  EXPECT_EQ(
      cost_micros(plain, usage(R"({"input_tokens":1000,"output_tokens":0,"cached_tokens":400})")),
      2'500u);
}

AE_TEST("price/a cost is rounded once, half up, to the nearest micro") {
  const auto cost = [](std::uint64_t price, int tokens) {
    return cost_micros({.input = price, .output = 0, .cached = {}},
                       Value::object({{"input_tokens", tokens}, {"output_tokens", 0}}));
  };
  EXPECT_EQ(cost(499'999, 1), 0u);
  EXPECT_EQ(cost(500'000, 1), 1u);
  EXPECT_EQ(cost(1, 1'499'999), 1u);
  EXPECT_EQ(cost(1, 1'500'000), 2u);
  // Each direction alone would be rounded to 0.
  EXPECT_EQ(cost_micros({.input = 250'000, .output = 250'000, .cached = {}},
                        usage(R"({"input_tokens":1,"output_tokens":1})")),
            1u);
}

AE_TEST("price/the cost of extreme token counts saturates at 2^53 - 1") {
  const Price most{.input = kPriceMax, .output = kPriceMax, .cached = {}};
  EXPECT_EQ(
      cost_micros(most,
                  usage(R"({"input_tokens":9007199254740991,"output_tokens":9007199254740991})")),
      9007199254740991u);
}

AE_TEST("price/an answer without token counts has no known cost") {
  const Price price{.input = 1, .output = 1, .cached = {}};
  for (const char* text :
       {"null", "{}", R"({"input_tokens":1})", R"({"output_tokens":1})", R"({"total_tokens":7})",
        R"({"input_tokens":-1,"output_tokens":1})", R"({"input_tokens":1.5,"output_tokens":1})"}) {
    EXPECT_EQ(cost_micros(price, usage(text)), std::nullopt) << text;
  }
}

AE_TEST("price/a stored price reads back unchanged, invalid prices are rejected") {
  const Price price{.input = 1, .output = kPriceMax, .cached = 0};
  const auto again = price_of(to_json(price));
  ASSERT_TRUE(again);
  EXPECT_EQ(again->input, 1u);
  EXPECT_EQ(again->output, kPriceMax);
  EXPECT_EQ(again->cached, 0u);
  EXPECT_EQ(price_of(to_json({.input = 2, .output = 3, .cached = {}}))->cached, std::nullopt);
  for (const char* text :
       {"null", "7", "{}", R"({"input":1})", R"({"input":1,"output":-1})",
        R"({"input":1.5,"output":1})", R"({"input":"1","output":1})",
        R"({"input":1,"output":1000000000001})", R"({"input":1,"output":1,"currency":"EUR"})"}) {
    const auto read = price_of(usage(text));
    ASSERT_FALSE(read) << text;
    EXPECT_EQ(read.error().code, Code::plan_invalid) << text;
  }
}

}  // namespace
}  // namespace ae::engine
