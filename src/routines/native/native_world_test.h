// NativeWorld: a process for tests: its loop, its pool of functions, and the code that it offers.
//
// For tests only. Threads: the test's.
#pragma once

#include <fmt/core.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "engine/fixtures/plan_fixture_test.h"
#include "routines/native/native_routines.h"
#include "testing/test.h"
#include "testing/test_loop.h"
#include "tools/native/native_pool.h"

namespace ae::routines::testing {

using namespace std::chrono_literals;
using engine::testing::json;

// The task graph of an agent that may call its functions, the tools `ask` and `pay` of others, and
// the model `main`. `more` is added to the code node.
inline std::shared_ptr<const engine::Plan> agent_plan(std::string_view more = "",
                                                      std::string_view version = "") {
  const std::string nodes = fmt::format(
      R"([{{'id': 'code', 'kind': 'code', 'code': {{'agent': 'agent', 'language': 'cpp',
           'tools': ['run:read', 'run:idempotent', 'run:at_most_once', 'score', 'ask', 'pay',
                     'model:main']{}{}}}}}])",
      version.empty() ? "" : fmt::format(", 'version': '{}'", version), more);
  return engine::testing::compiled(engine::testing::graph(nodes, R"({'tools': {
      'run:read': {'effect': 'read', 'function': true},
      'run:idempotent': {'effect': 'idempotent', 'function': true,
                         'retry': {'max_attempts': 3, 'retry_on': ['unknown', 'busy']}},
      'run:at_most_once': {'effect': 'at_most_once', 'on_in_doubt': 'park', 'function': true},
      'score': {'effect': 'read', 'function': true, 'result_schema': {'type': 'integer'}},
      'ask': {'effect': 'read'},
      'model:main': {'effect': 'read', 'provider': 'openai'}}})"));
}

class AtomicClock final : public async::SteadyClock {
 public:
  std::atomic<std::int64_t> us = 1'000'000;
  Duration since_start() override { return Duration(us); }
};

struct NativeWorldOptions {
  bool runs_functions_on_threads = true;
  RoutineThreads::Limits limits = {};
};

// A process: its loop, its pool of functions, and what it offers.
struct NativeWorld {
  explicit NativeWorld(const NativeWorldOptions& options = {}) {
    pool.emplace();
    routines.emplace(
        NativeRoutines::Parts{.loop = loop,
                              .clock = loop,
                              .steady_clock = clock,
                              .random = random,
                              .executor = options.runs_functions_on_threads ? &*pool : nullptr,
                              .limits = options.limits});
    routines->add(
        NativeFunction{.name = "score",
                       .effect = EffectClass::read,
                       .function = [](const Value& args, FunctionCall&) { return args["n"]; }});
  }
  void add(AgentBody body, std::string version = "") {
    routines->add(
        NativeAgent{.name = "agent", .version = std::move(version), .body = std::move(body)});
  }
  void advance(Duration by) {
    clock.us += by.count();
    loop.advance(by);
  }
  // Waits until all threads of dropped routines have returned.
  bool has_no_threads() {
    return loop.run_until([this] {
      if (routines->running_threads() == 0) return true;
      loop.post([] { std::this_thread::yield(); });
      return false;
    });
  }

  ae::testing::TestLoop loop;
  AtomicClock clock;
  ae::testing::TestRandom random;
  std::optional<tools::NativeThreadPool> pool;
  std::optional<NativeRoutines> routines;  // destroyed before the pool
};

}  // namespace ae::routines::testing
