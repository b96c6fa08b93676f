// CodeWorkers: what runs the code and the functions of jobs in this process: native code of this
// program, and worker processes that connect to it.
//
// Owned by the instance, which destroys it after the runtime. Threads: the loop's.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agents/agents_file.h"
#include "async/loop.h"
#include "routines/native/native_routines.h"
#include "routines/providers.h"
#include "routines/remote/remote_routines.h"
#include "runtime/world.h"
#include "store/store.h"
#include "tools/native/native_pool.h"

namespace ae::app {

class CodeWorkers {
 public:
  // Accepts what a worker offers; else the faults of its agents and tools.
  using OnWorker = std::function<std::vector<agents::Diagnostic>(const routines::Definitions&)>;
  struct Parts {  // borrowed
    async::Loop& loop;
    async::SteadyClock& steady;
    async::RandomSource& random;
    store::Store& store;  // its clock
    std::function<void(const std::string&)> warn;
  };
  explicit CodeWorkers(Parts parts);

  void add_native(std::vector<routines::NativeAgent> agents,
                  std::vector<routines::NativeFunction> functions);
  // `on_change`: workers offer something else, or have room again.
  void accept_workers(OnWorker on_worker, std::function<void()> on_change);

  routines::RoutineProvider& provider() { return all_; }
  // nullptr: no worker connects to this process.
  routines::RemoteRoutines* remote() { return remote_ ? &*remote_ : nullptr; }
  // Adds the tools of the file that native code or a worker performs.
  void add_functions(const agents::AgentsFile& file, runtime::ToolRegistry& registry);

 private:
  class StoreClock final : public async::Clock {
   public:
    explicit StoreClock(store::Store& store) : store_(store) {}
    Instant now() override { return store_.now(); }

   private:
    store::Store& store_;
  };
  std::vector<routines::AgentFault> faults_of(const OnWorker& on_worker,
                                              const routines::Definitions& offered) const;

  const Parts parts_;
  StoreClock clock_;
  std::optional<tools::NativeThreadPool> function_threads_;
  std::optional<routines::NativeRoutines> native_;
  std::optional<routines::RemoteRoutines> remote_;
  routines::Providers all_;
};

}  // namespace ae::app
