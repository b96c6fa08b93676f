// Tests of calls: send times, trace context, permits of the ledger, commits per step, progress
// reports, and partial output.
#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <type_traits>

#include "runtime/lost_lease_fixture_test.h"
#include "runtime/worker_fixture_test.h"

namespace ae::runtime::testing {
namespace {

// The trace id comes from the caller; the span id follows from job, call and try; neither is part
// of the request's identity.
AE_TEST("call/a call keeps its trace after a crash, and each try has its own span") {
  constexpr std::string_view kContext = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  std::string key;
  for (const bool has_context : {true, false}) {
    TestEnvironment env;
    std::string first;
    {
      WorkerFixture worker(env, "w1", {.owned = true});
      NewJobRequest request;
      request.job = kJob;
      request.agent = "agent";
      request.plan = plan("idempotent", kOneCall);
      if (has_context) request.traceparent = kContext, request.tracestate = "congo=x";
      ASSERT_TRUE(env.loop.await<Result<CreateResult>>(
          [&](auto done) { worker.runtime->create(request, std::move(done)); }));
      env.loop.run_ready();
      ASSERT_EQ(worker.calls.size(), 1u);
      const tools::Call& call = worker.calls[0].call;
      first = call.trace_headers().traceparent;
      const std::string trace =
          has_context ? "0af7651916cd43dd8448eb211c80319c" : trace_id_of(kJob);
      EXPECT_EQ(first, traceparent(trace, span_id_of(kJob, call.invocation, 1), 1));
      EXPECT_EQ(call.trace_headers().tracestate, has_context ? "congo=x" : "");
      if (!key.empty()) {
        EXPECT_EQ(call.key.text, key) << "no part of the key";
      }
      key = call.key.text;
    }
    WorkerFixture worker(env, "w2", {.owned = true, .seed = 1000});
    worker.runtime->start();
    env.loop.run_ready();
    ASSERT_EQ(worker.calls.size(), 1u);
    const tools::Call& again = worker.calls[0].call;
    EXPECT_EQ(again.try_no, 2u);
    const std::string second = again.trace_headers().traceparent;
    EXPECT_EQ(second.substr(0, 36), first.substr(0, 36)) << "one trace";
    EXPECT_NE(second, first) << "a span of its own";
    EXPECT_EQ(second.substr(36, 16), span_id_of(kJob, again.invocation, 2));
    worker.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
    EXPECT_EQ(worker.status(), "completed");
  }
}

AE_TEST("call/a try whose declaration is durable too late is not sent, the next one is") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true, .delay = 40s});
  int commits = 0;
  worker.script = [&](const store::Call& call) {
    const bool declares = call.method == Method::commit && ++commits == 2;
    return declares ? Fault::delay_answer : Fault::none;
  };
  worker.runtime->start();
  worker.create(plan("at_most_once", kOneCall));
  EXPECT_EQ(worker.calls.size(), 0u) << "the declaration is not known to be durable";
  env.loop.advance(41s);
  ASSERT_EQ(worker.calls.size(), 1u);
  EXPECT_EQ(worker.calls[0].call.try_no, 2u) << "send_by of the first one had passed";
  worker.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
  EXPECT_EQ(worker.status(), "completed");
}

AE_TEST("call/a suspend during a claim or commit reduces the time to send") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = false});
  int commits = 0;
  worker.script = [&](const store::Call& call) {
    // The reply to the declaration took so long, by a clock that includes suspend, that the lease
    // may have expired.
    if (call.method == Method::commit)
      worker.faulty->set_clock_uncertainty(++commits == 2 ? 31s : 0s);
    return Fault::none;
  };
  worker.runtime->start();
  worker.create(plan("at_most_once", kOneCall));
  EXPECT_EQ(worker.calls.size(), 0u);
  env.loop.advance(5s);
  ASSERT_EQ(worker.calls.size(), 1u);
  EXPECT_EQ(worker.calls[0].call.try_no, 2u) << "the first one was withdrawn";
  EXPECT_LE(worker.calls[0].call.send_within, 30s);
  const auto read = worker.read();
  const auto ended = all_of<ToolInvocationFinished>(read.events);
  ASSERT_FALSE(ended.empty());
  ASSERT_TRUE(ended[0]->error);
  EXPECT_EQ(ended[0]->error->code, "not_sent");
  worker.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
  EXPECT_EQ(worker.status(), "completed");
}

static_assert(!std::is_copy_constructible_v<tools::Permit> &&
                  !std::is_copy_assignable_v<tools::Permit> &&
                  !std::is_default_constructible_v<tools::Permit> &&
                  !std::is_constructible_v<tools::Permit, InvocationId, std::uint32_t>,
              "only the ledger makes permits");

AE_TEST("ledger/a try left open by a crash stays unknown when the next one succeeds") {
  TestEnvironment env;
  std::optional<WorkerFixture> worker;
  worker.emplace(env, "first",
                 WorkerFixture::Setup{.owned = true, .durability = Durability::split});
  worker->create(
      plan("idempotent",
           "[{'id':'a', 'kind':'tool', 'tool':'do'},"
           " {'id':'t', 'kind':'wait', 'needs':['a'], 'wait':{'type':'timer','for':'5s'}},"
           " {'id':'b', 'kind':'tool', 'tool':'do', 'needs':['t']}]"));
  worker->runtime.reset();  // dies during the call
  WorkerFixture next(env, "next", {.owned = true, .durability = Durability::split, .seed = 99});
  next.runtime->start();
  env.loop.advance(2s);
  ASSERT_EQ(next.calls.size(), 1u);
  next.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  env.loop.advance(10s);  // the job becomes idle, is woken and claimed again
  next.answer(1, {.kind = OutcomeKind::success, .result = json("2")});
  auto loaded = env.loop.await<Result<store::LoadedJob>>(
      [&](auto done) { next.memory->load(kJob, 1, std::move(done)); });
  ASSERT_TRUE(loaded);
  std::vector<std::string> states;
  for (const store::LedgerRow& row : loaded->ledger) {
    states.push_back(fmt::format("{} {}", row.try_no, row.state));
  }
  std::ranges::sort(states);
  EXPECT_EQ(states, (std::vector<std::string>{"1 COMMITTED", "1 UNKNOWN", "2 COMMITTED"}));
}

AE_TEST("ledger/a try is permitted once, and only to the attempt that declared it") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(plan("idempotent", kOneCall));
  auto state = worker.read().state;
  Ledger first;
  EXPECT_TRUE(first.permit(state, state.steps[0]));
  EXPECT_FALSE(first.permit(state, state.steps[0])) << "a second time";
  Ledger another;
  const auto plans = [&](const Value&,
                         std::string_view) -> Result<std::shared_ptr<const engine::Plan>> {
    return state.plan;
  };
  ASSERT_TRUE(engine::apply(state, engine::running_event(AttemptId("next"), state.epoch + 1, "n"),
                            env.loop.now(), plans));
  EXPECT_FALSE(another.permit(state, state.steps[0])) << "another attempt declared it";
  worker.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  state = worker.read().state;
  EXPECT_FALSE(another.permit(state, state.steps[0])) << "it is recorded";
}

AE_TEST("ledger/a permit can be consumed once, by its own try") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(plan("idempotent", kOneCall));
  const auto state = worker.read().state;
  const InvocationId call = state.steps[0].call->id;
  const auto permit = [&] { return *Ledger().permit(state, state.steps[0]); };
  auto used = permit();
  std::move(used).consume(call, 1);
  EXPECT_DEATH(std::move(used).consume(call, 1), "valid_");
  EXPECT_DEATH(permit().consume(call, 2), "valid_");
  EXPECT_DEATH(permit().consume(InvocationId("0123456789abcdef"), 1), "valid_");
}

AE_TEST("durability/fused makes one commit per step, split one per phase") {
  const auto commits_of = [](Durability durability, int nodes) {
    TestEnvironment env;
    WorkerFixture worker(env, "w", {.owned = true, .durability = durability});
    int commits = 0;
    worker.script = [&](const store::Call& call) {
      commits += call.method == Method::commit ? 1 : 0;
      return Fault::none;
    };
    std::string chain = "[{'id':'n0', 'kind':'tool', 'tool':'do'}";
    for (int i = 1; i < nodes; ++i) {
      chain +=
          fmt::format(",{{'id':'n{}', 'kind':'tool', 'tool':'do', 'needs':['n{}']}}", i, i - 1);
    }
    worker.runtime->start();
    worker.create(plan("idempotent", chain + "]"));
    for (int i = 0; i < nodes; ++i) {
      worker.answer(static_cast<std::size_t>(i),
                    {.kind = OutcomeKind::success, .result = json("1")});
    }
    AE_CHECK(worker.status() == "completed");
    return commits;
  };
  EXPECT_EQ(commits_of(Durability::fused, 9) - commits_of(Durability::fused, 4), 5);
  // effect │ finished, command_committed │ ledger │ node_finished │ step_committed │ declaration
  EXPECT_EQ(commits_of(Durability::split, 9) - commits_of(Durability::split, 4), 5 * 6);
}

AE_TEST("progress/reports are written once a second, and the last one before the result") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    TestEnvironment env;
    WorkerFixture worker(env, "w", {.owned = true, .durability = durability});
    worker.runtime->start();
    worker.create(plan("at_most_once", kOneCall));
    ASSERT_EQ(worker.calls.size(), 1u);
    tools::Call& call = worker.calls[0].call;
    for (int i = 0; i < 100; ++i) {
      call.progress(Value::object({{"done", i}}));
      env.loop.advance(100ms);
    }
    const auto written = all_of(worker.read().events, EventType::progress).size();
    EXPECT_GE(written, 9u);
    EXPECT_LE(written, 11u) << "once a second, of a hundred in ten";
    call.progress(Value::object({{"done", "all"}}));
    worker.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
    const auto read = worker.read();
    EXPECT_EQ(read.state.status, engine::JobStatus::completed);
    const auto reports = all_of(read.events, EventType::progress);
    const auto& last = std::get<Progress>(reports.back()->body);
    EXPECT_EQ(last.detail.json(), json("{'report':{'done':'all'}, 'try':1}"));
    EXPECT_EQ(last.node_id, "a");
    EXPECT_EQ(last.step_id, read.state.steps[0].id);
    EXPECT_LT(reports.back()->seq,
              all_of(read.events, EventType::tool_invocation_finished)[0]->seq);
    call.progress(Value("too late"));
    env.loop.advance(5s);
    EXPECT_EQ(worker.read().events.size(), read.events.size());
  }
}

AE_TEST("progress/reports of a long call are written less often, and the newest is kept") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(plan("at_most_once", kOneCall));
  tools::Call& call = worker.calls[0].call;
  constexpr int kTimes = 180;
  for (int i = 0; i < kTimes; ++i) {
    call.progress(Value(i));
    env.loop.advance(5s);
  }
  const auto read = worker.read();
  const auto reports = all_of<Progress>(read.events);
  EXPECT_LE(reports.size(), kTimes * 3u / 4) << "at the end they are 14 s apart";
  EXPECT_GE(reports.back()->detail.json()["report"].as_int(), kTimes - 4);
}

AE_TEST("progress/a report that cannot be written does not delay the result") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(plan("at_most_once", kOneCall));
  int commits = 0;
  worker.script = [&](const store::Call& made) {
    return made.method == Method::commit && commits++ < 3 ? Fault::fail_before : Fault::none;
  };
  worker.calls[0].call.progress(Value("half"));
  env.loop.run_ready();
  EXPECT_EQ(commits, 1);
  worker.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  env.loop.advance(1s);
  EXPECT_EQ(worker.status(), "completed");
  EXPECT_EQ(worker.calls.size(), 1u);
}

std::string outputs_of(const WorkerFixture& worker) {
  std::string all;
  for (const auto& output : worker.output_hub.outputs_of(kJob)) {
    all += fmt::format("{}/{} {}; ", output->node, output->try_no, output->text);
  }
  return all;
}

AE_TEST("partial output/the text of a tool is shown until its outcome is durable, and not stored") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(plan("idempotent", kOneCall));
  std::string shown;
  const auto reader = worker.output_hub.subscribe(kJob, [&] { shown += outputs_of(worker); });
  const std::uint64_t events = worker.read().events.size();
  tools::Call& first = worker.calls[0].call;
  EXPECT_EQ(outputs_of(worker), "") << "no piece came yet";
  first.on_text_delta({.offset = 0, .text = "Half"});
  first.on_text_delta({.offset = 4, .text = " a word"});
  EXPECT_EQ(shown, "a/1 Half; a/1 Half a word; ");
  EXPECT_EQ(worker.read().events.size(), events);
  answer_not_sent(worker, 0);
  EXPECT_EQ(outputs_of(worker), "");
  first.on_text_delta({.offset = 0, .text = "late"});
  EXPECT_EQ(outputs_of(worker), "") << "that try has ended";
  env.loop.advance(10s);
  ASSERT_EQ(worker.calls.size(), 2u);
  worker.calls[1].call.on_text_delta({.offset = 0, .text = "All"});
  EXPECT_EQ(outputs_of(worker), "a/2 All; ");
  worker.answer(1, {.kind = OutcomeKind::success, .result = json("1")});
  EXPECT_EQ(worker.status(), "completed");
  EXPECT_EQ(outputs_of(worker), "");
}

AE_TEST("partial output/a worker that lost the job shows no more of it") {
  TwoWorkersFixture two("at_most_once");
  two.first.calls[0].call.on_text_delta({.offset = 0, .text = "late"});
  two.env.loop.run_ready();
  EXPECT_EQ(outputs_of(two.first), "");
}

AE_TEST("progress/a worker that lost the job writes no more reports") {
  TwoWorkersFixture two("at_most_once");
  const auto events = two.second.read().events.size();
  two.first.calls[0].call.progress(Value("half"));
  two.env.loop.run_ready();
  EXPECT_EQ(two.second.read().events.size(), events);
}

}  // namespace
}  // namespace ae::runtime::testing
