// Tests of pauses, approvals and resolutions of unknown outcomes, with and without a lease holder.
#include <optional>
#include <utility>

#include "runtime/lost_lease_fixture_test.h"
#include "runtime/worker_fixture_test.h"

namespace ae::runtime::testing {
namespace {

AE_TEST("pause/an accepted pause is durable and applied by the current or next lease holder") {
  for (const bool dies : {false, true}) {
    TestEnvironment env;
    WorkerFixture worker(env, "w", {.owned = true});
    worker.runtime->start();
    worker.create(plan("idempotent", kOneCall));
    WorkerFixture other(env, "other", {.owned = false});  // the lease holder is not notified
    const auto result = other.submit({.body = engine::PauseRequest{}});
    ASSERT_TRUE(result);
    EXPECT_EQ((*result)["accepted"], Value(true));
    std::optional<WorkerFixture> next;
    if (dies) {
      worker.runtime.reset();
      next.emplace(env, "next", WorkerFixture::Setup{.owned = true, .seed = 99});
      next->runtime->start();
      env.loop.advance(60s);
      EXPECT_EQ(next->status(), "parked");
      EXPECT_TRUE(next->calls.empty());
      ASSERT_TRUE(next->submit({.body = engine::ResumeRequest{}}));
      env.loop.advance(2s);
      next->answer(0, {.kind = OutcomeKind::success, .result = json("1")});
    } else {
      worker.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
    }
    EXPECT_EQ(other.status(), "completed");
  }
}

AE_TEST("pause/a resume revokes a pause that is still in the inbox") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(plan("idempotent",
                     "[{'id':'a', 'kind':'tool', 'tool':'do'},"
                     " {'id':'b', 'kind':'tool', 'tool':'do', 'needs':['a']}]"));
  WorkerFixture other(env, "other", {.owned = false});
  ASSERT_TRUE(other.submit({.body = engine::PauseRequest{}}));
  const auto resumed = other.submit({.body = engine::ResumeRequest{}});
  ASSERT_TRUE(resumed) << resumed.error().message;
  worker.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  EXPECT_EQ(worker.calls.size(), 2u);
  EXPECT_EQ(worker.status(), "running");
}

AE_TEST("pause/a timer that is due during a pause fires after the resume") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(
      plan("idempotent", "[{'id':'t', 'kind':'wait', 'wait':{'type':'timer', 'for':'10s'}}]"));
  ASSERT_TRUE(worker.submit({.body = engine::PauseRequest{}}));
  env.loop.advance(60s);
  EXPECT_EQ(worker.status(), "parked");
  ASSERT_TRUE(worker.submit({.body = engine::ResumeRequest{}}));
  env.loop.advance(5s);
  EXPECT_EQ(worker.status(), "completed");
}

AE_TEST("approval/of two answers to a leased job the first counts") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(plan("idempotent",
                     "[{'id':'a', 'kind':'tool', 'tool':'do'},"
                     " {'id':'w', 'kind':'wait', 'wait':{'type':'human', 'key':'k',"
                     "  'on_reject':'continue'}}]"));
  const std::string id = worker.read().state.approval_id(worker.read().state.waits.at("k"));
  const auto answer = [&](std::string_view decision) {
    return worker.submit(
        {.body = engine::ApproveRequest{.approval_id = id, .decision = std::string(decision)}});
  };
  const auto first = answer("reject"), second = answer("approve");
  ASSERT_TRUE(first);
  EXPECT_EQ((*first)["outcome"], "rejected");
  ASSERT_TRUE(second);
  EXPECT_EQ((*second)["outcome"], "rejected");
  worker.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  EXPECT_EQ(worker.read().state.closed_waits.at("k").outcome, "rejected");
}

AE_TEST(
    "unknown_outcome/not_happened is refused until the call has settled, also after a restart") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(plan("at_most_once", kOneCall));
  worker.answer(0, {.kind = OutcomeKind::unknown, .error_code = "reset"});
  ASSERT_EQ(worker.status(), "parked");
  const auto early = worker.resolve("not_happened");
  ASSERT_FALSE(early) << "this process is alive: its call may still be in flight";
  EXPECT_EQ(early.error().code, Code::not_settled);
  // Another process has opened the store since: the caller has exited, but its request may still
  // take effect.
  const Instant settles = worker.read().state.steps[0].call->deadline + 30s;
  worker.runtime.reset();
  WorkerFixture next(env, "next", {.owned = true, .seed = 99});
  const auto restarted = next.resolve("not_happened");
  ASSERT_FALSE(restarted);
  EXPECT_EQ(restarted.error().code, Code::not_settled);
  EXPECT_NE(restarted.error().message.find(to_text(settles)), std::string::npos);
  env.loop.advance(settles - env.loop.now());
  EXPECT_TRUE(next.resolve("not_happened"));
}

AE_TEST(
    "unknown_outcome/a killed process's call settles timeout and grace after the next opening") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(plan("at_most_once", kOneCall));
  env.loop.advance(2s);
  worker.runtime.reset();  // with its call in flight
  WorkerFixture next(env, "next", {.owned = true, .seed = 99});
  const Instant opened = env.loop.now();
  next.runtime->start();
  env.loop.run_ready();
  ASSERT_EQ(next.status(), "parked");
  const Runtime::JobSnapshot read = next.read();
  const engine::Step& step = read.state.steps[0];
  const Instant settles = opened + (step.call->deadline - step.call->send_by) + 30s;
  EXPECT_EQ(read.state.settles_at(step), settles);
  env.loop.advance(settles - env.loop.now() - 1ms);
  const auto early = next.resolve("not_happened");
  ASSERT_FALSE(early);
  EXPECT_EQ(early.error().code, Code::not_settled);
  env.loop.advance(1ms);
  EXPECT_TRUE(next.resolve("not_happened"));
}

AE_TEST("unknown_outcome/a call resolved as happened without a result completes with null") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(plan("at_most_once", kOneCall));
  worker.answer(0, {.kind = OutcomeKind::unknown, .error_code = "reset"});
  ASSERT_EQ(worker.status(), "parked");
  ASSERT_TRUE(worker.resolve("happened"));
  env.loop.run_ready();
  const Runtime::JobSnapshot read = worker.read();
  EXPECT_EQ(engine::to_text(read.state.status), "completed");
  EXPECT_TRUE(read.state.steps[0].result.is_null());
  EXPECT_EQ(worker.calls.size(), 1u);
}

AE_TEST("unknown_outcome/a resolution counts from its arrival, not from a delayed load") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true, .delay = 100s});
  worker.runtime->start();
  worker.create(plan("at_most_once", kOneCall));
  worker.answer(0, {.kind = OutcomeKind::unknown, .error_code = "reset"});
  ASSERT_EQ(worker.status(), "parked");
  const Instant settles = worker.read().state.steps[0].call->deadline + 30s;
  env.loop.advance(settles - env.loop.now() - 50s);
  std::optional<Result<Value>> result;
  engine::ControlRequest request = not_happened(worker.read());
  bool slow = true;
  worker.script = [&](const store::Call& of) {
    const bool is_load = of.method == Method::load && std::exchange(slow, false);
    return is_load ? Fault::delay : Fault::none;
  };
  request.checked_at = settles + 1h;  // the caller's clock is ahead
  worker.runtime->submit_request(kJob, request,
                                 [&](Result<Value> answer) { result.emplace(std::move(answer)); });
  env.loop.advance(101s);
  ASSERT_TRUE(result);
  ASSERT_FALSE(*result) << "the time of the decision cannot be verified";
  EXPECT_EQ(result->error().code, Code::not_settled);
  EXPECT_TRUE(worker.submit(not_happened(worker.read())));
  env.loop.advance(2s);
  EXPECT_EQ(worker.calls.size(), 2u);
}

AE_TEST("unknown_outcome/a resolution checked before the call settled is refused at any time") {
  TwoWorkersFixture two("at_most_once");
  two.env.loop.advance(120s);
  ASSERT_EQ(two.second.status(), "parked");
  const Instant checked_at = two.env.loop.now();
  two.env.loop.advance(1200s);
  engine::ControlRequest request = not_happened(two.second.read());
  request.checked_at = checked_at;
  const auto early = two.second.submit(request);
  ASSERT_FALSE(early);
  EXPECT_EQ(early.error().code, Code::not_settled);
  EXPECT_NE(early.error().message.find(to_text(checked_at)), std::string::npos);
  request.checked_at = two.env.loop.now();
  EXPECT_TRUE(two.second.submit(request));
}

AE_TEST("unknown_outcome/the lease holder applies a resolution by the time it was checked at") {
  TestEnvironment env;
  WorkerFixture first(env, "first", {.seed = 1});
  WorkerFixture second(env, "second", {.seed = 1'000'001});
  first.runtime->start();
  first.create(plan("at_most_once",
                    "[{'id':'a', 'kind':'tool', 'tool':'do'},"
                    " {'id':'b', 'kind':'tool', 'tool':'do'}]"));
  first.answer(0, {.kind = OutcomeKind::unknown, .error_code = "reset"});
  const auto read = second.read();
  ASSERT_TRUE(read.row.claim) << "the other call keeps the job held";
  const Instant settles = read.state.steps[0].call->deadline + 30s;
  env.loop.advance(settles + 1s - env.loop.now());
  // However it got into the inbox: this resolution was made too early.
  engine::ControlRequest early = not_happened(read);
  early.id = "early";
  early.checked_at = settles - 1s;
  store::InboxEntry entry{.number = 0, .id = early.id, .request = {}};
  entry.request =
      canonical(engine::with_checksum(engine::inbox_location(kJob, entry.id), early.to_json()));
  auto put = env.loop.await<Result<void>>(
      [&](auto done) { second.memory->put_inbox(kJob, entry, std::move(done)); });
  ASSERT_TRUE(put);
  engine::ControlRequest request = not_happened(read);
  request.id = "in time";
  const auto result = second.submit(request);
  ASSERT_TRUE(result);
  EXPECT_EQ((*result)["accepted"], Value(true));
  const auto posted = second.read();
  ASSERT_EQ(posted.inbox.size(), 2u) << "the lease holder was not notified";
  EXPECT_EQ(parse_json(posted.inbox[1].request)->text("looked_at"), to_text(env.loop.now()));
  first.answer(1, {.kind = OutcomeKind::unknown, .error_code = "reset"});
  env.loop.advance(2s);
  std::vector<std::string_view> applied;
  const auto after = first.read();
  for (const auto* wait : all_of<WaitCompleted>(after.events)) {
    applied.push_back(or_empty(wait->signal_id));
  }
  EXPECT_EQ(applied, (std::vector<std::string_view>{"in time"}));
}

AE_TEST(
    "unknown_outcome/the lease holder refuses not_happened at once for its own unsettled call") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(plan("at_most_once",
                     "[{'id':'a', 'kind':'tool', 'tool':'do'},"
                     " {'id':'b', 'kind':'tool', 'tool':'do'}]"));
  worker.answer(0, {.kind = OutcomeKind::unknown, .error_code = "reset"});
  ASSERT_TRUE(worker.runtime->is_leased(kJob));
  const auto early = worker.submit(not_happened(worker.read()));
  ASSERT_FALSE(early) << "accepted and dropped: " << canonical(*early);
  EXPECT_EQ(early.error().code, Code::not_settled);
  EXPECT_FALSE(worker.warned("no longer applies"));
}

}  // namespace
}  // namespace ae::runtime::testing
