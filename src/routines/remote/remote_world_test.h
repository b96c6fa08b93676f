// RemoteWorld: a server's side of workers for tests, with one routine and its client.
//
// For tests only. Threads: the test's.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/fixtures/plan_fixture_test.h"
#include "routines/remote/remote_routines.h"
#include "testing/permit.h"
#include "testing/test.h"
#include "testing/test_loop.h"

namespace ae::routines::testing {

using namespace std::chrono_literals;
using engine::testing::json;

// The task graph of the agent "agent", which may call its functions, the registered function
// `score`, the tool `ask` of others and the model `main`.
inline std::shared_ptr<const engine::Plan> remote_plan() {
  return engine::testing::compiled(engine::testing::graph(
      R"([{'id': 'code', 'kind': 'code', 'code': {'agent': 'agent', 'language': 'typescript',
           'version': '1', 'tools': ['run:read', 'run:at_most_once', 'score', 'ask',
                                     'model:main']}}])",
      R"({'tools': {'run:read': {'effect': 'read', 'function': true},
                    'run:at_most_once': {'effect': 'at_most_once', 'on_in_doubt': 'park',
                                         'function': true},
                    'score': {'effect': 'read', 'function': true},
                    'ask': {'effect': 'read'},
                    'model:main': {'effect': 'read', 'provider': 'openai'}}})"));
}

// What the driver of a job is told.
struct RecordingClient final : RoutineClient {
  void on_advance(std::uint32_t, Advance advance) override {
    for (FunctionEnd& end : std::exchange(advance.functions, {})) {
      end.done(std::move(end.outcome));
    }
    advances.push_back(std::move(advance));
    if (drops) routine->reset();
  }
  void on_diverged(std::uint32_t, Divergence found) override { divergence = std::move(found); }
  void on_lost(std::uint32_t, Error why) override {
    lost = std::move(why);
    if (routine != nullptr) routine->reset();
  }
  void on_refused(std::uint32_t, Error why) override {
    refused = std::move(why);
    if (routine != nullptr) routine->reset();
  }
  std::vector<Advance> advances;
  std::optional<Divergence> divergence;
  std::optional<Error> lost, refused;
  std::unique_ptr<Routine>* routine = nullptr;  // dropped with it
  bool drops = false;                           // at an advance
};

struct RecordingEarlierCalls final : EarlierCalls {
  void on_left(std::string_view, std::string_view worker, const LeftCalls& calls) override {
    left.emplace_back(std::string(worker), calls);
  }
  void on_late(std::string_view, std::string_view, const CallName& call,
               const Outcome& outcome) override {
    late.emplace_back(call, outcome);
  }
  std::vector<std::pair<std::string, LeftCalls>> left;
  std::vector<std::pair<CallName, Outcome>> late;
};

// A call that a test has handed to a tool.
struct TestCall {
  std::vector<Outcome> outcomes, late;
  std::vector<Value> progress;
  std::string text;
  bool is_done() const { return !outcomes.empty(); }
  std::string code() const { return outcomes.empty() ? "" : outcomes[0].error_code; }
};

struct RemoteWorld {
  explicit RemoteWorld(const RemoteLimits& limits = {}) {
    routines.emplace(RemoteRoutines::Parts{
                         .loop = loop,
                         .clock = loop,
                         .steady_clock = clock,
                         .random = random,
                         .earlier = &earlier,
                         .on_hello =
                             [this](const Definitions& definitions) {
                               hellos.push_back(definitions);
                               return faults;
                             },
                         .rank = [this](const AgentVersion& one) -> std::optional<std::size_t> {
                           const auto found = std::ranges::find(registered, one.version);
                           if (found == registered.end()) return std::nullopt;
                           return static_cast<std::size_t>(found - registered.begin());
                         },
                         .on_change = [this] { changes++; }},
                     limits);
    client.routine = &routine;
  }
  ~RemoteWorld() {
    routine.reset();
    routines->close();
    loop.run_ready();
  }

  engine::OfferedCode offered() const { return routines->offered(*plan, 0, "1"); }
  bool is_offered() const { return offered().has("1"); }
  // Starts `routine`, with this record; false: it was not started.
  bool start(engine::CodeRecord record = {}) {
    routine = routines->start({.job = JobId("job-1"),
                               .node = 0,
                               .plan = plan,
                               .path = "0/0",
                               .version = version,
                               .is_trial = version != "1",
                               .input = json("{'n': 1}"),
                               .job_value = json("{'id': 'job-1', 'agent': 'agent'}"),
                               .blind = std::string(32, 'b'),
                               .record = std::move(record),
                               .client = &client});
    loop.run_ready();
    return routine != nullptr;
  }
  // Hands a call to this tool. Its invocation is named after it.
  std::shared_ptr<TestCall> perform(tools::Tool& by, const std::string& tool,
                                    const std::string& position = "f", std::uint32_t try_no = 1,
                                    Duration send_within = 10s) {
    auto call = std::make_shared<TestCall>();
    tools::Call request;
    request.job = JobId("job-1");
    request.tool = tool;
    request.position = position;
    request.args = json("{'n': 1}");
    request.key = IdempotencyKey("key");
    request.external_key = ExternalKey("aetheris:job-1:f:0");
    request.invocation = InvocationId("i-" + position);
    request.try_no = try_no;
    request.timeout = 30s;
    request.send_within = send_within;
    request.progress = [call](Value value) { call->progress.push_back(std::move(value)); };
    request.on_text_delta = [call](tools::TextDelta delta) { call->text += delta.text; };
    request.on_late_outcome = [call](Outcome outcome) { call->late.push_back(std::move(outcome)); };
    auto permit = ae::testing::PermitForTests::make(request.invocation, try_no);
    by.perform(std::move(permit), std::move(request),
               [call](Outcome outcome) { call->outcomes.push_back(std::move(outcome)); });
    loop.run_ready();
    return call;
  }

  ae::testing::TestLoop loop;
  ae::testing::TestSteadyClock clock{loop};
  ae::testing::TestRandom random;
  RecordingEarlierCalls earlier;
  RecordingClient client;
  std::vector<Definitions> hellos;
  std::vector<AgentFault> faults;
  int changes = 0;
  std::string version = "1";
  std::vector<std::string> registered;  // versions, the oldest first
  const std::shared_ptr<const engine::Plan> plan = remote_plan();
  std::optional<RemoteRoutines> routines;
  std::unique_ptr<Routine> routine;
};

}  // namespace ae::routines::testing
