// Native functions on threads: deadlines, heartbeats, late results, and threads that never return.
//
// Time comes from a clock that the test sets; a function waits at a FunctionBarrier until the test
// releases it. The test waits for the tasks that a thread posts to the loop, never for time.
#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "json/json.h"
#include "testing/native_functions.h"
#include "testing/permit.h"
#include "testing/test.h"
#include "testing/test_loop.h"
#include "tools/native/native.h"
#include "tools/native/native_pool.h"

namespace ae::tools {
namespace {

using namespace std::chrono_literals;

using Answer = std::expected<Value, NativeFailure>;

class ThreadClock final : public async::SteadyClock {
 public:
  std::atomic<std::int64_t> us = 1'000'000;
  Duration since_start() override { return Duration(us); }
};

// Where a function waits; it notifies the loop that it has arrived.
struct FunctionBarrier {
  testing::TestLoop& loop;
  std::atomic<int> inside = 0;
  std::atomic<bool> open = false;
  void wait() {
    inside++;
    loop.post([] {});
    open.wait(false);
  }
  void release() {
    open = true;
    open.notify_all();
  }
};

struct CallRecord {
  std::optional<Outcome> answer, late;
  std::vector<std::string> reports;
};

// On destruction waits until all functions have returned.
struct ThreadFixture {
  explicit ThreadFixture(NativeThreadPool::Limits limits = {}) : pool(std::in_place, limits) {}
  ~ThreadFixture() {
    barrier.release();
    tool.reset();
    pool.reset();
    while (NativeThreadPool::abandoned_threads() > 0) std::this_thread::yield();
  }
  void make(NativeFunction function, Duration heartbeat = {}) {
    tool.emplace(loop, clock, std::move(function),
                 NativeTool::Options{.executor = &*pool, .heartbeat = heartbeat});
  }
  // A call with a timeout of 10 s, to be started within 5 s.
  CallRecord& perform(std::string id = "0123456789abcdef", Value args = {}) {
    CallRecord& mine = records.emplace_back();
    Call call;
    call.invocation = InvocationId(std::move(id));
    call.args = std::move(args);
    call.timeout = 10s;
    call.send_within = 5s;
    call.progress = [&mine](const Value& report) { mine.reports.push_back(canonical(report)); };
    call.on_late_outcome = [&mine](Outcome o) {
      EXPECT_FALSE(mine.late.has_value());
      mine.late = std::move(o);
    };
    auto permit = testing::PermitForTests::make(call.invocation, call.try_no);
    tool->perform(std::move(permit), std::move(call), [&mine](Outcome o) {
      EXPECT_FALSE(mine.answer.has_value()) << "completed twice";
      mine.answer = std::move(o);
    });
    EXPECT_FALSE(mine.answer.has_value()) << "completed inside perform";
    return mine;
  }
  void wait_until_inside(int calls) {
    EXPECT_TRUE(loop.run_until([&] { return barrier.inside.load() == calls; }));
  }
  void advance(Duration by, Duration at_a_time = 10ms) {
    for (Duration gone{}; gone < by; gone += at_a_time) {
      clock.us += at_a_time.count();
      loop.advance(at_a_time);
    }
  }

  testing::TestLoop loop;
  ThreadClock clock;
  FunctionBarrier barrier{loop};
  std::deque<CallRecord> records;
  std::optional<NativeThreadPool> pool;
  std::optional<NativeTool> tool;
};

AE_TEST("native/a function runs on its own thread and completes on the loop") {
  ThreadFixture w;
  std::thread::id where;
  w.make([&](const Call& call, RunContext&) -> Answer {
    where = std::this_thread::get_id();
    w.clock.us += 2'000;
    return call.args;
  });
  CallRecord& call = w.perform("0123456789abcdef", Value(7));
  ASSERT_TRUE(w.loop.run_until([&] { return call.answer.has_value(); }));
  EXPECT_EQ(call.answer->kind, OutcomeKind::success);
  EXPECT_EQ(call.answer->result, Value(7));
  EXPECT_EQ(call.answer->elapsed, 2ms);
  EXPECT_NE(where, std::this_thread::get_id());
}

AE_TEST("native/a function that does not return times out, and its late result is reported") {
  ThreadFixture w;
  w.make([&](const Call& call, RunContext&) -> Answer {
    if (call.args.is_null()) w.barrier.wait();
    return Value("done");
  });
  CallRecord& stuck = w.perform();
  w.wait_until_inside(1);
  w.advance(9990ms);
  EXPECT_FALSE(stuck.answer.has_value());
  CallRecord& other = w.perform("another0another0", Value(1));
  EXPECT_TRUE(w.loop.run_until([&] { return other.answer.has_value(); }))
      << "the other call is blocked";
  w.advance(10ms);
  ASSERT_TRUE(stuck.answer.has_value()) << "not cut off at its deadline";
  EXPECT_EQ(stuck.answer->kind, OutcomeKind::timeout);
  EXPECT_EQ(stuck.answer->error_code, "timeout");
  EXPECT_FALSE(stuck.answer->definite);
  EXPECT_EQ(stuck.answer->elapsed, 10s);
  w.barrier.release();
  ASSERT_TRUE(w.loop.run_until([&] { return stuck.late.has_value(); }));
  EXPECT_EQ(stuck.late->kind, OutcomeKind::success);
  EXPECT_EQ(stuck.late->result, Value("done"));
}

AE_TEST("native/if all threads are busy, a waiting call is not sent and never runs") {
  ThreadFixture w({.threads = 2, .waiting = 2});
  std::atomic<int> runs = 0;
  w.make([&](const Call&, RunContext&) -> Answer {
    runs++;
    w.barrier.wait();
    return Value();
  });
  w.perform("kept-1");
  w.perform("kept-2");
  w.wait_until_inside(2);
  CallRecord& third = w.perform("third");
  w.advance(4990ms);
  EXPECT_FALSE(third.answer.has_value());
  w.advance(20ms);
  ASSERT_TRUE(third.answer.has_value());
  EXPECT_EQ(third.answer->error_code, "not_sent");
  EXPECT_TRUE(third.answer->definite);
  w.perform("fourth");
  CallRecord& fifth = w.perform("fifth");
  w.loop.run_ready();
  ASSERT_TRUE(fifth.answer.has_value()) << "the queue is bounded";
  EXPECT_EQ(fifth.answer->error_code, "not_sent");
  w.barrier.release();
  // The fourth runs when a thread is free again; withdrawn calls never run.
  ASSERT_TRUE(w.loop.run_until([&] { return w.records[3].answer.has_value(); }));
  EXPECT_EQ(w.records[3].answer->kind, OutcomeKind::success);
  EXPECT_EQ(runs.load(), 3);
}

AE_TEST("native/an abandoned running call is unknown, and its function gets a stop request") {
  ThreadFixture w;
  std::atomic<bool> stop_seen = false;
  w.make([&](const Call&, RunContext& context) -> Answer {
    w.barrier.wait();
    stop_seen = context.stop().stop_requested();
    return std::unexpected(NativeFailure{.code = "stopped"});
  });
  CallRecord& call = w.perform();
  w.wait_until_inside(1);
  w.tool->abandon(InvocationId("0123456789abcdef"), 1);
  w.tool->abandon(InvocationId("0123456789abcdef"), 1);
  EXPECT_FALSE(call.answer.has_value()) << "completed inside abandon";
  w.loop.run_ready();
  ASSERT_TRUE(call.answer.has_value());
  EXPECT_EQ(call.answer->kind, OutcomeKind::unknown);
  w.barrier.release();
  ASSERT_TRUE(w.loop.run_until([&] { return call.late.has_value(); }));
  EXPECT_TRUE(stop_seen.load());
  EXPECT_TRUE(call.late->definite) << "the late result is a definite failure";
}

AE_TEST("native/an abandoned call that waits for a thread is not sent") {
  ThreadFixture w({.threads = 1, .waiting = 8});
  w.make([&](const Call&, RunContext&) -> Answer {
    w.barrier.wait();
    return Value();
  });
  w.perform("kept");
  w.wait_until_inside(1);
  CallRecord& second = w.perform("second");
  w.tool->abandon(InvocationId("second"), 1);
  w.loop.run_ready();
  ASSERT_TRUE(second.answer.has_value());
  EXPECT_EQ(second.answer->error_code, "not_sent");
  w.barrier.release();
  ASSERT_TRUE(w.loop.run_until([&] { return w.records[0].answer.has_value(); }));
  EXPECT_EQ(w.barrier.inside.load(), 1);
}

AE_TEST("native/destroying tool and pool does not wait for running functions") {
  ThreadFixture w;
  w.make([&](const Call&, RunContext& context) -> Answer {
    w.barrier.wait();
    context.progress(Value("dropped"));
    return Value();
  });
  CallRecord& call = w.perform();
  w.wait_until_inside(1);
  w.tool.reset();
  w.pool.reset();
  w.loop.run_ready();
  ASSERT_TRUE(call.answer.has_value());
  EXPECT_EQ(call.answer->kind, OutcomeKind::unknown);
  EXPECT_EQ(NativeThreadPool::abandoned_threads(), 1u) << "the process must not exit normally";
  w.barrier.release();
  while (NativeThreadPool::abandoned_threads() > 0) std::this_thread::yield();
  w.loop.run_ready();
  EXPECT_FALSE(call.late.has_value());
  EXPECT_TRUE(call.reports.empty());
}

AE_TEST("native/a missing heartbeat is a timeout, a report resets it") {
  ThreadFixture w;
  std::atomic<int> level = 0;
  w.make(
      [&](const Call&, RunContext& context) -> Answer {
        w.barrier.inside++;
        w.loop.post([] {});
        for (int reported = 0; !context.stop().stop_requested();) {
          level.wait(reported);
          if (const int more = level.load(); more > reported)
            context.progress(Value(reported = more));
        }
        return Value();
      },
      1s);
  CallRecord& call = w.perform();
  w.wait_until_inside(1);
  for (int i = 1; i <= 3; ++i) {
    w.advance(900ms);
    level = i;
    level.notify_all();
    ASSERT_TRUE(
        w.loop.run_until([&] { return call.reports.size() == static_cast<std::size_t>(i); }));
  }
  EXPECT_EQ(call.reports.back(), "3");
  EXPECT_FALSE(call.answer.has_value());
  w.advance(980ms);
  EXPECT_FALSE(call.answer.has_value());
  w.advance(20ms);
  ASSERT_TRUE(call.answer.has_value());
  EXPECT_EQ(call.answer->kind, OutcomeKind::timeout);
  EXPECT_EQ(call.answer->error_code, "timeout");
  EXPECT_NE(call.answer->error_message.find("reported nothing for 1s"), std::string::npos)
      << call.answer->error_message;
  level = 4;
  level.notify_all();
  ASSERT_TRUE(w.loop.run_until([&] { return call.late.has_value(); }));
  EXPECT_EQ(call.reports.size(), 3u) << "later reports are dropped";
}

AE_TEST("native/time during which the process was stopped does not count for the heartbeat") {
  ThreadFixture w;
  w.make(
      [&](const Call&, RunContext&) -> Answer {
        w.barrier.wait();
        return Value();
      },
      1s);
  CallRecord& call = w.perform();
  w.wait_until_inside(1);
  w.advance(500ms);
  w.advance(8s, 8s);
  EXPECT_FALSE(call.answer.has_value()) << "the function was stopped too";
  w.advance(1s);
  ASSERT_TRUE(call.answer.has_value());
  EXPECT_EQ(call.answer->kind, OutcomeKind::timeout);
}

AE_TEST("native/a report over the limit counts as a heartbeat and is dropped") {
  ThreadFixture w;
  w.make([&](const Call&, RunContext& context) -> Answer {
    context.progress(Value(std::string(kProgressMax - 2, 'x')));
    context.progress(Value(std::string(kProgressMax - 1, 'x')));
    return Value();
  });
  CallRecord& call = w.perform();
  ASSERT_TRUE(w.loop.run_until([&] { return call.answer.has_value(); }));
  ASSERT_EQ(call.reports.size(), 1u);
  EXPECT_EQ(call.reports[0].size(), kProgressMax);
}

// Holds posted tasks until the test releases them; timers are not held.
class HeldLoop final : public async::Loop {
 public:
  explicit HeldLoop(testing::TestLoop& loop) : loop_(loop) {}
  void post(async::Task task) override {
    const std::scoped_lock lock(mutex_);
    held_.push_back(std::move(task));
  }
  async::TimerId after(Duration delay, async::Task task) override {
    return loop_.after(delay, std::move(task));
  }
  void cancel(async::TimerId timer) override { loop_.cancel(timer); }
  std::size_t held_count() {
    const std::scoped_lock lock(mutex_);
    return held_.size();
  }
  void release_tasks() {
    const std::scoped_lock lock(mutex_);
    for (async::Task& task : std::exchange(held_, {})) loop_.post(std::move(task));
  }

 private:
  testing::TestLoop& loop_;
  std::mutex mutex_;
  std::deque<async::Task> held_;  // guarded by mutex_
};

AE_TEST("native/a function that returned in time succeeds, even if the loop handles it late") {
  ThreadFixture w;
  HeldLoop slow(w.loop);
  w.tool.emplace(
      slow, w.clock, [](const Call&, RunContext&) -> Answer { return Value(7); },
      NativeTool::Options{.executor = &*w.pool});
  CallRecord& call = w.perform();
  while (slow.held_count() == 0) std::this_thread::yield();
  w.advance(11s);
  w.tool->abandon(InvocationId("0123456789abcdef"), 1);
  EXPECT_FALSE(call.answer.has_value());
  slow.release_tasks();
  w.loop.run_ready();
  ASSERT_TRUE(call.answer.has_value());
  EXPECT_EQ(call.answer->kind, OutcomeKind::success);
  EXPECT_FALSE(call.late.has_value());
}

AE_TEST("native/the function nap returns at its stop request with a definite failure") {
  ThreadFixture w;
  w.make([&](const Call& call, RunContext& context) -> Answer {
    w.barrier.inside++;
    w.loop.post([] {});
    return testing::native_functions().at("nap").function(call, context);
  });
  CallRecord& call = w.perform("0123456789abcdef", Value::object({{"ms", 3'600'000}}));
  w.wait_until_inside(1);
  w.advance(10s);
  ASSERT_TRUE(call.answer.has_value());
  EXPECT_EQ(call.answer->kind, OutcomeKind::timeout);
  ASSERT_TRUE(w.loop.run_until([&] { return call.late.has_value(); }));
  EXPECT_EQ(call.late->error_code, "cut_off");
  EXPECT_TRUE(call.late->definite);
}

}  // namespace
}  // namespace ae::tools
