// Tests of the running slot and record_process_death: the death is in the log before the job is
// claimed again.
#include "runtime/scheduler/process_death.h"

#include <fmt/core.h>

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "async/failpoint.h"
#include "runtime/worker_fixture_test.h"

namespace ae::runtime::testing {
namespace {

struct alignas(8) Page : std::array<std::byte, RunningSlot::kBytes> {};

std::string interrupted_in(const Page& page) {
  Page copy = page;
  const RunningSlot slot(copy);
  return slot.interrupted()
             ? fmt::format("{} {} {}", slot.interrupted()->job.text,
                           slot.interrupted()->fence.attempt.text, slot.interrupted()->fence.epoch)
             : "";
}

AE_TEST("running_slot/the slot names the job of the running slice, and none between slices") {
  Page page{};
  RunningSlot slot(page);
  const std::string one = RunningSlot::name_of(JobId("one"), {AttemptId("a"), 1});
  const std::string two = RunningSlot::name_of(JobId("two"), {AttemptId("b"), 22});
  EXPECT_EQ(interrupted_in(page), "");
  {
    const RunningSlot::Slice outer(&slot, one);
    EXPECT_EQ(interrupted_in(page), "one a 1");
    {
      const RunningSlot::Slice inner(&slot, two);
      EXPECT_EQ(interrupted_in(page), "two b 22");
    }
    EXPECT_EQ(interrupted_in(page), "one a 1");
  }
  EXPECT_EQ(interrupted_in(page), "");
  const RunningSlot::Slice nowhere(nullptr, one);
}

AE_TEST("running_slot/a name left by an earlier process is kept until its death is recorded") {
  Page page{};
  {
    RunningSlot slot(page);
    const RunningSlot::Slice slice(&slot, RunningSlot::name_of(JobId("one"), {AttemptId("a"), 1}));
    Page left = page;
    RunningSlot next(left);
    ASSERT_TRUE(next.interrupted().has_value());
    const std::string two = RunningSlot::name_of(JobId("two"), {AttemptId("b"), 2});
    {
      const RunningSlot::Slice other(&next, two);
      EXPECT_EQ(interrupted_in(left), "one a 1");
    }
    EXPECT_EQ(interrupted_in(left), "one a 1");
    next.clear_interrupted();
    EXPECT_EQ(interrupted_in(left), "");
    const RunningSlot::Slice other(&next, two);
    EXPECT_EQ(interrupted_in(left), "two b 2");
  }
}

AE_TEST("running_slot/a page that is empty or damaged names no job") {
  Page page{};
  RunningSlot slot(page);
  const std::string name = RunningSlot::name_of(JobId("one"), {AttemptId("a"), 1});
  const RunningSlot::Slice slice(&slot, name);
  ASSERT_EQ(interrupted_in(page), "one a 1");
  for (const std::size_t at : {0U, 7U, 14U, 15U}) {
    Page damaged = page;
    damaged[at] ^= std::byte{0x55};
    EXPECT_EQ(interrupted_in(damaged), "") << at;
  }
  Page damaged = page;
  damaged[16 + name.size() - 1] = std::byte{'x'};
  EXPECT_EQ(interrupted_in(damaged), "") << "an epoch that is not a number";
  damaged.fill(std::byte{0xff});
  EXPECT_EQ(interrupted_in(damaged), "");
}

// The contents of the page when a decision declares a call.
class SlotSnapshot final : public async::FailpointHandler {
 public:
  explicit SlotSnapshot(const Page& page) : page_(page) { async::failpoint_handler = this; }
  ~SlotSnapshot() override { async::failpoint_handler = nullptr; }
  async::FailpointAction hit(std::string_view name) override {
    if (name == "decided.a") seen = page_;
    return async::FailpointAction::proceed;
  }
  std::optional<Page> seen;

 private:
  const Page& page_;
};

// A process that dies in a slice of the job: nothing that it drafts there becomes durable. Returns
// its page.
Page run_until_death(TestEnvironment& env, const std::string& name, bool owned, Page page,
                     const std::function<void(WorkerFixture&)>& before = {}) {
  RunningSlot slot(page);
  WorkerFixture worker(env, name,
                       {.owned = owned, .seed = std::hash<std::string>()(name), .slot = &slot});
  const SlotSnapshot snapshot(page);
  worker.script = [&](const store::Call& call) {
    return snapshot.seen && call.method == Method::commit ? Fault::fail_before : Fault::none;
  };
  if (before) before(worker);
  worker.runtime->start();
  env.loop.advance(40s);
  AE_CHECK(snapshot.seen.has_value(), fmt::format("{}: {}", name, worker.status()));
  return *snapshot.seen;
}

void create_queued(WorkerFixture& worker) {
  NewJobRequest request;
  request.job = kJob;
  request.agent = "agent";
  request.plan = plan("idempotent", kOneCall);
  request.start_here = false;
  worker.runtime->create(request,
                         [](const Result<CreateResult>& made) { AE_CHECK(made.has_value()); });
}

AE_TEST("process_death/the second one in a row parks the job even if no attempt wrote an event") {
  for (const bool owned : {true, false}) {
    TestEnvironment env;
    const Page once = run_until_death(env, "first", owned, Page{}, create_queued);
    const Page twice = run_until_death(env, "second", owned, once);
    Page page = twice;
    RunningSlot slot(page);
    WorkerFixture third(env, "third", {.owned = owned, .seed = 77, .slot = &slot});
    third.runtime->start();
    env.loop.advance(40s);
    EXPECT_EQ(third.status(), "parked");
    const auto read = third.read();
    EXPECT_EQ(read.state.parked_reason, "worn_out");
    EXPECT_EQ(all_of(read.events, EventType::job_requeued).size(), 2U);
    EXPECT_EQ(third.calls.size(), 0U);
    EXPECT_TRUE(third.warned("a process died while it ran the job"));
    EXPECT_EQ(interrupted_in(page), "");
    ASSERT_TRUE(third.submit({.id = "r", .by = "ann", .body = engine::ResumeRequest{}}));
    env.loop.advance(2s);
    ASSERT_EQ(third.calls.size(), 1U);
    third.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
    EXPECT_EQ(third.status(), "completed");
  }
}

AE_TEST("process_death/the last permitted one parks the job with its inbox before a claim") {
  for (const bool owned : {true, false}) {
    TestEnvironment env;
    const Page once = run_until_death(env, "first", owned, Page{}, create_queued);
    Page page = run_until_death(env, "second", owned, once);
    {
      RunningSlot slot(page);
      WorkerFixture third(env, "third",
                          {.owned = owned, .seed = 78, .may_claim = false, .slot = &slot});
      ASSERT_TRUE(third.submit({.id = "p", .by = "ann", .body = engine::PauseRequest{}}));
      third.runtime->start();
      env.loop.advance(2s);
      const auto read = third.read();
      EXPECT_EQ(read.state.parked_reason, "worn_out");
      EXPECT_FALSE(read.row.claim);
      EXPECT_EQ(read.row.status, "parked");
      EXPECT_EQ(read.inbox.size(), 1U) << "no entry is applied";
      EXPECT_EQ(all_of(read.events, EventType::job_requeued).size(), 2U);
    }
    WorkerFixture last(env, "last", {.owned = owned, .seed = 79});
    last.runtime->start();
    env.loop.advance(40s);
    EXPECT_EQ(last.read().state.parked_reason, "worn_out");
    ASSERT_TRUE(last.submit({.id = "r", .by = "ann", .body = engine::ResumeRequest{}}));
    env.loop.advance(2s);
    EXPECT_EQ(last.status(), "parked");
    EXPECT_EQ(last.read().state.parked_reason, "paused")
        << "the attempt after the resume applies the inbox";
    EXPECT_TRUE(last.read().inbox.empty());
    ASSERT_TRUE(last.submit({.id = "s", .by = "ann", .body = engine::ResumeRequest{}}));
    env.loop.advance(2s);
    ASSERT_EQ(last.calls.size(), 1U);
    last.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
    EXPECT_EQ(last.status(), "completed");
  }
}

AE_TEST("process_death/messages to a job parked with its inbox are applied in order") {
  TestEnvironment env;
  Page page = run_until_death(env, "second", true,
                              run_until_death(env, "first", true, Page{}, create_queued));
  RunningSlot slot(page);
  WorkerFixture worker(env, "third",
                       {.owned = true, .seed = 78, .may_claim = false, .slot = &slot});
  const auto send = [&](const char* id, const char* channel) {
    return worker.submit(
        {.id = id, .by = "ann", .body = engine::MessageRequest{.channel = channel}});
  };
  ASSERT_TRUE(send("one", "c"));
  ASSERT_TRUE(send("elsewhere", "d"));
  ASSERT_TRUE(send("two", "c"));
  ASSERT_TRUE(worker.submit({.id = "p", .by = "ann", .body = engine::PauseRequest{}}));
  worker.runtime->start();
  env.loop.advance(2s);
  ASSERT_EQ(worker.read().state.parked_reason, "worn_out");
  ASSERT_EQ(worker.read().inbox.size(), 4U);
  const auto ids = [&] {
    std::string all;
    const auto read = worker.read();
    for (const auto* message : all_of<AgentMessage>(read.events)) all += message->message_id + " ";
    return all;
  };
  const auto again = send("one", "c");
  ASSERT_TRUE(again);
  EXPECT_EQ((*again)["duplicate"], Value(true)) << "it was accepted before";
  EXPECT_EQ(ids(), "one ");
  ASSERT_TRUE(send("three", "c"));
  EXPECT_EQ(ids(), "one two three ");
  EXPECT_EQ(worker.read().inbox.size(), 2U) << "the pause and the other channel are left";
}

AE_TEST("process_death/answers to a job parked with its inbox count in order") {
  constexpr std::string_view kWaits =
      "[{'id':'a', 'kind':'tool', 'tool':'do'},"
      " {'id':'w', 'kind':'wait', 'needs':['a'], 'wait':{'type':'signal', 'key':'go'}},"
      " {'id':'v', 'kind':'wait', 'needs':['a'], 'wait':{'type':'signal', 'key':'on'}}]";
  const auto create = [&](WorkerFixture& worker) {
    NewJobRequest request;
    request.job = kJob;
    request.agent = "agent";
    request.plan = plan("idempotent", kWaits);
    request.start_here = false;
    worker.runtime->create(request,
                           [](const Result<CreateResult>& made) { AE_CHECK(made.has_value()); });
  };
  TestEnvironment env;
  Page page =
      run_until_death(env, "second", true, run_until_death(env, "first", true, Page{}, create));
  RunningSlot slot(page);
  WorkerFixture worker(env, "third",
                       {.owned = true, .seed = 78, .may_claim = false, .slot = &slot});
  const auto signal = [&](const char* id, const char* key, int payload) {
    return worker.submit({.id = id,
                          .by = "ann",
                          .body = engine::SignalRequest{
                              .correlation_key = key, .buffer = true, .payload = payload}});
  };
  ASSERT_TRUE(signal("elsewhere", "on", 7));
  ASSERT_TRUE(signal("one", "go", 1));
  worker.runtime->start();
  env.loop.advance(2s);
  ASSERT_EQ(worker.read().state.parked_reason, "worn_out");
  ASSERT_EQ(worker.read().inbox.size(), 2U);
  const auto later = signal("two", "go", 2);
  ASSERT_TRUE(later);
  EXPECT_EQ((*later)["applied"], Value(false)) << canonical(*later);
  EXPECT_EQ((*later)["payload"], Value(1)) << "the one that was accepted before it";
  EXPECT_EQ(worker.read().inbox.size(), 1U) << "the entry for another wait is left";
  WorkerFixture last(env, "last", {.owned = true, .seed = 79});
  last.runtime->start();
  ASSERT_TRUE(last.submit({.id = "r", .by = "ann", .body = engine::ResumeRequest{}}));
  env.loop.advance(2s);
  ASSERT_EQ(last.calls.size(), 1U);
  last.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
  EXPECT_EQ(last.status(), "completed");
  EXPECT_EQ(last.read().state.closed_waits.at("go").payload, Value(1));
  EXPECT_EQ(last.read().state.closed_waits.at("on").payload, Value(7));
}

// The page of a process that dies in a slice of the job after it sent its newest call.
Page die_in_slice(TestEnvironment& env, std::uint64_t seed, Page left) {
  RunningSlot before(left);
  WorkerFixture worker(env, "sender", {.owned = true, .seed = seed, .slot = &before});
  worker.runtime->start();
  if (seed == 1) worker.create(plan("idempotent", kOneCall));
  env.loop.advance(2s);
  AE_CHECK(worker.calls.size() == 1, worker.status());
  Page page{};
  RunningSlot slot(page);
  const RunningSlot::Slice slice(&slot, RunningSlot::name_of(kJob, *worker.read().row.claim));
  const Page at_death = page;
  return at_death;
}

AE_TEST("process_death/a cancelled job that was parked with its inbox loses no message") {
  TestEnvironment env;
  Page page = die_in_slice(env, 2, die_in_slice(env, 1, Page{}));
  RunningSlot slot(page);
  WorkerFixture worker(env, "third", {.owned = true, .seed = 3, .may_claim = false, .slot = &slot});
  ASSERT_TRUE(
      worker.submit({.id = "one", .by = "ann", .body = engine::MessageRequest{.channel = "c"}}));
  worker.runtime->start();
  env.loop.advance(2s);
  ASSERT_EQ(worker.read().state.parked_reason, "worn_out");
  ASSERT_EQ(worker.read().inbox.size(), 1U);
  ASSERT_TRUE(worker.submit({.id = "c", .by = "ann", .body = engine::CancelRequest{}}));
  // From here on any commit may end the job, also one of a process that claims nothing.
  const auto read = worker.read();
  const auto kept = all_of<AgentMessage>(read.events);
  ASSERT_EQ(kept.size(), 1U);
  EXPECT_EQ(kept[0]->message_id, "one");
  EXPECT_TRUE(read.inbox.empty());
}

AE_TEST(
    "process_death/a late result for a worn-out job is applied by the attempt after its resume") {
  TestEnvironment env;
  Page page = die_in_slice(env, 2, die_in_slice(env, 1, Page{}));
  {
    RunningSlot slot(page);
    WorkerFixture worker(env, "looks",
                         {.owned = true, .seed = 3, .may_claim = false, .slot = &slot});
    worker.runtime->start();
    env.loop.advance(2s);
    const auto read = worker.read();
    ASSERT_EQ(read.state.parked_reason, "worn_out");
    const engine::SentTry sent = engine::sent_try_of(read.state, read.state.steps[0]);
    const Outcome seven{.kind = OutcomeKind::success, .result = json("7")};
    store::Batch late;
    late.job = kJob;
    late.authority = store::Batch::LateResult{};
    late.effects.push_back(
        {sent.invocation, sent.try_no,
         canonical(engine::effect_record(kJob, sent, seven, worker.faulty->now()))});
    ASSERT_TRUE(env.loop.await<Result<store::CommitResult>>(
        [&](auto done) { worker.faulty->commit(std::move(late), std::move(done)); }));
    for (const engine::RequestBody& body : {engine::RequestBody(engine::VersionRequest{}),
                                            engine::RequestBody(engine::TimersRequest{})}) {
      ASSERT_TRUE(worker.submit({.by = "looks", .body = body}));
    }
    EXPECT_EQ(worker.read().row.last_seq, read.row.last_seq) << "no check applies it";
  }
  WorkerFixture last(env, "last", {.owned = true, .seed = 4});
  last.runtime->start();
  ASSERT_TRUE(last.submit({.id = "r", .by = "ann", .body = engine::ResumeRequest{}}));
  env.loop.advance(2s);
  EXPECT_EQ(last.status(), "completed");
  EXPECT_EQ(last.calls.size(), 0U);
}

AE_TEST("process_death/a late result for a cancelled worn-out job is recorded") {
  TestEnvironment env;
  Page page = die_in_slice(env, 2, die_in_slice(env, 1, Page{}));
  {
    RunningSlot slot(page);
    WorkerFixture worker(env, "looks",
                         {.owned = true, .seed = 3, .may_claim = false, .slot = &slot});
    worker.runtime->start();
    env.loop.advance(2s);
    const auto read = worker.read();
    ASSERT_EQ(read.state.parked_reason, "worn_out");
    const engine::SentTry sent = engine::sent_try_of(read.state, read.state.steps[0]);
    const Outcome seven{.kind = OutcomeKind::success, .result = json("7")};
    store::Batch late;
    late.job = kJob;
    late.authority = store::Batch::LateResult{};
    late.effects.push_back({sent.invocation, sent.try_no,
                            canonical(engine::effect_record(kJob, sent, seven, worker.faulty->now(),
                                                            engine::Arrival::late))});
    ASSERT_TRUE(env.loop.await<Result<store::CommitResult>>(
        [&](auto done) { worker.faulty->commit(std::move(late), std::move(done)); }));
    ASSERT_TRUE(worker.submit({.id = "c", .by = "ann", .body = engine::CancelRequest{}}));
  }
  WorkerFixture last(env, "last", {.owned = true, .seed = 4});
  last.runtime->start();
  env.loop.advance(2s);
  EXPECT_EQ(last.status(), "cancelled");
  EXPECT_EQ(last.calls.size(), 0U);
  EXPECT_EQ(last.read().state.unknown_call_keys().size(), 0U) << "its result is in the log";
}

AE_TEST("process_death/a death is recorded once, even if the recording process dies") {
  TestEnvironment env;
  const Page left = run_until_death(env, "first", true, Page{}, create_queued);
  for (int i = 0; i < 3; ++i) {  // none of these cleared the page
    Page page = left;
    RunningSlot slot(page);
    WorkerFixture worker(
        env, "again",
        {.owned = true, .seed = std::uint64_t(50 + i), .may_claim = false, .slot = &slot});
    worker.runtime->start();
    env.loop.advance(2s);
    EXPECT_EQ(worker.read().state.process_deaths, 1U) << i;
  }
}

AE_TEST("process_death/a death is recorded also for a job with inbox entries") {
  TestEnvironment env;
  const Page left = run_until_death(env, "first", true, Page{}, create_queued);
  for (int i = 0; i < 2; ++i) {
    Page page = left;
    RunningSlot slot(page);
    WorkerFixture worker(
        env, "again",
        {.owned = true, .seed = std::uint64_t(60 + i), .may_claim = false, .slot = &slot});
    ASSERT_TRUE(worker.submit({.id = "p", .by = "ann", .body = engine::PauseRequest{}}));
    worker.runtime->start();
    env.loop.advance(2s);
    EXPECT_EQ(worker.read().state.process_deaths, 1U) << i;
  }
  WorkerFixture worker(env, "last", {.owned = true, .seed = 71});
  worker.runtime->start();
  env.loop.advance(2s);
  EXPECT_EQ(worker.status(), "parked") << "the pause is applied";
  EXPECT_EQ(worker.read().state.parked_reason, "paused");
}

AE_TEST("process_death/a death is not recorded if another worker has claimed the job since") {
  TestEnvironment env;
  const Page left = run_until_death(env, "first", false, Page{}, create_queued);
  WorkerFixture other(env, "other", {.seed = 80});
  other.runtime->start();
  env.loop.advance(40s);
  ASSERT_EQ(other.calls.size(), 1U);
  Page page = left;
  RunningSlot slot(page);
  WorkerFixture worker(env, "again", {.seed = 81, .slot = &slot});
  worker.runtime->start();
  env.loop.advance(2s);
  EXPECT_EQ(interrupted_in(page), "");
  EXPECT_EQ(other.read().state.process_deaths, 0U);
  other.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
  EXPECT_EQ(other.status(), "completed");
}

AE_TEST("process_death/no job is claimed before the death is recorded") {
  TestEnvironment env;
  const Page left = run_until_death(env, "first", true, Page{}, create_queued);
  Page page = left;
  RunningSlot slot(page);
  WorkerFixture worker(env, "again", {.owned = true, .seed = 90, .slot = &slot});
  worker.script = [](const store::Call& call) {
    return call.method == Method::commit ? Fault::fail_before : Fault::none;
  };
  bool held = false;
  worker.runtime->claim_job(kJob, [&](Result<bool> got) { held = got && *got; });
  worker.runtime->start();
  env.loop.advance(5s);
  EXPECT_FALSE(held);
  EXPECT_FALSE(worker.runtime->is_leased(kJob));
  EXPECT_NE(interrupted_in(page), "") << "it is not recorded yet";
  worker.script = [](const store::Call&) { return Fault::none; };
  env.loop.advance(2s);
  EXPECT_TRUE(held);
  EXPECT_EQ(worker.read().state.process_deaths, 1U);
}

AE_TEST("process_death/a runtime destroyed during an outage records nothing more") {
  TestEnvironment env;
  const Page left = run_until_death(env, "first", true, Page{}, create_queued);
  Page page = left;
  {
    RunningSlot slot(page);
    WorkerFixture worker(env, "again", {.owned = true, .seed = 91, .slot = &slot});
    worker.script = [](const store::Call&) { return Fault::fail_before; };
    worker.runtime->start();
    env.loop.advance(5s);
  }
  env.loop.advance(5s);
  EXPECT_NE(interrupted_in(page), "");
}

AE_TEST("process_death/a page that names an unknown job delays nothing") {
  TestEnvironment env;
  Page page{};
  {
    RunningSlot slot(page);
    const std::string name = RunningSlot::name_of(JobId("gone"), {AttemptId("a"), 1});
    const RunningSlot::Slice slice(&slot, name);
    Page left = page;
    RunningSlot next(left);
    WorkerFixture worker(env, "w", {.owned = true, .slot = &next});
    worker.runtime->start();
    env.loop.advance(1s);
    worker.create(plan("idempotent", kOneCall));
    EXPECT_EQ(worker.calls.size(), 1U);
    EXPECT_EQ(interrupted_in(left), "");
  }
}

}  // namespace
}  // namespace ae::runtime::testing
