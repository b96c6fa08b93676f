// The options of a Runtime, its counters, and the interface through which it reports.
//
// Threads: the loop's.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/ids.h"
#include "base/time.h"
#include "log/event.h"
#include "store/store.h"

namespace ae::runtime {

// Which transactions a step is written in (docs/architecture.md, "One step").
enum class Durability { fused, split };

struct RuntimeOptions {
  std::string worker = "worker";
  Duration lease = std::chrono::seconds(30);
  std::size_t leased_max = 256;             // jobs leased at once
  Duration poll = std::chrono::seconds(1);  // poll interval; finds work whose hint was lost
  Durability durability = Durability::fused;
  bool may_claim = true;  // false: only jobs that are created here or claimed with claim_job
  // false: the process ends when its jobs are idle, and keeps no call open for an answer
  bool is_resident = true;
  std::vector<std::string> agents;  // claim only jobs of these agents; empty = any
  // false: there is no agent, so nothing is claimed until Runtime::offer
  bool has_agents = true;
  std::string execution_version = "0.1.0";
  // Events between checkpoints; fewer when a job is released
  std::uint64_t checkpoint_every = 1000;
  // Execution versions of the agents that this process offers; any other agent has
  // `execution_version`.
  std::map<std::string, std::string, std::less<>> agent_versions;
  std::set<std::string, std::less<>> code_agents;  // those of agent_versions that are code
  std::vector<std::string> capabilities;           // capabilities that this worker offers
  std::vector<store::QueueLimit> queues;  // limits of running jobs per queue, over all workers

  const std::string& version_of(std::string_view agent) const {
    auto it = agent_versions.find(agent);
    return it == agent_versions.end() ? execution_version : it->second;
  }
};

// Counts since the process started, under the names that /metrics shows.
struct Counters {
  // Mismatches after which a job continued
  std::uint64_t aetheris_confirmation_replay_warn_total = 0;
  // Commits that were refused because of a request or a late result: their jobs were read again
  std::uint64_t aetheris_job_reload_total = 0;
  std::uint64_t aetheris_lease_acquired = 0,
                aetheris_lease_acquire_failed = 0;  // jobs; failed claims
  std::uint64_t aetheris_lease_conflict_total = 0;  // jobs lost, or possibly lost, to other workers
  std::uint64_t aetheris_store_hint_total = 0;      // hints from other processes
};

// Callbacks of the runtime. Called on the loop, after the events are durable.
class RuntimeObserver {
 public:
  virtual ~RuntimeObserver() = default;
  // Does on_events read events of this type? Others are freed when they are sealed, and not kept in
  // memory until they are durable.
  virtual bool reads(EventType) const { return true; }
  // Called for each commit of events; events of types that it does not read may be missing.
  virtual void on_events(const JobId&, const std::vector<Event>&) {}
  // This process no longer runs the job: it ended, is blocked, was queued for later, or was lost.
  virtual void on_released(const JobId&, const std::optional<Error>&) {}
  // Another process ended the job or released it to wait. May be lost.
  virtual void on_idle(const JobId&) {}
  virtual void on_warning(const JobId&, const std::string&) {}
  // The store became unavailable; nullopt: it is available again.
  virtual void on_store_health(const std::optional<Error>&) {}
  // The store accepts no more writes until the process restarts (store_stopped). No lease is held
  // any more.
  virtual void on_store_stopped(const Error&) {}
};

}  // namespace ae::runtime
