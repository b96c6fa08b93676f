// VersionSweeper: resumes jobs that wait for a process that offers their version (SPEC §12).
//
//   sweep              parked jobs of this process's agents: resumes those that wait for a version
//                      that this process offers
//   check_elsewhere    does another process that shares the store offer a job's version and all
//                      other capabilities that it needs? Then the job is left to that process
//   recheck_deferred   jobs that were left to other processes: when no process offers their version
//                      any more, and after a minute in any case
//
// The engine decides what a job waits for (engine/version/request_version.cc). A sweep checks each
// parked job once, and again when its log has grown. Threads: the loop's. See
// docs/decisions/0073-versions.md.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "async/alive.h"
#include "async/loop.h"
#include "base/error.h"
#include "base/ids.h"
#include "base/time.h"
#include "json/value.h"
#include "store/store.h"

namespace ae::runtime {

// A process that claims jobs, as it announces itself to the processes that share the store.
struct WorkerOffer {
  std::vector<std::string> agents;  // empty = any
  std::vector<std::string> offers;  // capabilities and versions
  bool has_agents = true;           // false: it claims nothing
};
// Parses a worker's announcement (Runtime::announce); nullopt: not readable.
std::optional<WorkerOffer> worker_offer(std::string_view announcement);
// Does the worker claim jobs of this agent?
bool may_claim_agent(const WorkerOffer& offer, const std::string& agent);

class VersionSweeper {
 public:
  // Submits what this process offers to the job; false: the job was not waiting for it. After an
  // error it is submitted again.
  using ResumeJob = std::function<void(const store::JobRow&, async::Done<Result<bool>>)>;
  VersionSweeper(store::Store& store, ResumeJob resume);

  // At most one sweep runs at a time. It continues until it is complete or this object is
  // destroyed.
  void sweep(std::vector<std::string> agents);
  void check_elsewhere(const store::JobRow& row, const std::string& version,
                       async::Done<Result<bool>> done);
  void recheck_deferred(std::function<void(const std::vector<JobId>&)> then);
  // This process offers other versions now: the next sweep checks each parked job again.
  void on_offer_changed();

 private:
  struct Sweep;
  void next_page(std::shared_ptr<Sweep> sweep_run);
  void next_job(std::shared_ptr<Sweep> sweep_run);

  store::Store& store_;
  const ResumeJob resume_;
  bool sweeping_ = false, offer_changed_ = false;  // offer_changed_: during this sweep
  // Parked jobs that wait for nothing that this process offers, at this seq
  std::map<JobId, std::uint64_t> checked_;
  struct DeferredJob {
    std::string agent;
    std::vector<std::string> needed;
    Instant since;
  };
  std::map<JobId, DeferredJob> deferred_;  // left to other processes
  async::Alive alive_;
};

}  // namespace ae::runtime
