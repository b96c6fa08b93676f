// Calls in workers: permits, ends, lost sessions, late ends.
#include <string>

#include "routines/remote/scripted_worker_test.h"

namespace ae::routines::testing {
namespace {

struct Running {
  Running() {
    worker.begin();
    EXPECT_TRUE(world.start());
    worker.send("{'type': 'advance', 'routine': 1, 'delivered': 0}");
    worker.next("start");
  }
  auto perform(const std::string& tool = "run:read", const std::string& position = "f") {
    return world.perform(world.routine->functions(), tool, position);
  }
  RemoteWorld world;
  ScriptedWorker worker{world};
};

const std::string kName = "'job': 'job-1', 'invocation': 'i-f', 'try': 1";

AE_TEST("remote call/a permit has what the function needs") {
  Running one;
  one.perform();
  EXPECT_EQ(canonical(one.worker.next("perform")),
            R"({"call":1,"execution_key":"key","invocation":"i-f","job":"job-1",)"
            R"("key":"aetheris:job-1:f:0","position":"f","routine":1,"send_within_ms":10000,)"
            R"("timeout_ms":30000,"tool":"run:read","try":1,"type":"perform"})");
  one.perform("score", "g");
  EXPECT_EQ(one.worker.next("perform")["arguments"], json("{'n': 1}"));
  const auto other = one.perform("pay", "h");
  EXPECT_EQ(other->code(), "not_sent") << "the worker has no such tool";
}

AE_TEST("remote call/send_within_ms counts from the frame that is acknowledged") {
  Running one;
  one.world.loop.advance(1500ms);  // the worker's last frame is so old
  one.perform();
  EXPECT_EQ(one.worker.next("perform")["send_within_ms"], Value(11'500));
}

AE_TEST("remote call/a success comes with an advance, and its client records it") {
  Running one;
  const auto call = one.perform();
  one.worker.send(R"({'type': 'advance', 'routine': 1, 'delivered': 1,
                      'functions': [{'call': 1, 'result': {'x': 1}, 'delivered': 0}]})");
  ASSERT_TRUE(call->is_done());
  EXPECT_EQ(call->outcomes[0].kind, OutcomeKind::success);
  EXPECT_EQ(call->outcomes[0].result, json("{'x': 1}"));
  EXPECT_EQ(call->outcomes[0].delivered, 0u);
  EXPECT_EQ(one.world.client.advances.size(), 2u);
  one.worker.send("{'type': 'ended', 'call': 1, 'result': 2}");
  EXPECT_EQ(one.worker.next("error").text("code"), "not_found") << "it has ended";
  EXPECT_EQ(call->outcomes.size(), 1u);
}

AE_TEST("remote call/a success whose routine is gone ends the call, without a position") {
  Running one;
  const auto call = one.perform();
  one.world.routine.reset();
  one.worker.send(R"({'type': 'advance', 'routine': 1, 'delivered': 1,
                      'functions': [{'call': 1, 'result': 7, 'delivered': 0}]})");
  ASSERT_TRUE(call->is_done());
  EXPECT_EQ(call->outcomes[0].result, Value(7));
  EXPECT_FALSE(call->outcomes[0].delivered);
}

AE_TEST("remote call/failures, unknown ends and results come with `ended`") {
  Running one;
  const auto failed = one.perform("run:read", "a");
  const auto unknown = one.perform("run:read", "b");
  const auto done = one.perform("run:read", "c");
  one.worker.send(R"({'type': 'ended', 'call': 1, 'failure': {'code': 'busy', 'message': 'm',
                      'definite': true, 'retryable': true, 'retry_after_ms': 500}},
                     {'type': 'ended', 'call': 2, 'unknown': {'code': 'gone', 'message': 'm'}},
                     {'type': 'ended', 'call': 3, 'result': null})");
  ASSERT_TRUE(failed->is_done() && unknown->is_done() && done->is_done());
  EXPECT_EQ(failed->outcomes[0].kind, OutcomeKind::failure);
  EXPECT_TRUE(failed->outcomes[0].definite && failed->outcomes[0].retryable);
  EXPECT_EQ(failed->outcomes[0].retry_after, Duration(500ms));
  EXPECT_EQ(unknown->outcomes[0].kind, OutcomeKind::unknown);
  EXPECT_EQ(unknown->code(), "gone");
  EXPECT_EQ(done->outcomes[0].kind, OutcomeKind::success);
}

AE_TEST("remote call/an end of a wrong form has no effect") {
  Running one;
  const auto call = one.perform();
  for (const char* end :
       {"", ", 'result': 1, 'unknown': {}", ", 'failure': 7", ", 'failure': {'code': 'x'}",
        ", 'failure': {'code': 'x', 'message': 'm', 'definite': 1}",
        ", 'failure': {'code': 'x', 'message': 'm', 'retry_after_ms': -1}"}) {
    one.worker.send(fmt::format("{{'type': 'ended', 'call': 1{}}}", end));
    EXPECT_EQ(one.worker.next("error").text("code"), "input_invalid") << end;
    EXPECT_FALSE(call->is_done());
  }
}

AE_TEST("remote call/a success has the usage of a model that the function called") {
  Running one;
  const auto with_routine = one.perform("run:read", "a");
  const auto ended = one.perform("run:read", "b");
  one.worker.send(
      R"({'type': 'advance', 'routine': 1, 'delivered': 1,
          'functions': [{'call': 1, 'result': 7, 'delivered': 0, 'usage':
            {'model': 'm', 'input_tokens': 3, 'output_tokens': 4, 'cached_tokens': 0, 'more': 1}}]},
         {'type': 'ended', 'call': 2, 'result': 8, 'usage': {'total_tokens': 9}})");
  ASSERT_TRUE(with_routine->is_done() && ended->is_done());
  EXPECT_EQ(with_routine->outcomes[0].usage,
            json("{'cached_tokens': 0, 'input_tokens': 3, 'model': 'm', 'output_tokens': 4}"));
  EXPECT_EQ(ended->outcomes[0].usage, json("{'incomplete': true, 'total_tokens': 9}"));
}

AE_TEST("remote call/a usage of a wrong form has no effect") {
  Running one;
  const auto call = one.perform();
  for (const char* usage :
       {"7", "{'input_tokens': -1}", "{'output_tokens': 1.5}", "{'total_tokens': '3'}",
        "{'cached_tokens': null}", "{'model': 7}", "{'incomplete': 1}"}) {
    one.worker.send(fmt::format("{{'type': 'ended', 'call': 1, 'result': 1, 'usage': {}}}", usage));
    EXPECT_EQ(one.worker.next("error").text("code"), "input_invalid") << usage;
    EXPECT_FALSE(call->is_done());
  }
  one.worker.send(R"({'type': 'ended', 'call': 1, 'failure': {'code': 'x', 'message': 'm'},
                      'usage': {'total_tokens': 1}})");
  EXPECT_EQ(one.worker.next("error").text("code"), "input_invalid") << "only a result has one";
}

AE_TEST("remote call/a call of another routine or session cannot be ended") {
  Running one;
  const auto call = one.perform();
  ScriptedWorker other(one.world, "key-1", "host:2:def");
  other.begin();
  other.send("{'type': 'ended', 'call': 1, 'result': 1}");
  EXPECT_EQ(other.next("error").text("code"), "not_found");
  other.send(fmt::format("{{'type': 'late', {}, 'result': 1}}", kName));
  EXPECT_FALSE(call->is_done());
  const auto first = std::move(one.world.routine);
  RecordingClient second;
  auto routine = one.world.routines->start({.job = JobId("job-2"),
                                            .plan = one.world.plan,
                                            .version = "1",
                                            .record = {},
                                            .client = &second});
  ASSERT_NE(routine, nullptr);
  other.send(R"({'type': 'advance', 'routine': 1, 'delivered': 1,
                 'functions': [{'call': 1, 'result': 1, 'delivered': 0}]})");
  EXPECT_FALSE(call->is_done());
  EXPECT_TRUE(second.refused);
}

AE_TEST("remote call/text and progress are for readers") {
  Running one;
  const auto call = one.perform();
  one.worker.send(
      "{'type': 'text', 'call': 1, 'at': 0, 'text': 'ab'},"
      "{'type': 'text', 'call': 1, 'at': 2, 'text': 'c'},"
      "{'type': 'progress', 'call': 1, 'value': {'p': 1}}");
  EXPECT_EQ(call->text, "abc");
  EXPECT_EQ(call->progress, std::vector<Value>{json("{'p': 1}")});
  one.worker.send("{'type': 'text', 'call': 1, 'at': 7, 'text': 'd'}");
  EXPECT_FALSE(one.worker.next("error").is_null());
  EXPECT_EQ(call->text, "abc");
}

AE_TEST("remote call/calls beyond the capacity wait, and are not sent too late") {
  Running one;
  std::vector<std::shared_ptr<TestCall>> calls;
  for (int i = 0; i < 6; ++i) calls.push_back(one.perform("run:read", fmt::format("f{}", i)));
  int performs = 0;
  while (!one.worker.next("perform").is_null()) performs++;
  EXPECT_EQ(performs, 4);
  one.worker.send("{'type': 'ended', 'call': 1, 'result': 1}");
  EXPECT_EQ(one.worker.next("perform")["call"], Value(5));
  one.world.loop.advance(10s);
  EXPECT_EQ(calls[5]->code(), "not_sent");
  EXPECT_TRUE(calls[5]->outcomes[0].definite);
  EXPECT_FALSE(calls[4]->is_done());
}

AE_TEST("remote call/a call that does not end in time is timeout, and its later end is late") {
  Running one;
  const auto call = one.perform();
  for (int i = 0; i < 41; ++i) {
    one.world.loop.advance(1s);
    one.worker.send("{'type': 'heartbeat'}");
  }
  ASSERT_TRUE(call->is_done());
  EXPECT_EQ(call->outcomes[0].kind, OutcomeKind::timeout);
  one.worker.send("{'type': 'ended', 'call': 1, 'result': 5}");
  ASSERT_EQ(call->late.size(), 1u);
  EXPECT_EQ(call->late[0].result, Value(5));
}

AE_TEST("remote call/an abandoned call ends with what its worker states, or as unknown") {
  Running one;
  const auto first = one.perform("run:read", "a"), second = one.perform("run:read", "b");
  one.world.routine->functions().abandon(InvocationId("i-a"), 1);
  one.world.routine->functions().abandon(InvocationId("i-b"), 1);
  one.world.routine->functions().abandon(InvocationId("i-x"), 1);
  EXPECT_EQ(one.worker.next("abandon")["call"], Value(1));
  EXPECT_EQ(one.worker.next("abandon")["call"], Value(2));
  one.worker.send(
      "{'type': 'ended', 'call': 1, 'failure': {'code': 'stopped', 'message': '', "
      "'definite': true}}");
  EXPECT_EQ(first->code(), "stopped");
  one.world.loop.advance(9s);
  EXPECT_FALSE(second->is_done()) << "its permit has not expired";
  one.world.loop.advance(2s);
  EXPECT_EQ(second->code(), "killed");
  EXPECT_EQ(second->outcomes[0].kind, OutcomeKind::unknown);
}

// ---------------------------------------------------------------- the table of failures

AE_TEST("remote call/of a lost session it is unknown, but not before its permit has expired") {
  Running one;
  const auto call = one.perform();
  one.worker.disconnect(1000);
  EXPECT_TRUE(one.world.client.lost);
  one.world.loop.advance(9s);
  EXPECT_FALSE(call->is_done());
  one.world.loop.advance(2s);
  ASSERT_TRUE(call->is_done());
  EXPECT_EQ(call->outcomes[0].kind, OutcomeKind::unknown);
  EXPECT_EQ(call->code(), "worker_lost");
}

AE_TEST("remote call/that was not sent is not_sent when its session is lost") {
  Running one;
  one.worker.disconnect();
  const auto call = one.perform();
  EXPECT_FALSE(call->is_done()) << "the worker may come back";
  one.worker.resume();
  EXPECT_EQ(one.worker.next("perform")["call"], Value(1));
  one.worker.disconnect();
  const auto other = one.perform("run:read", "g");
  one.world.routines->revoke("key-1");
  one.world.loop.run_ready();
  EXPECT_EQ(other->code(), "not_sent");
  EXPECT_FALSE(call->is_done());
}

AE_TEST("remote call/a permit of a frame that is sent again is not extended") {
  Running one;
  const auto call = one.perform();
  one.worker.drop_texts();
  one.worker.disconnect();
  one.world.loop.advance(8s);
  one.worker.resume();
  EXPECT_EQ(one.worker.next("perform")["send_within_ms"], Value(10'000))
      << "the frame has its old `ack`: the same moment counts";
}

AE_TEST("remote call/that its worker never received is not_sent, when it says so") {
  for (const bool is_late : {false, true}) {
    Running one;
    const auto had = one.perform("run:at_most_once", "f");
    const auto never = one.perform("run:at_most_once", "g");
    one.worker.disconnect();
    one.world.loop.advance(is_late ? 40s : 1s);
    EXPECT_EQ(never->is_done(), is_late);
    one.worker.connect();
    one.worker.begin(fmt::format(", 'left': [{{{}}}]", kName));
    const auto& ends = is_late ? never->late : never->outcomes;
    ASSERT_EQ(ends.size(), 1u);
    EXPECT_EQ(ends[0].error_code, "not_sent");
    EXPECT_TRUE(ends[0].definite);
    EXPECT_EQ(had->is_done(), is_late);
    EXPECT_TRUE(had->late.empty());
    EXPECT_TRUE(one.world.client.lost) << "a session that its worker has left is gone";
  }
}

AE_TEST("remote call/a report that does not cover the call has no effect") {
  for (const bool is_covered : {false, true}) {
    Running one;
    const auto call = one.perform("run:at_most_once", "g");
    one.worker.disconnect();
    one.world.loop.advance(10s);
    one.worker.connect();
    one.worker.begin(fmt::format(", 'left': [], 'left_for_ms': {}", is_covered ? 11'000 : 9'000));
    one.world.loop.advance(1s);  // its permit has expired
    EXPECT_EQ(call->code(), is_covered ? "not_sent" : "worker_lost");
  }
}

AE_TEST("remote call/its end is known when its worker connects again") {
  for (const bool is_late : {false, true}) {
    Running one;
    const auto call = one.perform("run:at_most_once");
    one.worker.disconnect();
    one.world.loop.advance(is_late ? 40s : 1s);
    one.worker.connect();
    one.worker.begin(fmt::format(", 'left': [{{{}}}]", kName));
    one.worker.send(fmt::format("{{'type': 'late', {}, 'result': 7}}", kName));
    const auto& ends = is_late ? call->late : call->outcomes;
    ASSERT_EQ(ends.size(), 1u);
    EXPECT_EQ(ends[0].result, Value(7));
    EXPECT_TRUE(one.world.earlier.late.empty());
  }
}

AE_TEST("remote call/only the worker that had a lost call reports about it") {
  Running one;
  const auto call = one.perform("run:at_most_once");
  one.worker.disconnect(1000);
  ScriptedWorker other(one.world, "key-1", "host:2:def"), other_key(one.world, "key-2");
  other.begin(", 'left': []");
  other_key.begin(", 'left': []");
  const std::string late = fmt::format("{{'type': 'late', {}, 'result': 7}}", kName);
  other.send(late);
  other_key.send(late);
  EXPECT_FALSE(call->is_done());
  EXPECT_EQ(one.world.earlier.late.size(), 2u);
  one.world.loop.advance(11s);
  EXPECT_EQ(call->code(), "worker_lost");
}

AE_TEST("remote call/reports about calls of an earlier process are passed on") {
  RemoteWorld world;
  ScriptedWorker worker(world);
  worker.begin(fmt::format(", 'left': [{{{}}}]", kName));
  ASSERT_EQ(world.earlier.left.size(), 1u);
  EXPECT_EQ(world.earlier.left[0].second.received.at(0).invocation.text, "i-f");
  worker.send(
      fmt::format("{{'type': 'late', {}, 'failure': {{'code': 'x', 'message': 'm'}}}}", kName));
  ASSERT_EQ(world.earlier.late.size(), 1u);
  EXPECT_EQ(world.earlier.late[0].second.error_code, "x");
}

AE_TEST("remote call/lost calls are forgotten after 10 minutes") {
  Running one;
  const auto call = one.perform("run:at_most_once");
  one.worker.disconnect(1000);
  one.world.loop.advance(11min);
  one.worker.connect();
  one.worker.begin();
  one.worker.send(fmt::format("{{'type': 'late', {}, 'result': 7}}", kName));
  EXPECT_TRUE(call->late.empty());
  EXPECT_EQ(one.world.earlier.late.size(), 1u);
}

// ---------------------------------------------------------------- registered tools

AE_TEST("remote call/a registered tool is performed without a routine") {
  RemoteWorld world;
  ScriptedWorker worker(world);
  worker.begin();
  tools::Tool& score = *world.routines->tool("score");
  const auto call = world.perform(score, "score", "");
  const Value perform = worker.next("perform");
  EXPECT_EQ(perform.find("routine"), nullptr);
  EXPECT_EQ(perform["arguments"], json("{'n': 1}"));
  worker.send("{'type': 'ended', 'call': 1, 'result': 3}");
  EXPECT_EQ(call->outcomes.at(0).result, Value(3));
  world.perform(score, "score", "x");
  score.abandon(InvocationId("i-x"), 1);
  EXPECT_EQ(worker.next("abandon")["call"], Value(2));
  worker.disconnect(1000);
  const auto none = world.perform(score, "score", "y");
  EXPECT_EQ(none->code(), "not_sent");
}

}  // namespace
}  // namespace ae::routines::testing
