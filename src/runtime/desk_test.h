// A worker as the tests of the runtime have it.
//
// A Desk is one worker: a runtime over its own faulty view of one disk in memory, and a tool `do` whose calls wait in
// `Desk::calls` until the test answers them. Time moves only by `advance`.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <deque>
#include <memory>
#include <type_traits>
#include "base/bytes.h"
#include "base/trace_context.h"
#include "engine/heart/beside.h"
#include "engine/state/checkpoint.h"
#include "json/json.h"
#include "log/seal.h"
#include "runtime/ledger.h"
#include "runtime/runtime.h"
#include "store/faulty/faulty_store.h"
#include "store/memory/memory_store.h"
#include "testing/test.h"
#include "testing/test_loop.h"

namespace ae::runtime::testing {

using namespace std::chrono_literals;
using ae::testing::TestChance;
using ae::testing::TestLoop;
using ae::testing::TestSteady;
using store::Fault;
using store::Method;

inline const JobId kJob("job-1");

inline Value json(std::string_view text) {
  std::string quoted(text);
  std::ranges::replace(quoted, '\'', '"');
  auto value = parse_json(quoted);
  AE_CHECK(value.has_value(), quoted);
  return *value;
}

// One call of a tool, then whatever `more` adds; the tool's effect class is `effect`.
inline std::shared_ptr<const engine::Plan> plan(std::string_view effect, std::string_view nodes) {
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
inline std::shared_ptr<const engine::Plan> plan_with_sides(std::string_view nodes) {
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

inline constexpr std::string_view kOneCall = "[{'id':'a', 'kind':'tool', 'tool':'do'}]";

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
    bool stays = true;
    std::string version = "0.1.0";  // the execution version that it offers
    bool announces = false;         // that version, as that of the agent
    std::vector<std::string> capabilities = {};
    std::string tool_version = "0123456789abcdef";
    RunningSlot* slot = nullptr;
  };
  Desk(Ground& ground, std::string name, const Setup& setup) : ground_(ground), chance(setup.seed) {
    memory.emplace(ground.loop, ground.loop, ground.disk,
                   store::MemoryStore::Options{.owned = setup.owned});
    faulty.emplace(ground.loop, *memory,
                   store::FaultyStore::Options{
                       .script = [this](const store::Call& call) { return script(call); },
                       .delay = setup.delay});
    for (const char* tool : {"do", "ask", "undo"}) {
      performers.add(tool, {std::make_unique<SlowTool>(calls), setup.tool_version});
    }
    std::map<std::string, std::string, std::less<>> agent_versions;
    if (setup.announces) agent_versions["agent"] = setup.version;
    runtime.emplace(World{ground.loop, ground.steady, chance, *faulty, performers, setup.plans,
                          nullptr, nullptr, setup.slot},
                    RuntimeOptions{.worker = std::move(name),
                                   .durability = setup.durability,
                                   .claims = setup.claims,
                                   .stays = setup.stays,
                                   .execution_version = setup.version,
                                   .checkpoint_every = setup.checkpoint_every,
                                   .agent_versions = std::move(agent_versions),
                                   .capabilities = setup.capabilities,
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
inline Fault without_heartbeat(const store::Call& call) {
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

inline constexpr std::string_view kWaitAndCall =
    "[{'id':'w', 'kind':'wait', 'wait': {'type':'signal', 'key':'k', 'expires':'10s',"
    " 'on_expire':'continue'}}, {'id':'a', 'kind':'tool', 'tool':'do'}]";

// A job that waits for `k` while its holder has given it back.
inline constexpr std::string_view kTwoWaits =
    "[{'id':'v', 'kind':'wait', 'wait': {'type':'signal', 'key':'j'}},"
    " {'id':'w', 'kind':'wait', 'needs':['v'], 'wait': {'type':'signal', 'key':'k'}}]";

inline engine::Act not_happened(const Runtime::Read& read) {
  engine::Act act{.kind = engine::Act::Kind::resolve, .resolution = "not_happened"};
  act.idempotency_key = read.state.steps[0].call->key.text;
  return act;
}

// A call that has not been sent and is to be tried again in a moment: the job is held, and nothing is under way.
inline void not_sent(Desk& desk, std::size_t call) {
  desk.answer(call, {.kind = OutcomeKind::failure,
                     .definite = true,
                     .retryable = true,
                     .error_code = "not_sent"});
}

inline std::vector<const Event*> all_of(const std::vector<Event>& events, EventType type) {
  std::vector<const Event*> found;
  for (const Event& event : events) {
    if (event.type == type) found.push_back(&event);
  }
  return found;
}

// The events of one kind; they live as long as `events`.
template <class T>
std::vector<const T*> all_of(const std::vector<Event>& events) {
  std::vector<const T*> found;
  for (const Event& event : events) {
    if (const T* one = as<T>(event)) found.push_back(one);
  }
  return found;
}

// The store is out for longer than a lease, and comes back.
inline void outage(Ground& ground, Desk& desk) {
  desk.script = [](const store::Call&) { return Fault::fail_before; };
  ground.loop.advance(45s);
  AE_CHECK(!desk.runtime->holds(kJob), "it still believes that it holds the job");
  desk.script = [](const store::Call&) { return Fault::none; };
}

}  // namespace ae::runtime::testing
