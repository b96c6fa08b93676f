// Tests of OutputHub: streaming, limits, removal when the outcome is durable.
#include "runtime/driver/output_hub.h"

#include <fmt/core.h>

#include <string>
#include <utility>
#include <vector>

#include "testing/test.h"

namespace ae::runtime {
namespace {

const JobId kJob("j");

PartialOutput output_of(const std::string& invocation, std::uint32_t try_no = 1) {
  return {.step = StepId("s"),
          .node = "n",
          .invocation = InvocationId(invocation),
          .try_no = try_no,
          .text = {}};
}

std::string all_of(const OutputHub& hub, const JobId& job = kJob) {
  std::string all;
  for (const auto& one : hub.outputs_of(job)) {
    all += fmt::format("{}/{} {}{}", one->invocation.text, one->try_no, one->text,
                       one->full ? " full; " : "; ");
  }
  return all;
}

AE_TEST("output_hub/partial output is buffered and sent to subscribers until the try ends") {
  OutputHub hub;
  std::string output;
  const auto subscription = hub.subscribe(kJob, [&] { output += all_of(hub); });
  auto one = hub.begin(kJob, output_of("a")), two = hub.begin(kJob, output_of("b"));
  auto other = hub.begin(JobId("other"), output_of("c"));
  one({.offset = 0, .text = "x"});
  two({.offset = 0, .text = "y"});
  other({.offset = 0, .text = "not ours"});
  one({.offset = 1, .text = "z"});
  EXPECT_EQ(output, "a/1 x; b/1 ; a/1 x; b/1 y; a/1 xz; b/1 y; ");
  hub.end(kJob, InvocationId("a"), 2);
  EXPECT_EQ(all_of(hub), "a/1 xz; b/1 y; ") << "that try has not begun";
  hub.end(kJob, InvocationId("a"), 1);
  one({.offset = 2, .text = "late"});
  EXPECT_EQ(all_of(hub), "b/1 y; ");
  hub.end_all(kJob);
  two({.offset = 1, .text = "late"});
  EXPECT_EQ(all_of(hub), "");
  EXPECT_EQ(all_of(hub, JobId("other")), "c/1 not ours; ");
}

AE_TEST("output_hub/a later try starts with an empty buffer") {
  OutputHub hub;
  auto first = hub.begin(kJob, output_of("a"));
  first({.offset = 0, .text = "Half an"});
  hub.end(kJob, InvocationId("a"), 1);
  auto second = hub.begin(kJob, output_of("a", 2));
  second({.offset = 0, .text = "All"});
  EXPECT_EQ(all_of(hub), "a/2 All; ");
}

AE_TEST("output_hub/a reader gets the output from its start and keeps it after the try ends") {
  OutputHub hub;
  auto write = hub.begin(kJob, output_of("a"));
  write({.offset = 0, .text = "so far"});
  const auto outputs = hub.outputs_of(kJob);
  hub.end(kJob, InvocationId("a"), 1);
  ASSERT_EQ(outputs.size(), 1u);
  EXPECT_EQ(outputs[0]->text, "so far");
}

AE_TEST("output_hub/a text stops growing at its limit, and an ended try frees its space") {
  OutputHub hub({.text_max = 4, .total_max = 6, .subscribers_max = 2, .outputs_max = 3});
  auto a = hub.begin(kJob, output_of("a")), b = hub.begin(kJob, output_of("b"));
  a({.offset = 0, .text = "1234"});
  a({.offset = 4, .text = "5"});
  b({.offset = 0, .text = "123"});
  EXPECT_EQ(all_of(hub), "a/1 1234 full; b/1  full; ");
  b({.offset = 3, .text = "4"});
  hub.end(kJob, InvocationId("a"), 1);
  auto c = hub.begin(kJob, output_of("c"));
  c({.offset = 0, .text = "1234"});
  EXPECT_EQ(all_of(hub), "b/1  full; c/1 1234; ") << "output with a gap is never sent";
  auto d = hub.begin(kJob, output_of("d"));
  EXPECT_TRUE(d);
  EXPECT_FALSE(hub.begin(kJob, output_of("e"))) << "the number of outputs is limited";
}

AE_TEST("output_hub/subscribers are limited, and one can unsubscribe during a notification") {
  OutputHub hub({.text_max = 100, .total_max = 100, .subscribers_max = 2, .outputs_max = 10});
  int calls = 0;
  std::shared_ptr<void> one, two;
  one = hub.subscribe(kJob, [&] {
    ++calls;
    two.reset();
  });
  two = hub.subscribe(kJob, [&] { ++calls; });
  EXPECT_EQ(hub.subscribe(kJob, [] {}), nullptr);
  auto write = hub.begin(kJob, output_of("a"));
  write({.offset = 0, .text = "x"});
  EXPECT_EQ(calls, 1);
  EXPECT_NE(hub.subscribe(kJob, [] {}), nullptr);
}

AE_TEST("output_hub/writers and subscriptions may outlive the hub") {
  std::move_only_function<void(tools::TextDelta)> write;
  std::shared_ptr<void> subscription;
  {
    OutputHub hub;
    write = hub.begin(kJob, output_of("a"));
    subscription = hub.subscribe(kJob, [] { FAIL() << "a subscriber was notified"; });
  }
  write({.offset = 0, .text = "x"});
  subscription.reset();
}

}  // namespace
}  // namespace ae::runtime
