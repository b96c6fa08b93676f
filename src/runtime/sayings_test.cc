// What is being said: heard while it comes, kept within limits, gone when its end is durable.
#include "runtime/sayings.h"

#include <string>
#include <utility>
#include <vector>

#include "testing/test.h"

namespace ae::runtime {
namespace {

const JobId kJob("j");

Saying a_saying(const std::string& invocation, std::uint32_t try_no = 1) {
  return {.step = StepId("s"),
          .node = "n",
          .invocation = InvocationId(invocation),
          .try_no = try_no,
          .text = {}};
}

std::string all_of(const Sayings& sayings, const JobId& job = kJob) {
  std::string all;
  for (const auto& one : sayings.of(job)) {
    all += one->invocation.text + "/" + std::to_string(one->try_no) + " " + one->text +
           (one->full ? " full; " : "; ");
  }
  return all;
}

AE_TEST("sayings/what a call says is kept and told, until its end is durable") {
  Sayings sayings;
  std::string heard;
  const auto listens = sayings.listen(kJob, [&] { heard += all_of(sayings); });
  auto one = sayings.begin(kJob, a_saying("a")), two = sayings.begin(kJob, a_saying("b"));
  auto other = sayings.begin(JobId("other"), a_saying("c"));
  one({.offset = 0, .text = "x"});
  two({.offset = 0, .text = "y"});
  other({.offset = 0, .text = "not ours"});
  one({.offset = 1, .text = "z"});
  EXPECT_EQ(heard, "a/1 x; b/1 ; a/1 x; b/1 y; a/1 xz; b/1 y; ");
  sayings.end(kJob, InvocationId("a"), 2);
  EXPECT_EQ(all_of(sayings), "a/1 xz; b/1 y; ") << "that try has not begun";
  sayings.end(kJob, InvocationId("a"), 1);
  one({.offset = 2, .text = "late"});
  EXPECT_EQ(all_of(sayings), "b/1 y; ");
  sayings.end_all(kJob);
  two({.offset = 1, .text = "late"});
  EXPECT_EQ(all_of(sayings), "");
  EXPECT_EQ(all_of(sayings, JobId("other")), "c/1 not ours; ");
}

AE_TEST("sayings/a later try of a call begins anew") {
  Sayings sayings;
  auto first = sayings.begin(kJob, a_saying("a"));
  first({.offset = 0, .text = "Half an"});
  sayings.end(kJob, InvocationId("a"), 1);
  auto second = sayings.begin(kJob, a_saying("a", 2));
  second({.offset = 0, .text = "All"});
  EXPECT_EQ(all_of(sayings), "a/2 All; ");
}

AE_TEST("sayings/who comes later has it from the beginning, also when it has ended meanwhile") {
  Sayings sayings;
  auto say = sayings.begin(kJob, a_saying("a"));
  say({.offset = 0, .text = "so far"});
  const auto kept = sayings.of(kJob);
  sayings.end(kJob, InvocationId("a"), 1);
  ASSERT_EQ(kept.size(), 1u);
  EXPECT_EQ(kept[0]->text, "so far");
}

AE_TEST("sayings/beyond its limit a text stops to grow, and what ends makes room for others") {
  Sayings sayings({.text_max = 4, .all_max = 6, .listeners_max = 2, .sayings_max = 3});
  auto a = sayings.begin(kJob, a_saying("a")), b = sayings.begin(kJob, a_saying("b"));
  a({.offset = 0, .text = "1234"});
  a({.offset = 4, .text = "5"});
  b({.offset = 0, .text = "123"});
  EXPECT_EQ(all_of(sayings), "a/1 1234 full; b/1  full; ");
  b({.offset = 3, .text = "4"});
  sayings.end(kJob, InvocationId("a"), 1);
  auto c = sayings.begin(kJob, a_saying("c"));
  c({.offset = 0, .text = "1234"});
  EXPECT_EQ(all_of(sayings), "b/1  full; c/1 1234; ") << "a hole is never told";
  auto d = sayings.begin(kJob, a_saying("d"));
  EXPECT_TRUE(d);
  EXPECT_FALSE(sayings.begin(kJob, a_saying("e"))) << "more are not kept";
}

AE_TEST("sayings/so many may listen, and who goes makes room, also while it is told") {
  Sayings sayings({.text_max = 100, .all_max = 100, .listeners_max = 2, .sayings_max = 10});
  int heard = 0;
  std::shared_ptr<void> one, two;
  one = sayings.listen(kJob, [&] {
    ++heard;
    two.reset();
  });
  two = sayings.listen(kJob, [&] { ++heard; });
  EXPECT_EQ(sayings.listen(kJob, [] {}), nullptr);
  auto say = sayings.begin(kJob, a_saying("a"));
  say({.offset = 0, .text = "x"});
  EXPECT_EQ(heard, 1);
  EXPECT_NE(sayings.listen(kJob, [] {}), nullptr);
}

AE_TEST("sayings/who speaks and who listens may outlive it") {
  std::move_only_function<void(tools::Piece)> say;
  std::shared_ptr<void> listens;
  {
    Sayings sayings;
    say = sayings.begin(kJob, a_saying("a"));
    listens = sayings.listen(kJob, [] { FAIL() << "nobody is told"; });
  }
  say({.offset = 0, .text = "x"});
  listens.reset();
}

}  // namespace
}  // namespace ae::runtime
