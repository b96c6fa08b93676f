// Replay alone: in which order a new routine makes the recorded requests, and is given outcomes.
#include "engine/code/replay.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "engine/code/code.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

using Match = Replay::Match;

RecordedRequest call(std::string position, std::uint64_t delivered) {
  return {.position = std::move(position),
          .kind = NodeKind::tool,
          .tool = "put",
          .arguments_hash = sha256("1"),
          .delivered = delivered};
}
RecordedRequest scope(std::string position, std::uint64_t delivered) {
  return {.position = std::move(position), .kind = NodeKind::scope, .delivered = delivered};
}
Delivery outcome(std::string position) { return {.position = std::move(position)}; }
Delivery passed_over(std::uint64_t outcomes) { return {.passed_over = outcomes}; }
// The routine makes the request of `call` again.
Match made(Replay& replay, std::string_view position) {
  return replay.match(
      {.position = position, .kind = NodeKind::tool, .tool = "put", .arguments_hash = sha256("1")});
}
Match begun(Replay& replay, std::string_view position) {
  return replay.match({.position = position, .kind = NodeKind::scope});
}

// ---------------------------------------------------------------- R1

AE_TEST("replay/outcomes are delivered in the recorded order, one at a time") {
  Replay replay(
      {.requests = {call("a", 0), call("b", 0)}, .deliveries = {outcome("b"), outcome("a")}});
  EXPECT_EQ(made(replay, "a"), Match::recorded);
  EXPECT_EQ(made(replay, "b"), Match::recorded);
  ASSERT_TRUE(replay.may_deliver());
  EXPECT_EQ(replay.delivered(), 0u);
  EXPECT_EQ(replay.deliver().position, "b");
  EXPECT_EQ(replay.delivered(), 1u);
  EXPECT_EQ(replay.deliver().position, "a");
  EXPECT_FALSE(replay.may_deliver());
}

AE_TEST("replay/a position is delivered only when all requests made before it are made again") {
  Replay replay({.requests = {call("a", 0), call("b", 0), call("c", 1)},
                 .deliveries = {outcome("a"), outcome("b"), outcome("c")}});
  EXPECT_FALSE(replay.may_deliver());
  made(replay, "a");
  EXPECT_FALSE(replay.may_deliver()) << "b was requested before the first outcome, too";
  made(replay, "b");
  ASSERT_TRUE(replay.may_deliver()) << "c was requested after it";
  replay.deliver();
  EXPECT_FALSE(replay.may_deliver());
  made(replay, "c");
  EXPECT_TRUE(replay.may_deliver());
}

AE_TEST("replay/a request made before its time counts as made") {
  Replay replay(
      {.requests = {call("a", 0), call("b", 1)}, .deliveries = {outcome("a"), outcome("b")}});
  made(replay, "a");
  EXPECT_EQ(made(replay, "b"), Match::recorded);
  replay.deliver();
  EXPECT_TRUE(replay.may_deliver());
}

AE_TEST("replay/an ended scope is one request, and what is inside of it is passed over") {
  Replay replay(
      {.requests = {scope("s", 0), call("a", 3)}, .deliveries = {passed_over(2), outcome("s")}});
  EXPECT_FALSE(replay.may_deliver());
  EXPECT_EQ(begun(replay, "s"), Match::recorded);
  ASSERT_TRUE(replay.may_deliver());
  EXPECT_EQ(replay.deliver().passed_over, 2u);
  EXPECT_EQ(replay.delivered(), 2u) << "counted";
  EXPECT_EQ(replay.deliver().position, "s");
  EXPECT_FALSE(replay.is_at_frontier());
  made(replay, "a");
  EXPECT_TRUE(replay.is_at_frontier());
}

// ---------------------------------------------------------------- R2

AE_TEST("replay/the frontier is reached with all requests made and all outcomes delivered") {
  Replay replay({.requests = {call("a", 0), call("b", 1)}, .deliveries = {outcome("a")}});
  EXPECT_FALSE(replay.is_at_frontier());
  made(replay, "a");
  EXPECT_FALSE(replay.is_at_frontier());
  replay.deliver();
  EXPECT_FALSE(replay.is_at_frontier()) << "b was not made";
  made(replay, "b");
  EXPECT_TRUE(replay.is_at_frontier());
  EXPECT_TRUE(Replay({}).is_at_frontier()) << "of an empty record at once";
}

AE_TEST("replay/the frontier waits for the result of an ended scope") {
  Replay replay({.requests = {scope("s", 0)}, .deliveries = {passed_over(1), outcome("s")}});
  begun(replay, "s");
  replay.deliver();
  EXPECT_FALSE(replay.is_at_frontier());
  replay.deliver();
  EXPECT_TRUE(replay.is_at_frontier());
}

AE_TEST("replay/a request that is not in the record is new, before and after the frontier") {
  Replay replay({.requests = {call("a", 0)}, .deliveries = {outcome("a")}});
  EXPECT_EQ(made(replay, "b"), Match::is_new);
  EXPECT_FALSE(replay.divergence()) << "it waits for the frontier";
  made(replay, "a");
  replay.deliver();
  EXPECT_EQ(made(replay, "c"), Match::is_new);
}

AE_TEST("replay/outcomes after the record are counted") {
  Replay replay({.requests = {call("a", 0)}, .deliveries = {outcome("a")}});
  made(replay, "a");
  replay.deliver();
  replay.count_delivery();
  EXPECT_EQ(replay.delivered(), 2u);
  EXPECT_TRUE(replay.is_at_frontier());
  EXPECT_FALSE(replay.may_deliver());
}

// ---------------------------------------------------------------- R3

AE_TEST("replay/a recorded value is given again by its name") {
  const Replay replay({.values = {{"time:1", Value("noon")}, {"patch:p", Value(true)}}});
  ASSERT_NE(replay.value("time:1"), nullptr);
  EXPECT_EQ(*replay.value("time:1"), Value("noon"));
  EXPECT_EQ(*replay.value("patch:p"), Value(true));
  EXPECT_EQ(replay.value("time:2"), nullptr) << "it is new";
}

AE_TEST("replay/recorded emitted values are counted by scope, and not emitted again") {
  Replay replay({.emitted = {{"", 2}, {"s", 1}}});
  EXPECT_TRUE(replay.was_emitted(""));
  EXPECT_TRUE(replay.was_emitted(""));
  EXPECT_FALSE(replay.was_emitted("")) << "the third is new";
  EXPECT_TRUE(replay.was_emitted("s"));
  EXPECT_FALSE(replay.was_emitted("s"));
  EXPECT_FALSE(replay.was_emitted("t"));
}

// ---------------------------------------------------------------- divergence

AE_TEST("replay/another tool, kind or arguments at a recorded position diverge") {
  const auto diverges = [](const MadeRequest& other) {
    Replay replay({.requests = {call("a", 0)}, .deliveries = {}});
    EXPECT_EQ(replay.match(other), Match::diverged);
    ASSERT_TRUE(replay.divergence());
    EXPECT_EQ(replay.divergence()->finding, "arguments");
    EXPECT_EQ(replay.divergence()->position, "a");
    EXPECT_EQ(replay.divergence()->delivered, 0);
    EXPECT_EQ(replay.divergence()->found["position"], Value("a"));
    EXPECT_EQ(replay.divergence()->found["kind"], Value(to_text(other.kind)));
  };
  diverges({.position = "a", .tool = "put", .arguments_hash = sha256("2")});
  diverges({.position = "a", .tool = "look", .arguments_hash = sha256("1")});
  diverges({.position = "a", .kind = NodeKind::llm, .tool = "put", .arguments_hash = sha256("1")});
  diverges({.position = "a", .kind = NodeKind::wait});
  diverges({.position = "a", .kind = NodeKind::scope});
}

AE_TEST("replay/a wait of another type diverges, one of another key does not") {
  RecordedRequest wait{.position = "w", .kind = NodeKind::wait};
  wait.wait = WaitType::human;
  Replay same({.requests = {wait}, .deliveries = {}});
  EXPECT_EQ(same.match({.position = "w", .kind = NodeKind::wait, .wait = WaitType::human}),
            Match::recorded);
  Replay other({.requests = {wait}, .deliveries = {}});
  EXPECT_EQ(other.match({.position = "w", .kind = NodeKind::wait, .wait = WaitType::signal}),
            Match::diverged);
  EXPECT_EQ(other.divergence()->found["wait"], Value("signal"));
}

AE_TEST("replay/a call without a recorded hash matches any arguments of its tool") {
  RecordedRequest refused = call("a", 0);
  refused.arguments_hash.reset();
  Replay any({.requests = {refused}, .deliveries = {}});
  EXPECT_EQ(made(any, "a"), Match::recorded);
  Replay other({.requests = {refused}, .deliveries = {}});
  EXPECT_EQ(other.match({.position = "a", .tool = "look"}), Match::diverged);
  Replay erased({.requests = {call("a", 0)}, .deliveries = {}});
  EXPECT_EQ(erased.match({.position = "a", .tool = "put"}), Match::recorded)
      << "the hash of the arguments cannot be computed";
}

AE_TEST("replay/a position that is requested twice diverges") {
  Replay replay({.requests = {call("a", 0)}, .deliveries = {}});
  EXPECT_EQ(made(replay, "a"), Match::recorded);
  EXPECT_EQ(made(replay, "a"), Match::diverged);
  EXPECT_EQ(replay.divergence()->finding, "arguments");
}

AE_TEST("replay/a settled routine that did not make a due request lacks the first of them") {
  Replay replay(
      {.requests = {call("a", 0), call("b", 1), call("c", 1)}, .deliveries = {outcome("a")}});
  made(replay, "a");
  EXPECT_FALSE(replay.find_missing(false)) << "b is not due";
  replay.deliver();
  made(replay, "c");
  const auto missing = replay.find_missing(false);
  ASSERT_TRUE(missing);
  EXPECT_EQ(missing->finding, "missing");
  EXPECT_EQ(missing->position, "b");
  EXPECT_EQ(missing->delivered, 1);
  EXPECT_TRUE(missing->found.is_null());
}

AE_TEST("replay/a routine that ended without all recorded requests diverges at once") {
  Replay replay(
      {.requests = {call("a", 0), call("b", 1)}, .deliveries = {outcome("a"), outcome("b")}});
  made(replay, "a");
  EXPECT_FALSE(replay.find_missing(false));
  const auto missing = replay.find_missing(true);
  ASSERT_TRUE(missing);
  EXPECT_EQ(missing->finding, "ended");
  EXPECT_EQ(missing->position, "b");
}

AE_TEST("replay/a routine may end before the last recorded outcome") {
  Replay replay(
      {.requests = {call("a", 0), call("b", 0)}, .deliveries = {outcome("a"), outcome("b")}});
  made(replay, "a");
  made(replay, "b");
  replay.deliver();
  EXPECT_FALSE(replay.find_missing(true));
  ASSERT_TRUE(replay.may_deliver()) << "it is delivered without effect";
  replay.deliver();
  EXPECT_TRUE(replay.is_at_frontier());
}

}  // namespace
}  // namespace ae::engine::testing
