// Versions: jobs that wait for a process that offers their versions (SPEC §12).
//
//   sweep            parked jobs of our agents: those that wait for a version that this process offers go on
//   offered          does another process that shares the store offer a job's version, and all else that it needs? Then the
//                    job is left to it
//   recheck_deferred       jobs that were left so, when no process offers their version any more, and after a minute in any case
//
// What a job waits for is decided by the engine (engine/heart/request_version.cc); a sweep looks at each parked job once, and again
// when its log has grown. Threads: the loop's. See docs/decisions/0073-versions.md.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "async/loop.h"
#include "base/error.h"
#include "base/ids.h"
#include "base/time.h"
#include "json/value.h"
#include "store/store.h"

namespace ae::runtime {

// A process that claims jobs, as it announces itself to those that share the store.
struct WorkerOffer {
  std::vector<std::string> agents;  // empty = any
  std::vector<std::string> offers;  // capabilities and versions
};
// From what a worker announced (Runtime::announce); nullopt: it cannot be read.
std::optional<WorkerOffer> worker_offer(std::string_view says);
// Does it claim jobs of this agent?
bool may_claim_agent(const WorkerOffer& offer, const std::string& agent);

class VersionSweeper {
 public:
  // Tells the job what this process offers; false: there was nothing that it waited for. After an error it is told again.
  using ResumeJob = std::function<void(const store::JobRow&, async::Done<Result<bool>>)>;
  VersionSweeper(store::Store& store, ResumeJob resume);

  // One walk at a time. It goes on until it is over or this object is gone.
  void sweep(std::vector<std::string> agents);
  void check_elsewhere(const store::JobRow& row, const std::string& version,
                       async::Done<Result<bool>> done);
  void recheck_deferred(std::function<void(const std::vector<JobId>&)> then);
  // This process offers other versions now: the next walk looks at each parked job.
  void changed();

 private:
  struct Sweep;
  void next_page(std::shared_ptr<Sweep> sweep_run);
  void next_job(std::shared_ptr<Sweep> sweep_run);

  store::Store& store_;
  const ResumeJob resume_;
  bool sweeping_ = false, offer_changed_ = false;  // offer_changed_: during this walk
  std::map<JobId, std::uint64_t>
      checked_;  // parked jobs that wait for nothing of ours, at this seq
  struct DeferredJob {
    std::string agent;
    std::vector<std::string> needed;
    Instant since;
  };
  std::map<JobId, DeferredJob> deferred_;  // to other processes
  std::shared_ptr<VersionSweeper*> alive_ = std::make_shared<VersionSweeper*>(this);
};

}  // namespace ae::runtime
