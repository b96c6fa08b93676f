// Routine: one running copy of a code agent's function, for one job. Implementations: threads of
// this process (routines/native), worker processes (routines/remote).
//
// A routine holds nothing: it is started with the record of its job (engine/code/code.h), makes the
// recorded requests again, and resumes from there. The job's driver gives it outcomes and receives
// its advances: what it did between two deliveries. A routine may be destroyed at any time; the
// next one is started from the record.
//
// Threads: the loop's. A routine calls its client on the loop's thread, never from within a call of
// its own.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "async/loop.h"
#include "base/error.h"
#include "base/ids.h"
#include "engine/code/code.h"
#include "engine/heart/routine.h"
#include "engine/version/code_version.h"
#include "json/value.h"
#include "log/outcome.h"
#include "log/records.h"
#include "tools/tool.h"

namespace ae::routines {

// The end of a function of the worker, as a part of an advance.
struct FunctionEnd {
  async::Done<Outcome> done;  // of the call (tools::Tool::perform)
  Outcome outcome;            // a success has `delivered`: the routine was given it already
};

// What a routine did since its last advance. It has settled: it waits for an outcome.
struct Advance {
  std::uint64_t delivered = 0;  // how many outcomes it has been given by now
  // False: another advance follows without a further delivery, with a success of a function or the
  // result of a scope.
  bool has_settled = true;
  std::vector<FunctionEnd> functions;        // recorded first, in this order
  engine::Advance recorded;                  // then this
  std::vector<engine::NewRequest> requests;  // then requested
  std::vector<std::string> cancelled;        // positions of requests that it does not need any more
  std::optional<engine::RoutineEnd> end;
};

// The driver of the job.
class RoutineClient {
 public:
  virtual ~RoutineClient() = default;
  // The routine has settled at or after the frontier: everything recorded is made and delivered.
  // Called once for each delivery after it, and once when the frontier is reached.
  virtual void on_advance(std::uint32_t node, Advance advance) = 0;
  // The code does not make what the log holds. The routine makes no further call.
  virtual void on_diverged(std::uint32_t node, Divergence divergence) = 0;
  // The routine cannot run on here, for a reason that is not in its code. It makes no further call;
  // another one can be started from the record.
  virtual void on_lost(std::uint32_t node, Error why) = 0;
  // Its worker broke a rule of the protocol: the code ends as with an exception. The routine makes
  // no further call.
  virtual void on_refused(std::uint32_t node, Error why) = 0;
};

struct RoutineStart {
  JobId job;
  std::uint32_t node = 0;
  std::shared_ptr<const engine::Plan> plan;
  std::string path;              // of its step; those of its requests are `path/position`
  std::string version;           // of the code that runs
  bool is_trial = false;         // another one than the job's (engine/version/code_version.h)
  bool is_check = false;         // a trial that only reports what it finds; its caller shows it
  Value input;                   // of the job
  Value job_value;               // {id, agent, labels, created_at}
  std::string blind;             // of the job: for H of arguments (base/ids.h)
  bool is_blind_erased = false;  // then arguments are not compared
  engine::CodeRecord record;
  RoutineClient* client = nullptr;  // outlives the routine
};

class Routine {
 public:
  // Drops it: its client is not called any more. Calls of its functions still end with `done`.
  virtual ~Routine() = default;
  // Outcomes that are durable and that it has not been given, in log order. Those that come before
  // the frontier are delivered after it.
  virtual void deliver(std::vector<engine::Delivery> outcomes) = 0;
  // Performs the calls of its functions: run:EFFECT, and the tools that the worker registered.
  virtual tools::Tool& functions() = 0;
  // The worker that runs it, and is given its calls; nullopt: this process.
  virtual std::optional<engine::WorkerName> worker() const { return std::nullopt; }
};

// One try of a call, as a worker names it.
struct CallName {
  JobId job;
  InvocationId invocation;
  std::uint32_t try_no = 0;
  friend auto operator<=>(const CallName&, const CallName&) = default;
};

// What a worker states when it begins a session about calls of sessions that are gone.
struct LeftCalls {
  // Those that it received and that have not ended, or ended within `covers` before.
  std::vector<CallName> received;
  std::optional<Duration> covers;  // nullopt: not stated
};

struct AgentVersion {
  std::string agent, version;
  friend auto operator<=>(const AgentVersion&, const AgentVersion&) = default;
};

struct MissingFunction {
  std::string version;  // of the code that the worker offers
  std::string name;
};

// Starts routines: one for each kind of worker.
class RoutineProvider {
 public:
  virtual ~RoutineProvider() = default;
  // The versions in which this process runs this code node, with all functions of the plan. `own`:
  // the job's.
  virtual engine::OfferedCode offered(const engine::Plan& plan, std::uint32_t node,
                                      std::string_view own) const = 0;
  // Why a worker that offers another or the same version of this code does not run it: a function
  // of the plan that it does not offer. nullopt: there is no such worker.
  virtual std::optional<MissingFunction> missing_function(const engine::Plan& plan,
                                                          std::uint32_t node) const = 0;
  // All versions of agents that this process runs.
  virtual std::vector<AgentVersion> agent_versions() const = 0;
  // nullptr: this process does not offer this version of the code, or has no room.
  virtual std::unique_ptr<Routine> start(RoutineStart start) = 0;
};

}  // namespace ae::routines
