// Tests of limits in requests and of token estimates.
#include "plan/budget.h"

#include "engine/fixtures/job_fixture_test.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

AE_TEST("budget/costs convert exactly between decimal text and micros") {
  EXPECT_EQ(cost_from_text("2.50").value_or(0), 2'500'000u);
  EXPECT_EQ(cost_from_text("0.000001").value_or(0), 1u);
  EXPECT_EQ(cost_from_text("999999999").value_or(0), 999'999'999'000'000u);
  for (const char* wrong : {"", ".5", "5.", "-1", "1e3", "0.0000001", "1000000000", "1,5"}) {
    EXPECT_FALSE(cost_from_text(wrong)) << wrong;
  }
  EXPECT_EQ(cost_text(2'500'000), "2.5");
  EXPECT_EQ(cost_text(3'000'000), "3");
  EXPECT_EQ(cost_text(1), "0.000001");
}

AE_TEST("budget/stored limits read back unchanged, invalid ones are rejected") {
  const Value limits =
      json("{'cost_micros': 5, 'model_calls': 3, 'soft': 80, 'tokens': 100, 'wall': '1h'}");
  const auto read = limits_of(limits);
  ASSERT_TRUE(read);
  EXPECT_EQ(to_json(*read), limits);
  for (const char* wrong :
       {"{'tokens': -1}", "{'tokens': 1.5}", "{'tokens': '1'}", "{'soft': 0}", "{'soft': 101}",
        "{'wall': '0s'}", "{'cost': '1'}", "[]", "{'tokens': 1000000000000001}"}) {
    EXPECT_FALSE(limits_of(json(wrong))) << wrong;
  }
}

AE_TEST("budget/the limits of a request may only lower those of its agent") {
  const auto requested = parse_limits(json("{'cost': '1.5', 'tokens': 50, 'wall': '10m'}"));
  ASSERT_TRUE(requested);
  EXPECT_EQ(to_json(*requested), json("{'cost_micros': 1500000, 'tokens': 50, 'wall': '10m'}"));
  for (const char* wrong : {"{}", "[]", "{'soft': 5}", "{'cost_micros': 5}", "{'cost': '-1'}",
                            "{'wall': 5}", "{'tokens': -1}"}) {
    const auto refused = parse_limits(json(wrong));
    ASSERT_FALSE(refused) << wrong;
    EXPECT_EQ(refused.error().code, Code::input_invalid);
  }
  const Limits agent = *limits_of(json("{'soft': 80, 'tokens': 100, 'wall': '1h'}"));
  const auto both = lower_limits(agent, *requested);
  ASSERT_TRUE(both);
  EXPECT_EQ(to_json(*both),
            json("{'cost_micros': 1500000, 'soft': 80, 'tokens': 50, 'wall': '10m'}"));
  EXPECT_FALSE(lower_limits(agent, *parse_limits(json("{'tokens': 101}"))));
  EXPECT_FALSE(lower_limits(agent, *parse_limits(json("{'wall': '61m'}"))));
  EXPECT_TRUE(lower_limits(agent, *parse_limits(json("{'tokens': 100}"))));
}

AE_TEST("budget/input tokens are estimated at a third of the bytes, images at a constant") {
  const Value message = json("{'content': 'Hello', 'role': 'user'}");  // 33 bytes
  EXPECT_EQ(estimate_tokens(message), 11u);
  const Value picture =
      json("{'content': [{'type': 'image', 'url': 'https://host/0123456789'}], 'role': 'user'}");
  EXPECT_EQ(estimate_tokens(picture), kImageTokens);
  const Value request = Value::object({{"messages", Value::array({message, picture})}});
  EXPECT_EQ(estimate_input_tokens(request), 11u + kImageTokens);
  EXPECT_EQ(estimate_output_tokens(request), kDefaultOutputTokens);
  EXPECT_EQ(estimate_output_tokens(request.with("max_tokens", 7)), 7u);
  const Price price{.input = 2'000'000, .output = 10'000'000};
  EXPECT_EQ(make_reservation(price, 100, 10).cost_micros, 300u);
  EXPECT_EQ(make_reservation(std::nullopt, 100, 10).cost_micros, 0u);
  Usage all;  // of the maximum number of concurrent calls of a job
  for (int i = 0; i < 64; ++i) {
    const Usage one = model_use(make_reservation(price, kBudgetMax, kBudgetMax));
    ASSERT_TRUE(can_add(all, one)) << i;
    add(all, one);
  }
  EXPECT_EQ(all.tokens, 64 * 2 * kReservedMax);
}

AE_TEST("budget/all exceeded limits are listed in a fixed order") {
  Budget budget;
  budget.limits.tokens = 10;
  budget.limits.model_calls = 1;
  budget.limits.tool_calls = 5;
  budget.spent = {.tokens = 9, .model_calls = 1};
  const Usage call{.tokens = 2, .cost_micros = 7, .model_calls = 1};
  const auto all = budget.exceeded_by(call);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].limit, Limit::tokens);
  EXPECT_EQ(all[0].requested, 2u);
  EXPECT_EQ(all[1].limit, Limit::model_calls);
  budget.wall_passed = true;
  EXPECT_EQ(budget.exceeded_by(call).size(), 3u);
  EXPECT_EQ(budget.exceeded_by(call)[0].limit, Limit::wall);
  EXPECT_TRUE(Budget().exceeded_by(call).empty());
}

}  // namespace
}  // namespace ae::engine::testing
