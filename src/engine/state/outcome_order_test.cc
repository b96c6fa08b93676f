#include "engine/state/outcome_order.h"

#include <string>

#include "testing/test.h"

namespace ae::engine {
namespace {

// "0:5 2:7": the positions with their steps.
std::string order_text(const OutcomeOrder& order) {
  std::string text;
  for (const auto& [position, step] : order.places()) {
    text += (text.empty() ? "" : " ") + std::to_string(position) + ":" + std::to_string(step);
  }
  return text;
}

AE_TEST("outcome order/an outcome without a position fills the next free one") {
  OutcomeOrder order;
  order.add(10, std::nullopt);
  order.add(11, 0);
  order.add(12, std::nullopt);
  EXPECT_EQ(order_text(order), "0:11 1:10 2:12");
  EXPECT_EQ(order.size(), 3u);
}

AE_TEST("outcome order/a position is named once, and only one that exists by then") {
  OutcomeOrder order;
  EXPECT_FALSE(order.may_add(1));
  order.add(10, 0);
  EXPECT_FALSE(order.may_add(0));
  EXPECT_TRUE(order.may_add(1));
}

AE_TEST("outcome order/what the routine had been given is final") {
  OutcomeOrder order;
  order.add(10, std::nullopt);
  order.add(11, std::nullopt);
  order.finalize(1);
  EXPECT_FALSE(order.may_add(0));
  order.add(12, 1);
  EXPECT_EQ(order_text(order), "0:10 1:12 2:11");
  order.finalize(3);
  EXPECT_EQ(order_text(order), "0:10 1:12 2:11");
  EXPECT_EQ(order.size(), 3u);
}

AE_TEST("outcome order/a forgotten outcome is only counted") {
  OutcomeOrder order;
  for (std::uint32_t step = 10; step < 16; ++step) order.add(step, std::nullopt);
  order.finalize(3);
  order.forget({11}, 1);  // final
  order.forget({14}, 0);  // not yet
  EXPECT_EQ(order_text(order), "0:10 2:12 3:13 5:15");
  order.finalize(6);
  EXPECT_EQ(order_text(order), "0:10 2:12 3:13 5:15");
  EXPECT_EQ(order.size(), 6u);
}

AE_TEST("outcome order/what is new in the log is found by its number there") {
  OutcomeOrder order;
  order.add(10, std::nullopt);
  order.add(11, std::nullopt);
  order.add(12, 0);
  std::string text;
  for (const auto& [number, step] : order.since(1)) {
    text += std::to_string(number) + ":" + std::to_string(step) + " ";
  }
  EXPECT_EQ(text, "1:11 2:12 ");
  order.finalize(2);
  ASSERT_EQ(order.since(0).size(), 1u) << "without those that are final";
  EXPECT_EQ(order.since(0)[0].step, 11u);
}

AE_TEST("outcome order/a million outcomes that are forgotten take no memory") {
  OutcomeOrder order;
  for (std::uint32_t step = 0; step < 1'000'000; ++step) {
    order.add(step, std::nullopt);
    order.finalize(order.size());
    order.forget({step}, order.size() - 1);
  }
  EXPECT_LT(order.bytes(), 4096u);
  EXPECT_EQ(order.size(), 1'000'000u);
}

AE_TEST("outcome order/one that was read with impossible positions is not valid") {
  OutcomeOrder order;
  order.add(10, std::nullopt);
  EXPECT_TRUE(order.is_valid(11));
  EXPECT_FALSE(order.is_valid(10)) << "there is no such step";
  OutcomeOrder::fields(order, [](auto& final_positions, auto& kept, auto&, auto&) {
    kept.push_back({.position = final_positions, .step = 1});
  });
  EXPECT_FALSE(order.is_valid(11)) << "a kept outcome has a final position";
}

}  // namespace
}  // namespace ae::engine
