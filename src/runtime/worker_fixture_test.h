// WorkerFixture: one worker for the tests of the runtime.
//
// A Runtime over its own faulty view of a shared in-memory disk, and a tool `do` whose calls wait
// in `WorkerFixture::calls` until the test answers them. Time moves only by `advance`.
#pragma once

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>

#include "base/bytes.h"
#include "base/trace_context.h"
#include "engine/heart/side_record.h"
#include "engine/state/checkpoint.h"
#include "json/json.h"
#include "log/field_names.h"
#include "log/seal.h"
#include "runtime/driver/ledger.h"
#include "runtime/driver/output_hub.h"
#include "runtime/manual_tool_test.h"
#include "runtime/plan_fixture_test.h"
#include "runtime/scheduler/runtime.h"
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
    bool may_claim = true, is_resident = true;
    std::string version = "0.1.0";  // the execution version that it offers
    bool announces = false;         // offers `version` for the agent "agent", too
    std::vector<std::string> capabilities = {};
    std::string tool_version = "0123456789abcdef";
    RunningSlot* slot = nullptr;
    routines::RoutineProvider* routines = nullptr;
    NewJobSource* new_jobs = nullptr;
    std::optional<Instant> functions_held_until = {};
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
                          nullptr, &output_hub, setup.slot, nullptr, setup.new_jobs, setup.routines,
                          std::nullopt, setup.functions_held_until},
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
  OutputHub output_hub;
  std::optional<Runtime> runtime;
};

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

}  // namespace ae::runtime::testing
