// What a driver records of the routine of a code node, whose advances the test states.
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/driver/played_routine_test.h"

namespace ae::runtime::testing {
namespace {

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

TEST(JobRoutinesUsage, of_a_function_is_recorded_with_the_price_of_the_plan) {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    TestEnvironment env;
    Provider provider;
    WorkerFixture worker(env, "A", {.durability = durability, .routines = &provider});
    worker.runtime->start();
    worker.create(code_plan("", ", 'prices': {'m': {'input': 1000000, 'output': 2000000}}"));
    provider.current->advance({.requests = {call("a", kRead)}});
    env.loop.run_ready();
    Advance next{.delivered = 1, .end = engine::RoutineEnd{.result = json("'done'")}};
    next.functions.push_back(provider.current->success(0, "1", 0));
    next.functions[0].outcome.usage = json("{'model':'m','input_tokens':3,'output_tokens':4}");
    provider.current->advance(std::move(next));
    env.loop.run_ready();
    const auto read = worker.read();
    EXPECT_EQ(read.state.status, engine::JobStatus::completed);
    EXPECT_EQ(all_of<ToolInvocationFinished>(read.events).at(0)->usage.json(),
              json("{'cost_micros':11,'input_tokens':3,'model':'m','output_tokens':4}"));
    EXPECT_EQ(read.state.models.total_tokens, 7u);
  }
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
  EXPECT_EQ(worker.runtime->counters().aetheris_job_reload_total, 1u);
  EXPECT_FALSE(worker.warned("reloading the job"));
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

// With split durability an advance is durable before the commit that releases the job.
TEST(JobRoutinesSplit, no_advance_is_recorded_twice_when_a_later_commit_is_refused) {
  TestEnvironment env;
  Provider provider;
  WorkerFixture worker(env, "A", {.durability = Durability::split, .routines = &provider});
  worker.runtime->start();
  worker.create(code_plan());
  const engine::NewRequest wait{.position = "w",
                                .kind = engine::NodeKind::wait,
                                .wait = {.type = engine::WaitType::timer, .lasts = 1h}};
  provider.current->advance({.requests = {call("a", kRead), wait}});
  env.loop.run_ready();
  ASSERT_EQ(provider.current->calls.size(), 1u);
  Advance first{.delivered = 1, .has_settled = false};
  first.functions.push_back(provider.current->success(0, "1", 0));
  provider.current->advance(std::move(first));
  env.loop.run_ready();
  WorkerFixture client(env, "client", {.may_claim = false});
  client.start_request({.id = "s", .body = engine::SignalRequest{.correlation_key = "k"}});
  Advance second{.delivered = 2};
  second.recorded.items = {Item::ScopeBegun{.position = "s", .delivered = 1},
                           Item::ScopeEnded{.position = "s", .result = Value(5), .delivered = 1}};
  provider.current->advance(std::move(second));
  env.loop.run_ready();
  EXPECT_EQ(worker.runtime->counters().aetheris_job_reload_total, 1u);
  EXPECT_FALSE(worker.warned("reloading the job"));
  if (provider.current != nullptr) provider.current->advance({.delivered = 2});
  env.loop.run_ready();
  EXPECT_EQ(worker.status(), "waiting");
  const auto read = worker.read();
  EXPECT_TRUE(all_of<RoutineFailed>(read.events).empty());
  EXPECT_EQ(read.state.steps[0].code->outcomes.size(), 2u);
}

// ---------------------------------------------------------------- versions

std::shared_ptr<const engine::Plan> versioned_plan(const std::string& policy = "'policy':'route'") {
  return code_plan(", 'version':'v1'", policy.empty() ? "" : ", 'versions': {" + policy + "}");
}

class CodeVersions : public ::testing::Test {
 protected:
  explicit CodeVersions() {
    provider.versions = {"v1"};
    worker.runtime->start();
  }

  // A job that made one request under v1, and waits for a signal.
  void begin(const std::string& policy = "'policy':'route'") {
    worker.create(versioned_plan(policy));
    engine::NewRequest wait{.position = "s", .kind = engine::NodeKind::wait};
    wait.wait.key = "s";
    provider.current->advance({.requests = {wait}});
    env.loop.run_ready();
    ASSERT_EQ(status(), "waiting");
  }
  void offer(std::vector<std::string> versions, Duration own_missing_for = Duration(0)) {
    provider.versions = std::move(versions);
    provider.own_missing_for = own_missing_for;
    worker.runtime->on_routines_changed();
    env.loop.run_ready();
  }
  void signal() {
    worker.runtime->submit_request(kJob, {.body = engine::SignalRequest{.correlation_key = "s"}},
                                   [](const Result<Value>&) {});
    env.loop.run_ready();
  }
  std::string status() { return worker.status(); }
  std::string version() { return worker.read().state.steps[0].code->version; }
  std::string running() {
    return provider.current == nullptr ? "" : provider.current->started.version;
  }
  void advance(Advance advance) {
    provider.current->advance(std::move(advance));
    env.loop.run_ready();
  }
  void diverge() {
    const auto& started = provider.current->started;
    started.client->on_diverged(started.node,
                                {.delivered = 0, .finding = "missing", .position = "s"});
    env.loop.run_ready();
  }

  TestEnvironment env;
  Provider provider;
  WorkerFixture worker{env, "A", {.announces = true, .routines = &provider}};
};

TEST_F(CodeVersions, the_jobs_version_runs_while_it_is_offered) {
  begin();
  offer({"v1", "v2"});
  signal();
  EXPECT_EQ(running(), "v1");
  EXPECT_FALSE(provider.current->started.is_trial);
}

TEST_F(CodeVersions, another_version_is_tried_after_the_wait) {
  begin();
  offer({"v2"}, std::chrono::minutes(1));
  signal();
  EXPECT_EQ(running(), "");
  ASSERT_NE(worker.runtime->refusal_of(kJob), nullptr);
  EXPECT_NE(worker.runtime->refusal_of(kJob)->message.find("v2 is tried in 4m"), std::string::npos)
      << worker.runtime->refusal_of(kJob)->message;
  provider.own_missing_for = std::chrono::minutes(6);
  env.loop.advance(std::chrono::minutes(5));
  ASSERT_EQ(running(), "v2");
  EXPECT_TRUE(provider.current->started.is_trial);
  EXPECT_EQ(provider.current->started.record.requests.size(), 1u);
  EXPECT_EQ(version(), "v1");
  advance({.delivered = 1, .requests = {call("a", kDo, 1)}});
  EXPECT_EQ(version(), "v2");
  const auto read = worker.read();
  const auto moved = std::ranges::find_if(
      read.events, [](const Event& event) { return decision_as<VersionMoved>(event).has_value(); });
  ASSERT_NE(moved, read.events.end());
  EXPECT_EQ(decision_as<VersionMoved>(*moved)->requests, 1);
  const auto started = std::ranges::find_if(read.events, [](const Event& event) {
    return as<NodeStarted>(event) != nullptr && as<NodeStarted>(event)->position == "a";
  });
  ASSERT_NE(started, read.events.end());
  EXPECT_LT(moved->seq, started->seq);
}

TEST_F(CodeVersions, a_parked_job_is_tried_with_each_new_version_once) {
  begin();
  offer({"v1"});
  signal();
  diverge();
  ASSERT_EQ(status(), "parked");
  offer({"v1"});
  EXPECT_EQ(status(), "parked");
  offer({"v1", "v2"});
  ASSERT_EQ(running(), "v2") << status();
  diverge();
  EXPECT_EQ(status(), "parked");
  offer({"v2"});
  offer({"v1", "v2"});
  EXPECT_EQ(status(), "parked") << "both were tried";
  offer({"v1", "v2", "v3"});
  ASSERT_EQ(running(), "v3");
  advance({.delivered = 1, .end = engine::RoutineEnd{.result = Value(1)}});
  EXPECT_EQ(status(), "completed");
}

TEST_F(CodeVersions, code_that_failed_is_replaced_by_a_new_version) {
  begin();
  signal();
  advance({.delivered = 1,
           .end = engine::RoutineEnd{.exception = json("{'name':'E','message':'typo'}")}});
  ASSERT_EQ(status(), "parked");
  offer({"v1", "v2"});
  ASSERT_EQ(running(), "v2");
  advance({.delivered = 1, .end = engine::RoutineEnd{.result = Value(1)}});
  EXPECT_EQ(status(), "completed");
  EXPECT_EQ(version(), "v2");
}

TEST_F(CodeVersions, nothing_of_a_trial_is_recorded_after_it_threw) {
  begin();
  offer({"v2"}, std::chrono::minutes(6));
  signal();
  ASSERT_EQ(running(), "v2");
  advance({.delivered = 1,
           .has_settled = false,
           .end = engine::RoutineEnd{.exception = json("{'name':'E','message':'typo'}")}});
  Advance of_a_branch{.delivered = 1};
  of_a_branch.recorded.items = {
      Item::Emitted{.scope = "", .name = "n", .value = Value(1)},
      Item::NewValue{.name = "time:1", .value = json("{'ms':1,'time':'t'}")}};
  advance(std::move(of_a_branch));
  EXPECT_EQ(status(), "parked");
  const auto read = worker.read();
  EXPECT_EQ(all_of<RoutineFailed>(read.events).size(), 1u);
  EXPECT_TRUE(all_of<ValueEmitted>(read.events).empty());
  EXPECT_TRUE(all_of<TimeRecorded>(read.events).empty());
  EXPECT_EQ(version(), "v1");
}

TEST_F(CodeVersions, warn_starts_the_jobs_version_after_the_newest_diverged) {
  begin("");
  offer({"v1", "v2"});
  signal();
  ASSERT_EQ(running(), "v2");
  diverge();
  EXPECT_EQ(running(), "v1") << status();
  EXPECT_EQ(status(), "running");
  advance({.delivered = 1, .end = engine::RoutineEnd{.result = Value(1)}});
  EXPECT_EQ(status(), "completed");
  EXPECT_EQ(version(), "v1");
}

TEST_F(CodeVersions, a_moment_without_the_jobs_version_repeats_no_trial) {
  begin("");
  offer({"v1", "v2"});
  signal();
  diverge();
  ASSERT_EQ(running(), "v1");
  const auto& started = provider.current->started;
  provider.versions = {"v2"};
  provider.own_missing_for = std::chrono::seconds(1);
  started.client->on_lost(started.node, {Code::unavailable, "it is gone"});
  env.loop.run_ready();
  env.loop.advance(std::chrono::seconds(5));
  EXPECT_EQ(running(), "");
  EXPECT_NE(status(), "parked");
  offer({"v1", "v2"});
  EXPECT_EQ(running(), "v1") << status();
  EXPECT_EQ(all_of<RoutineDiverged>(worker.read().events).size(), 1u);
}

TEST_F(CodeVersions, a_job_states_why_its_code_is_not_started) {
  begin();
  provider.has_room = false;
  signal();
  ASSERT_NE(worker.runtime->refusal_of(kJob), nullptr);
  EXPECT_EQ(worker.runtime->refusal_of(kJob)->message,
            "no worker here has room for the code of the agent \"agent\", version v1");
  provider.away = {"v1"};
  offer({"v1"});
  ASSERT_NE(worker.runtime->refusal_of(kJob), nullptr);
  EXPECT_EQ(worker.runtime->refusal_of(kJob)->message,
            "no worker here is connected with the code of the agent \"agent\", version v1: its "
            "connection is lost");
}

TEST_F(CodeVersions, a_strict_job_parks_until_its_version_is_offered) {
  begin("'policy':'strict'");
  offer({"v2"});
  signal();
  EXPECT_EQ(status(), "parked");
  EXPECT_EQ(worker.read().state.parked_reason, "execution_version_mismatch");
  offer({"v2", "v3"});
  EXPECT_EQ(status(), "parked");
  offer({"v3", "v1"});
  EXPECT_EQ(running(), "v1") << status();
}

// ---------------------------------------------------------------- a restarted server

class RestartedServer : public ::testing::Test {
 protected:
  static constexpr Duration kResume = std::chrono::seconds(20);

  RestartedServer() {
    provider.worker = worker_name;
    start();
    server->create(code_plan());
    provider.current->advance({.requests = {call("m", kMail)}});
    env.loop.run_ready();
    AE_CHECK(provider.current->calls.size() == 1);
    const auto read = server->read();
    const engine::Invocation& sent = *read.state.steps[1].call;
    name = {.job = kJob, .invocation = sent.id, .try_no = sent.try_no};
    server.reset();  // without any further commit
    provider.versions.clear();
    env.loop.advance(std::chrono::seconds(1));
    start();
  }
  // The worker has connected, after its report.
  void connect() {
    provider.versions = {""};
    server->runtime->on_routines_changed();
    env.loop.run_ready();
    replay();
  }
  void start() {
    server.emplace(env, "A",
                   WorkerFixture::Setup{.owned = true,
                                        .seed = ++seed,
                                        .routines = &provider,
                                        .functions_held_until = env.loop.now() + kResume});
    server->runtime->start();
    env.loop.run_ready();
  }
  void report(std::vector<routines::CallName> received,
              std::optional<Duration> covers = std::chrono::minutes(1)) {
    server->runtime->on_worker_left(worker_name,
                                    {.received = std::move(received), .covers = covers});
    env.loop.run_ready();
  }
  // The routine of the new process makes its request again, if it was started.
  void replay() {
    if (provider.current != nullptr) provider.current->advance({});
    env.loop.run_ready();
  }
  void advance(Duration time) {
    env.loop.advance(time);
    replay();
  }
  std::size_t calls() { return provider.current == nullptr ? 0 : provider.current->calls.size(); }
  Value result() { return server->read().state.steps[1].result; }

  const engine::WorkerName worker_name{.key = "k", .name = "host:1:a"};
  TestEnvironment env;
  Provider provider;
  std::optional<WorkerFixture> server;
  std::uint64_t seed = 0;
  routines::CallName name;
};

TEST_F(RestartedServer, a_call_that_the_worker_did_not_receive_is_made_again) {
  report({});
  connect();
  ASSERT_EQ(calls(), 1u) << server->status();
  EXPECT_EQ(provider.current->calls[0].call.try_no, 2u);
}

TEST_F(RestartedServer, a_report_that_comes_later_counts_too) {
  connect();
  EXPECT_EQ(calls(), 0u) << "it waits for a report";
  report({});
  advance(kResume);
  advance(std::chrono::seconds(5));
  EXPECT_EQ(calls(), 1u) << server->status();
}

TEST_F(RestartedServer, a_late_success_is_recorded) {
  report({name});
  connect();
  server->runtime->on_worker_late(worker_name, name,
                                  {.kind = OutcomeKind::success, .result = json("'sent'")});
  env.loop.run_ready();
  EXPECT_EQ(result(), Value("sent")) << server->status();
  replay();
  EXPECT_EQ(calls(), 0u);
}

TEST_F(RestartedServer, only_the_worker_that_was_given_the_call_reports_about_it) {
  const engine::WorkerName other{.key = "k", .name = "host:2:b"};
  server->runtime->on_worker_left(other, {});
  connect();
  server->runtime->on_worker_late(other, name,
                                  {.kind = OutcomeKind::success, .result = json("'forged'")});
  advance(kResume);
  EXPECT_EQ(server->status(), "parked");
  EXPECT_EQ(calls(), 0u);
  EXPECT_TRUE(result().is_null());
}

TEST_F(RestartedServer, an_end_counts_only_of_a_call_that_the_workers_report_lists) {
  connect();
  server->runtime->on_worker_late(worker_name, name,
                                  {.kind = OutcomeKind::success, .result = json("'sent'")});
  env.loop.run_ready();
  EXPECT_TRUE(result().is_null());
  report({name});
  server->runtime->on_worker_late(worker_name, name,
                                  {.kind = OutcomeKind::success, .result = json("'sent'")});
  env.loop.run_ready();
  EXPECT_EQ(result(), Value("sent")) << server->status();
}

TEST_F(RestartedServer, a_report_that_does_not_cover_the_call_has_no_effect) {
  report({}, std::chrono::milliseconds(1));
  connect();
  advance(kResume);
  EXPECT_EQ(server->status(), "parked");
}

TEST_F(RestartedServer, a_call_that_the_worker_performs_is_awaited_until_its_deadline) {
  report({name});
  connect();
  advance(kResume * 2);
  EXPECT_NE(server->status(), "parked");
  advance(std::chrono::minutes(11));
  EXPECT_EQ(server->status(), "parked");
}

}  // namespace
}  // namespace ae::runtime::testing
