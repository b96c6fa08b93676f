// JobCreator: creates jobs: the first events, the row, and the claim of a job that starts here.
//
// Threads: the loop's.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "async/alive.h"
#include "async/loop.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/ids.h"
#include "engine/state/state.h"
#include "log/event.h"
#include "plan/plan.h"
#include "runtime/row.h"
#include "runtime/runtime_options.h"
#include "runtime/service/job_reader.h"
#include "runtime/service/new_job.h"
#include "runtime/world.h"
#include "store/store.h"

namespace ae::runtime {

// A job whose creation is in flight.
struct CreatedJob {
  JobId job;
  std::shared_ptr<engine::State> state;
  std::shared_ptr<const engine::Plan> plan;
  std::vector<Event> events;  // the observed ones
  Hash head;                  // of the log
  std::size_t bytes = 0;      // of the log
  JobRequest request;
  Hash request_hash;
  bool may_claim_here = false;
  async::Done<Result<CreateResult>> done;
};

// What a JobCreator needs from the Runtime that owns it.
class JobCreatorHost {
 public:
  virtual ~JobCreatorHost() = default;
  // May a job with this row start here at once?
  virtual bool can_start(const store::NewJob& row) const = 0;
  // Does this process claim jobs of this agent that need these capabilities?
  virtual bool may_claim(const std::string& agent,
                         const std::vector<std::string>& capabilities) const = 0;
  // Those of the sealed events that on_committed_events reads.
  virtual std::vector<Event> observed_events(std::vector<Event> events) const = 0;
  // Called after events became durable.
  virtual void on_committed_events(const JobId& job, const std::vector<Event>& events) = 0;
  // The job was created with this lease: calls `created.done` and runs the job.
  virtual void start_created(CreatedJob&& created, store::Lease lease) = 0;
  // A job that this process may claim was created.
  virtual void on_claimable() = 0;
};

class JobCreator {
 public:
  // Borrows all.
  JobCreator(World& world, const RuntimeOptions& options, JobCreatorHost& host, JobReader& reader)
      : world_(world), options_(options), host_(host), reader_(reader) {}

  // As Runtime::create.
  void create(NewJobRequest request, async::Done<Result<CreateResult>> done);
  // As Runtime::fork.
  void fork(ForkRequest request, async::Done<Result<ForkResult>> done);

 private:
  void on_created(CreatedJob created, Result<store::CommitResult> result);
  void compare_with_existing(JobId job, Hash known, JobRequest job_request,
                             async::Done<Result<CreateResult>> done);

  World& world_;
  const RuntimeOptions& options_;
  JobCreatorHost& host_;
  JobReader& reader_;
  async::Alive alive_;
};

}  // namespace ae::runtime
