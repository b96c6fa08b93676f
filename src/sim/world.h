// SimWorld: the real engine and runtime in many workers on one store, in one thread that one seed decides.
//
// A world has a disk, a clock that may jump, workers that are born, paused and killed, and an outside that none of this
// touches. Who decides what goes wrong stands apart: the storm draws it (storm.cc), the sweep counts it (sweep.cc).
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
#include "runtime/output_hub.h"
#include "runtime/running_slot.h"
#include "runtime/runtime.h"
#include "sim/blocking_store.h"
#include "sim/external_world.h"
#include "sim/observer.h"
#include "sim/report.h"
#include "sim/sim_loop.h"
#include "sim/sim_store.h"
#include "store/faulty/faulty_store.h"
#include "store/memory/memory_store.h"

namespace ae::sim {

// Planted faults that the checkers must find.
enum class Canary : std::uint8_t {
  none,
  duplicate_request,  // the network delivers requests twice
  lost_signal,        // the store acknowledges a post and does not keep it
  forgotten_job,      // the store never gives the first job to anybody
  false_approval,     // a person's no reaches the job as a yes
  double_message,     // the store keeps a message twice
  lying_probe,        // whoever asks what became of a call is told that it never came
  open_queue,         // the store gives more of a queue than its limit allows
  double_question,    // the network delivers questions to models twice
  praising_verifier,  // verifiers say that all is as it was
  touching_verifier,  // verifiers change what they look at
  rash_fork,          // a fork is made as if its repeated effects had been agreed to
  greedy_plan,        // another plan lets go more than somebody said
  generous_raise,     // a budget is raised to more than somebody said
};

// The point of a node of this name, in the slice that decides to call it.
inline constexpr std::string_view kPoison = "decided.poison";

inline const store::QueueLimit kNarrowQueue{"narrow", 1};  // what every worker keeps

struct WorldOptions {
  std::uint64_t seed = 1;
  std::size_t workers = 1;
  bool owned = true;  // one process owns the store; false: leases bind
  bool sqlite = false;
  std::vector<runtime::Durability> durability{
      runtime::Durability::fused};  // by worker, the last one for the rest
  Duration lease = std::chrono::seconds(10);
  Duration poll = std::chrono::seconds(5);
  std::size_t leased_max = 8;
  std::set<std::size_t> capable;  // workers that offer what some jobs need, before the healing
  Odds odds;
  Duration store_latency = std::chrono::milliseconds(1);  // of every answer
  Duration store_delay = std::chrono::milliseconds(300);  // of a slow one
  Canary canary = Canary::none;
  bool verbose = false;
  engine::PlanCache* plans = nullptr;  // of all lives of all workers; null: each compiles its own
};

class SimWorld final : private async::FailpointHandler, private runtime::RuntimeObserver {
 public:
  explicit SimWorld(const WorldOptions& options);
  ~SimWorld() override;
  SimWorld(const SimWorld&) = delete;
  SimWorld& operator=(const SimWorld&) = delete;

  // Who decides. `at` is asked at every boundary of a live process, with where it is: true = it dies there.
  // `point` at every AE_FAILPOINT that may fail: true = it does. `fault` at every store call.
  struct FaultPlan {
    std::function<bool(const SimProcess&, std::string_view)> dies;
    std::function<bool(std::string_view)> fails;
    store::FaultScript store;
    std::function<void(std::size_t worker)> died;  // when to start again is up to you
  };
  void set_fault_plan(FaultPlan fault_plan) { fault_plan_ = std::move(fault_plan); }

  void start(std::size_t worker);
  void kill(std::size_t worker);  // at once, between two of its tasks or inside one
  void pause(std::size_t worker);
  void resume(std::size_t worker);
  bool is_alive(std::size_t worker) const {
    return workers_[worker].process && !workers_[worker].process->dead;
  }
  bool paused(std::size_t worker) const {
    return is_alive(worker) && workers_[worker].process->paused;
  }
  std::size_t workers() const { return workers_.size(); }
  // From now on nothing goes wrong any more: all workers live and offer everything.
  void heal();
  // This worker offers its tools in another version, or without one, from its next start.
  void swap_tools(std::size_t worker, std::string version, std::string without);

  // Asks a worker; the answer never comes when it dies.
  void create(std::size_t worker, runtime::NewJobRequest request,
              async::Done<Result<runtime::CreateResult>> done);
  void act(std::size_t worker, JobId job, engine::ControlRequest act,
           async::Done<Result<Value>> done);
  void fork(std::size_t worker, runtime::ForkRequest request,
            async::Done<Result<runtime::ForkResult>> done);
  // All is over: nothing moves any more, what is on the disk can be read in peace.
  void freeze();
  // The disk itself, past all workers. REQUIRES: frozen.
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
  // Of all workers and their lives: mismatches with which a job went on.
  std::uint64_t warning_count() const;
  // Something went wrong between a commit and whoever was to hear of it.
  bool was_disturbed() const { return was_disturbed_; }
  // For whoever looks at one seed.
  void log_line(const std::string& what);

 private:
  struct Worker {
    std::shared_ptr<SimProcess> process;
    std::unique_ptr<SimStore> store;
    std::unique_ptr<runtime::ToolRegistry> tool_registry;
    std::unique_ptr<runtime::OutputHub> output_hub;
    // The page that outlives the process, and what stood in it when the process died.
    alignas(8) std::array<std::byte, runtime::RunningSlot::kBytes> page{}, left{};
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
  std::set<AttemptId> refused_;
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

// Waits in simulated time for an answer that comes; nullopt when it does not within `limit`.
template <class T, class Start>
std::optional<T> wait_for(SimLoop& loop, Start start, Duration limit = std::chrono::minutes(5)) {
  auto answer = std::make_shared<std::optional<T>>();
  start([answer](T value) { answer->emplace(std::move(value)); });
  loop.run([&] { return answer->has_value(); }, loop.now() + limit);
  return std::move(*answer);
}

}  // namespace ae::sim
