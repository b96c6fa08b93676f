// SimWorld: the real engine and runtime in many workers on one store, in one thread, determined by
// one seed.
//
// A world has a disk, a clock that may jump, workers that start, pause and die, and an external
// world that no crash affects. The faults are chosen elsewhere: the storm draws them (storm.cc),
// the sweep enumerates them (sweep.cc).
//
//   worker: Runtime → SimStore → FaultyStore → Observer → MemoryStore or SQLite
//
// Threads: one.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "async/failpoint.h"
#include "runtime/driver/output_hub.h"
#include "runtime/running_slot.h"
#include "runtime/scheduler/runtime.h"
#include "sim/blocking_store.h"
#include "sim/external_world.h"
#include "sim/observer.h"
#include "sim/report.h"
#include "sim/sim_agents.h"
#include "sim/sim_code.h"
#include "sim/sim_loop.h"
#include "sim/sim_store.h"
#include "store/faulty/faulty_store.h"
#include "store/memory/memory_store.h"

namespace ae::sim {

// Injected bugs that the checkers must find.
enum class Canary : std::uint8_t {
  none,
  duplicate_request,         // the network delivers requests twice
  lost_signal,               // the store acknowledges an inbox entry and does not keep it
  unclaimed_job,             // the store never returns the first job from a claim
  false_approval,            // a user's rejection reaches the job as an approval
  double_message,            // the store keeps a message twice
  false_probe,               // probes report that the call never arrived
  unlimited_queue,           // the store allows more claims of a queue than its limit
  double_model_request,      // the network delivers requests to models twice
  always_matching_verifier,  // verifiers always report a match
  mutating_verifier,         // verifiers change what they check
  fork_without_consent,      // a fork is made as if its repeated effects were agreed to
  oversized_drop,            // a re-plan abandons more than was requested
  oversized_raise,           // a budget is raised above the requested value
  lost_child_request,        // the store loses what a commit sends to a parent or a child
};

// The failpoint of a node named `poison`, in the slice that decides to call it.
inline constexpr std::string_view kPoison = "decided.poison";
inline const store::QueueLimit kNarrowQueue{"narrow", 1};  // configured in every worker

struct WorldOptions {
  std::uint64_t seed = 1;
  std::size_t workers = 1;
  bool owned = true;  // one process owns the store; false: leases apply
  bool sqlite = false;
  std::vector<runtime::Durability> durability{
      runtime::Durability::fused};  // by worker; the last one for all others
  Duration lease = std::chrono::seconds(10);
  Duration poll = std::chrono::seconds(5);
  std::size_t leased_max = 8;
  std::set<std::size_t> capable;  // offer all required capabilities before the faults end
  Odds odds;
  Duration store_latency = std::chrono::milliseconds(1);  // of every call
  Duration store_delay = std::chrono::milliseconds(300);  // of a delayed call
  Canary canary = Canary::none;
  bool verbose = false;
  engine::PlanCache* plans = nullptr;  // of all lives of all workers; null: each compiles its own
  SimAgents::PlanOf plan_of_child = {};
};

class SimWorld final : private async::FailpointHandler, private runtime::RuntimeObserver {
 public:
  explicit SimWorld(const WorldOptions& options);
  ~SimWorld() override;
  SimWorld(const SimWorld&) = delete;
  SimWorld& operator=(const SimWorld&) = delete;

  // Chooses the faults. `dies` is called at every boundary of a live process, with its name: true =
  // the process dies there. `fails` is called at every AE_FAILPOINT that may fail: true = it fails.
  // `store` is called at every store call.
  struct FaultPlan {
    std::function<bool(const SimProcess&, std::string_view)> dies;
    std::function<bool(std::string_view)> fails;
    store::FaultScript store;
    std::function<void(std::size_t worker)> died;  // the receiver decides when to restart it
  };
  void set_fault_plan(FaultPlan fault_plan) { fault_plan_ = std::move(fault_plan); }

  void start(std::size_t worker);
  void kill(std::size_t worker);  // immediately, between two of its tasks or inside of one
  void pause(std::size_t worker);
  void resume(std::size_t worker);
  bool is_alive(std::size_t worker) const {
    return workers_[worker].process && !workers_[worker].process->dead;
  }
  bool paused(std::size_t worker) const {
    return is_alive(worker) && workers_[worker].process->paused;
  }
  std::size_t workers() const { return workers_.size(); }
  // Ends all faults: all workers live and offer everything.
  void heal();
  // From its next start, this worker offers its tools in another version, or without one of them.
  void swap_tools(std::size_t worker, std::string version, std::string without);

  // Sends a request to a worker; there is no answer if the worker dies.
  void create(std::size_t worker, runtime::NewJobRequest request,
              async::Done<Result<runtime::CreateResult>> done);
  void submit(std::size_t worker, JobId job, engine::ControlRequest request,
              async::Done<Result<Value>> done);
  void fork(std::size_t worker, runtime::ForkRequest request,
            async::Done<Result<runtime::ForkResult>> done);
  // Stops everything, so that the disk can be read.
  void freeze();
  // Reads from the disk directly, without a worker. REQUIRES: frozen.
  Result<store::LoadedJob> read_disk(const JobId& job);

  std::string disk_file() const { return folder_ + "/jobs.db"; }  // REQUIRES: sqlite

  SimLoop& loop() { return loop_; }
  SimRandom& random() { return random_; }
  JumpingClock& clock() { return clock_; }
  Observer& observer() { return observer_; }
  ExternalWorld& external_world() { return external_world_; }
  Report& report() { return report_; }
  const WorldOptions& options() const { return options_; }
  std::uint64_t deaths() const { return deaths_; }
  // Mismatches in warn mode after which a job continued, of all workers and lives.
  std::uint64_t warning_count() const;
  // A fault may have come between a commit and its acknowledgement.
  bool was_disturbed() const { return was_disturbed_; }
  // Prints a line if `verbose`, for the analysis of one seed.
  void log_line(const std::string& what);

 private:
  struct Worker {
    std::shared_ptr<SimProcess> process;
    std::unique_ptr<SimStore> store;
    std::unique_ptr<runtime::ToolRegistry> tool_registry;
    std::unique_ptr<SimAgents> agents;
    std::unique_ptr<SimCode> code;
    std::unique_ptr<runtime::OutputHub> output_hub;
    // The running slot, which outlives the process, and its content when the process died.
    alignas(8) std::array<std::byte, runtime::RunningSlot::kBytes> page{}, page_at_death{};
    std::unique_ptr<runtime::RunningSlot> slot;
    std::unique_ptr<runtime::Runtime> runtime;
    std::uint64_t life_count = 0;
    std::string version{kToolVersion}, without;
    bool capable = false;
  };
  async::FailpointAction hit(std::string_view name) override;
  void on_events(const JobId& job, const std::vector<Event>& events) override;
  void on_released(const JobId& job, const std::optional<Error>& problem) override;
  void on_warning(const JobId& job, const std::string& what) override;
  bool at_boundary(SimProcess& process, std::string_view where);
  void open_disk();
  void close_disk();
  void reap(const std::shared_ptr<SimProcess>& process);

  WorldOptions options_;
  Report report_;
  SimLoop loop_;
  SimRandom random_;
  JumpingClock clock_{loop_};
  FaultPlan fault_plan_;
  Observer observer_{report_};
  ExternalWorld external_world_;
  std::set<AttemptId> stale_attempts_;
  store::MemoryDisk memory_;
  Mailbox mailbox_;
  std::string folder_;  // of the SQLite file
  std::unique_ptr<store::Store> disk_;
  std::unique_ptr<store::FaultyStore> faulty_;
  std::vector<Worker> workers_;
  std::uint64_t deaths_ = 0, warning_count_ = 0;
  bool was_disturbed_ = false;
  async::FailpointHandler* earlier_handler_ = nullptr;
};

// Runs in simulated time until the answer arrives; nullopt if it does not within `limit`.
template <class T, class Start>
std::optional<T> wait_for(SimLoop& loop, Start start, Duration limit = std::chrono::minutes(5)) {
  auto answer = std::make_shared<std::optional<T>>();
  start([answer](T value) { answer->emplace(std::move(value)); });
  loop.run([&] { return answer->has_value(); }, loop.now() + limit);
  return std::move(*answer);
}

}  // namespace ae::sim
