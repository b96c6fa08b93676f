// Two workers, one store, a tool that answers when the test says so: what the runtime does when things come late, in the
// wrong order, or not at all.
//
// Method: a Desk is one worker: a runtime over its own faulty view of one disk in memory, and a tool `do` whose calls wait
// in `Desk::calls` until the test answers them. Time moves only by `advance`.
#include "runtime/runtime.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <deque>
#include <memory>
#include <type_traits>

#include "core/bytes.h"
#include "core/json.h"
#include "core/seal.h"
#include "core/trace_context.h"
#include "engine/beside.h"
#include "engine/checkpoint.h"
#include "runtime/ledger.h"
#include "store/faulty/faulty_store.h"
#include "store/memory/memory_store.h"
#include "testing/test.h"
#include "testing/test_loop.h"

namespace ae::runtime {
namespace {

using namespace std::chrono_literals;
using store::Fault;
using store::Method;
using testing::TestChance;
using testing::TestLoop;
using testing::TestSteady;

const JobId kJob("job-1");

Value json(std::string_view text) {
  std::string quoted(text);
  std::ranges::replace(quoted, '\'', '"');
  auto value = parse_json(quoted);
  AE_CHECK(value.has_value(), quoted);
  return *value;
}

// One call of a tool, then whatever `more` adds; the tool's effect class is `effect`.
std::shared_ptr<const engine::Plan> plan(std::string_view effect, std::string_view nodes) {
  const std::string in_doubt = effect == "at_most_once" ? "park" : "resend";
  Value graph = json(
      "{'schema':1, 'nodes': " + std::string(nodes) + ", 'tools': {'do': {'effect':'" +
      std::string(effect) + "', 'on_in_doubt':'" + in_doubt +
      "', 'timeout':'600s', 'grace':'30s', 'dedupe_window':'24h', 'version':'0123456789abcdef',"
      " 'retry':{'max_attempts':1, 'initial_backoff':'200ms', 'max_backoff':'10s',"
      " 'multiplier':2, 'retry_on':['connect']}}}}");
  auto compiled = engine::Plan::compile(graph);
  AE_CHECK(compiled.has_value(), compiled ? "" : compiled.error().message);
  return *compiled;
}

// `do` is at_most_once, asked about by `ask` and undone by `undo`.
std::shared_ptr<const engine::Plan> plan_with_sides(std::string_view nodes) {
  const std::string policy =
      "'timeout':'10s', 'grace':'30s', 'dedupe_window':'24h', 'version':'0123456789abcdef',"
      "'retry':{'max_attempts':1, 'initial_backoff':'200ms', 'max_backoff':'10s',"
      "'multiplier':2, 'retry_on':['connect']}";
  auto compiled = engine::Plan::compile(
      json("{'schema':1, 'nodes': " + std::string(nodes) +
           ", 'tools': {'do': {'effect':'at_most_once', 'on_in_doubt':'probe',"
           "'probe': {'tool':'ask', 'args':{'key':'${ .call.external_key }'}, 'happened':'${ "
           ".result }'},"
           "'compensate': {'tool':'undo', 'args':{'what':'${ .result }'}}," +
           policy + "}, 'ask': {'effect':'read', 'on_in_doubt':'resend'," + policy +
           "}, 'undo': {'effect':'idempotent', 'on_in_doubt':'resend'," + policy + "}}}"));
  AE_CHECK(compiled.has_value(), compiled ? "" : compiled.error().message);
  return *compiled;
}

constexpr std::string_view kOneCall = "[{'id':'a', 'kind':'tool', 'tool':'do'}]";

struct Waiting {
  tools::Call call;
  async::Done<Outcome> done;
  bool abandoned = false;
};

class SlowTool final : public tools::Tool {
 public:
  explicit SlowTool(std::deque<Waiting>& calls) : calls_(calls) {}
  void perform(tools::Permit permit, tools::Call call, async::Done<Outcome> done) override {
    std::move(permit).use(call.invocation, call.try_no);
    calls_.push_back({std::move(call), std::move(done)});
  }
  void abandon(const InvocationId& invocation, std::uint32_t try_no) override {
    for (Waiting& waiting : calls_) {
      const bool mine = waiting.call.invocation == invocation && waiting.call.try_no == try_no;
      waiting.abandoned = waiting.abandoned || mine;
    }
  }

 private:
  std::deque<Waiting>& calls_;
};

struct Ground {
  TestLoop loop;
  TestSteady steady{loop};
  store::MemoryDisk disk;
};

class Desk final : public RuntimeObserver {
 public:
  struct Setup {
    bool owned = false;
    Durability durability = Durability::fused;
    std::uint64_t seed = 1;
    std::uint64_t checkpoint_every = 1000;
    Duration delay = 100ms;  // of what is slow
    std::vector<store::QueueLimit> queues = {};
    engine::PlanCache* plans = nullptr;
    bool claims = true;
  };
  Desk(Ground& ground, std::string name, const Setup& setup) : ground_(ground), chance(setup.seed) {
    memory.emplace(ground.loop, ground.loop, ground.disk,
                   store::MemoryStore::Options{.owned = setup.owned});
    faulty.emplace(ground.loop, *memory,
                   store::FaultyStore::Options{
                       .script = [this](const store::Call& call) { return script(call); },
                       .delay = setup.delay});
    for (const char* tool : {"do", "ask", "undo"}) {
      performers.add(tool, {std::make_unique<SlowTool>(calls), "0123456789abcdef"});
    }
    runtime.emplace(World{ground.loop, ground.steady, chance, *faulty, performers, setup.plans},
                    RuntimeOptions{.worker = std::move(name),
                                   .durability = setup.durability,
                                   .claims = setup.claims,
                                   .checkpoint_every = setup.checkpoint_every,
                                   .queues = setup.queues},
                    static_cast<RuntimeObserver*>(this));
  }

  void create(std::shared_ptr<const engine::Plan> of) {
    NewJobRequest request;
    request.job = kJob;
    request.agent = "agent";
    request.plan = std::move(of);
    auto made = ground_.loop.await<Result<Created>>(
        [&](auto done) { runtime->create(request, std::move(done)); });
    AE_CHECK(made.has_value(), made ? "" : made.error().message);
    ground_.loop.run_ready();
  }
  Result<Value> act(engine::Act act) {
    auto answer = ground_.loop.await<Result<Value>>(
        [&](auto done) { runtime->act(kJob, std::move(act), std::move(done)); });
    ground_.loop.run_ready();
    return answer;
  }
  // The same of an act that is answered when whoever holds the job has looked at it.
  Result<Value> act_and_wait(engine::Act act) {
    auto answer = std::make_shared<std::optional<Result<Value>>>();
    runtime->act(kJob, std::move(act), [answer](Result<Value> said) { answer->emplace(said); });
    for (int i = 0; i < 1500 && !*answer; ++i) ground_.loop.advance(10ms);
    AE_CHECK(answer->has_value());
    return **answer;
  }
  Result<Value> signal(std::string key, std::string id) {
    return act({.kind = engine::Act::Kind::signal,
                .id = std::move(id),
                .correlation_key = std::move(key),
                .payload = json("'said'")});
  }
  Result<Value> resolve(std::string resolution) {
    const auto read = this->read();
    engine::Act act{.kind = engine::Act::Kind::resolve, .resolution = std::move(resolution)};
    for (const engine::Step& step : read.state.steps) {
      if (step.call) act.idempotency_key = step.call->key.text;
    }
    return this->act(act);
  }
  Runtime::Read read() {
    auto read = ground_.loop.await<Result<Runtime::Read>>(
        [&](auto done) { runtime->read(kJob, std::move(done)); });
    AE_CHECK(read.has_value(), read ? "" : read.error().message);
    return *std::move(read);
  }
  std::string status() { return std::string(engine::to_text(read().state.status)); }
  void answer(std::size_t call, Outcome outcome) {
    calls.at(call).done(std::move(outcome));
    ground_.loop.run_ready();
  }
  bool warned(std::string_view words) const {
    return std::ranges::any_of(
        warnings, [&](const std::string& text) { return text.find(words) != text.npos; });
  }

  void on_warning(const JobId&, const std::string& what) override { warnings.push_back(what); }
  void on_store(const std::optional<Error>& out) override { outages += out ? "out " : "back "; }
  void on_store_stopped(const Error& error) override { stopped = error; }

  Ground& ground_;
  std::deque<Waiting> calls;
  std::vector<std::string> warnings;
  std::string outages;  // "out back out …"
  std::optional<Error> stopped;
  std::function<Fault(const store::Call&)> script = [](const store::Call&) { return Fault::none; };
  TestChance chance;
  std::optional<store::MemoryStore> memory;
  std::optional<store::FaultyStore> faulty;
  Performers performers;
  std::optional<Runtime> runtime;
};

// Its heartbeats and claims do not arrive; everything else does.
Fault without_heartbeat(const store::Call& call) {
  const bool lost = call.method == Method::heartbeat || call.method == Method::claim;
  return lost ? Fault::fail_before : Fault::none;
}

// One worker called and then lost the job to another, which left it to settle; the call is still under way.
struct TwoWorkers {
  explicit TwoWorkers(std::string_view effect, Durability durability = Durability::fused)
      : first(ground, "first", {.durability = durability, .seed = 1}),
        second(ground, "second", {.durability = durability, .seed = 1'000'001}) {
    first.runtime->start();
    first.create(plan(effect, kOneCall));
    AE_CHECK(first.calls.size() == 1);
    first.script = without_heartbeat;
    ground.loop.advance(20s);
    second.runtime->start();
    ground.loop.advance(22s);  // its lease of 30 s has run out, and it has noticed
    AE_CHECK(second.read().state.epoch == 2, "the second never claimed");
    AE_CHECK(!first.runtime->holds(kJob), first.status());
  }
  Ground ground;
  Desk first, second;
};

AE_TEST(
    "lease/a worker that lost its lease writes nothing more but what it then hears for certain") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    TwoWorkers two("at_most_once", durability);
    EXPECT_TRUE(two.first.calls[0].abandoned) << "what can be cancelled is cancelled";
    two.first.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
    EXPECT_TRUE(two.first.warned("is kept"));
    const auto read = two.second.read();
    ASSERT_EQ(read.effects.size(), 1u);
    EXPECT_NE(read.effects[0].record.find(R"("late":true)"), std::string::npos);
    EXPECT_EQ(read.state.epoch, 2u) << "the log is the second worker's";
  }
}

AE_TEST("late/what was seen and refused with a lost lease is kept for whoever holds the job") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    Ground ground;
    Desk first(ground, "first", {.durability = durability, .seed = 1, .delay = 10min});
    Desk second(ground, "second", {.durability = durability, .seed = 1'000'001});
    first.runtime->start();
    first.create(plan("at_most_once", kOneCall));
    ASSERT_EQ(first.calls.size(), 1u);
    first.script = [](const store::Call& call) {  // it hears nothing of its lease
      const bool silent = call.method == Method::heartbeat || call.method == Method::claim;
      return silent ? Fault::delay : Fault::none;
    };
    ground.loop.advance(20s);
    second.runtime->start();
    ground.loop.advance(22s);
    ASSERT_EQ(second.read().state.epoch, 2u);
    ASSERT_TRUE(first.runtime->holds(kJob)) << "it does not know better";
    first.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
    EXPECT_FALSE(first.runtime->holds(kJob));
    const auto read = second.read();
    ASSERT_EQ(read.effects.size(), 1u) << "what it saw is lost";
    EXPECT_NE(read.effects[0].record.find(R"("output":7)"), std::string::npos);
    ground.loop.advance(60s);
    EXPECT_EQ(second.calls.size(), 0u);
    EXPECT_EQ(second.status(), "completed");
  }
}

// The trace is the asker's, the span follows from job, call and try; nothing of it is part of what is asked.
AE_TEST("call/its trace context is the same again after a crash, but for the try") {
  constexpr std::string_view kAsked = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  std::string key;
  for (const bool asked : {true, false}) {
    Ground ground;
    std::string first;
    {
      Desk desk(ground, "w1", {.owned = true});
      NewJobRequest request;
      request.job = kJob;
      request.agent = "agent";
      request.plan = plan("idempotent", kOneCall);
      if (asked) request.traceparent = kAsked, request.tracestate = "congo=x";
      ASSERT_TRUE(ground.loop.await<Result<Created>>(
          [&](auto done) { desk.runtime->create(request, std::move(done)); }));
      ground.loop.run_ready();
      ASSERT_EQ(desk.calls.size(), 1u);
      const tools::Call& call = desk.calls[0].call;
      first = call.traceparent;
      const std::string trace = asked ? "0af7651916cd43dd8448eb211c80319c" : trace_id_of(kJob);
      EXPECT_EQ(first, traceparent(trace, span_id_of(kJob, call.invocation, 1), 1));
      EXPECT_EQ(call.tracestate, asked ? "congo=x" : "");
      if (!key.empty()) {
        EXPECT_EQ(call.key.text, key) << "no part of the key";
      }
      key = call.key.text;
    }
    Desk desk(ground, "w2", {.owned = true, .seed = 1000});
    desk.runtime->start();
    ground.loop.run_ready();
    ASSERT_EQ(desk.calls.size(), 1u);
    const tools::Call& again = desk.calls[0].call;
    EXPECT_EQ(again.try_no, 2u);
    EXPECT_EQ(again.traceparent.substr(0, 36), first.substr(0, 36)) << "one trace";
    EXPECT_NE(again.traceparent, first) << "a span of its own";
    EXPECT_EQ(again.traceparent.substr(36, 16), span_id_of(kJob, again.invocation, 2));
    desk.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
    EXPECT_EQ(desk.status(), "completed");
  }
}

AE_TEST("call/one that is durable too late is not sent; the next try is") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true, .delay = 40s});
  int commits = 0;
  desk.script = [&](const store::Call& call) {
    const bool declares = call.method == Method::commit && ++commits == 2;
    return declares ? Fault::delay_answer : Fault::none;
  };
  desk.runtime->start();
  desk.create(plan("at_most_once", kOneCall));
  EXPECT_EQ(desk.calls.size(), 0u) << "nobody knows yet that it is declared";
  ground.loop.advance(41s);
  ASSERT_EQ(desk.calls.size(), 1u);
  EXPECT_EQ(desk.calls[0].call.try_no, 2u) << "the first one's time to be sent had passed";
  desk.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
  EXPECT_EQ(desk.status(), "completed");
}

AE_TEST("call/what was slept while a claim or a commit was answered is no time to send in") {
  Ground ground;
  Desk desk(ground, "w", {.owned = false});
  int commits = 0;
  desk.script = [&](const store::Call& call) {
    // The answer to the declaration took so long, on a clock that counts suspend, that the lease may be over.
    if (call.method == Method::commit) desk.faulty->doubt_clock(++commits == 2 ? 31s : 0s);
    return Fault::none;
  };
  desk.runtime->start();
  desk.create(plan("at_most_once", kOneCall));
  EXPECT_EQ(desk.calls.size(), 0u);
  ground.loop.advance(5s);
  ASSERT_EQ(desk.calls.size(), 1u);
  EXPECT_EQ(desk.calls[0].call.try_no, 2u) << "the first one was withdrawn";
  EXPECT_LE(desk.calls[0].call.send_within, 30s);
  const auto read = desk.read();
  const auto withdrawn = std::ranges::find_if(read.events, [](const Event& event) {
    return event.type == EventType::tool_invocation_finished;
  });
  ASSERT_NE(withdrawn, read.events.end());
  EXPECT_EQ(withdrawn->payload["error"].text("code"), "not_sent");
  desk.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
  EXPECT_EQ(desk.status(), "completed");
}

NewJobRequest one_call(bool hold) {
  NewJobRequest request;
  request.job = kJob;
  request.agent = "agent";
  request.plan = plan("at_most_once", kOneCall);
  request.hold = hold;
  return request;
}

// The call that is under way is answered, and the job goes on with the holder of the newer lease.
void expect_goes_on(Ground& ground, Desk& desk) {
  EXPECT_EQ(desk.read().state.epoch, 2u);
  desk.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
  ground.loop.advance(2s);
  EXPECT_EQ(desk.calls.size(), 1u);
  const auto read = desk.read();
  EXPECT_EQ(read.state.status, engine::JobStatus::completed);
  EXPECT_EQ(read.state.steps[0].result, json("7"));
}

AE_TEST("lease/a newer lease of a job that is held here ends the older holder first") {
  for (const bool by_name : {false, true}) {
    Ground ground;
    Desk desk(ground, "w", {.delay = 40s});
    // The claim is under way while the job is created here, and nothing is heard of the lease that runs out.
    desk.script = [](const store::Call& call) {
      const bool slow = call.method == Method::heartbeat || call.method == Method::claim ||
                        call.method == Method::claim_job;
      return slow ? Fault::delay : Fault::none;
    };
    if (by_name) desk.runtime->claim_job(kJob, [](Result<bool>) {});
    desk.runtime->start();
    desk.create(plan("at_most_once", kOneCall));
    ASSERT_EQ(desk.calls.size(), 1u);
    ground.loop.advance(39s);
    EXPECT_FALSE(desk.calls[0].abandoned);
    desk.script = [](const store::Call&) { return Fault::none; };
    ground.loop.advance(2s);
    EXPECT_TRUE(desk.calls[0].abandoned) << "the older holder was never told";
    EXPECT_TRUE(desk.warned("the lease is lost"));
    expect_goes_on(ground, desk);
  }
}

AE_TEST("lease/the answer of a create or a claim that a newer lease overtook is not taken on") {
  for (const Method late : {Method::commit, Method::claim_job}) {
    Ground ground;
    Desk desk(ground, "w", {.delay = 40s});
    bool slow = late == Method::commit;
    desk.script = [&](const store::Call& call) {
      return call.method == late && std::exchange(slow, false) ? Fault::delay_answer : Fault::none;
    };
    int answers = 0;
    if (late == Method::commit) {
      desk.runtime->create(one_call(true), [&](Result<Created> made) { answers += made ? 1 : 0; });
    } else {
      desk.runtime->create(one_call(false), [](Result<Created>) {});
      ground.loop.run_ready();
      slow = true;
      desk.runtime->claim_job(kJob, [&](Result<bool> held) { answers += held && *held ? 1 : 0; });
    }
    desk.runtime->start();
    ground.loop.advance(39s);
    ASSERT_EQ(desk.calls.size(), 1u) << "its own lease ran out, and it claimed the job again";
    EXPECT_EQ(answers, 0);
    ground.loop.advance(2s);
    EXPECT_EQ(answers, 1) << "whoever asked is answered";
    EXPECT_FALSE(desk.calls[0].abandoned);
    expect_goes_on(ground, desk);
  }
}

AE_TEST(
    "late/a result that comes while the next holder waits is taken in, and nothing is sent again") {
  for (const std::string_view effect : {"at_most_once", "idempotent"}) {
    for (const Durability durability : {Durability::fused, Durability::split}) {
      TwoWorkers two(effect, durability);
      two.first.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
      two.ground.loop.advance(60s);  // lease and grace are over: the next holder decides
      EXPECT_EQ(two.second.status(), "completed") << effect;
      EXPECT_EQ(two.second.calls.size(), 0u) << effect;
      const auto read = two.second.read();
      EXPECT_EQ(read.state.steps[0].result, json("7"));
    }
  }
}

AE_TEST("late/a result that comes after the job parked frees it without a person") {
  TwoWorkers two("at_most_once");
  two.ground.loop.advance(120s);
  ASSERT_EQ(two.second.status(), "parked");
  two.first.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
  two.ground.loop.advance(5s);
  EXPECT_EQ(two.second.status(), "completed");
  EXPECT_EQ(two.second.calls.size(), 0u);
}

AE_TEST("late/a definite failure counts too; a timeout says nothing and is not kept") {
  TwoWorkers failed("at_most_once");
  failed.first.answer(0,
                      {.kind = OutcomeKind::failure, .definite = true, .error_code = "http_402"});
  failed.ground.loop.advance(60s);
  EXPECT_EQ(failed.second.status(), "failed");
  TwoWorkers silent("at_most_once");
  silent.first.answer(0, {.kind = OutcomeKind::timeout, .error_code = "timeout"});
  EXPECT_TRUE(silent.second.read().effects.empty());
  silent.ground.loop.advance(60s);
  EXPECT_EQ(silent.second.status(), "parked");
}

AE_TEST("late/after the call was sent again an old result is kept and shown, the new one counts") {
  TwoWorkers two("idempotent");
  two.ground.loop.advance(60s);
  ASSERT_EQ(two.second.calls.size(), 1u);
  EXPECT_EQ(two.second.calls[0].call.external_key, two.first.calls[0].call.external_key);
  two.first.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
  two.second.answer(0, {.kind = OutcomeKind::success, .result = json("8")});
  const auto read = two.second.read();
  EXPECT_EQ(read.state.status, engine::JobStatus::completed);
  EXPECT_EQ(read.state.steps[0].result, json("8"));
  EXPECT_EQ(read.effects.size(), 1u);
}

AE_TEST("late/a person's decision and a late result do not both count") {
  TwoWorkers two("at_most_once");
  two.ground.loop.advance(700s);
  ASSERT_EQ(two.second.status(), "parked");
  // The late result is written between the reading of the job and the writing of the decision.
  two.second.script = [&](const store::Call& call) {
    if (call.method == Method::commit && !two.first.calls.empty()) {
      two.first.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
      two.first.calls.clear();
    }
    return Fault::none;
  };
  const auto said = two.second.resolve("not_happened");
  EXPECT_FALSE(said);
  two.ground.loop.advance(5s);
  EXPECT_EQ(two.second.status(), "completed");
  EXPECT_EQ(two.second.calls.size(), 0u) << "it happened: it is not sent again";
}

AE_TEST("late/a job does not rest on a question that has been answered") {
  Ground ground;
  Desk first(ground, "first", {.seed = 1});
  Desk second(ground, "second", {.seed = 1'000'001});
  first.runtime->start();
  first.create(plan("at_most_once",
                    "[{'id':'a', 'kind':'tool', 'tool':'do'},"
                    " {'id':'b', 'kind':'tool', 'tool':'do', 'needs':['t']},"
                    " {'id':'t', 'kind':'wait', 'wait':{'type':'timer','for':'80s'}}]"));
  first.script = without_heartbeat;
  ground.loop.advance(20s);
  second.runtime->start();
  ground.loop.advance(100s);  // the question is open, and the other branch makes its call
  ASSERT_EQ(second.calls.size(), 1u);
  first.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
  second.answer(0, {.kind = OutcomeKind::success, .result = json("8")});
  ground.loop.advance(5s);
  EXPECT_EQ(second.status(), "completed");
}

AE_TEST("late/a result that the store would not take at first is offered again") {
  TwoWorkers two("at_most_once");
  int refused = 0;
  two.first.script = [&](const store::Call& call) {
    return call.method == Method::commit && ++refused <= 3 ? Fault::fail_before : Fault::none;
  };
  two.first.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
  two.ground.loop.advance(60s);
  EXPECT_EQ(two.second.status(), "completed");
}

constexpr std::string_view kWaitAndCall =
    "[{'id':'w', 'kind':'wait', 'wait': {'type':'signal', 'key':'k', 'expires':'10s',"
    " 'on_expire':'continue'}}, {'id':'a', 'kind':'tool', 'tool':'do'}]";

AE_TEST("inbox/an expiry loses to a signal that was accepted before it") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    Ground ground;
    Desk desk(ground, "w", {.owned = true, .durability = durability});
    desk.runtime->start();
    desk.create(plan("idempotent", kWaitAndCall));
    ground.loop.advance(9s);
    // It stands in the inbox, and whoever holds the job has not been told.
    Desk other(ground, "other", {.owned = false});
    ASSERT_TRUE(other.signal("k", "s1"));
    ground.loop.advance(5s);
    desk.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
    const auto read = desk.read();
    EXPECT_EQ(read.state.status, engine::JobStatus::completed);
    EXPECT_EQ(read.state.closed_waits.at("k").outcome, "signalled");
    EXPECT_EQ(desk.calls.size(), 1u);
  }
}

AE_TEST("inbox/a refused commit records its outcomes anew, and calls nothing again") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    Ground ground;
    Desk desk(ground, "w", {.owned = true, .durability = durability});
    desk.runtime->start();
    desk.create(plan("at_most_once",
                     "[{'id':'w', 'kind':'wait', 'wait': {'type':'signal', 'key':'k'}},"
                     " {'id':'a', 'kind':'tool', 'tool':'do'}]"));
    Desk other(ground, "other", {.owned = false});
    ASSERT_TRUE(other.signal("k", "s1"));  // the holder is not told
    // With this outcome the job would go to rest and give its claim back: refused, there is a signal.
    desk.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
    EXPECT_TRUE(desk.warned("inbox")) << "the refusal was reached";
    const auto read = desk.read();
    EXPECT_EQ(read.state.status, engine::JobStatus::completed);
    EXPECT_EQ(read.state.steps[1].result, json("1"));
    EXPECT_EQ(desk.calls.size(), 1u);
  }
}

AE_TEST("inbox/an entry that gives no event does not hold up an expiry") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    Ground ground;
    const auto two_waits =
        plan("idempotent",
             "[{'id':'w', 'kind':'wait', 'wait': {'type':'signal', 'key':'w', 'expires':'10s',"
             " 'on_expire':'continue'}},"
             " {'id':'k', 'kind':'wait', 'wait': {'type':'signal', 'key':'k'}},"
             " {'id':'a', 'kind':'tool', 'tool':'do'}]");
    {
      Desk desk(ground, "w", {.owned = true, .durability = durability});
      desk.create(two_waits);
      Desk other(ground, "other", {.owned = false});
      ASSERT_TRUE(other.signal("k", "s1"));
      ASSERT_TRUE(other.signal("k", "s2"));  // accepted too; it will find the wait closed
    }
    ground.loop.advance(20s);  // nobody runs it, and the other wait expires
    Desk next(ground, "next", {.owned = true, .durability = durability, .seed = 99});
    next.runtime->start();
    ground.loop.advance(5s);
    ASSERT_EQ(next.calls.size(), 1u);
    next.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
    EXPECT_EQ(next.status(), "completed");
  }
}

AE_TEST("inbox/an outcome survives that the log could not be read after a refusal") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  desk.runtime->start();
  desk.create(plan("at_most_once",
                   "[{'id':'w', 'kind':'wait', 'wait': {'type': 'signal', 'key':'k'}},"
                   " {'id':'a', 'kind':'tool', 'tool':'do'}]"));
  Desk other(ground, "other", {.owned = false});
  ASSERT_TRUE(other.signal("k", "s1"));
  int loads = 0;
  desk.script = [&](const store::Call& call) {
    return call.method == Method::load && ++loads <= 2 ? Fault::fail_before : Fault::none;
  };
  desk.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  ground.loop.advance(5s);
  EXPECT_EQ(loads >= 3, true) << "the failure was reached";
  const auto read = desk.read();
  EXPECT_EQ(read.state.status, engine::JobStatus::completed);
  EXPECT_EQ(read.state.steps[1].result, json("1"));
  EXPECT_EQ(desk.calls.size(), 1u);
}

AE_TEST("inbox/what the end overtakes is listed as undelivered") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  desk.runtime->start();
  desk.create(plan("idempotent", kWaitAndCall));
  ASSERT_TRUE(desk.act({.kind = engine::Act::Kind::cancel, .id = "c1"}));
  Desk other(ground, "other", {.owned = false});
  store::InboxEntry entry{.number = 0, .id = "s1", .act = ""};
  const engine::Act act{.kind = engine::Act::Kind::signal, .id = "s1", .correlation_key = "k"};
  entry.act = canonical(engine::with_checksum(engine::inbox_place(kJob, entry.id), act.to_json()));
  auto put = ground.loop.await<Result<void>>(
      [&](auto done) { other.memory->put_inbox(kJob, entry, std::move(done)); });
  ASSERT_TRUE(put) << "accepted while the job was ending";
  desk.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  const auto read = desk.read();
  EXPECT_EQ(read.state.status, engine::JobStatus::cancelled);
  EXPECT_EQ(read.events.back().payload["undelivered"],
            json("[{'correlation_key':'k', 'signal_id':'s1'}]"));
}

// An accepted act as some program would write it: its place and checksum are right, whatever it says.
store::InboxEntry entry_of(const std::string& id, std::string_view act) {
  return {.number = 0,
          .id = id,
          .act = canonical(engine::with_checksum(engine::inbox_place(kJob, id), json(act)))};
}

constexpr std::string_view kNewerActs[] = {
    "{'kind':'postpone', 'id':'n1', 'until':'tomorrow'}",
    "{'kind':'signal', 'id':'n1', 'correlation_key':'k', 'only_if':'sunny'}"};

AE_TEST("inbox/an act of a newer version stays there, and the job is left to who can read it") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    for (const std::string_view act : kNewerActs) {
      Ground ground;
      Desk desk(ground, "w", {.owned = false, .durability = durability});
      desk.runtime->start();
      desk.create(plan("idempotent", kWaitAndCall));
      ASSERT_EQ(desk.calls.size(), 1u);
      const auto put = [&](const store::InboxEntry& entry) {
        const auto done = ground.loop.await<Result<void>>(
            [&](auto heard) { desk.memory->put_inbox(kJob, entry, std::move(heard)); });
        ASSERT_TRUE(done);
      };
      const auto load = [&] {
        return *ground.loop.await<Result<store::Loaded>>(
            [&](auto done) { desk.memory->load(kJob, 1, std::move(done)); });
      };
      put(entry_of("s0", "{'kind':'signal', 'id':'s0', 'correlation_key':'k', 'payload':'on'}"));
      put(entry_of("n1", act));
      put(entry_of("c1", "{'kind':'cancel', 'id':'c1'}"));
      desk.faulty->hint({.inbox_of = kJob});
      ground.loop.advance(1s);
      EXPECT_EQ(load().inbox.size(), 3u) << act;
      EXPECT_TRUE(desk.runtime->holds(kJob)) << "its call is on its way";
      desk.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
      ground.loop.advance(1s);
      EXPECT_FALSE(desk.runtime->holds(kJob));
      ASSERT_TRUE(desk.runtime->refuses(kJob)) << act;
      EXPECT_EQ(desk.runtime->refuses(kJob)->code, Code::needs_version);
      const auto left = desk.read();
      EXPECT_EQ(left.events.back().type, EventType::job_requeued) << act;
      EXPECT_EQ(left.events.back().payload.text("reason"), "needs_version");
      EXPECT_EQ(left.state.lost_claims, 0u);
      EXPECT_TRUE(std::ranges::any_of(left.events, [](const Event& event) {
        return event.type == EventType::tool_invocation_finished;
      })) << "what was seen is recorded";
      // Another process of this version reads no more of it than this one, and neither claims it again.
      Desk other(ground, "other", {.owned = false, .durability = durability, .seed = 99});
      other.runtime->start();
      ground.loop.advance(300s);
      ASSERT_TRUE(other.runtime->refuses(kJob));
      EXPECT_EQ(other.runtime->refuses(kJob)->code, Code::needs_version);
      EXPECT_FALSE(desk.warned("an accepted act")) << act;
      EXPECT_FALSE(other.warned("an accepted act")) << act;
      const store::Loaded after = load();
      EXPECT_EQ(after.row.last_seq, left.row.last_seq) << "no attempt has begun";
      ASSERT_EQ(after.inbox.size(), 3u);
      EXPECT_EQ(after.inbox[1].id, "n1");
      EXPECT_TRUE(after.row.claim) << "who is in the inbox's way goes to the inbox";
      // What is accepted now comes behind it.
      ASSERT_TRUE(desk.act({.kind = engine::Act::Kind::pause, .id = "p1"}));
      EXPECT_EQ(load().inbox.size(), 4u);
      EXPECT_EQ(desk.calls.size(), 1u);
      EXPECT_EQ(other.calls.size(), 0u);
    }
  }
}

AE_TEST("hint/what another process has done is looked at before the poll would") {
  Ground ground;
  Desk desk(ground, "w", {.owned = false});
  desk.runtime->start();
  ground.loop.run_ready();
  Desk other(ground, "other", {.owned = false});  // runs nothing
  NewJobRequest request;
  request.job = kJob;
  request.agent = "agent";
  request.plan = plan("idempotent", kWaitAndCall);
  request.hold = false;
  ASSERT_TRUE(ground.loop.await<Result<Created>>(
      [&](auto done) { other.runtime->create(request, std::move(done)); }));
  ground.loop.run_ready();
  EXPECT_FALSE(desk.runtime->holds(kJob)) << "nobody has said so";
  desk.faulty->hint({});
  ground.loop.run_ready();
  ASSERT_TRUE(desk.runtime->holds(kJob));
  const engine::Act act{.kind = engine::Act::Kind::cancel, .id = "c1"};
  const std::size_t before = desk.read().events.size();
  ASSERT_TRUE(other.act(act)) << "by the inbox, for another holds it";
  EXPECT_EQ(desk.read().events.size(), before);
  desk.faulty->hint({.inbox_of = kJob});
  ground.loop.run_ready();
  EXPECT_GT(desk.read().events.size(), before);
}

AE_TEST_SLOW("timer/more jobs than one look finds are woken without waiting for the poll") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  desk.runtime->start();
  constexpr int kJobs = 800;
  const auto waits =
      plan("idempotent", "[{'id':'t', 'kind':'wait', 'wait':{'type':'timer', 'for':'600s'}}]");
  for (int i = 0; i < kJobs; ++i) {
    NewJobRequest request;
    request.agent = "agent";
    request.plan = waits;
    ASSERT_TRUE(ground.loop.await<Result<Created>>(
        [&](auto done) { desk.runtime->create(request, std::move(done)); }));
  }
  const auto completed = [&] {
    auto jobs = ground.loop.await<Result<std::vector<store::JobRow>>>([&](auto done) {
      desk.memory->query({.status = "completed", .limit = kJobs}, std::move(done));
    });
    return jobs ? jobs->size() : 0;
  };
  ground.loop.advance(599s);
  EXPECT_EQ(completed(), 0u);
  ground.loop.advance(1500ms);
  EXPECT_EQ(completed(), std::size_t{kJobs});
}

AE_TEST("hint/one for jobs that others run, and a job that others run, starts no claim") {
  Ground ground;
  Desk desk(ground, "w", {.owned = false});
  int claims = 0;
  desk.script = [&](const store::Call& call) {
    claims += call.method == Method::claim ? 1 : 0;
    return Fault::none;
  };
  desk.runtime->offer({"agent"}, {{"agent", "7"}});
  desk.runtime->start();
  ground.loop.run_ready();
  const int before = claims;
  const auto create = [&](const std::string& agent, std::vector<std::string> needed) {
    NewJobRequest request;
    request.agent = agent;
    request.plan = plan("idempotent", kWaitAndCall);
    request.required_capabilities = std::move(needed);
    request.hold = false;
    const auto made = ground.loop.await<Result<Created>>(
        [&](auto done) { desk.runtime->create(request, std::move(done)); });
    EXPECT_TRUE(made);
    ground.loop.run_ready();
    return made ? made->job : JobId();
  };
  const JobId needy = create("agent", {"gpu"});
  create("another", {});
  const auto cancelled = ground.loop.await<Result<Value>>([&](auto done) {
    desk.runtime->act(needy, {.kind = engine::Act::Kind::pause, .id = "p"}, std::move(done));
  });
  EXPECT_TRUE(cancelled);
  desk.faulty->hint({.inbox_of = {}, .needs = store::Hint::Needs{"another", {}}});
  desk.faulty->hint({.inbox_of = {}, .needs = store::Hint::Needs{"agent", {"gpu"}}});
  ground.loop.run_ready();
  EXPECT_EQ(claims, before);
  desk.faulty->hint({.inbox_of = {}, .needs = store::Hint::Needs{"agent", {}}});
  ground.loop.run_ready();
  EXPECT_EQ(claims, before + 1);
  const JobId ours = create("agent", {});
  EXPECT_TRUE(desk.runtime->holds(ours));
}

// The claim under way had looked before the job was there, and its answer says that there is nothing.
AE_TEST("hint/one that comes while a claim is under way is not forgotten") {
  Ground ground;
  Desk desk(ground, "w", {.owned = false, .delay = 100ms});
  int claims = 0;
  desk.script = [&](const store::Call& call) {
    const bool first = call.method == Method::claim && ++claims == 1;
    return first ? Fault::delay_answer : Fault::none;
  };
  desk.runtime->start();
  Desk other(ground, "other", {.owned = false});  // runs nothing
  NewJobRequest request;
  request.job = kJob;
  request.agent = "agent";
  request.plan = plan("idempotent", kWaitAndCall);
  request.hold = false;
  ASSERT_TRUE(ground.loop.await<Result<Created>>(
      [&](auto done) { other.runtime->create(request, std::move(done)); }));
  desk.faulty->hint({});
  ground.loop.run_ready();
  ASSERT_FALSE(desk.runtime->holds(kJob)) << "the first claim is not answered yet";
  ground.loop.advance(150ms);
  EXPECT_TRUE(desk.runtime->holds(kJob)) << "long before the poll";
}

AE_TEST("hint/a post whose hint was lost is found with the next heartbeat") {
  Ground ground;
  Desk desk(ground, "w", {.owned = false});
  desk.runtime->start();
  desk.create(plan("idempotent", kWaitAndCall));
  Desk other(ground, "other", {.owned = false});
  ASSERT_TRUE(other.act({.kind = engine::Act::Kind::cancel, .id = "c1"}));
  const std::size_t before = desk.read().events.size();
  ground.loop.advance(10s);
  EXPECT_GT(desk.read().events.size(), before);
}

// ---------------------------------------------------------------- checkpoints

constexpr std::string_view kManyCalls =
    "[{'id':'m', 'kind':'map', 'over':[1,2,3,4,5,6,7,8,9,10], 'max_parallel':4, "
    "'do':{'tool':'do'}},"
    " {'id':'w', 'kind':'wait', 'wait':{'type':'signal','key':'k'}, 'needs':['m']},"
    " {'id':'a', 'kind':'tool', 'tool':'do', 'needs':['w']}]";

store::Loaded from_checkpoint(Ground& ground, Desk& desk) {
  auto loaded = ground.loop.await<Result<store::Loaded>>(
      [&](auto done) { desk.memory->load(kJob, store::kFromCheckpoint, std::move(done)); });
  AE_CHECK(loaded.has_value());
  return *std::move(loaded);
}

void answer_all(Desk& desk) {
  for (std::size_t i = 0; i < desk.calls.size(); ++i) {
    if (desk.calls[i].done) desk.answer(i, {.kind = OutcomeKind::success, .result = json("'r'")});
  }
}

AE_TEST("checkpoint/a job that rests leaves one, and is woken and run from there") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    Ground ground;
    Desk desk(ground, "w", {.owned = true, .durability = durability, .checkpoint_every = 40});
    desk.runtime->start();
    desk.create(plan("idempotent", kManyCalls));
    answer_all(desk);
    ASSERT_EQ(desk.status(), "waiting");
    const store::Loaded tail = from_checkpoint(ground, desk);
    ASSERT_TRUE(tail.checkpoint);
    EXPECT_EQ(tail.checkpoint->seq, tail.row.last_seq) << "it is made at the very end";
    EXPECT_TRUE(tail.commits.empty());
    const engine::State whole = desk.read().state;
    EXPECT_EQ(engine::checkpoint(whole, tail.row.head), tail.checkpoint->bytes);
    ASSERT_TRUE(desk.signal("k", "s1"));
    ground.loop.advance(2s);
    answer_all(desk);
    EXPECT_EQ(desk.status(), "completed");
  }
}

// What a signal costs that wakes a job with a long past.
AE_TEST_SLOW("checkpoint/acting on a job with a long past does not read all of it") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  desk.runtime->start();
  std::string over;
  for (int i = 0; i < 2400; ++i) over += (i == 0 ? "" : ",") + std::to_string(i);
  desk.create(
      plan("idempotent",
           "[{'id':'m', 'kind':'map', 'over':[" + over +
               "], 'max_parallel':64, 'do':{'tool':'do'}},"
               " {'id':'w', 'kind':'wait', 'wait':{'type':'signal','key':'k'}, 'needs':['m']}]"));
  while (!desk.calls.empty()) {
    Waiting next = std::move(desk.calls.front());
    desk.calls.pop_front();
    next.done({.kind = OutcomeKind::success, .result = json("{'item':'of a list'}")});
    ground.loop.run_ready();
  }
  ASSERT_EQ(desk.status(), "waiting");
  const store::Loaded tail = from_checkpoint(ground, desk);
  ASSERT_GT(tail.row.last_seq, 15'000u);
  ASSERT_TRUE(tail.checkpoint);
  EXPECT_LT(tail.row.last_seq - tail.checkpoint->seq, 2'500u);
  const auto took = [&](auto ask) {
    const auto begin = std::chrono::steady_clock::now();
    ask();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
        .count();
  };
  const double whole = took([&] { static_cast<void>(desk.read()); });
  const double act = took([&] { EXPECT_FALSE(desk.signal("no such key", "s0")); });
  std::printf("%llu events: the whole log %.1f ms, an act %.1f ms, a checkpoint of %zu bytes\n",
              static_cast<unsigned long long>(tail.row.last_seq), whole, act,
              tail.checkpoint->bytes.size());
  EXPECT_LT(act * 5, whole);
}

// A job that waits for `k` while its holder has given it back.
constexpr std::string_view kTwoWaits =
    "[{'id':'v', 'kind':'wait', 'wait': {'type':'signal', 'key':'j'}},"
    " {'id':'w', 'kind':'wait', 'needs':['v'], 'wait': {'type':'signal', 'key':'k'}}]";

AE_TEST("resting/what is looked at again is read from where it was left, by its holder too") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    Ground ground;
    Desk desk(ground, "w", {.owned = true, .durability = durability});
    std::vector<std::uint64_t> loads;
    desk.script = [&](const store::Call& call) {
      if (call.method == Method::load) loads.push_back(call.from_seq);
      return Fault::none;
    };
    desk.runtime->start();
    desk.create(plan("idempotent", kTwoWaits));
    ASSERT_EQ(desk.status(), "waiting");
    const std::uint64_t rested = desk.read().row.last_seq;
    loads.clear();
    ASSERT_TRUE(desk.signal("j", "s1"));
    ground.loop.advance(1s);
    ASSERT_EQ(desk.status(), "waiting");
    ASSERT_GE(loads.size(), 2u) << "the act, its holder";
    EXPECT_EQ(loads[0], rested + 1);
    EXPECT_GT(loads[1], rested);
    EXPECT_FALSE(desk.signal("no such key", "s2"));
    ASSERT_TRUE(desk.signal("k", "s3"));
    ground.loop.advance(1s);
    EXPECT_EQ(desk.status(), "completed");
  }
}

AE_TEST("runtime/a plan that somebody else on the loop has compiled is not compiled again") {
  Ground ground;
  engine::PlanCache plans;
  Desk first(ground, "first", {.seed = 1, .plans = &plans});
  Desk second(ground, "second", {.seed = 1'000'001, .plans = &plans});
  first.runtime->start();
  const auto made = plan("idempotent", kTwoWaits);
  first.create(made);
  ASSERT_EQ(first.status(), "waiting");
  EXPECT_EQ(first.read().state.plan, made);
  EXPECT_EQ(second.read().state.plan, made);
  Desk apart(ground, "apart", {.seed = 2'000'001});
  EXPECT_NE(apart.read().state.plan, made);
  EXPECT_EQ(apart.read().state.plan->hash, made->hash);
}

AE_TEST("resting/what another worker wrote meanwhile is taken in") {
  Ground ground;
  Desk first(ground, "first", {.seed = 1});
  Desk second(ground, "second", {.seed = 1'000'001});
  first.runtime->start();
  first.create(plan("idempotent", kTwoWaits));
  ASSERT_EQ(first.status(), "waiting");
  second.runtime->start();
  ASSERT_TRUE(second.signal("j", "s1"));
  ground.loop.advance(30s);
  const auto again = first.signal("j", "s2");
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ((*again)["duplicate"], Value(true));
  ASSERT_TRUE(first.signal("k", "s3"));
  ground.loop.advance(30s);
  EXPECT_EQ(first.status(), "completed");
}

AE_TEST("resting/a log that does not go through what was remembered is read whole") {
  Ground ground;
  Desk desk(ground, "w", {.owned = false});
  desk.create(plan("idempotent", kTwoWaits));
  desk.runtime->start();
  ground.loop.advance(1s);
  ASSERT_EQ(desk.status(), "waiting");
  Rested other{.state = desk.read().state, .head = sha256("another log")};
  engine::PlanCache plans;
  auto stood = ground.loop.await<Result<Stood>>(
      [&](auto done) { load_state(*desk.memory, kJob, plans, std::move(other), std::move(done)); });
  ASSERT_TRUE(stood);
  ASSERT_TRUE(stood->state);
  const auto whole = ground.loop.await<Result<store::Loaded>>(
      [&](auto done) { desk.memory->load(kJob, 1, std::move(done)); });
  EXPECT_EQ(stood->loaded.commits, whole->commits);
  EXPECT_EQ(stood->state->status, engine::JobStatus::waiting);
}

AE_TEST("resting/it is bounded in bytes, and what was used least lately goes first") {
  RestingJobs resting;
  const auto rested = [](std::size_t bytes) {
    Rested one;
    one.bytes = bytes;
    return one;
  };
  resting.keep(JobId("too large"), rested(RestingJobs::kJobBytesMax + 1));
  EXPECT_FALSE(resting.take(JobId("too large")));
  const std::size_t fit = RestingJobs::kBytesMax / RestingJobs::kJobBytesMax;
  for (std::size_t i = 0; i <= fit; ++i) {
    resting.keep(JobId("j" + std::to_string(i)), rested(RestingJobs::kJobBytesMax));
    if (i > 0) resting.keep(JobId("j0"), *resting.take(JobId("j0")));
  }
  EXPECT_TRUE(resting.take(JobId("j0")));
  EXPECT_FALSE(resting.take(JobId("j1")));
  EXPECT_TRUE(resting.take(JobId("j2")));
  EXPECT_FALSE(resting.take(JobId("j2"))) << "it was taken out";
}

AE_TEST("checkpoint/one that is damaged or lies is passed over") {
  Ground ground;
  std::optional<Desk> desk;
  desk.emplace(ground, "w", Desk::Setup{.owned = true, .checkpoint_every = 1'000'000});
  desk->runtime->start();
  desk->create(plan("idempotent", kOneCall));
  const auto read = desk->read();
  ASSERT_TRUE(read.row.claim);
  store::Batch batch;
  batch.job = kJob;
  batch.authority = store::Batch::Held{*read.row.claim};
  batch.expected_seq = read.row.last_seq;
  for (const std::string& bytes :
       {std::string("nonsense"), engine::checkpoint(read.state, sha256("another head"))}) {
    batch.checkpoint = bytes;
    auto put = ground.loop.await<Result<store::Committed>>(
        [&](auto done) { desk->memory->commit(batch, std::move(done)); });
    ASSERT_TRUE(put);
    Desk next(ground, "next", {.owned = false, .seed = 77});
    auto state = ground.loop.await<Result<Runtime::Read>>(
        [&](auto done) { next.runtime->read_state(kJob, std::move(done)); });
    ASSERT_TRUE(state) << state.error().message;
    EXPECT_EQ(engine::checkpoint(state->state, Hash{}), engine::checkpoint(read.state, Hash{}));
  }
}

AE_TEST("inbox/an answer says accepted only if it came before what closed its wait") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    Ground ground;
    Desk desk(ground, "w", {.owned = true, .durability = durability});
    desk.runtime->start();
    desk.create(plan("idempotent", kWaitAndCall));
    ground.loop.advance(9s);
    // The other reads the job while the wait is open; the expiry is written before its post arrives.
    Desk other(ground, "other", {.owned = false});
    other.script = [&](const store::Call& call) {
      if (call.method == Method::put_inbox) ground.loop.advance(5s);
      return Fault::none;
    };
    const auto said = other.signal("k", "s1");
    ASSERT_TRUE(said);
    EXPECT_EQ(said->find("accepted"), nullptr) << canonical(*said);
    EXPECT_EQ((*said)["duplicate"], Value(true));
    EXPECT_EQ((*said)["outcome"], "timed_out");
    desk.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
    EXPECT_EQ(desk.read().state.closed_waits.at("k").outcome, "timed_out");
  }
}

AE_TEST("inbox/an answer that the holder has taken in since is accepted, also when asked twice") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  desk.runtime->start();
  desk.create(plan("idempotent", kWaitAndCall));
  const auto said = desk.signal("k", "s1");
  ASSERT_TRUE(said);
  EXPECT_EQ((*said)["accepted"], Value(true));
  EXPECT_EQ(desk.read().state.closed_waits.at("k").outcome, "signalled");
  const auto again = desk.signal("k", "s1");
  ASSERT_TRUE(again);
  EXPECT_EQ((*again)["duplicate"], Value(true));
}

engine::Act answer_to(std::string key, std::string id, Value payload) {
  return {.kind = engine::Act::Kind::signal,
          .id = std::move(id),
          .correlation_key = std::move(key),
          .payload = std::move(payload)};
}

AE_TEST(
    "inbox/a second answer to a wait is told that there is one, though nobody has taken it in") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    Ground ground;
    Desk desk(ground, "w", {.owned = true, .durability = durability});
    desk.runtime->start();
    desk.create(plan("idempotent", kWaitAndCall));
    Desk other(ground, "other", {.owned = false});  // the holder is not told
    const auto first = other.act(answer_to("k", "s1", json("1")));
    ASSERT_TRUE(first);
    EXPECT_EQ((*first)["accepted"], Value(true));
    const auto second = other.act(answer_to("k", "s2", json("2")));
    ASSERT_TRUE(second);
    EXPECT_EQ(second->find("accepted"), nullptr) << canonical(*second);
    EXPECT_EQ((*second)["duplicate"], Value(true));
    EXPECT_EQ((*second)["applied"], Value(false));
    EXPECT_EQ((*second)["payload"], Value(1));
    const auto same = other.act(answer_to("k", "s3", json("1")));
    ASSERT_TRUE(same);
    EXPECT_EQ((*same)["applied"], Value(true)) << "it says the same";
    EXPECT_EQ(other.read().inbox.size(), 1u) << "nothing was written";
    // Its own answer sent again is no other one; with other words it is.
    const auto again = other.act(answer_to("k", "s1", json("1")));
    ASSERT_TRUE(again);
    EXPECT_EQ((*again)["accepted"], Value(true)) << canonical(*again);
    const auto changed = other.act(answer_to("k", "s1", json("9")));
    ASSERT_TRUE(changed);
    EXPECT_EQ((*changed)["applied"], Value(false)) << canonical(*changed);
    desk.answer(0, {.kind = OutcomeKind::success, .result = json("'done'")});
    EXPECT_EQ(desk.read().state.closed_waits.at("k").payload, Value(1));
    EXPECT_FALSE(desk.warned("too late"));
  }
}

AE_TEST("inbox/of two answers that are posted at once the later one is told so") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  desk.runtime->start();
  desk.create(plan("idempotent", kWaitAndCall));
  Desk quick(ground, "quick", {.owned = false, .seed = 7});
  Desk slow(ground, "slow", {.owned = false, .seed = 8});
  // Between the reading of the one and its post, the other posts.
  bool posted = false;
  slow.script = [&](const store::Call& call) {
    if (call.method == Method::put_inbox && !std::exchange(posted, true)) {
      quick.runtime->act(kJob, answer_to("k", "s1", json("1")), [](Result<Value> said) {
        ASSERT_TRUE(said);
        EXPECT_EQ((*said)["accepted"], Value(true));
      });
      ground.loop.run_ready();
    }
    return Fault::none;
  };
  const auto said = slow.act(answer_to("k", "s2", json("2")));
  ASSERT_TRUE(said);
  ASSERT_EQ(slow.read().inbox.size(), 2u) << "both were accepted by the store";
  EXPECT_EQ((*said)["duplicate"], Value(true)) << canonical(*said);
  EXPECT_EQ((*said)["applied"], Value(false));
  desk.answer(0, {.kind = OutcomeKind::success, .result = json("'done'")});
  EXPECT_EQ(desk.read().state.closed_waits.at("k").payload, Value(1));
}

AE_TEST("inbox/a second yes or no of a person is told which one there is") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  desk.runtime->start();
  desk.create(plan("idempotent",
                   "[{'id':'a', 'kind':'tool', 'tool':'do'},"
                   " {'id':'w', 'kind':'wait', 'wait':{'type':'human','key':'k'}}]"));
  Desk other(ground, "other", {.owned = false});
  const engine::State state = other.read().state;
  engine::Act no{.kind = engine::Act::Kind::signal,
                 .wait_type = "human",
                 .approval = state.approval_id(state.waits.at("k")),
                 .payload = json("{'decision':'reject'}")};
  ASSERT_TRUE(other.act(no));
  engine::Act yes = answer_to("k", "s2", json("{'decision':'approve'}"));
  const auto second = other.act(yes);
  ASSERT_TRUE(second);
  EXPECT_EQ((*second)["outcome"], "rejected") << canonical(*second);
  EXPECT_EQ((*second)["applied"], Value(false));
}

AE_TEST(
    "inbox/a second resolution of a call is refused, though nobody has taken the first one in") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  desk.runtime->start();
  desk.create(
      plan("at_most_once",
           "[{'id':'a', 'kind':'tool', 'tool':'do'}, {'id':'b', 'kind':'tool', 'tool':'do'}]"));
  desk.answer(0, {.kind = OutcomeKind::unknown, .error_code = "reset", .error_message = "lost"});
  Desk other(ground, "other", {.owned = false});
  engine::Act act{.kind = engine::Act::Kind::resolve, .resolution = "happened"};
  act.idempotency_key = other.read().state.steps[0].call->key.text;
  const auto first = other.act(act);
  ASSERT_TRUE(first) << first.error().message;
  EXPECT_EQ((*first)["accepted"], Value(true));
  act.resolution = "fail";
  const auto second = other.act(act);
  ASSERT_FALSE(second) << canonical(*second);
  EXPECT_EQ(second.error().code, Code::not_in_doubt);
  EXPECT_EQ(other.read().inbox.size(), 1u);
  desk.answer(1, {.kind = OutcomeKind::success, .result = json("1")});
  EXPECT_EQ(desk.status(), "completed");
}

AE_TEST("inbox/an early answer that turns out to be none is never dropped: the end lists it") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    Ground ground;
    Desk desk(ground, "w", {.owned = true, .durability = durability});
    desk.runtime->start();
    // Nobody can tell before `a` has answered that the key is that of a person's wait.
    desk.create(plan("idempotent",
                     "[{'id':'a', 'kind':'tool', 'tool':'do'},"
                     " {'id':'w', 'kind':'wait', 'needs':['a'],"
                     "  'wait':{'type':'human','key':'${ .steps.a }'}}]"));
    Desk other(ground, "other", {.owned = false});  // the holder is not told
    engine::Act none = answer_to("k", "s1", json("{'note':'hm'}"));
    none.buffer = true;
    const auto early = other.act(none);
    ASSERT_TRUE(early) << early.error().message;
    EXPECT_EQ((*early)["buffered"], Value(true));
    desk.answer(0, {.kind = OutcomeKind::success, .result = json("'k'")});
    ASSERT_EQ(desk.status(), "waiting");
    EXPECT_FALSE(desk.warned("too late"));
    ASSERT_TRUE(desk.act(answer_to("k", "s2", json("{'decision':'approve'}"))));
    ground.loop.advance(2s);
    const auto read = desk.read();
    ASSERT_EQ(read.state.status, engine::JobStatus::completed);
    EXPECT_EQ(read.events.back().payload["undelivered"],
              json("[{'correlation_key':'k','signal_id':'s1'}]"));
  }
}

AE_TEST("inbox/an early answer whose wait opened while it was posted is said to be kept") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  desk.runtime->start();
  desk.create(
      plan("idempotent",
           "[{'id':'a', 'kind':'tool', 'tool':'do'}, {'id':'b', 'kind':'tool', 'tool':'do'},"
           " {'id':'w', 'kind':'wait', 'needs':['a'],"
           "  'wait':{'type':'human','key':'${ .steps.a }'}}]"));
  Desk other(ground, "other", {.owned = false});
  bool answered = false;
  other.script = [&](const store::Call& call) {
    if (call.method == Method::put_inbox && !std::exchange(answered, true)) {
      desk.answer(0, {.kind = OutcomeKind::success, .result = json("'k'")});
    }
    return Fault::none;
  };
  engine::Act none = answer_to("k", "s1", json("{'note':'hm'}"));
  none.buffer = true;
  const auto said = other.act(none);
  ASSERT_TRUE(said) << said.error().message;
  EXPECT_EQ((*said)["buffered"], Value(true)) << canonical(*said);
  desk.answer(1, {.kind = OutcomeKind::success, .result = json("1")});
  ASSERT_TRUE(desk.act(answer_to("k", "s2", json("{'decision':'approve'}"))));
  ground.loop.advance(2s);
  EXPECT_EQ(desk.read().events.back().payload["undelivered"],
            json("[{'correlation_key':'k','signal_id':'s1'}]"));
}

AE_TEST("inbox/what is sent early to a busy job is kept, and delivered once") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    Ground ground;
    Desk desk(ground, "w", {.owned = true, .durability = durability});
    desk.runtime->start();
    desk.create(
        plan("idempotent",
             "[{'id':'a', 'kind':'tool', 'tool':'do'},"
             " {'id':'w', 'kind':'wait', 'needs':['a'], 'wait':{'type':'signal','key':'k'}},"
             " {'id':'m', 'kind':'wait', 'needs':['w'],"
             "  'wait':{'type':'message','channel':'c'}}]"));
    Desk other(ground, "other", {.owned = false});  // the holder is not told
    const auto early = other.act({.kind = engine::Act::Kind::signal,
                                  .id = "1",
                                  .correlation_key = "k",
                                  .buffer = true,
                                  .payload = json("7")});
    ASSERT_TRUE(early);
    EXPECT_EQ((*early)["buffered"], Value(true));
    const auto message = other.act(
        {.kind = engine::Act::Kind::message, .id = "1", .payload = json("8"), .channel = "c"});
    ASSERT_TRUE(message) << "the same id on a channel is another thing";
    EXPECT_EQ((*message)["accepted"], Value(true));
    desk.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
    const auto read = desk.read();
    EXPECT_EQ(read.state.status, engine::JobStatus::completed);
    EXPECT_EQ(read.state.steps[1].result, json("7"));
    EXPECT_EQ(read.state.steps[2].result, json("8"));
    EXPECT_EQ(read.events.back().payload.find("undelivered"), nullptr);
  }
}

AE_TEST("inbox/an early signal that comes while the job ends is listed as undelivered") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  desk.runtime->start();
  desk.create(plan("idempotent", kOneCall));
  Desk other(ground, "other", {.owned = false});
  ASSERT_TRUE(other.act({.kind = engine::Act::Kind::signal,
                         .id = "s1",
                         .correlation_key = "nobody",
                         .buffer = true,
                         .payload = json("7")}));
  desk.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  const auto read = desk.read();
  EXPECT_EQ(read.state.status, engine::JobStatus::completed);
  EXPECT_EQ(read.events.back().payload["undelivered"],
            json("[{'correlation_key':'nobody', 'signal_id':'s1'}]"));
}

AE_TEST("pause/is durable once accepted: the holder parks the job, or the next one does") {
  for (const bool dies : {false, true}) {
    Ground ground;
    Desk desk(ground, "w", {.owned = true});
    desk.runtime->start();
    desk.create(plan("idempotent", kOneCall));
    Desk other(ground, "other", {.owned = false});  // the holder is not told
    const auto said = other.act({.kind = engine::Act::Kind::pause});
    ASSERT_TRUE(said);
    EXPECT_EQ((*said)["accepted"], Value(true));
    std::optional<Desk> next;
    if (dies) {
      desk.runtime.reset();
      next.emplace(ground, "next", Desk::Setup{.owned = true, .seed = 99});
      next->runtime->start();
      ground.loop.advance(60s);
      EXPECT_EQ(next->status(), "parked");
      EXPECT_TRUE(next->calls.empty());
      ASSERT_TRUE(next->act({.kind = engine::Act::Kind::resume}));
      ground.loop.advance(2s);
      next->answer(0, {.kind = OutcomeKind::success, .result = json("1")});
    } else {
      desk.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
    }
    EXPECT_EQ(other.status(), "completed");
  }
}

AE_TEST("pause/resume takes back a pause that still waits in the inbox") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  desk.runtime->start();
  desk.create(plan("idempotent",
                   "[{'id':'a', 'kind':'tool', 'tool':'do'},"
                   " {'id':'b', 'kind':'tool', 'tool':'do', 'needs':['a']}]"));
  Desk other(ground, "other", {.owned = false});
  ASSERT_TRUE(other.act({.kind = engine::Act::Kind::pause}));
  const auto resumed = other.act({.kind = engine::Act::Kind::resume});
  ASSERT_TRUE(resumed) << resumed.error().message;
  desk.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  EXPECT_EQ(desk.calls.size(), 2u);
  EXPECT_EQ(desk.status(), "running");
}

AE_TEST("pause/a timer that comes due in a pause fires after it, the deadline in it") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  desk.runtime->start();
  desk.create(
      plan("idempotent", "[{'id':'t', 'kind':'wait', 'wait':{'type':'timer', 'for':'10s'}}]"));
  ASSERT_TRUE(desk.act({.kind = engine::Act::Kind::pause}));
  ground.loop.advance(60s);
  EXPECT_EQ(desk.status(), "parked");
  ASSERT_TRUE(desk.act({.kind = engine::Act::Kind::resume}));
  ground.loop.advance(5s);
  EXPECT_EQ(desk.status(), "completed");
}

AE_TEST("approval/answers of two people to a held job: one counts, and both are told which") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  desk.runtime->start();
  desk.create(plan("idempotent",
                   "[{'id':'a', 'kind':'tool', 'tool':'do'},"
                   " {'id':'w', 'kind':'wait', 'wait':{'type':'human', 'key':'k',"
                   "  'on_reject':'continue'}}]"));
  const std::string id = desk.read().state.approval_id(desk.read().state.waits.at("k"));
  const auto answer = [&](std::string_view decision) {
    return desk.act({.kind = engine::Act::Kind::signal,
                     .wait_type = "human",
                     .approval = id,
                     .payload = Value::object({{"decision", decision}})});
  };
  const auto first = answer("reject"), second = answer("approve");
  ASSERT_TRUE(first);
  EXPECT_EQ((*first)["accepted"], Value(true));
  ASSERT_TRUE(second);
  EXPECT_EQ((*second)["outcome"], "rejected");
  desk.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  EXPECT_EQ(desk.read().state.closed_waits.at("k").outcome, "rejected");
}

AE_TEST("stop/a job that is ending is drained, not cut short") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  desk.runtime->start();
  desk.create(plan("at_most_once", kOneCall));
  ASSERT_TRUE(desk.act({.kind = engine::Act::Kind::cancel}));
  bool stopped = false;
  desk.runtime->stop(10s, [&] { stopped = true; });
  ground.loop.advance(1s);
  EXPECT_FALSE(stopped) << "its call is awaited";
  desk.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  ground.loop.advance(1s);
  EXPECT_TRUE(stopped);
  const auto read = desk.read();
  EXPECT_EQ(read.state.status, engine::JobStatus::cancelled);
  EXPECT_TRUE(read.state.steps[0].committed) << "and what it did is recorded";
}

AE_TEST("stop/a job that undoes is given back after the call in flight, and goes on elsewhere") {
  Ground ground;
  Desk first(ground, "first", {.owned = true});
  first.runtime->start();
  first.create(
      plan_with_sides("[{'id':'a', 'kind':'tool', 'tool':'do'},"
                      "{'id':'b', 'kind':'tool', 'tool':'do', 'needs':['a']},"
                      "{'id':'c', 'kind':'tool', 'tool':'do', 'needs':['b']}]"));
  first.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  first.answer(1, {.kind = OutcomeKind::success, .result = json("2")});
  first.answer(2, {.kind = OutcomeKind::failure, .definite = true, .error_code = "no"});
  ASSERT_EQ(first.calls.size(), 4u);
  bool stopped = false;
  first.runtime->stop(10s, [&] { stopped = true; });
  ground.loop.advance(1s);
  EXPECT_FALSE(stopped) << "its call is awaited";
  first.answer(3, {.kind = OutcomeKind::success});
  ground.loop.advance(1s);
  EXPECT_TRUE(stopped);
  EXPECT_EQ(first.calls.size(), 4u) << "nothing more is begun";
  Desk second(ground, "second", {.owned = true, .seed = 1'000'001});
  second.runtime->start();
  ground.loop.advance(1s);
  ASSERT_EQ(second.calls.size(), 1u);
  EXPECT_EQ(second.calls[0].call.args, json("{'what':1}"));
  second.answer(0, {.kind = OutcomeKind::success});
  EXPECT_EQ(second.status(), "failed");
  EXPECT_EQ(second.read().state.undone.size(), 2u);
}

AE_TEST("stop/ends in time when the store cannot be written, and says what that means") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  desk.runtime->start();
  desk.create(plan("at_most_once", kOneCall));
  desk.script = [](const store::Call& call) {
    return call.method == Method::commit ? Fault::fail_before : Fault::none;
  };
  desk.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  bool stopped = false;
  desk.runtime->stop(10s, [&] { stopped = true; });
  ground.loop.advance(9s);
  EXPECT_FALSE(stopped);
  ground.loop.advance(2s);
  EXPECT_TRUE(stopped);
  EXPECT_EQ(desk.read().state.open_tries, 1u) << "the call is in doubt, not forgotten";
}

AE_TEST("store/an outage is warned about once, not once for every try") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  desk.script = [](const store::Call& call) {
    return call.method == Method::claim ? Fault::fail_before : Fault::none;
  };
  desk.runtime->start();
  ground.loop.advance(20s);
  EXPECT_EQ(desk.outages, "out ");
  desk.script = [](const store::Call&) { return Fault::none; };
  ground.loop.advance(20s);
  EXPECT_EQ(desk.outages, "out back ") << "and so is its end";
  EXPECT_EQ(desk.warnings.size(), 0u);
}

AE_TEST("store/an outage is noticed also where nothing is claimed") {
  Ground ground;
  Desk desk(ground, "w", {.claims = false});
  desk.script = [](const store::Call& call) {
    return call.method == Method::due ? Fault::fail_before : Fault::none;
  };
  desk.runtime->start();
  ground.loop.advance(5s);
  EXPECT_EQ(desk.outages, "out ");
  desk.script = [](const store::Call&) { return Fault::none; };
  ground.loop.advance(5s);
  EXPECT_EQ(desk.outages, "out back ");
}

AE_TEST("doubt/who made the call in doubt must wait until it has settled") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  desk.runtime->start();
  desk.create(plan("at_most_once", kOneCall));
  desk.answer(0, {.kind = OutcomeKind::unknown, .error_code = "reset"});
  ASSERT_EQ(desk.status(), "parked");
  const auto early = desk.resolve("not_happened");
  ASSERT_FALSE(early) << "this process lives: its call may still be under way";
  EXPECT_EQ(early.error().code, Code::not_settled);
  // Another process has opened the store since: the caller is gone.
  desk.runtime.reset();
  Desk next(ground, "next", {.owned = true, .seed = 99});
  EXPECT_TRUE(next.resolve("not_happened"));
}

AE_TEST(
    "doubt/a call that happened and gave nothing is one that happened, also read from the log") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  desk.runtime->start();
  desk.create(plan("at_most_once", kOneCall));
  desk.answer(0, {.kind = OutcomeKind::unknown, .error_code = "reset"});
  ASSERT_EQ(desk.status(), "parked");
  ASSERT_TRUE(desk.resolve("happened"));
  ground.loop.run_ready();
  const Runtime::Read read = desk.read();
  EXPECT_EQ(engine::to_text(read.state.status), "completed");
  EXPECT_TRUE(read.state.steps[0].result.is_null());
  EXPECT_EQ(desk.calls.size(), 1u);
}

engine::Act not_happened(const Runtime::Read& read) {
  engine::Act act{.kind = engine::Act::Kind::resolve, .resolution = "not_happened"};
  act.idempotency_key = read.state.steps[0].call->key.text;
  return act;
}

AE_TEST("doubt/an answer counts from when it was asked to be taken, however long that takes") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true, .delay = 100s});
  desk.runtime->start();
  desk.create(plan("at_most_once", kOneCall));
  desk.answer(0, {.kind = OutcomeKind::unknown, .error_code = "reset"});
  ASSERT_EQ(desk.status(), "parked");
  const Instant settles = desk.read().state.steps[0].call->deadline + 30s;
  ground.loop.advance(settles - ground.loop.now() - 50s);
  std::optional<Result<Value>> said;
  engine::Act act = not_happened(desk.read());
  bool slow = true;
  desk.script = [&](const store::Call& of) {
    const bool is_load = of.method == Method::load && std::exchange(slow, false);
    return is_load ? Fault::delay : Fault::none;
  };
  act.looked_at = settles + 1h;  // its giver's clock is ahead
  desk.runtime->act(kJob, act, [&](Result<Value> answer) { said.emplace(std::move(answer)); });
  ground.loop.advance(101s);
  ASSERT_TRUE(said);
  ASSERT_FALSE(*said) << "nobody could know yet when it was said";
  EXPECT_EQ(said->error().code, Code::not_settled);
  EXPECT_TRUE(desk.act(not_happened(desk.read())));
  ground.loop.advance(2s);
  EXPECT_EQ(desk.calls.size(), 2u);
}

AE_TEST("doubt/an answer that somebody gave before the call had settled is refused at any time") {
  TwoWorkers two("at_most_once");
  two.ground.loop.advance(120s);
  ASSERT_EQ(two.second.status(), "parked");
  const Instant looked_at = two.ground.loop.now();
  two.ground.loop.advance(1200s);
  engine::Act act = not_happened(two.second.read());
  act.looked_at = looked_at;
  const auto early = two.second.act(act);
  ASSERT_FALSE(early);
  EXPECT_EQ(early.error().code, Code::not_settled);
  EXPECT_NE(early.error().message.find(to_text(looked_at)), std::string::npos);
  act.looked_at = two.ground.loop.now();
  EXPECT_TRUE(two.second.act(act));
}

AE_TEST("doubt/the holder judges what stands in the inbox by when its giver looked") {
  Ground ground;
  Desk first(ground, "first", {.seed = 1});
  Desk second(ground, "second", {.seed = 1'000'001});
  first.runtime->start();
  first.create(plan("at_most_once",
                    "[{'id':'a', 'kind':'tool', 'tool':'do'},"
                    " {'id':'b', 'kind':'tool', 'tool':'do'}]"));
  first.answer(0, {.kind = OutcomeKind::unknown, .error_code = "reset"});
  const auto read = second.read();
  ASSERT_TRUE(read.row.claim) << "the other call keeps the job held";
  const Instant settles = read.state.steps[0].call->deadline + 30s;
  ground.loop.advance(settles + 1s - ground.loop.now());
  // Whoever let it in: this one was seen too early.
  engine::Act early = not_happened(read);
  early.id = "early";
  early.looked_at = settles - 1s;
  store::InboxEntry entry{.number = 0, .id = early.id, .act = {}};
  entry.act =
      canonical(engine::with_checksum(engine::inbox_place(kJob, entry.id), early.to_json()));
  auto put = ground.loop.await<Result<void>>(
      [&](auto done) { second.memory->put_inbox(kJob, entry, std::move(done)); });
  ASSERT_TRUE(put);
  engine::Act act = not_happened(read);
  act.id = "in time";
  const auto said = second.act(act);
  ASSERT_TRUE(said);
  EXPECT_EQ((*said)["accepted"], Value(true));
  const auto posted = second.read();
  ASSERT_EQ(posted.inbox.size(), 2u) << "the holder has not been told";
  EXPECT_EQ(parse_json(posted.inbox[1].act)->text("looked_at"), to_text(ground.loop.now()));
  first.answer(1, {.kind = OutcomeKind::unknown, .error_code = "reset"});
  ground.loop.advance(2s);
  std::vector<std::string_view> believed;
  const auto after = first.read();
  for (const Event& event : after.events) {
    if (event.type == EventType::wait_completed) {
      believed.push_back(event.payload.text("signal_id"));
    }
  }
  EXPECT_EQ(believed, (std::vector<std::string_view>{"in time"}));
  EXPECT_TRUE(first.warned("under way"));
}

AE_TEST("doubt/who holds the job and made the call in doubt says at once that it has not settled") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  desk.runtime->start();
  desk.create(plan("at_most_once",
                   "[{'id':'a', 'kind':'tool', 'tool':'do'},"
                   " {'id':'b', 'kind':'tool', 'tool':'do'}]"));
  desk.answer(0, {.kind = OutcomeKind::unknown, .error_code = "reset"});
  ASSERT_TRUE(desk.runtime->holds(kJob));
  const auto early = desk.act(not_happened(desk.read()));
  ASSERT_FALSE(early) << "told accepted, and dropped: " << canonical(*early);
  EXPECT_EQ(early.error().code, Code::not_settled);
  EXPECT_FALSE(desk.warned("came too late"));
}

AE_TEST(
    "versions/a worker without the job's tool writes nothing, says what is missing, and leaves "
    "it") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  desk.create(plan("idempotent", kOneCall));
  desk.runtime.reset();
  desk.calls.clear();
  Desk other(ground, "other", {.owned = true, .seed = 99});
  other.performers = Performers();
  const auto before = other.read().row.last_seq;
  other.runtime->start();
  ground.loop.advance(60s);
  const auto read = other.read();
  EXPECT_EQ(read.row.last_seq, before);
  EXPECT_FALSE(read.row.claim);
  ASSERT_TRUE(other.runtime->refuses(kJob));
  EXPECT_EQ(other.runtime->refuses(kJob)->code, Code::needs_version);
  EXPECT_EQ(std::ranges::count_if(
                other.warnings,
                [](const std::string& text) { return text.find("cannot run") != text.npos; }),
            1)
      << "it is tried once";
}

AE_TEST("ledger/a try that a crash left open stays unknown when the next one succeeds") {
  Ground ground;
  std::optional<Desk> desk;
  desk.emplace(ground, "first", Desk::Setup{.owned = true, .durability = Durability::split});
  desk->create(plan("idempotent",
                    "[{'id':'a', 'kind':'tool', 'tool':'do'},"
                    " {'id':'t', 'kind':'wait', 'needs':['a'], 'wait':{'type':'timer','for':'5s'}},"
                    " {'id':'b', 'kind':'tool', 'tool':'do', 'needs':['t']}]"));
  desk->runtime.reset();  // it dies during the call
  Desk next(ground, "next", {.owned = true, .durability = Durability::split, .seed = 99});
  next.runtime->start();
  ground.loop.advance(2s);
  ASSERT_EQ(next.calls.size(), 1u);
  next.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  ground.loop.advance(10s);  // it rests, is woken and claimed again
  next.answer(1, {.kind = OutcomeKind::success, .result = json("2")});
  auto loaded = ground.loop.await<Result<store::Loaded>>(
      [&](auto done) { next.memory->load(kJob, 1, std::move(done)); });
  ASSERT_TRUE(loaded);
  std::vector<std::string> states;
  for (const store::LedgerRow& row : loaded->ledger) {
    states.push_back(std::to_string(row.try_no) + " " + row.state);
  }
  std::ranges::sort(states);
  EXPECT_EQ(states, (std::vector<std::string>{"1 COMMITTED", "1 UNKNOWN", "2 COMMITTED"}));
}

// A commit with one event of a type that no version has: all but its last 32 bytes is read before it is refused.
std::string unknown_event(std::uint64_t seq) {
  std::string bytes(1, '\x01');
  bytes.append(16, '\0');             // first event id
  bytes.append(8, '\0');              // created_at
  bytes += std::string("\0\x01", 2);  // no attempt, one event
  put_varint(seq, bytes);
  bytes += "\x7f\x01";  // type 127, schema 1
  put_text("", bytes);
  return bytes.append(32, '\0');
}

AE_TEST("versions/a job with an event of an unknown type is given back unread, once, unchanged") {
  Ground ground;
  std::optional<Desk> desk;
  desk.emplace(ground, "w", Desk::Setup{.owned = true});
  desk->create(plan("idempotent", kOneCall));
  const auto read = desk->read();
  ASSERT_TRUE(read.row.claim);
  store::Batch batch;
  batch.job = kJob;
  batch.authority = store::Batch::Held{*read.row.claim};
  batch.expected_seq = read.row.last_seq;
  batch.row.status = "running";
  const std::uint64_t seq = read.row.last_seq + 1;
  batch.sealed = Sealed{.bytes = unknown_event(seq),
                        .blobs = {},
                        .first_seq = seq,
                        .last_seq = seq,
                        .head = sha256("a newer program knows"),
                        .events = {}};
  desk->runtime.reset();
  auto put = ground.loop.await<Result<store::Committed>>(
      [&](auto done) { desk->memory->commit(batch, std::move(done)); });
  ASSERT_TRUE(put);
  Desk other(ground, "other", {.owned = true, .seed = 99});
  other.runtime->start();
  ground.loop.advance(120s);
  ASSERT_TRUE(other.runtime->refuses(kJob));
  EXPECT_EQ(other.runtime->refuses(kJob)->code, Code::needs_version);
  auto loaded = ground.loop.await<Result<store::Loaded>>(
      [&](auto done) { other.memory->load(kJob, 1, std::move(done)); });
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->row.last_seq, seq) << "nothing was appended, no attempt begun";
  EXPECT_EQ(loaded->row.status, "running") << "it did not fail";
  EXPECT_FALSE(loaded->row.claim);
  EXPECT_EQ(other.warnings.size(), 1u) << "it is claimed once";
  EXPECT_TRUE(other.calls.empty());
}

AE_TEST("ledger/a try is permitted once, and only to the attempt that declared it") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  desk.runtime->start();
  desk.create(plan("idempotent", kOneCall));
  auto state = desk.read().state;
  Ledger first;
  EXPECT_TRUE(first.permit(state, state.steps[0]));
  EXPECT_FALSE(first.permit(state, state.steps[0])) << "a second time";
  Ledger another;
  const auto plans = [&](const Value&,
                         std::string_view) -> Result<std::shared_ptr<const engine::Plan>> {
    return state.plan;
  };
  ASSERT_TRUE(engine::apply(state, engine::running_event(AttemptId("next"), state.epoch + 1, "n"),
                            ground.loop.now(), plans));
  EXPECT_FALSE(another.permit(state, state.steps[0])) << "another attempt declared it";
  desk.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  state = desk.read().state;
  EXPECT_FALSE(another.permit(state, state.steps[0])) << "it is recorded";
}

static_assert(!std::is_copy_constructible_v<tools::Permit> &&
                  !std::is_copy_assignable_v<tools::Permit> &&
                  !std::is_default_constructible_v<tools::Permit> &&
                  !std::is_constructible_v<tools::Permit, InvocationId, std::uint32_t>,
              "only the ledger makes permits");

AE_TEST("ledger/a permit is good for its own try, once") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  desk.runtime->start();
  desk.create(plan("idempotent", kOneCall));
  const auto state = desk.read().state;
  const InvocationId call = state.steps[0].call->id;
  const auto permit = [&] { return *Ledger().permit(state, state.steps[0]); };
  auto used = permit();
  std::move(used).use(call, 1);
  EXPECT_DEATH(std::move(used).use(call, 1), "valid_");
  EXPECT_DEATH(permit().use(call, 2), "valid_");
  EXPECT_DEATH(permit().use(InvocationId("0123456789abcdef"), 1), "valid_");
}

AE_TEST("durability/fused is one commit for each step, split one for each phase") {
  const auto commits_of = [](Durability durability, int nodes) {
    Ground ground;
    Desk desk(ground, "w", {.owned = true, .durability = durability});
    int commits = 0;
    desk.script = [&](const store::Call& call) {
      commits += call.method == Method::commit ? 1 : 0;
      return Fault::none;
    };
    std::string chain = "[{'id':'n0', 'kind':'tool', 'tool':'do'}";
    for (int i = 1; i < nodes; ++i) {
      chain += ",{'id':'n" + std::to_string(i) + "', 'kind':'tool', 'tool':'do', 'needs':['n" +
               std::to_string(i - 1) + "']}";
    }
    desk.runtime->start();
    desk.create(plan("idempotent", chain + "]"));
    for (int i = 0; i < nodes; ++i) {
      desk.answer(static_cast<std::size_t>(i), {.kind = OutcomeKind::success, .result = json("1")});
    }
    AE_CHECK(desk.status() == "completed");
    return commits;
  };
  EXPECT_EQ(commits_of(Durability::fused, 9) - commits_of(Durability::fused, 4), 5);
  // effect │ finished, command_committed │ ledger │ node_finished │ step_committed │ the next declaration
  EXPECT_EQ(commits_of(Durability::split, 9) - commits_of(Durability::split, 4), 5 * 6);
}

AE_TEST(
    "queue/no more jobs of a queue are run at once than its limit, and an end lets the next one "
    "in") {
  Ground ground;
  Desk desk(ground, "only", {.queues = {{"narrow", 2}}});
  desk.runtime->start();
  for (int i = 0; i < 5; ++i) {
    NewJobRequest request{.job = JobId("n" + std::to_string(i)),
                          .agent = "a",
                          .plan = plan("read", kOneCall),
                          .input = Value::object({}),
                          .queue = i < 4 ? "narrow" : ""};
    const auto made = ground.loop.await<Result<Created>>(
        [&](auto done) { desk.runtime->create(std::move(request), std::move(done)); });
    ASSERT_TRUE(made) << made.error().message;
  }
  ground.loop.run_ready();
  EXPECT_EQ(desk.calls.size(), 3u) << "two of the queue, and the one that is in none";
  EXPECT_TRUE(desk.runtime->holds(JobId("n4")));
  const Instant before = ground.loop.now();
  desk.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
  EXPECT_EQ(desk.calls.size(), 4u);
  desk.answer(1, {.kind = OutcomeKind::success, .result = json("7")});
  desk.answer(2, {.kind = OutcomeKind::success, .result = json("7")});
  desk.answer(3, {.kind = OutcomeKind::success, .result = json("7")});
  EXPECT_EQ(desk.calls.size(), 5u);
  EXPECT_EQ(ground.loop.now(), before) << "nobody waits for the next look";
  const auto row = ground.loop.await<Result<Runtime::Read>>(
      [&](auto done) { desk.runtime->read(JobId("n0"), std::move(done)); });
  EXPECT_EQ(row->row.queue, "narrow");
  EXPECT_EQ(row->events.front().payload.text("queue"), "narrow");
}

AE_TEST("create/a job without an id gets a UUIDv7 of the store's time") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  NewJobRequest request;
  request.agent = "agent";
  request.plan = plan("idempotent", kOneCall);
  auto made = ground.loop.await<Result<Created>>(
      [&](auto done) { desk.runtime->create(request, std::move(done)); });
  ASSERT_TRUE(made);
  const auto id = uuid_from_text(made->job.text);
  ASSERT_TRUE(id) << made->job.text;
  EXPECT_EQ(id->bytes[6] >> 4, 7);
  EXPECT_EQ(id->bytes[8] >> 6, 2);
  std::int64_t ms = 0;
  for (std::size_t i = 0; i < 6; ++i) ms = ms << 8 | id->bytes[i];
  EXPECT_EQ(ms, desk.memory->now().us / 1000);
}

AE_TEST("plan/a job whose log holds no plan fails with plan_missing, and none is made up") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  const auto of = plan("idempotent", kOneCall);
  std::vector<EventDraft> events = engine::job_events(
      {.agent = "agent", .input = json("1"), .execution_version = "v1", .plan = of.get()});
  events.pop_back();
  ASSERT_EQ(events.back().type, EventType::job_created);
  auto sealed = seal({.job = kJob,
                      .first_seq = 1,
                      .prev_hash = Hash{},
                      .first_id = uuid_v7(1, 2, 3),
                      .created_at = ground.loop.now(),
                      .attempt_id = std::nullopt,
                      .salt_seed_a = 4,
                      .salt_seed_b = 5},
                     events);
  ASSERT_TRUE(sealed);
  store::Batch batch;
  batch.job = kJob;
  batch.authority = store::Batch::Create{{.agent = "agent"}};
  batch.sealed = std::move(*sealed);
  auto put = ground.loop.await<Result<store::Committed>>(
      [&](auto done) { desk.memory->commit(batch, std::move(done)); });
  ASSERT_TRUE(put);
  desk.runtime->start();
  ground.loop.advance(10s);
  const auto read = desk.read();
  EXPECT_EQ(read.state.status, engine::JobStatus::failed);
  ASSERT_TRUE(read.state.error);
  EXPECT_EQ(read.state.error->code, "plan_missing");
  EXPECT_EQ(read.events.size(), 2u);
  EXPECT_EQ(read.row.status, "failed");
  EXPECT_TRUE(desk.calls.empty());
}

AE_TEST("limits/a payload over 16 MiB is refused before anything is written") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  desk.runtime->start();
  desk.create(plan("idempotent", kWaitAndCall));
  const auto seq = desk.read().row.last_seq;
  const auto said = desk.act({.kind = engine::Act::Kind::signal,
                              .correlation_key = "k",
                              .payload = Value(std::string(17u << 20, 'x'))});
  ASSERT_FALSE(said);
  EXPECT_EQ(said.error().code, Code::payload_too_large);
  EXPECT_EQ(desk.read().row.last_seq, seq);
}

AE_TEST(
    "probe/a call of this process is asked about after its deadline and grace, though the job is "
    "claimed before") {
  Ground ground;
  Desk desk(ground, "only", {.owned = true});
  desk.runtime->start();
  desk.create(
      plan_with_sides("[{'id':'a', 'kind':'tool', 'tool':'do'},"
                      "{'id':'w', 'kind':'wait', 'wait':{'type':'signal', 'key':'k'}}]"));
  ASSERT_EQ(desk.calls.size(), 1u);
  desk.answer(0, {.kind = OutcomeKind::timeout, .error_code = "timeout"});
  EXPECT_EQ(desk.status(), "queued");
  ASSERT_TRUE(desk.signal("k", "1"));  // claimed at once, by a new attempt of the same process
  ground.loop.advance(45s);
  EXPECT_EQ(desk.calls.size(), 1u) << "deadline 20 s, grace 30 s";
  ground.loop.advance(10s);
  ASSERT_EQ(desk.calls.size(), 2u);
  EXPECT_EQ(desk.calls[1].call.tool, "ask");
  EXPECT_EQ(desk.calls[1].call.args["key"], Value(desk.calls[0].call.external_key.text));
  EXPECT_EQ(desk.calls[1].call.timeout, 10s);
  desk.answer(1, {.kind = OutcomeKind::success, .result = json("'done'")});
  EXPECT_EQ(desk.status(), "completed");
}

AE_TEST("undo/a waiting job that is cancelled is claimed and undone, also in split durability") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    Ground ground;
    Desk desk(ground, "only", {.owned = true, .durability = durability});
    desk.runtime->start();
    desk.create(plan_with_sides(
        "[{'id':'a', 'kind':'tool', 'tool':'do'},"
        "{'id':'w', 'kind':'wait', 'wait':{'type':'signal', 'key':'k'}, 'needs':['a']}]"));
    desk.answer(0, {.kind = OutcomeKind::success, .result = json("5")});
    EXPECT_EQ(desk.status(), "waiting");
    ASSERT_TRUE(desk.act({.kind = engine::Act::Kind::cancel}));
    ASSERT_EQ(desk.calls.size(), 2u);
    EXPECT_EQ(desk.calls[1].call.tool, "undo");
    EXPECT_EQ(desk.calls[1].call.args, json("{'what':5}"));
    desk.answer(1, {.kind = OutcomeKind::success});
    EXPECT_EQ(desk.status(), "cancelled");
    EXPECT_EQ(desk.read().state.undone.size(), 1u);
  }
}

AE_TEST("undo/a cancel without compensation reaches a job that is held, also while it undoes") {
  Ground ground;
  Desk desk(ground, "only", {.owned = true});
  desk.runtime->start();
  desk.create(plan_with_sides(
      "[{'id':'a', 'kind':'tool', 'tool':'do'},"
      "{'id':'b', 'kind':'tool', 'tool':'do', 'needs':['a']},"
      "{'id':'w', 'kind':'wait', 'wait':{'type':'signal', 'key':'k'}, 'needs':['b']}]"));
  desk.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  desk.answer(1, {.kind = OutcomeKind::success, .result = json("2")});
  ASSERT_TRUE(desk.act({.kind = engine::Act::Kind::cancel}));
  ASSERT_EQ(desk.calls.size(), 3u);
  ASSERT_TRUE(desk.act({.kind = engine::Act::Kind::cancel, .compensate = false}));
  desk.answer(2, {.kind = OutcomeKind::success});
  EXPECT_EQ(desk.status(), "cancelled");
  EXPECT_EQ(desk.calls.size(), 3u);
  const auto state = desk.read().state;
  EXPECT_EQ(state.undone.size(), 1u);
  EXPECT_EQ(state.undoable.size(), 1u);
}

AE_TEST("undo/a wait that expires fails the job, which is undone") {
  Ground ground;
  Desk desk(ground, "only", {.owned = true});
  desk.runtime->start();
  desk.create(
      plan_with_sides("[{'id':'a', 'kind':'tool', 'tool':'do'},"
                      "{'id':'w', 'kind':'wait', 'wait':{'type':'signal', 'key':'k', "
                      "'expires':'1m'}, 'needs':['a']}]"));
  desk.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  ground.loop.advance(61s);
  ASSERT_EQ(desk.calls.size(), 2u) << "the wait has expired, the node failed";
  desk.answer(1, {.kind = OutcomeKind::success});
  EXPECT_EQ(desk.status(), "failed");
  EXPECT_EQ(desk.read().state.undone.size(), 1u);
}

AE_TEST("undo/a worker that loses the job while it undoes leaves the rest to the next one") {
  Ground ground;
  Desk first(ground, "first", {.seed = 1}), second(ground, "second", {.seed = 1'000'001});
  first.runtime->start();
  first.create(
      plan_with_sides("[{'id':'a', 'kind':'tool', 'tool':'do'},"
                      "{'id':'b', 'kind':'tool', 'tool':'do', 'needs':['a']}]"));
  first.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  first.answer(1, {.kind = OutcomeKind::failure, .definite = true, .error_code = "no"});
  ASSERT_EQ(first.calls.size(), 3u);
  EXPECT_EQ(first.calls[2].call.tool, "undo");
  first.script = without_heartbeat;
  ground.loop.advance(20s);
  second.runtime->start();
  ground.loop.advance(120s);
  ASSERT_EQ(second.calls.size(), 1u);
  EXPECT_EQ(second.calls[0].call.external_key, first.calls[2].call.external_key);
  first.answer(2, {.kind = OutcomeKind::success});
  second.answer(0, {.kind = OutcomeKind::success});
  EXPECT_EQ(second.status(), "failed");
  EXPECT_EQ(second.read().state.undone.size(), 1u);
}

// ---------------------------------------------------------------- forks and other plans

constexpr std::string_view kTwoCalls =
    "[{'id':'a', 'kind':'tool', 'tool':'do', 'args':{'n':1}},"
    " {'id':'b', 'kind':'tool', 'tool':'do', 'args':{'n':'${ .steps.a }'}, 'needs':['a']}]";

Result<Forked> fork(Ground& ground, Desk& desk, ForkRequest wish) {
  wish.origin = kJob;
  std::optional<Result<Forked>> forked;
  desk.runtime->fork(std::move(wish), [&](Result<Forked> made) { forked = std::move(made); });
  ground.loop.advance(500ms);  // whose outcome is unknown is looked at again
  AE_CHECK(forked.has_value(), "nobody answers");
  return *std::move(forked);
}

Runtime::Read read_of(Ground& ground, Desk& desk, const char* job) {
  auto read = ground.loop.await<Result<Runtime::Read>>(
      [&](auto done) { desk.runtime->read(JobId(job), std::move(done)); });
  AE_CHECK(read.has_value(), read ? "" : read.error().message);
  return *std::move(read);
}

AE_TEST("fork/of a running job: it goes on undisturbed, and the fork runs beside it") {
  Ground ground;
  Desk desk(ground, "w", {});
  desk.runtime->start();
  desk.create(plan("at_most_once", kTwoCalls));
  desk.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
  ASSERT_EQ(desk.calls.size(), 2u);
  const auto before = desk.read();
  ForkRequest wish{.at = before.row.last_seq, .job = JobId("job-2")};
  const auto refused = fork(ground, desk, wish);
  ASSERT_TRUE(refused);
  ASSERT_EQ(refused->repeated.size(), 1u);
  EXPECT_EQ(refused->repeated[0]["state"], Value("in_doubt"));
  wish.repeat = {std::string(refused->repeated[0].text("idempotency_key"))};
  const auto made = fork(ground, desk, wish);
  ASSERT_TRUE(made);
  EXPECT_TRUE(made->repeated.empty());
  EXPECT_EQ(desk.read().row.last_seq, before.row.last_seq);
  EXPECT_EQ(desk.read().row.claim, before.row.claim);
  ground.loop.advance(2s);
  ASSERT_EQ(desk.calls.size(), 3u) << "a is not called again";
  EXPECT_EQ(desk.calls[2].call.job, JobId("job-2"));
  EXPECT_EQ(desk.calls[2].call.args, desk.calls[1].call.args);
  EXPECT_NE(desk.calls[2].call.external_key, desk.calls[1].call.external_key);
  desk.answer(1, {.kind = OutcomeKind::success, .result = json("8")});
  desk.answer(2, {.kind = OutcomeKind::success, .result = json("9")});
  ground.loop.advance(2s);
  EXPECT_EQ(desk.read().state.result, json("{'b':8}"));
  EXPECT_EQ(read_of(ground, desk, "job-2").state.result, json("{'b':9}"));
}

AE_TEST("fork/a creation whose answer is lost makes one job; the same id again is a conflict") {
  Ground ground;
  Desk desk(ground, "w", {});
  desk.create(plan("idempotent", kOneCall));
  desk.answer(0, {.kind = OutcomeKind::failure, .definite = true, .error_code = "http_400"});
  ASSERT_EQ(desk.status(), "failed");
  bool once = true;
  desk.script = [&](const store::Call& call) {
    return call.method == Method::commit && std::exchange(once, false) ? Fault::fail_after
                                                                       : Fault::none;
  };
  const auto made = fork(ground, desk, {.job = JobId("job-2")});  // retry
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ(read_of(ground, desk, "job-2").state.forked_from["job_id"], Value("job-1"));
  const auto again = fork(ground, desk, {.job = JobId("job-2")});
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, Code::already_exists);
  ForkRequest keyed{.idempotency_key = "k"};
  const auto first = fork(ground, desk, keyed);
  const auto second = fork(ground, desk, keyed);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->created.job, second->created.job);
  EXPECT_TRUE(second->created.existing);
  keyed.input = json("{'other':1}");
  EXPECT_EQ(fork(ground, desk, keyed).error().code, Code::idempotency_conflict);
}

engine::Act plan_act(std::string_view effect, std::string_view nodes) {
  return {.kind = engine::Act::Kind::plan,
          .payload = Value::object({{"task_graph", plan(effect, nodes)->task_graph}})};
}

AE_TEST("replan/a job that waits gets another plan at once, and is claimed under it") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    Ground ground;
    Desk desk(ground, "w", {.durability = durability});
    desk.runtime->start();
    desk.create(
        plan("at_most_once", "[{'id':'w','kind':'wait','wait':{'type':'signal','key':'k'}}]"));
    ASSERT_EQ(desk.status(), "waiting");
    const auto said = desk.act(plan_act("at_most_once", kOneCall));
    ASSERT_TRUE(said) << said.error().message;
    EXPECT_EQ((*said)["plan"], Value(1));
    ground.loop.advance(2s);
    ASSERT_EQ(desk.calls.size(), 1u);
    EXPECT_EQ(desk.act(plan_act("idempotent", kTwoCalls)).error().code, Code::call_pending);
    desk.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
    ground.loop.advance(2s);
    EXPECT_EQ(desk.status(), "completed");
    EXPECT_EQ(desk.read().state.result, json("{'a':7}"));
  }
}

AE_TEST("replan/whoever holds the job takes the plan in, and gives the job to who has its tools") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    Ground ground;
    Desk desk(ground, "w", {.durability = durability});
    desk.runtime->start();
    desk.create(plan("at_most_once", kTwoCalls));
    desk.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
    // Not sent, and tried again in a moment: the job is held, and nothing is under way.
    desk.answer(1, {.kind = OutcomeKind::failure,
                    .definite = true,
                    .retryable = true,
                    .error_code = "not_sent"});
    ASSERT_TRUE(desk.runtime->holds(kJob));
    const auto said =
        desk.act_and_wait(plan_act("at_most_once",
                                   "[{'id':'a', 'kind':'tool', 'tool':'do', 'args':{'n':1}},"
                                   " {'id':'c', 'kind':'tool', 'tool':'do', "
                                   "'args':{'other':'${ .steps.a }'}, 'needs':['a']}]"));
    ASSERT_TRUE(said) << said.error().message;
    EXPECT_EQ((*said)["accepted"], Value(true));
    ground.loop.advance(2s);
    ASSERT_EQ(desk.calls.size(), 3u) << "a is not called again";
    EXPECT_EQ(desk.calls[2].call.args, json("{'other':7}"));
    desk.answer(2, {.kind = OutcomeKind::success, .result = json("9")});
    ground.loop.advance(2s);
    EXPECT_EQ(desk.status(), "completed");
    const auto read = desk.read();
    EXPECT_EQ(read.state.plan_number, 1u);
    EXPECT_EQ(read.state.result, json("{'c':9}"));
    EXPECT_EQ(read.state.lost_claims, 0u);
  }
}

// A call that has not been sent and is to be tried again in a moment: the job is held, and nothing is under way.
void not_sent(Desk& desk, std::size_t call) {
  desk.answer(call, {.kind = OutcomeKind::failure,
                     .definite = true,
                     .retryable = true,
                     .error_code = "not_sent"});
}

AE_TEST("replan/a plan is not said to be accepted when a call began before the holder looked") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    Ground ground;
    Desk desk(ground, "w", {.durability = durability, .delay = 2s});
    desk.runtime->start();
    desk.create(plan("at_most_once", kOneCall));
    not_sent(desk, 0);
    // The commit that declares the next try is under way: nobody who reads the log sees it.
    bool slow = true;
    desk.script = [&](const store::Call& call) {
      const bool now = call.method == Method::commit && std::exchange(slow, false);
      return now ? Fault::delay : Fault::none;
    };
    ground.loop.advance(300ms);
    ASSERT_FALSE(slow);
    ASSERT_EQ(desk.calls.size(), 1u);
    const auto said = desk.act_and_wait(plan_act("idempotent", kTwoCalls));
    ASSERT_FALSE(said) << canonical(*said);
    EXPECT_EQ(said.error().code, Code::call_pending);
    ASSERT_EQ(desk.calls.size(), 2u);
    desk.answer(1, {.kind = OutcomeKind::success, .result = json("7")});
    ground.loop.advance(2s);
    EXPECT_EQ(desk.status(), "completed");
    EXPECT_EQ(desk.read().state.plan_number, 0u);
  }
}

AE_TEST("replan/a plan that nobody has taken in yet is neither accepted nor refused") {
  Ground ground;
  Desk desk(ground, "w", {});
  desk.runtime->start();
  desk.create(plan("at_most_once", kOneCall));
  not_sent(desk, 0);
  desk.script = [](const store::Call& call) {
    return call.method == Method::commit ? Fault::fail_before : Fault::none;
  };
  ground.loop.advance(300ms);
  const auto said = desk.act_and_wait(plan_act("idempotent", kTwoCalls));
  ASSERT_FALSE(said) << canonical(*said);
  EXPECT_EQ(said.error().code, Code::unknown_outcome);
}

AE_TEST("replan/what was accepted before a plan is taken in comes before it") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    Ground ground;
    Desk desk(ground, "w", {.durability = durability});
    desk.runtime->start();
    desk.create(plan("at_most_once", kWaitAndCall));
    not_sent(desk, 0);
    std::vector<Result<Value>> said;
    const auto keep = [&](Result<Value> answer) { said.push_back(std::move(answer)); };
    desk.runtime->act(kJob, plan_act("at_most_once", kOneCall), keep);
    desk.runtime->act(kJob,
                      {.kind = engine::Act::Kind::signal,
                       .id = "s1",
                       .correlation_key = "k",
                       .payload = json("1")},
                      keep);
    ground.loop.advance(2s);
    ASSERT_EQ(said.size(), 2u);
    for (const auto& answer : said) {
      ASSERT_TRUE(answer) << answer.error().message;
      EXPECT_EQ((*answer)["accepted"], Value(true));
    }
    const auto read = desk.read();
    EXPECT_EQ(read.state.plan_number, 1u);
    EXPECT_EQ(read.state.closed_waits.at("k").outcome, "signalled");
  }
}

AE_TEST("replan/a plan whose tool is not here leaves the job to another process") {
  Ground ground;
  Desk desk(ground, "w", {});
  desk.runtime->start();
  desk.create(
      plan("at_most_once", "[{'id':'w','kind':'wait','wait':{'type':'signal','key':'k'}}]"));
  Value graph = plan("at_most_once", kOneCall)->task_graph;
  graph = graph.with("nodes", json("[{'id':'a','kind':'tool','tool':'elsewhere'}]"))
              .with("tools", Value::object({{"elsewhere", graph["tools"]["do"]}}));
  ASSERT_TRUE(desk.act(
      {.kind = engine::Act::Kind::plan, .payload = Value::object({{"task_graph", graph}})}));
  ground.loop.advance(5s);
  EXPECT_EQ(desk.status(), "queued");
  EXPECT_TRUE(desk.warned("cannot run the job"));
}

AE_TEST("replan/a checkpoint under the new plan is gone on from") {
  Ground ground;
  Desk desk(ground, "w", {.checkpoint_every = 1});
  desk.runtime->start();
  desk.create(
      plan("at_most_once", "[{'id':'w','kind':'wait','wait':{'type':'signal','key':'k'}}]"));
  ASSERT_TRUE(desk.act(plan_act("at_most_once",
                                "[{'id':'w','kind':'wait','wait':{'type':'signal','key':'k'}},"
                                " {'id':'a','kind':'tool','tool':'do','needs':['w']}]")));
  ground.loop.advance(2s);
  ASSERT_EQ(desk.status(), "waiting");
  ASSERT_TRUE(desk.signal("k", "s"));
  ground.loop.advance(2s);
  ASSERT_EQ(desk.calls.size(), 1u);
  desk.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
  EXPECT_EQ(desk.status(), "completed");
}

// ---------------------------------------------------------------- what recoveries, checkpoints and calls tell

std::vector<const Event*> all_of(const std::vector<Event>& events, EventType type) {
  std::vector<const Event*> found;
  for (const Event& event : events) {
    if (event.type == type) found.push_back(&event);
  }
  return found;
}

AE_TEST(
    "recovery/an attempt that takes a job over tells what it found, in the commit it makes "
    "anyway") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    TwoWorkers two("at_most_once", durability);
    const auto read = two.second.read();
    const auto started = all_of(read.events, EventType::recovery_started);
    const auto completed = all_of(read.events, EventType::recovery_completed);
    ASSERT_EQ(started.size(), 1u);
    ASSERT_EQ(completed.size(), 1u);
    const auto attempts = all_of(read.events, EventType::job_running);
    ASSERT_EQ(attempts.size(), 2u) << "the first attempt, which wrote the log, recovers nothing";
    EXPECT_EQ(started[0]->payload.text("attempt_id"), attempts[1]->payload.text("attempt_id"));
    EXPECT_EQ(started[0]->payload["detail"].text("after"), attempts[0]->payload.text("attempt_id"));
    EXPECT_EQ(started[0]->payload["detail"]["seq"], Value(attempts[1]->seq - 1));
    EXPECT_EQ(completed[0]->payload["detail"],
              json("{'caught_up':0, 'in_doubt':1, 'injected':0, 'pending':1, 'resent':0}"));
    EXPECT_EQ(started[0]->seq, attempts[1]->seq + 1);
    EXPECT_EQ(completed[0]->seq, attempts[1]->seq + 2);
    EXPECT_EQ(started[0]->created_at, attempts[1]->created_at) << "they stand in one commit";
  }
}

AE_TEST("recovery/what was done is injected, what stands beside the log is caught up") {
  Ground ground;
  Desk first(ground, "first", {.durability = Durability::split, .seed = 1});
  first.runtime->start();
  first.create(plan("idempotent",
                    "[{'id':'a', 'kind':'tool', 'tool':'do'},"
                    " {'id':'b', 'kind':'tool', 'tool':'do', 'needs':['a']},"
                    " {'id':'c', 'kind':'tool', 'tool':'do', 'needs':['a']}]"));
  first.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  ASSERT_EQ(first.calls.size(), 3u);
  // The effect of `b` is kept; then nothing more of this worker arrives.
  int commits = 0;
  first.script = [&](const store::Call& call) {
    if (call.method == Method::commit && commits++ == 0) return Fault::none;
    return Fault::fail_before;
  };
  first.answer(1, {.kind = OutcomeKind::success, .result = json("2")});
  Desk second(ground, "second", {.durability = Durability::split, .seed = 1'000'001});
  second.runtime->start();
  ground.loop.advance(45s);
  ASSERT_EQ(second.read().state.epoch, 2u);
  const auto completed = all_of(second.read().events, EventType::recovery_completed);
  ASSERT_EQ(completed.size(), 1u);
  const auto read = second.read();
  EXPECT_EQ(all_of(read.events, EventType::recovery_completed)[0]->payload["detail"],
            json("{'caught_up':1, 'in_doubt':0, 'injected':2, 'pending':2, 'resent':1}"));
}

AE_TEST("checkpoint/the commit that makes one says so, with the event that it stands on") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    Ground ground;
    Desk desk(ground, "w", {.owned = true, .durability = durability, .checkpoint_every = 40});
    desk.runtime->start();
    desk.create(plan("idempotent", kManyCalls));
    answer_all(desk);
    const store::Loaded tail = from_checkpoint(ground, desk);
    ASSERT_TRUE(tail.checkpoint);
    const auto read = desk.read();
    const auto notes = all_of(read.events, EventType::state_checkpointed);
    ASSERT_FALSE(notes.empty());
    const Event& note = *notes.back();
    EXPECT_EQ(note.seq, tail.checkpoint->seq) << "it is covered, too";
    EXPECT_EQ(note.payload["detail"]["seq"], Value(note.seq - 1));
    EXPECT_EQ(note.payload["detail"].text("hash"), to_hex(read.events[note.seq - 2].hash));
    EXPECT_EQ(note.prev_hash, read.events[note.seq - 2].hash);
  }
}

AE_TEST("inbox/a wait does not open beside an entry that would answer it") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    Ground ground;
    Desk desk(ground, "w", {.owned = true, .durability = durability});
    desk.runtime->start();
    // While the wait opens another call goes on, so that the job is not given back.
    desk.create(plan("idempotent",
                     "[{'id':'a', 'kind':'tool', 'tool':'do'},"
                     " {'id':'long', 'kind':'tool', 'tool':'do'},"
                     " {'id':'w', 'kind':'wait', 'needs':['a'],"
                     "  'wait':{'type':'signal','key':'k'}}]"));
    ASSERT_EQ(desk.calls.size(), 2u);
    Desk other(ground, "other", {.owned = false});  // the holder is not told
    ASSERT_TRUE(other.act({.kind = engine::Act::Kind::signal,
                           .id = "1",
                           .correlation_key = "k",
                           .buffer = true,
                           .payload = json("7")}));
    desk.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
    const auto read = desk.read();
    EXPECT_EQ(read.state.status, engine::JobStatus::running);
    EXPECT_TRUE(read.inbox.empty()) << "it was passed by";
    EXPECT_EQ(read.state.closed_waits.at("k").outcome, "signalled");
    EXPECT_EQ(desk.calls.size(), 2u) << "nothing is called again";
    const auto opened = all_of(read.events, EventType::wait_opened);
    const auto closed = all_of(read.events, EventType::wait_completed);
    ASSERT_EQ(opened.size(), 1u);
    EXPECT_EQ(opened[0]->created_at, closed[0]->created_at);
  }
}

// The store is out for longer than a lease, and comes back.
void outage(Ground& ground, Desk& desk) {
  desk.script = [](const store::Call&) { return Fault::fail_before; };
  ground.loop.advance(45s);
  AE_CHECK(!desk.runtime->holds(kJob), "it still believes that it holds the job");
  desk.script = [](const store::Call&) { return Fault::none; };
}

AE_TEST("claims/an outage of the store is no lost claim of a process that outlives it") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    Ground ground;
    Desk desk(ground, "w", {.durability = durability});
    desk.runtime->start();
    desk.create(plan("idempotent", kOneCall));
    for (std::uint64_t time = 1; time <= 3; ++time) {
      outage(ground, desk);
      ground.loop.advance(32s);  // its call has settled, and is made again
      ASSERT_TRUE(desk.runtime->holds(kJob));
      const auto read = desk.read();
      EXPECT_EQ(read.state.lost_claims, 0u);
      const auto requeued = all_of(read.events, EventType::job_requeued);
      EXPECT_EQ(
          std::ranges::count(requeued, "store_unavailable",
                             [](const Event* event) { return event->payload.text("reason"); }),
          static_cast<std::ptrdiff_t>(time));
    }
  }
}

AE_TEST(
    "claims/a process that another outlived, or that lost its lease otherwise, has lost a claim") {
  TwoWorkers two("idempotent");
  EXPECT_EQ(two.second.read().state.lost_claims, 1u) << "nobody can know how the first one is";

  Ground ground;
  Desk desk(ground, "w", {.delay = 40s});
  desk.runtime->start();
  desk.create(plan("idempotent", kOneCall));
  // It did not ask in time: the store is well.
  desk.script = [](const store::Call& call) {
    return call.method == Method::heartbeat ? Fault::delay : Fault::none;
  };
  ground.loop.advance(60s);
  desk.script = [](const store::Call&) { return Fault::none; };
  ground.loop.advance(20s);
  EXPECT_GE(desk.read().state.epoch, 2u);
  EXPECT_GE(desk.read().state.lost_claims, 1u);
}

AE_TEST("progress/reports are written rarely, the last one with the end; the fold passes them by") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    Ground ground;
    Desk desk(ground, "w", {.owned = true, .durability = durability});
    desk.runtime->start();
    desk.create(plan("at_most_once", kOneCall));
    ASSERT_EQ(desk.calls.size(), 1u);
    tools::Call& call = desk.calls[0].call;
    for (int i = 0; i < 100; ++i) {
      call.progress(Value::object({{"done", i}}));
      ground.loop.advance(100ms);
    }
    const auto written = all_of(desk.read().events, EventType::progress).size();
    EXPECT_GE(written, 9u);
    EXPECT_LE(written, 11u) << "once a second, of a hundred in ten";
    call.progress(Value::object({{"done", "all"}}));
    desk.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
    const auto read = desk.read();
    EXPECT_EQ(read.state.status, engine::JobStatus::completed);
    const auto reports = all_of(read.events, EventType::progress);
    EXPECT_EQ(reports.back()->payload["detail"], json("{'report':{'done':'all'}, 'try':1}"));
    EXPECT_EQ(reports.back()->payload.text("node_id"), "a");
    EXPECT_EQ(reports.back()->payload.text("step_id"), read.state.steps[0].id.text);
    EXPECT_LT(reports.back()->seq,
              all_of(read.events, EventType::tool_invocation_finished)[0]->seq);
    call.progress(Value("too late"));
    ground.loop.advance(5s);
    EXPECT_EQ(desk.read().events.size(), read.events.size());
  }
}

AE_TEST("progress/the longer a call runs the rarer its reports are written, the newest is kept") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  desk.runtime->start();
  desk.create(plan("at_most_once", kOneCall));
  tools::Call& call = desk.calls[0].call;
  constexpr int kTimes = 180;
  for (int i = 0; i < kTimes; ++i) {
    call.progress(Value(i));
    ground.loop.advance(5s);
  }
  const auto read = desk.read();
  const auto reports = all_of(read.events, EventType::progress);
  EXPECT_LE(reports.size(), kTimes * 3u / 4) << "at the end they are 14 s apart";
  EXPECT_GE(reports.back()->payload["detail"]["report"].as_int(), kTimes - 4);
}

AE_TEST("progress/a report that cannot be written holds up no result, and is not missed") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  desk.runtime->start();
  desk.create(plan("at_most_once", kOneCall));
  int commits = 0;
  desk.script = [&](const store::Call& made) {
    return made.method == Method::commit && commits++ < 3 ? Fault::fail_before : Fault::none;
  };
  desk.calls[0].call.progress(Value("half"));
  ground.loop.run_ready();
  EXPECT_EQ(commits, 1);
  desk.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  ground.loop.advance(1s);
  EXPECT_EQ(desk.status(), "completed");
  EXPECT_EQ(desk.calls.size(), 1u);
}

AE_TEST("progress/a worker that lost the job writes no report more") {
  TwoWorkers two("at_most_once");
  const auto events = two.second.read().events.size();
  two.first.calls[0].call.progress(Value("half"));
  two.ground.loop.run_ready();
  EXPECT_EQ(two.second.read().events.size(), events);
}

AE_TEST(
    "late/what a function says after its call was cut off is kept and shown, and its doubt stays") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  desk.runtime->start();
  desk.create(plan("at_most_once", kOneCall));
  desk.answer(0, {.kind = OutcomeKind::timeout, .error_code = "timeout"});
  EXPECT_EQ(desk.status(), "parked");
  desk.calls[0].call.late({.kind = OutcomeKind::success, .result = json("7")});
  ground.loop.run_ready();
  EXPECT_TRUE(desk.warned("is kept"));
  const auto read = desk.read();
  const auto finished = all_of(read.events, EventType::tool_invocation_finished);
  ASSERT_EQ(finished.size(), 2u);
  EXPECT_EQ(finished[1]->payload["late"], Value(true));
  EXPECT_EQ(finished[1]->payload.text("outcome"), "success");
  ASSERT_TRUE(desk.resolve("happened"));
}

}  // namespace
}  // namespace ae::runtime
