// Jobs that wait for a process that offers their versions: left to it, parked, and resumed.
#include "runtime/versions.h"

#include "runtime/desk_test.h"
#include "testing/test.h"

namespace ae::runtime::testing {
namespace {

using namespace std::chrono_literals;

std::shared_ptr<const engine::Plan> bound(std::string_view policy,
                                          std::string_view effect = "idempotent",
                                          std::string_view nodes = kOneCall) {
  const auto unbound = plan(effect, nodes);
  auto compiled = engine::Plan::compile(
      unbound->task_graph.with("versions", Value::object({{"policy", policy}})));
  AE_CHECK(compiled.has_value(), compiled ? "" : compiled.error().message);
  return *compiled;
}

Desk::Setup worker(std::string version, std::uint64_t seed) {
  return {.seed = seed, .version = std::move(version), .announces = true};
}

Desk::Setup owner(std::string version, std::uint64_t seed) {
  Desk::Setup setup = worker(std::move(version), seed);
  setup.owned = true;
  return setup;
}

std::size_t count(Desk& desk, EventType type) { return all_of(desk.read().events, type).size(); }

// The job's first process has made it and is gone.
void left_by_first(Ground& ground, std::string_view policy, bool owned) {
  Desk first(ground, "first", owned ? owner("one", 1) : worker("one", 1));
  first.create(bound(policy));
  AE_CHECK(first.calls.size() == 1);
  first.runtime.reset();
}

AE_TEST(
    "versions/the owner of a store parks a strict job of another version, and its own resumes it") {
  Ground ground;
  left_by_first(ground, "strict", true);
  {
    Desk other(ground, "other", owner("two", 2));
    other.runtime->start();
    ground.loop.advance(5s);
    ASSERT_EQ(other.status(), "parked");
    EXPECT_EQ(other.calls.size(), 0u);
    EXPECT_FALSE(other.read().row.claim);
    EXPECT_TRUE(other.read().state.awaits_version());
    EXPECT_EQ(count(other, EventType::version_mismatched), 1u);
    ground.loop.advance(3min);
    EXPECT_EQ(count(other, EventType::job_parked), 1u) << "it rests";
    other.runtime.reset();
  }
  Desk right(ground, "right", owner("one", 3));
  right.runtime->start();
  ground.loop.advance(5s);
  ASSERT_EQ(right.calls.size(), 1u);
  EXPECT_EQ(right.calls[0].call.try_no, 2u) << "the open call was sent again under its key";
  right.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  EXPECT_EQ(right.status(), "completed");
  EXPECT_EQ(count(right, EventType::job_resumed), 1u);
}

AE_TEST(
    "versions/without a worker of its version a strict job parks, and goes on when one starts") {
  Ground ground;
  left_by_first(ground, "strict", false);
  Desk other(ground, "other", worker("two", 2));
  other.runtime->start();
  ground.loop.advance(65s);  // the first one's lease has run out
  ASSERT_EQ(other.status(), "parked");
  EXPECT_EQ(other.calls.size(), 0u);
  Desk right(ground, "right", worker("one", 3));
  right.runtime->start();
  ground.loop.advance(65s);
  ASSERT_EQ(right.calls.size(), 1u);
  EXPECT_EQ(other.calls.size(), 0u);
  right.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  EXPECT_EQ(right.status(), "completed");
}

AE_TEST("versions/while a worker of its version is announced a strict job is left to it") {
  Ground ground;
  Desk right(ground, "right", worker("one", 1));
  right.script = [](const store::Call& call) {  // it is busy: it claims nothing
    return call.method == Method::claim ? Fault::fail_before : Fault::none;
  };
  right.runtime->start();
  left_by_first(ground, "strict", false);
  Desk other(ground, "other", worker("two", 2));
  const auto before = other.read().row.last_seq;
  other.runtime->start();
  ground.loop.advance(2min);
  EXPECT_EQ(other.read().row.last_seq, before) << "nothing is written by who leaves it";
  EXPECT_FALSE(other.read().row.claim);
  ASSERT_TRUE(other.runtime->refuses(kJob));
  EXPECT_EQ(other.runtime->refuses(kJob)->code, Code::execution_version_mismatch);
  right.runtime.reset();  // it dies: what it announced lapses
  ground.loop.advance(2min);
  EXPECT_EQ(other.status(), "parked");
  EXPECT_EQ(other.calls.size(), 0u);
}

AE_TEST("versions/a route job stays queued, whoever looks, and never parks") {
  Ground ground;
  {
    Desk first(ground, "first", worker("one", 1));
    NewJobRequest request;
    request.job = kJob;
    request.agent = "agent";
    request.plan = bound("route");
    request.hold = false;
    auto made = ground.loop.await<Result<Created>>(
        [&](auto done) { first.runtime->create(request, std::move(done)); });
    ASSERT_TRUE(made);
    first.runtime.reset();
  }
  Desk other(ground, "other", worker("two", 2));
  const auto before = other.read().row.last_seq;
  other.runtime->start();
  ground.loop.advance(3min);
  EXPECT_EQ(other.status(), "queued");
  EXPECT_EQ(other.read().row.last_seq, before);
  EXPECT_EQ(other.read().state.epoch, 0u) << "it was never claimed";
  EXPECT_EQ(other.runtime->missing(other.read().row),
            std::vector<std::string>{"execution_version:agent=one"});
  Desk right(ground, "right", worker("one", 3));
  right.runtime->start();
  ground.loop.advance(5s);
  EXPECT_EQ(right.calls.size(), 1u);
}

AE_TEST("versions/a strict job that parks behind a sweep is found by the next one") {
  Ground ground;
  Desk right(ground, "right", worker("one", 1));
  bool blind = true;
  right.script = [&](const store::Call& call) {
    return blind && call.method == Method::query ? Fault::fail_before : Fault::none;
  };
  left_by_first(ground, "strict", false);
  {
    Desk other(ground, "other", worker("two", 2));
    other.runtime->start();
    ground.loop.advance(65s);
    ASSERT_EQ(other.status(), "parked");
    other.runtime.reset();
  }
  right.runtime->start();
  ground.loop.advance(5s);
  EXPECT_EQ(right.status(), "parked");
  blind = false;
  ground.loop.advance(2min);
  EXPECT_EQ(right.calls.size(), 1u);
}

AE_TEST("versions/a process that offers other versions from now on looks at what is parked again") {
  Ground ground;
  left_by_first(ground, "strict", true);
  Desk desk(ground, "desk", owner("two", 2));
  desk.runtime->start();
  ground.loop.advance(5s);
  ASSERT_EQ(desk.status(), "parked");
  ground.loop.advance(5min);  // it has looked, and waits for the log to grow
  desk.runtime->offer({"agent"}, {{"agent", "one"}});
  ground.loop.advance(5s);
  ASSERT_EQ(desk.calls.size(), 1u);
  EXPECT_EQ(count(desk, EventType::job_resumed), 1u);
}

AE_TEST("versions/a process that gets the version while it looks who else has it takes the job") {
  Ground ground;
  left_by_first(ground, "strict", false);
  Desk desk(ground, "desk", worker("two", 2));
  bool asks = false;
  desk.script = [&](const store::Call& call) {
    if (call.method != Method::census) return Fault::none;
    asks = true;
    return Fault::delay_answer;
  };
  desk.runtime->start();
  for (int i = 0; i < 2000 && !(asks && desk.runtime->holds(kJob)); ++i) ground.loop.advance(50ms);
  ASSERT_TRUE(asks && desk.runtime->holds(kJob));
  EXPECT_EQ(count(desk, EventType::job_running), 1u) << "its own attempt has not begun";
  desk.runtime->offer({"agent"}, {{"agent", "one"}});
  ground.loop.advance(45s);
  ASSERT_EQ(desk.calls.size(), 1u);
  EXPECT_EQ(count(desk, EventType::job_parked), 0u);
  EXPECT_EQ(count(desk, EventType::version_mismatched), 0u);
  const auto read = desk.read();
  for (const auto* started : all_of<ToolInvocationStarted>(read.events)) {
    EXPECT_EQ(started->tool_version, "0123456789abcdef");
  }
  desk.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  EXPECT_EQ(desk.status(), "completed");
}

AE_TEST("versions/a parked job that the store did not let a sweep tell is told by the next one") {
  Ground ground;
  left_by_first(ground, "strict", true);
  {
    Desk other(ground, "other", owner("two", 2));
    other.runtime->start();
    ground.loop.advance(5s);
    ASSERT_EQ(other.status(), "parked");
    other.runtime.reset();
  }
  Desk right(ground, "right", owner("one", 3));
  std::size_t refused = 0;
  right.script = [&](const store::Call& call) {
    if (call.method != Method::load || refused > 0) return Fault::none;
    ++refused;
    return Fault::fail_before;
  };
  right.runtime->start();
  ground.loop.advance(5s);
  ASSERT_EQ(refused, 1u);
  EXPECT_EQ(right.status(), "parked");
  ground.loop.advance(2min);
  EXPECT_EQ(right.calls.size(), 1u);
}

AE_TEST("versions/a strict job is left to no worker that cannot claim it, nor resumed by one") {
  Ground ground;
  Desk::Setup able = worker("one", 1);
  able.capabilities = {"gpu"};
  {
    Desk first(ground, "first", able);
    NewJobRequest request;
    request.job = kJob;
    request.agent = "agent";
    request.plan = bound("strict");
    request.required_capabilities = {"gpu"};
    request.hold = false;
    ASSERT_TRUE(ground.loop.await<Result<Created>>(
        [&](auto done) { first.runtime->create(request, std::move(done)); }));
    first.runtime.reset();
  }
  Desk unable(ground, "unable", worker("one", 2));
  unable.runtime->start();
  Desk::Setup two = worker("two", 3);
  two.capabilities = {"gpu"};
  Desk other(ground, "other", two);
  other.runtime->start();
  ground.loop.advance(10s);
  EXPECT_EQ(other.status(), "parked");
  ground.loop.advance(4min);
  EXPECT_EQ(count(other, EventType::job_parked), 1u);
  EXPECT_EQ(other.status(), "parked");
  able.seed = 4;
  Desk right(ground, "right", able);
  right.runtime->start();
  ground.loop.advance(5s);
  EXPECT_EQ(right.calls.size(), 1u);
}

AE_TEST("versions/an attempt keeps the version under which it began") {
  Ground ground;
  Desk desk(ground, "desk", owner("one", 1));
  desk.runtime->start();
  desk.create(bound("strict", "at_most_once",
                    "[{'id':'a', 'kind':'tool', 'tool':'do'}, {'id':'b', 'kind':'tool', "
                    "'tool':'do'}, {'id':'c', 'kind':'tool', 'tool':'do', 'needs':['a']}]"));
  ASSERT_EQ(desk.calls.size(), 2u);
  desk.runtime->offer({"agent"}, {{"agent", "two"}});
  desk.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  EXPECT_EQ(desk.status(), "running");
  EXPECT_EQ(count(desk, EventType::job_parked), 0u);
  ASSERT_EQ(desk.calls.size(), 3u);
  desk.answer(1, {.kind = OutcomeKind::success, .result = json("1")});
  desk.answer(2, {.kind = OutcomeKind::success, .result = json("1")});
  EXPECT_EQ(desk.status(), "completed");
  EXPECT_EQ(count(desk, EventType::version_mismatched), 0u);
}

AE_TEST("versions/a process that claims nothing by itself resumes the job that it is given") {
  Ground ground;
  left_by_first(ground, "strict", true);
  {
    Desk other(ground, "other", owner("two", 2));
    other.runtime->start();
    ground.loop.advance(5s);
    ASSERT_EQ(other.status(), "parked");
    other.runtime.reset();
  }
  Desk::Setup only = owner("one", 3);
  only.claims = false;
  Desk right(ground, "right", only);
  right.runtime->start();
  ground.loop.advance(5s);
  EXPECT_EQ(right.status(), "parked");
  const auto claimed = ground.loop.await<Result<bool>>(
      [&](auto done) { right.runtime->claim_job(kJob, std::move(done)); });
  ASSERT_TRUE(claimed);
  EXPECT_TRUE(*claimed);
  ground.loop.run_ready();
  EXPECT_EQ(right.calls.size(), 1u);
}

AE_TEST(
    "versions/a call that a changed tool left in doubt is sent again where the tool is as it was") {
  Ground ground;
  std::string key;
  {
    Desk first(ground, "first", owner("one", 1));
    first.create(plan("idempotent", kOneCall));
    key = first.calls.at(0).call.key.text;
    first.runtime.reset();
  }
  {
    Desk::Setup changed = owner("one", 2);
    changed.tool_version = "ffffffffffffffff";
    Desk other(ground, "other", changed);
    other.runtime->start();
    ground.loop.advance(5s);
    ASSERT_EQ(other.status(), "parked");
    EXPECT_EQ(other.read().state.parked_until, "resolve");
    ground.loop.advance(2min);
    EXPECT_EQ(other.status(), "parked");
    other.runtime.reset();
  }
  Desk right(ground, "right", owner("one", 3));
  right.runtime->start();
  ground.loop.advance(5s);
  ASSERT_EQ(right.calls.size(), 1u);
  EXPECT_EQ(right.calls[0].call.key.text, key);
  right.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  EXPECT_EQ(right.status(), "completed");
}

AE_TEST("versions/a job keeps the tool that it has when there is a newer one") {
  Ground ground;
  Desk desk(ground, "w", owner("one", 1));
  desk.create(plan("idempotent",
                   "[{'id':'a', 'kind':'tool', 'tool':'do'},"
                   " {'id':'b', 'kind':'tool', 'tool':'do', 'needs':['a']}]"));
  ASSERT_EQ(desk.calls.size(), 1u);
  std::deque<Waiting> newer;
  desk.performers.renew("do", {std::make_unique<SlowTool>(newer), "ffffffffffffffff"});
  desk.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  ASSERT_EQ(desk.calls.size(), 2u) << "its next call is one of the same tool";
  EXPECT_TRUE(newer.empty());
  desk.answer(1, {.kind = OutcomeKind::success, .result = json("2")});
  EXPECT_EQ(desk.status(), "completed");
  EXPECT_FALSE(desk.warned("has changed"));
}

AE_TEST("versions/what a worker announces is read with care") {
  EXPECT_FALSE(worker_offer(""));
  EXPECT_FALSE(worker_offer("[]"));
  const auto offer = worker_offer(R"({"agents":["a"],"offers":["gpu","execution_version:a=1"]})");
  ASSERT_TRUE(offer);
  EXPECT_TRUE(takes(*offer, "a"));
  EXPECT_FALSE(takes(*offer, "b"));
}

}  // namespace
}  // namespace ae::runtime::testing
