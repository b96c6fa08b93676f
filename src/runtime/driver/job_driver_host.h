// JobDriverHost: what a JobDriver needs from the Runtime that owns it.
//
// Threads: the loop's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "async/loop.h"
#include "base/error.h"
#include "base/ids.h"
#include "engine/heart/ingest.h"
#include "log/event.h"
#include "plan/plan_cache.h"
#include "runtime/job_cache.h"
#include "runtime/runtime_options.h"
#include "runtime/worker_reports.h"
#include "store/store.h"
#include "tools/tool.h"

namespace ae::runtime {

class JobDriver;

class JobDriverHost {
 public:
  virtual ~JobDriverHost() = default;
  virtual engine::PlanCache& plans() = 0;
  virtual Durability durability() const = 0;
  virtual bool is_resident() const = 0;
  virtual const std::string& version_of(const std::string& agent) const = 0;
  virtual std::uint64_t checkpoint_every() const = 0;
  // Those of the sealed events that on_committed_events reads.
  virtual std::vector<Event> observed_events(std::vector<Event> events) const = 0;
  // Called after events became durable.
  virtual void on_committed_events(const JobId& job, const std::vector<Event>& events) = 0;
  // A commit has put entries into the inboxes of these jobs.
  virtual void on_inbox_puts(const std::vector<JobId>& jobs) = 0;
  // The tool that performs the calls of this policy. REQUIRES: ToolPolicy::is_of_runtime.
  virtual tools::Tool& runtime_tool(const engine::ToolPolicy& policy) = 0;
  // The reply to an inbox entry became durable.
  virtual void on_inbox_reply(const JobId& job, const std::string& id,
                              const std::string& reply) = 0;
  // The driver has finished with the job (released, lost, or given up). It is destroyed after this
  // call returns.
  enum class ExitState {
    resumable,
    finished,
    unknown_call
  };  // unknown_call: a call of this process may still be in flight
  virtual void on_driver_exit(const JobDriver& driver, std::optional<Error> problem,
                              ExitState exit_state) = 0;
  // Removes and returns the cached state of an idle job; `cache_job` stores it.
  virtual std::optional<CachedJob> extract_cached(const JobId& job) = 0;
  virtual void cache_job(const JobId& job, CachedJob cached) = 0;
  // Did an earlier attempt of this process leave a call with an unknown outcome?
  virtual bool left_unknown_call(const JobId& job) const = 0;
  // Did this attempt of this process lose the job because the store was unavailable? Then it does
  // not count as a lost claim.
  virtual bool lost_to_outage(const JobId& job, const AttemptId& attempt) const = 0;
  // Result of a call whose job this process no longer runs: a certain outcome goes only into the
  // effect store.
  virtual void on_late_result(const JobId& job, const engine::SentTry& sent,
                              const Outcome& outcome) = 0;
  // For callbacks that may outlive the host.
  virtual std::weak_ptr<JobDriverHost*> handle() = 0;
  // Does another process that shares the store offer this execution version and all other
  // capabilities that the job needs?
  virtual void check_offered_elsewhere(const store::JobRow& row, const std::string& version,
                                       async::Done<Result<bool>> done) = 0;
  virtual const WorkerReports& worker_reports() const = 0;
  // A job's version of its code is not offered: another one may be tried after this time.
  virtual void on_version_wait(Duration wait) = 0;
  // The store accepts no more writes until the process restarts: all drivers give up.
  virtual void store_stopped(const Error& error) = 0;
  // A commit was refused; the job is read again.
  virtual void on_reload() = 0;
  virtual void warn(const JobId& job, const std::string& what) = 0;
};

}  // namespace ae::runtime
