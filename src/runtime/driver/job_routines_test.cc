// What a driver records of the routine of a code node, whose advances the test states.
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/worker_fixture_test.h"

namespace ae::runtime::testing {
namespace {

using routines::Advance;
using routines::FunctionEnd;
using Item = engine::Advance;

// A routine whose code is the test.
class PlayedRoutine final : public routines::Routine {
 public:
  PlayedRoutine(routines::RoutineStart start, PlayedRoutine*& current)
      : started(std::move(start)), current_(current) {
    current_ = this;
  }
  ~PlayedRoutine() override { current_ = nullptr; }
  void deliver(std::vector<engine::Delivery> outcomes) override {
    std::ranges::move(outcomes, std::back_inserter(given));
  }
  tools::Tool& functions() override { return tool_; }

  void advance(Advance advance) { started.client->on_advance(started.node, std::move(advance)); }
  // The success of the function of the n-th call, given to the routine as this outcome.
  FunctionEnd success(std::size_t call, std::string_view result, std::uint64_t delivered) {
    return {
        .done = std::move(calls.at(call).done),
        .outcome = {.kind = OutcomeKind::success, .result = json(result), .delivered = delivered}};
  }

  routines::RoutineStart started;
  std::vector<engine::Delivery> given;
  std::deque<PendingCall> calls;

 private:
  ManualTool tool_{calls};
  PlayedRoutine*& current_;
};

class Provider final : public routines::RoutineProvider {
 public:
  bool offers(const engine::Plan&, std::uint32_t) const override { return true; }
  std::unique_ptr<routines::Routine> start(routines::RoutineStart start) override {
    starts++;
    return std::make_unique<PlayedRoutine>(std::move(start), current);
  }
  PlayedRoutine* current = nullptr;
  int starts = 0;
};

std::shared_ptr<const engine::Plan> code_plan() {
  const std::string policy =
      "'on_in_doubt':'resend', 'timeout':'600s', 'grace':'30s', 'dedupe_window':'24h',"
      "'version':'0123456789abcdef', 'retry':{'max_attempts':1, 'initial_backoff':'200ms',"
      "'max_backoff':'10s', 'multiplier':2, 'retry_on':['connect']}";
  auto compiled = engine::Plan::compile(
      json("{'schema':1, 'nodes': [{'id':'code', 'kind':'code', 'code': {'agent':'agent',"
           "'language':'cpp', 'tools':['do', 'run:read']}}], 'tools': {'do': {'effect':'read'," +
           policy + "}, 'run:read': {'effect':'read', 'function':true," + policy + "}}}"));
  AE_CHECK(compiled.has_value(), compiled ? "" : compiled.error().message);
  return *compiled;
}

constexpr std::uint32_t kDo = 0, kRead = 1;

engine::NewRequest call(std::string position, std::uint32_t tool, std::uint64_t delivered = 0) {
  return {.position = std::move(position),
          .delivered = delivered,
          .tool = tool,
          .arguments = json("{}")};
}

class JobRoutines : public ::testing::Test {
 protected:
  JobRoutines() {
    worker.runtime->start();
    worker.create(code_plan());
  }

  PlayedRoutine& routine() {
    AE_CHECK(provider.current != nullptr);
    return *provider.current;
  }
  void advance(Advance advance) {
    routine().advance(std::move(advance));
    env.loop.run_ready();
  }
  std::string types() {
    std::string found;
    for (const Event& event : worker.read().events) {
      if (event.type == EventType::tool_invocation_finished ||
          event.type == EventType::time_recorded || event.type == EventType::node_finished ||
          event.type == EventType::value_emitted) {
        found += std::string(event_name(event)) + " ";
      }
    }
    return found;
  }
  std::string parked_reason() {
    const auto read = worker.read();
    const auto parks = all_of<JobParked>(read.events);
    return parks.empty() ? "" : parks.back()->reason;
  }
  std::string exception() {
    const auto read = worker.read();
    const auto failures = all_of<RoutineFailed>(read.events);
    return failures.empty() ? "" : std::string(failures.back()->error.value.text("name"));
  }

  TestEnvironment env;
  Provider provider;
  WorkerFixture worker{env, "A", {.routines = &provider}};
};

TEST_F(JobRoutines, code_that_awaits_one_remote_call_is_not_stalled) {
  advance({.requests = {call("a", kDo)}});
  ASSERT_EQ(worker.calls.size(), 1u);
  worker.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
  EXPECT_EQ(worker.status(), "running") << parked_reason();
  ASSERT_EQ(routine().given.size(), 1u);
  EXPECT_EQ(routine().given[0].result, Value(7));
  advance({.delivered = 1, .end = engine::RoutineEnd{.result = json("'done'")}});
  EXPECT_EQ(worker.status(), "completed");
}

TEST_F(JobRoutines, advances_of_one_commit_are_recorded_each_after_the_ends_of_its_functions) {
  advance({.requests = {call("a", kRead), call("b", kRead)}});
  ASSERT_EQ(routine().calls.size(), 2u);
  Advance first{.delivered = 2, .has_settled = false};
  first.functions.push_back(routine().success(0, "1", 0));
  first.recorded.items = {Item::ScopeBegun{.position = "s", .delivered = 1},
                          Item::ScopeEnded{.position = "s", .result = Value(5), .delivered = 1}};
  Advance second{.delivered = 3};
  second.functions.push_back(routine().success(1, "2", 2));
  second.recorded.items = {Item::NewValue{.name = "time:1", .value = json("{'ms':1,'time':'t'}")}};
  second.end = engine::RoutineEnd{.result = Value(3)};
  env.loop.post([&] {  // both come while a commit is in flight
    Advance before{.has_settled = false};
    before.recorded.items.push_back(Item::Emitted{.scope = "", .name = "n", .value = Value(1)});
    routine().advance(std::move(before));
    routine().advance(std::move(first));
    routine().advance(std::move(second));
  });
  env.loop.run_ready();
  EXPECT_EQ(worker.status(), "completed") << parked_reason();
  EXPECT_EQ(types(),
            "value_emitted tool_invocation_finished node_finished tool_invocation_finished "
            "time_recorded node_finished node_finished node_finished ");
  const auto read = worker.read();
  for (const auto* finished : all_of<ToolInvocationFinished>(read.events)) {
    EXPECT_EQ(finished->delivered, std::nullopt);  // the order of the log is that of delivery
  }
}

TEST_F(JobRoutines, an_advance_that_breaks_a_rule_parks_the_job_and_is_not_recorded) {
  struct Wrong {
    const char* what;
    Advance advance;
  };
  std::vector<Wrong> wrong;
  const auto add = [&](const char* what, Advance advance) {
    wrong.push_back({what, std::move(advance)});
  };
  add("an outcome that the log does not hold", {.delivered = 1});
  add("a tool that the plan does not grant", {.requests = {call("a", 17)}});
  add("a position twice", {.requests = {call("a", kRead), call("a", kRead)}});
  add("no position", {.requests = {call("a b", kRead)}});
  add("a request after an outcome that does not exist", {.requests = {call("a", kRead, 1)}});
  const auto add_item = [&](const char* what, engine::Advance::Item item) {
    Advance advance;
    advance.recorded.items.push_back(std::move(item));
    add(what, std::move(advance));
  };
  add_item("an unknown value", Item::NewValue{.name = "dice:1", .value = Value(1)});
  add_item("a time that is a number", Item::NewValue{.name = "time:1", .value = Value(1)});
  add_item("a scope that did not begin", Item::ScopeEnded{.position = "s"});
  add_item("a scope after too many outcomes", Item::ScopeBegun{.position = "s", .delivered = 1});
  add_item("a name of an emitted value", Item::Emitted{.scope = "", .name = "a b", .value = {}});
  add_item("an emitted value of 300 KiB",
           Item::Emitted{.scope = "", .name = "n", .value = Value(std::string(300'000, 'x'))});
  for (Wrong& one : wrong) {
    SCOPED_TRACE(one.what);
    TestEnvironment own_env;
    Provider own_provider;
    WorkerFixture own(own_env, "A", {.routines = &own_provider});
    own.create(code_plan());
    own_provider.current->advance(std::move(one.advance));
    own_env.loop.run_ready();
    EXPECT_EQ(own.status(), "parked");
    EXPECT_EQ(own_provider.current, nullptr);
    const auto read = own.read();
    const auto failures = all_of<RoutineFailed>(read.events);
    ASSERT_EQ(failures.size(), 1u);
    EXPECT_PRED2([](std::string_view name, std::string_view among) { return among.contains(name); },
                 failures[0]->error.value.text("name"),
                 "input_invalid tool_not_granted payload_too_large");
    EXPECT_TRUE(all_of(read.events, EventType::time_recorded).empty());
    EXPECT_TRUE(all_of(read.events, EventType::value_emitted).empty());
    EXPECT_TRUE(all_of(read.events, EventType::command_emitted).empty());
  }
}

// Two advances of one commit: the second one does not fit what the first one requests.
TEST_F(JobRoutines, a_position_that_is_requested_already_parks_the_job) {
  struct Wrong {
    const char* what;
    Advance first, second;
  };
  std::vector<Wrong> wrong;
  const auto add = [&](const char* what, Advance first, engine::Advance::Item item) {
    Advance second;
    second.recorded.items.push_back(std::move(item));
    wrong.push_back({what, std::move(first), std::move(second)});
  };
  wrong.push_back(
      {"the same request", {.requests = {call("a", kRead)}}, {.requests = {call("a", kDo)}}});
  add("a scope of the same name", {.requests = {call("a", kRead)}},
      Item::ScopeBegun{.position = "a"});
  Advance inside{.requests = {call("s/a", kRead)}};
  inside.recorded.items.push_back(Item::ScopeBegun{.position = "s"});
  add("the end of a scope around a request", std::move(inside), Item::ScopeEnded{.position = "s"});
  for (Wrong& one : wrong) {
    SCOPED_TRACE(one.what);
    TestEnvironment own_env;
    Provider own_provider;
    WorkerFixture own(own_env, "A", {.routines = &own_provider});
    own.create(code_plan());
    own_env.loop.post([&] {
      Advance before{.has_settled = false};
      before.recorded.items.push_back(Item::Emitted{.scope = "", .name = "n", .value = Value(1)});
      own_provider.current->advance(std::move(before));
      own_provider.current->advance(std::move(one.first));
      own_provider.current->advance(std::move(one.second));
    });
    own_env.loop.run_ready();
    const auto read = own.read();
    EXPECT_EQ(all_of<RoutineFailed>(read.events).size(), 1u) << own.status();
  }
}

TEST_F(JobRoutines, a_lost_routine_does_not_end_the_calls_of_other_tools) {
  advance({.requests = {call("a", kDo)}});
  ASSERT_EQ(worker.calls.size(), 1u);
  routine().started.client->on_lost(routine().started.node, {Code::unavailable, "it is gone"});
  env.loop.run_ready();
  EXPECT_EQ(worker.status(), "running");
  worker.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
  for (int i = 0; i < 100 && provider.starts == 1; ++i) env.loop.advance(100ms);
  ASSERT_EQ(provider.starts, 2);
  ASSERT_EQ(routine().started.record.deliveries.size(), 1u);
  EXPECT_EQ(routine().started.record.deliveries[0].result, Value(7));
  EXPECT_EQ(worker.calls.size(), 1u);
}

TEST_F(JobRoutines, a_success_at_a_position_that_is_taken_is_recorded_in_the_order_of_the_log) {
  advance({.requests = {call("a", kRead), call("b", kRead)}});
  Advance first{.delivered = 1};
  first.functions.push_back(routine().success(0, "1", 0));
  advance(std::move(first));
  Advance second{.delivered = 2};
  second.functions.push_back(routine().success(1, "2", 7));
  advance(std::move(second));
  EXPECT_EQ(worker.status(), "parked");
  EXPECT_EQ(exception(), "input_invalid");
  const auto read = worker.read();
  const auto finished = all_of<ToolInvocationFinished>(read.events);
  ASSERT_EQ(finished.size(), 2u);
  EXPECT_EQ(finished[1]->result.value, Value(2));
  EXPECT_EQ(finished[1]->delivered, std::nullopt);
}

TEST_F(JobRoutines, a_new_routine_continues_after_the_code_broke_a_rule) {
  advance({.requests = {call("a", kRead)}});
  Advance first{.delivered = 1, .requests = {call("b", 17, 1)}};
  first.functions.push_back(routine().success(0, "1", 0));
  advance(std::move(first));
  ASSERT_EQ(worker.status(), "parked");
  ASSERT_TRUE(worker.submit({.body = engine::ResumeRequest{}}));
  for (int i = 0; i < 100 && provider.current == nullptr; ++i) env.loop.advance(100ms);
  ASSERT_EQ(provider.starts, 2) << worker.status();
  ASSERT_EQ(routine().started.record.deliveries.size(), 1u);
  EXPECT_EQ(routine().started.record.deliveries[0].result, Value(1));
  advance({.delivered = 1, .end = engine::RoutineEnd{.result = Value(3)}});
  EXPECT_EQ(worker.status(), "completed");
}

// The commit is refused because the inbox holds a signal: the driver reads the log again.
TEST_F(JobRoutines, advances_are_recorded_again_in_their_order_when_their_commit_is_refused) {
  advance({.requests = {call("a", kRead), call("b", kRead)}});
  ASSERT_EQ(routine().calls.size(), 2u);
  WorkerFixture client(env, "client", {.may_claim = false});
  client.start_request({.id = "s", .body = engine::SignalRequest{.correlation_key = "k"}});
  Advance first{.delivered = 2, .has_settled = false};
  first.functions.push_back(routine().success(0, "1", 0));
  first.recorded.items = {Item::ScopeBegun{.position = "s", .delivered = 1},
                          Item::ScopeEnded{.position = "s", .result = Value(5), .delivered = 1}};
  first.requests = {{.position = "w",
                     .kind = engine::NodeKind::wait,
                     .delivered = 1,
                     .wait = {.type = engine::WaitType::signal, .key = "k"}}};
  Advance second{.delivered = 3};
  second.functions.push_back(routine().success(1, "2", 2));
  env.loop.post([&] {  // both are in the refused commit
    Advance before{.has_settled = false};
    before.recorded.items.push_back(Item::Emitted{.scope = "", .name = "n", .value = Value(1)});
    routine().advance(std::move(before));
    routine().advance(std::move(first));
    routine().advance(std::move(second));
  });
  env.loop.run_ready();
  EXPECT_TRUE(worker.warned("reloading the job")) << "the case was not reached";
  EXPECT_EQ(worker.status(), "waiting") << parked_reason();  // for the signal of `w`
  EXPECT_EQ(provider.starts, 1);
  EXPECT_EQ(types(),
            "value_emitted tool_invocation_finished node_finished tool_invocation_finished "
            "node_finished node_finished ");
  ASSERT_TRUE(worker.signal("k", "s2"));
  for (int i = 0; i < 100 && provider.current == nullptr; ++i) env.loop.advance(100ms);
  ASSERT_EQ(provider.starts, 2);
  EXPECT_EQ(routine().started.record.deliveries.size(), 4u);
}

}  // namespace
}  // namespace ae::runtime::testing
