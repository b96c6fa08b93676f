// Tests of OutputHub: streaming, limits, removal when the outcome is durable.
#include "runtime/driver/output_hub.h"

#include <fmt/core.h>

#include <string>
#include <utility>
#include <vector>

#include "testing/test.h"

namespace ae::runtime {
namespace {

const JobId kWatchedJob("j");

struct Writer {
  OutputHub& hub;
  engine::SentTry sent;
  JobId job = kWatchedJob;

  Writer(OutputHub& to, const std::string& invocation, std::uint32_t try_no = 1,
         JobId of = kWatchedJob)
      : hub(to), job(std::move(of)) {
    sent.step = StepId("s");
    sent.invocation = InvocationId(invocation);
    sent.try_no = try_no;
  }
  void operator()(std::size_t offset, const std::string& text) {
    hub.add(job, "n", sent, {.offset = offset, .text = text});
  }
};

std::string all_texts(const OutputHub& hub, const JobId& job = kWatchedJob) {
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
  const auto subscription = hub.subscribe(kWatchedJob, [&] { output += all_texts(hub); });
  Writer one(hub, "a"), two(hub, "b"), other(hub, "c", 1, JobId("other"));
  one(0, "x");
  two(0, "y");
  other(0, "not ours");
  one(1, "z");
  EXPECT_EQ(output, "a/1 x; a/1 x; b/1 y; a/1 xz; b/1 y; ");
  hub.end(kWatchedJob, InvocationId("a"), 2);
  EXPECT_EQ(all_texts(hub), "a/1 xz; b/1 y; ") << "that try has not begun";
  hub.end(kWatchedJob, InvocationId("a"), 1);
  one(2, "late");
  EXPECT_EQ(all_texts(hub), "b/1 y; ");
  hub.end_all(kWatchedJob);
  two(1, "late");
  EXPECT_EQ(all_texts(hub), "");
  EXPECT_EQ(all_texts(hub, JobId("other")), "c/1 not ours; ");
}

AE_TEST("output_hub/a later try starts with an empty buffer") {
  OutputHub hub;
  Writer first(hub, "a");
  first(0, "Half an");
  hub.end(kWatchedJob, InvocationId("a"), 1);
  Writer second(hub, "a", 2);
  second(0, "All");
  EXPECT_EQ(all_texts(hub), "a/2 All; ");
}

AE_TEST("output_hub/a reader gets the output from its start and keeps it after the try ends") {
  OutputHub hub;
  Writer write(hub, "a");
  write(0, "so far");
  const auto outputs = hub.outputs_of(kWatchedJob);
  hub.end(kWatchedJob, InvocationId("a"), 1);
  ASSERT_EQ(outputs.size(), 1u);
  EXPECT_EQ(outputs[0]->text, "so far");
}

AE_TEST("output_hub/a text stops growing at its limit, and an ended try frees its space") {
  OutputHub hub({.text_max = 4, .total_max = 6, .subscribers_max = 2, .outputs_max = 3});
  Writer a(hub, "a"), b(hub, "b");
  a(0, "1234");
  a(4, "5");
  b(0, "123");
  EXPECT_EQ(all_texts(hub), "a/1 1234 full; b/1  full; ");
  b(3, "4");
  hub.end(kWatchedJob, InvocationId("a"), 1);
  Writer c(hub, "c");
  c(0, "1234");
  EXPECT_EQ(all_texts(hub), "b/1  full; c/1 1234; ") << "output with a gap is never sent";
}

AE_TEST("output_hub/subscribers are limited, and one can unsubscribe during a notification") {
  OutputHub hub({.text_max = 100, .total_max = 100, .subscribers_max = 2, .outputs_max = 10});
  int calls = 0;
  std::shared_ptr<void> one, two;
  one = hub.subscribe(kWatchedJob, [&] {
    ++calls;
    two.reset();
  });
  two = hub.subscribe(kWatchedJob, [&] { ++calls; });
  EXPECT_EQ(hub.subscribe(kWatchedJob, [] {}), nullptr);
  Writer write(hub, "a");
  write(0, "x");
  EXPECT_EQ(calls, 1);
  EXPECT_NE(hub.subscribe(kWatchedJob, [] {}), nullptr);
}

AE_TEST("output_hub/the number of texts is limited, one without its beginning is not shown") {
  OutputHub hub({.text_max = 4, .total_max = 40, .subscribers_max = 2, .outputs_max = 2});
  Writer a(hub, "a"), b(hub, "b"), c(hub, "c");
  a(0, "1");
  b(0, "");
  b(0, "1");
  c(0, "1");
  EXPECT_EQ(all_texts(hub), "a/1 1; b/1 1; ");
  hub.end(kWatchedJob, InvocationId("a"), 1);
  c(1, "2");
  a(1, "late");
  EXPECT_EQ(all_texts(hub), "b/1 1; ");
}

AE_TEST("output_hub/subscriptions may outlive the hub") {
  std::shared_ptr<void> subscription;
  {
    OutputHub hub;
    subscription = hub.subscribe(kWatchedJob, [] { FAIL() << "a subscriber was notified"; });
  }
  subscription.reset();
}

}  // namespace
}  // namespace ae::runtime
