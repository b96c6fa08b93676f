// WorkerFixture: one worker for the tests of the runtime.
//
// A Runtime over its own faulty view of a shared in-memory disk, and a tool `do` whose calls wait
// in `WorkerFixture::calls` until the test answers them. Time moves only by `advance`.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <deque>
#include <memory>
#include <type_traits>
#include "base/bytes.h"
#include "base/trace_context.h"
#include "engine/heart/side_record.h"
#include "engine/state/checkpoint.h"
#include "json/json.h"
#include "log/field_names.h"
#include "log/seal.h"
#include "runtime/ledger.h"
#include "runtime/runtime.h"
#include "store/faulty/faulty_store.h"
#include "store/memory/memory_store.h"
#include "testing/test.h"
#include "testing/test_loop.h"

namespace ae::runtime::testing {

using namespace std::chrono_literals;
using ae::testing::TestLoop;
using ae::testing::TestRandom;
using ae::testing::TestSteadyClock;
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

// A plan with these nodes and the tool `do`, whose effect class is `effect`.
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

// As above; `do` is at_most_once, has the probe `ask` and the compensation `undo`.
inline std::shared_ptr<const engine::Plan> plan_with_probe_and_undo(std::string_view nodes) {
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

struct PendingCall {
  tools::Call call;
  async::Done<Outcome> done;
  bool abandoned = false;
};

class ManualTool final : public tools::Tool {
 public:
  explicit ManualTool(std::deque<PendingCall>& calls) : calls_(calls) {}
  void perform(tools::Permit permit, tools::Call call, async::Done<Outcome> done) override {
    std::move(permit).consume(call.invocation, call.try_no);
    calls_.push_back({std::move(call), std::move(done)});
  }
  void abandon(const InvocationId& invocation, std::uint32_t try_no) override {
    for (PendingCall& waiting : calls_) {
      const bool mine = waiting.call.invocation == invocation && waiting.call.try_no == try_no;
      waiting.abandoned = waiting.abandoned || mine;
    }
  }

 private:
  std::deque<PendingCall>& calls_;
};

struct TestEnvironment {
  TestLoop loop;
  TestSteadyClock steady{loop};
  store::MemoryDisk disk;
};

class WorkerFixture final : public RuntimeObserver {
 public:
  struct Setup {
    bool owned = false;
    Durability durability = Durability::fused;
    std::uint64_t seed = 1;
    std::uint64_t checkpoint_every = 1000;
    Duration delay = 100ms;  // of faulty slow operations
    std::vector<store::QueueLimit> queues = {};
    engine::PlanCache* plans = nullptr;
    bool may_claim = true;
    bool is_resident = true;
    std::string version = "0.1.0";  // the execution version that it offers
    bool announces = false;         // offers `version` for the agent "agent", too
    std::vector<std::string> capabilities = {};
    std::string tool_version = "0123456789abcdef";
    RunningSlot* slot = nullptr;
  };
  WorkerFixture(TestEnvironment& env, std::string name, const Setup& setup)
      : env_(env), chance(setup.seed) {
    memory.emplace(env.loop, env.loop, env.disk, store::MemoryStore::Options{.owned = setup.owned});
    faulty.emplace(env.loop, *memory,
                   store::FaultyStore::Options{
                       .script = [this](const store::Call& call) { return script(call); },
                       .delay = setup.delay});
    for (const char* tool : {"do", "ask", "undo"}) {
      tool_registry.add(tool, {std::make_unique<ManualTool>(calls), setup.tool_version});
    }
    std::map<std::string, std::string, std::less<>> agent_versions;
    if (setup.announces) agent_versions[field::agent] = setup.version;
    runtime.emplace(World{env.loop, env.steady, chance, *faulty, tool_registry, setup.plans,
                          nullptr, nullptr, setup.slot},
                    RuntimeOptions{.worker = std::move(name),
                                   .durability = setup.durability,
                                   .may_claim = setup.may_claim,
                                   .is_resident = setup.is_resident,
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
    auto made = env_.loop.await<Result<CreateResult>>(
        [&](auto done) { runtime->create(request, std::move(done)); });
    AE_CHECK(made.has_value(), made ? "" : made.error().message);
    env_.loop.run_ready();
  }
  // Does not wait for the reply of a lease holder: returns {accepted: true} if there is none yet.
  Result<Value> submit(engine::ControlRequest request) {
    const auto answer = start_request(std::move(request));
    env_.loop.run_ready();
    return *answer ? **answer : Value::object({{"accepted", true}});
  }
  // As `submit`, and waits for the reply.
  Result<Value> submit_and_wait(engine::ControlRequest request) {
    const auto answer = start_request(std::move(request));
    for (int i = 0; i < 1500 && !*answer; ++i) env_.loop.advance(10ms);
    AE_CHECK(answer->has_value());
    return **answer;
  }
  Result<Value> signal(std::string key, std::string id) {
    return submit({.id = std::move(id),
                   .body = engine::SignalRequest{.correlation_key = std::move(key),
                                                 .payload = json("'said'")}});
  }
  Result<Value> resolve(std::string resolution) {
    const auto read = this->read();
    engine::ResolveRequest request{.resolution = std::move(resolution)};
    for (const engine::Step& step : read.state.steps) {
      if (step.call) request.idempotency_key = step.call->key.text;
    }
    return submit({.body = std::move(request)});
  }
  Runtime::JobSnapshot read() {
    auto read = env_.loop.await<Result<Runtime::JobSnapshot>>(
        [&](auto done) { runtime->read(kJob, std::move(done)); });
    AE_CHECK(read.has_value(), read ? "" : read.error().message);
    return *std::move(read);
  }
  std::string status() { return std::string(engine::to_text(read().state.status)); }
  void answer(std::size_t call, Outcome outcome) {
    calls.at(call).done(std::move(outcome));
    env_.loop.run_ready();
  }
  bool warned(std::string_view words) const {
    return std::ranges::any_of(
        warnings, [&](const std::string& text) { return text.find(words) != text.npos; });
  }

  void on_warning(const JobId&, const std::string& what) override { warnings.push_back(what); }
  void on_store_health(const std::optional<Error>& out) override {
    outages += out ? "out " : "back ";
  }
  void on_store_stopped(const Error& error) override { stopped = error; }

  std::shared_ptr<std::optional<Result<Value>>> start_request(engine::ControlRequest request) {
    auto answer = std::make_shared<std::optional<Result<Value>>>();
    runtime->submit_request(kJob, std::move(request),
                            [answer](Result<Value> result) { answer->emplace(std::move(result)); });
    return answer;
  }

  TestEnvironment& env_;
  std::deque<PendingCall> calls;
  std::vector<std::string> warnings;
  std::string outages;  // "out back out …"
  std::optional<Error> stopped;
  std::function<Fault(const store::Call&)> script = [](const store::Call&) { return Fault::none; };
  TestRandom chance;
  std::optional<store::MemoryStore> memory;
  std::optional<store::FaultyStore> faulty;
  ToolRegistry tool_registry;
  std::optional<Runtime> runtime;
};

// Fails heartbeats and claims; every other operation succeeds.
inline Fault without_heartbeat(const store::Call& call) {
  const bool lost = call.method == Method::heartbeat || call.method == Method::claim;
  return lost ? Fault::fail_before : Fault::none;
}

// The first worker made a call and lost the job to the second one, whose attempt waits for the call
// to settle; the call is still in flight.
struct TwoWorkersFixture {
  explicit TwoWorkersFixture(std::string_view effect, Durability durability = Durability::fused)
      : first(env, "first", {.durability = durability, .seed = 1}),
        second(env, "second", {.durability = durability, .seed = 1'000'001}) {
    first.runtime->start();
    first.create(plan(effect, kOneCall));
    AE_CHECK(first.calls.size() == 1);
    first.script = without_heartbeat;
    env.loop.advance(20s);
    second.runtime->start();
    env.loop.advance(22s);  // its lease of 30 s has run out, and it has noticed
    AE_CHECK(second.read().state.epoch == 2, "the second never claimed");
    AE_CHECK(!first.runtime->is_leased(kJob), first.status());
  }
  TestEnvironment env;
  WorkerFixture first, second;
};

inline constexpr std::string_view kWaitAndCall =
    "[{'id':'w', 'kind':'wait', 'wait': {'type':'signal', 'key':'k', 'expires':'10s',"
    " 'on_expire':'continue'}}, {'id':'a', 'kind':'tool', 'tool':'do'}]";

// A job that waits for `k` after its worker released it.
inline constexpr std::string_view kTwoWaits =
    "[{'id':'v', 'kind':'wait', 'wait': {'type':'signal', 'key':'j'}},"
    " {'id':'w', 'kind':'wait', 'needs':['v'], 'wait': {'type':'signal', 'key':'k'}}]";

inline engine::ControlRequest not_happened(const Runtime::JobSnapshot& read) {
  return {.body = engine::ResolveRequest{.idempotency_key = read.state.steps[0].call->key.text,
                                         .resolution = "not_happened"}};
}

// Answers that the call was not sent, so a retry follows soon: the job stays leased, and nothing is
// in flight.
inline void answer_not_sent(WorkerFixture& worker, std::size_t call) {
  worker.answer(call, {.kind = OutcomeKind::failure,
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

// The events of one type; valid as long as `events`.
template <class T>
std::vector<const T*> all_of(const std::vector<Event>& events) {
  std::vector<const T*> found;
  for (const Event& event : events) {
    if (const T* one = as<T>(event)) found.push_back(one);
  }
  return found;
}

// The store is unavailable for longer than a lease, then available again.
inline void outage(TestEnvironment& env, WorkerFixture& worker) {
  worker.script = [](const store::Call&) { return Fault::fail_before; };
  env.loop.advance(45s);
  AE_CHECK(!worker.runtime->is_leased(kJob), "it still holds the job");
  worker.script = [](const store::Call&) { return Fault::none; };
}

}  // namespace ae::runtime::testing
