// SimWorld: the real engine, runtime and memory store in a world that one seed decides.
//
// The process may crash at any boundary (before or after any store call, before a request leaves, after its effect,
// before its answer) and comes back on the same disk; the journal of the outside world is never lost.
// Threads: one.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "runtime/runtime.h"
#include "sim/sim_loop.h"
#include "sim/sim_store.h"
#include "sim/sim_tools.h"
#include "store/memory/memory_store.h"

namespace ae::sim {

struct SimOptions {
  std::uint64_t seed = 1;
  runtime::Durability durability = runtime::Durability::fused;
  std::uint64_t lie_one_in = 0;
  SimTool::Odds odds;
};

class SimWorld {
 public:
  explicit SimWorld(const SimOptions& options)
      : options_(options), chance_(options.seed), journal_(std::make_unique<Journal>()) {}

  // The tools read, idempotent and at_most_once of the simulated world, as a plan's `tools` may name them.
  static constexpr std::string_view kTools[] = {"read", "idempotent", "once"};

  // Starts the process (again). `crash_at`: the boundary at which it dies.
  void start(CrashPlan crash = {}) {
    crasher_.plan(crash);
    memory_ = std::make_unique<store::MemoryStore>(loop_, loop_, disk_);
    store_ = std::make_unique<SimStore>(*memory_, crasher_, chance_);
    store_->lie(options_.lie_one_in);
    performers_ = std::make_unique<runtime::Performers>();
    const Nature natures[] = {Nature::read, Nature::idempotent, Nature::at_most_once};
    for (int i = 0; i < 3; ++i) {
      performers_->add(std::string(kTools[i]),
                       {std::make_unique<SimTool>(loop_, crasher_, chance_, *journal_, natures[i],
                                                  options_.odds),
                        "0123456789abcdef"});
    }
    runtime::World world{loop_, loop_, chance_, *store_, *performers_};
    runtime_ = std::make_unique<runtime::Runtime>(
        world, runtime::RuntimeOptions{.worker = "sim", .durability = options_.durability},
        nullptr);
    runtime_->start();
  }
  // The process is gone; the disk and the outside world stay.
  void crash() {
    loop_.clear();
    runtime_.reset();
    loop_.clear();
    performers_.reset();
    store_.reset();
    memory_.reset();
  }

  // Runs until the job rests (ended, or blocked with no timer), the process crashes, or `limit` of simulated time.
  // nullopt: crashed or out of time.
  std::optional<std::string> run_to_rest(const JobId& job, Duration limit = std::chrono::hours(48));

  runtime::Runtime& runtime() { return *runtime_; }
  SimLoop& loop() { return loop_; }
  Crasher& crasher() { return crasher_; }
  Journal& journal() { return *journal_; }
  SimChance& chance() { return chance_; }

  // Asks and waits, in simulated time. REQUIRES: the answer comes.
  Result<runtime::Created> create(runtime::NewJobRequest request);
  Result<Value> act(const JobId& job, engine::Act act);
  Result<runtime::Runtime::Read> read(const JobId& job);

 private:
  SimOptions options_;
  SimLoop loop_;
  SimChance chance_;
  Crasher crasher_;
  std::unique_ptr<Journal> journal_;
  store::MemoryDisk disk_;
  std::unique_ptr<store::MemoryStore> memory_;
  std::unique_ptr<SimStore> store_;
  std::unique_ptr<runtime::Performers> performers_;
  std::unique_ptr<runtime::Runtime> runtime_;
};

}  // namespace ae::sim
