// NativeRoutines: code agents that are C++ functions of this process. Each routine runs on threads
// of its own (turns.h); its functions run on the pool of native functions.
//
//   NativeRoutines routines({.loop = loop, …});
//   routines.add(NativeAgent{.name = "refund", .version = "3", .body = refund});
//   routines.add(NativeFunction{.name = "pay_back", .effect = EffectClass::idempotent,
//                               .function = pay_back});
//
// A suspended routine holds its threads: their stacks, as far as they were used. A routine that is
// dropped ends as soon as its body returns; one that does not return keeps its place.
// Threads: the loop's.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "async/alive.h"
#include "async/loop.h"
#include "routines/native/context.h"
#include "routines/native/functions.h"
#include "routines/native/routine_threads.h"
#include "routines/routine.h"
#include "tools/native/native.h"

namespace ae::routines {

struct NativeAgent {
  std::string name, version;  // as the plan has them; version "" = none
  AgentBody body;
};

// A tool for the agents of this process.
struct NativeFunction {
  std::string name;
  EffectClass effect = EffectClass::at_most_once;
  Function function;
};

class NativeRoutines final : public RoutineProvider {
 public:
  static constexpr Duration kReturnGrace = std::chrono::seconds(10);

  struct Parts {  // borrowed
    async::Loop& loop;
    async::Clock& clock;  // of the store
    async::SteadyClock& steady_clock;
    async::RandomSource& random;
    tools::Executor* executor = nullptr;  // runs functions; nullptr: they run on the loop
    RoutineThreads::Limits limits = {};
    FunctionObserver observer = {};  // of calls; empty: none
  };
  explicit NativeRoutines(const Parts& parts);
  // REQUIRES: its routines are destroyed. Waits 100 ms at most for threads of dropped routines.
  ~NativeRoutines() override;

  // REQUIRES: the name is new; of an agent: the name with the version.
  void add(NativeAgent agent);
  void add(NativeFunction function);
  const std::vector<NativeAgent>& agents() const { return agents_; }
  const std::vector<NativeFunction>& functions() const { return functions_; }
  // Performs the calls of a registered function that are not requests of a routine: of plans and
  // loops, probes, compensations. nullptr: there is none. It lives as long as this object.
  tools::Tool* tool(std::string_view name) const;

  // No other version comes while this process lives.
  engine::OfferedCode offered(const engine::Plan& plan, std::uint32_t node,
                              std::string_view own) const override;
  std::optional<MissingFunction> missing_function(const engine::Plan& plan,
                                                  std::uint32_t node) const override;
  std::vector<AgentVersion> agent_versions() const override;
  std::unique_ptr<Routine> start(RoutineStart start) override;

  std::size_t running_routines() const { return threads_.routines(); }  // also dropped ones
  std::size_t running_threads() const { return threads_.threads(); }
  // Threads of dropped routines that have not returned within kReturnGrace. While there are any,
  // the process must exit with `_exit`.
  std::size_t abandoned_threads() const;

 private:
  class NativeRoutine;
  class FunctionTool;
  bool has_functions(const engine::Plan& plan, std::uint32_t node) const;
  void on_dropped(const std::shared_ptr<RoutineThreads::Place>& place);

  const Parts parts_;
  std::vector<NativeAgent> agents_;
  std::vector<NativeFunction> functions_;
  Functions calls_;
  std::map<std::string, std::unique_ptr<FunctionTool>, std::less<>> tools_;  // of functions_
  RoutineThreads threads_;
  std::vector<std::weak_ptr<RoutineThreads::Place>> abandoned_;
  async::Alive alive_;
};

}  // namespace ae::routines
