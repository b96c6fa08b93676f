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

class CodeWorkers final : private routines::EarlierCalls {
 public:
  // Accepts what a worker offers; else the faults of its agents and tools.
  using OnWorker = std::function<std::vector<agents::Diagnostic>(const routines::Definitions&)>;
  struct Parts {  // borrowed
    async::Loop& loop;
    async::SteadyClock& steady;
    async::RandomSource& random;
    store::Store& store;  // its clock
  };
  explicit CodeWorkers(Parts parts);

  void add_native(std::vector<routines::NativeAgent> agents,
                  std::vector<routines::NativeFunction> functions,
                  routines::FunctionObserver observer = {});
  struct WorkerCallbacks {
    OnWorker on_worker;
    // RemoteRoutines::Parts::rank
    std::function<std::optional<std::size_t>(const routines::AgentVersion&)> rank;
    std::function<void()> on_change;  // workers offer something else, or have room again
    // Reports about calls of an earlier process (Runtime)
    std::function<void(const engine::WorkerName&, const routines::LeftCalls&)> on_left;
    std::function<void(const engine::WorkerName&, const routines::CallName&, const Outcome&)>
        on_late;
  };
  void accept_workers(WorkerCallbacks callbacks);

  routines::RoutineProvider& provider() { return all_; }
  // nullptr: no worker connects to this process.
  routines::RemoteRoutines* remote() { return remote_ ? &*remote_ : nullptr; }
  // The workers that are connected, for GET /api/workers.
  Value workers_json() const;
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
  std::vector<routines::AgentFault> faults_of(const routines::Definitions& offered) const;
  void on_left(std::string_view principal, std::string_view worker,
               const routines::LeftCalls& left) override;
  void on_late(std::string_view principal, std::string_view worker, const routines::CallName& call,
               const Outcome& outcome) override;

  const Parts parts_;
  StoreClock clock_;
  WorkerCallbacks callbacks_;
  std::optional<tools::NativeThreadPool> function_threads_;
  std::optional<routines::NativeRoutines> native_;
  std::optional<routines::RemoteRoutines> remote_;
  routines::Providers all_;
};

// Replaces the time limits of workers; tests use shorter ones. REQUIRES: no instance exists.
void set_worker_limits(const routines::RemoteLimits& limits);
const routines::RemoteLimits& worker_limits();

}  // namespace ae::app
