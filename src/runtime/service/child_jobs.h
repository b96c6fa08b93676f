// ChildJobs: the tool that creates child jobs, and records their ends as outcomes of its calls.
//
// Its first try creates the child and ends input_required: the parent waits for the job
// (engine/children/children.h). Creating it again finds the child, whose id follows from the call.
// Threads: the loop's.
#pragma once

#include <memory>
#include <string>

#include "async/alive.h"
#include "engine/state/state.h"
#include "runtime/service/job_reader.h"
#include "runtime/service/new_job.h"
#include "runtime/world.h"
#include "tools/tool.h"

namespace ae::runtime {

// What ChildJobs needs from the Runtime that owns it.
class ChildJobsHost {
 public:
  virtual ~ChildJobsHost() = default;
  // Of a job that runs here; nullptr: it does not.
  virtual const engine::State* state_of(const JobId& job) const = 0;
  virtual void create(NewJobRequest request, async::Done<Result<CreateResult>> done) = 0;
};

class ChildJobs final : public tools::Tool {
 public:
  // Borrows all.
  ChildJobs(World& world, ChildJobsHost& host, JobReader& reader)
      : world_(world), host_(host), reader_(reader) {}

  void perform(tools::Permit permit, tools::Call call, async::Done<Outcome> done) override;
  // One commit creates the child: its answer is awaited.
  void abandon(const InvocationId&, std::uint32_t) override {}

 private:
  struct Creation;
  void on_made(std::shared_ptr<Creation> creation, Result<NewJobRequest> made);
  void create(std::shared_ptr<Creation> creation);
  void refuse(std::shared_ptr<Creation> creation, Outcome refusal);
  void find(std::shared_ptr<Creation> creation);

  World& world_;
  ChildJobsHost& host_;
  JobReader& reader_;
  async::Alive alive_;
};

}  // namespace ae::runtime
