// RequestSubmitter: applies the control requests of operators, clients and timers to a job.
//
// While no attempt holds the job, a request is applied here and written to the log. Otherwise it is
// written to the inbox of the lease holder, which applies it and writes a reply beside the entry,
// in one commit. Both writes fail if the claim of the job has changed since it was read; then the
// job is read again. Threads: the loop's.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "async/alive.h"
#include "async/loop.h"
#include "base/error.h"
#include "base/ids.h"
#include "engine/heart/ingest.h"
#include "engine/version/code_version.h"
#include "json/value.h"
#include "plan/plan_cache.h"
#include "runtime/reply.h"
#include "runtime/service/job_reader.h"
#include "runtime/world.h"

namespace ae::runtime {

// What a RequestSubmitter needs from the Runtime that owns it.
class RequestHost {
 public:
  virtual ~RequestHost() = default;
  virtual const std::string& version_of(const std::string& agent) const = 0;
  // Called after events became durable.
  virtual void on_committed_events(const JobId& job, const std::vector<Event>& events) = 0;
  // A commit has put entries into the inboxes of these jobs.
  virtual void on_inbox_puts(const std::vector<JobId>& jobs) = 0;
  // The inbox of the job has a new entry.
  virtual void on_inbox_written(const JobId& job) = 0;
  // Does this process claim jobs of this agent that need these capabilities?
  virtual bool may_claim(const std::string& agent,
                         const std::vector<std::string>& capabilities) const = 0;
  // A job that this process may claim has changed.
  virtual void on_claimable() = 0;
};

class RequestSubmitter {
 public:
  // Borrows all.
  RequestSubmitter(World& world, RequestHost& host, JobReader& reader,
                   const engine::PlanCache& plans)
      : world_(world), host_(host), reader_(reader), plans_(plans) {}

  // As Runtime::submit_request. `sender`: the job that sends it; fails with stale_attempt, and
  // nothing was sent, if it is not held so any more.
  void submit(JobId job, engine::ControlRequest request, async::Done<Result<Value>> done,
              std::optional<store::HeldJob> sender = {});
  // A late result of the job is stored: applies it, or notifies the lease holder.
  void submit_late_result(JobId job, async::Done<Result<Value>> done);
  // The lease holder is in this process, and its reply to an inbox entry became durable.
  void on_reply(const JobId& job, const std::string& id, const std::string& reply);

 private:
  struct ActiveRequest;
  struct Applied;
  void try_request(std::shared_ptr<ActiveRequest> active);
  void apply_or_enqueue(std::shared_ptr<ActiveRequest> active, JobSnapshot&& read);
  void commit(std::shared_ptr<ActiveRequest> active, JobSnapshot&& read, Applied applied,
              Result<Value> answer);
  void consume_entries(const std::shared_ptr<ActiveRequest>& active, JobSnapshot&& read,
                       std::vector<AppliedEntry> entries, Result<Value> answer);
  void on_applied(const std::shared_ptr<ActiveRequest>& active, JobSnapshot&& read,
                  const std::vector<Event>& events, const Result<Value>& answer);
  void enqueue(std::shared_ptr<ActiveRequest> active, JobSnapshot&& read);
  void poll_later(const std::shared_ptr<ActiveRequest>& active);
  void on_polled(const std::shared_ptr<ActiveRequest>& active,
                 Result<store::InboxEntryState> state);
  bool is_waiting(const std::shared_ptr<ActiveRequest>& active) const;
  bool is_behind_another(const ActiveRequest& active) const;
  void wait_for_reply(const std::shared_ptr<ActiveRequest>& active);
  void stop_waiting(const std::shared_ptr<ActiveRequest>& active);
  void finish(const std::shared_ptr<ActiveRequest>& active, Result<Value> answer);
  engine::DecisionContext request_context();
  struct Offered {
    std::vector<std::string> tools;  // versions, by index into Plan::tools
    std::string version;             // the execution version
    engine::CodeOffers code;         // if the job waits for other code
  };
  Offered offered(const engine::State& state);
  std::vector<std::string> tool_versions(const engine::State& state);

  World& world_;
  RequestHost& host_;
  JobReader& reader_;
  const engine::PlanCache& plans_;
  // Requests in an inbox, by job and id of the entry.
  std::multimap<std::pair<JobId, std::string>, std::shared_ptr<ActiveRequest>> waiting_;
  async::Alive alive_;
};

}  // namespace ae::runtime
