// Runtime: claims jobs, runs them, fires timers and applies control requests.
//
// It does not decide what a job does next: each JobDriver calls engine::decide for that. Threads:
// the loop's.
//
// Long: one class, which is the host of all that it owns.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "async/alive.h"
#include "plan/plan_cache.h"
#include "runtime/driver/job_driver.h"
#include "runtime/driver/late_results.h"
#include "runtime/job_cache.h"
#include "runtime/log.h"
#include "runtime/row.h"
#include "runtime/runtime_options.h"
#include "runtime/scheduler/versions.h"
#include "runtime/service/child_jobs.h"
#include "runtime/service/create.h"
#include "runtime/service/job_messages.h"
#include "runtime/service/job_reader.h"
#include "runtime/service/request_submitter.h"
#include "runtime/world.h"

namespace ae::runtime {

class Runtime : private JobDriverHost,
                private RequestHost,
                private JobCreatorHost,
                private ChildJobsHost {
 public:
  Runtime(World world, RuntimeOptions options, RuntimeObserver* observer);
  ~Runtime() override;

  void start();
  // Fails with input_invalid, already_exists (this job id), idempotency_conflict, unavailable,
  // unknown_outcome.
  void create(NewJobRequest request, async::Done<Result<CreateResult>> done) override;
  // Creates a job that continues from an event of another job; it is left queued. The origin is
  // read and its chain verified; it is not changed. Fails with not_found, log_corrupt, the errors
  // of engine::fork_at and retry_point, of `create`, and of a control request with a replacement
  // plan.
  void fork(ForkRequest request, async::Done<Result<ForkResult>> done);
  // Applies a control request: a signal, message, approval, cancel, pause, resolution, and so on.
  // The answer is {"delivered"| …} once the request is applied, or {"accepted": true} once it is in
  // the inbox of the lease holder, which will apply it. Fails as engine::apply_request does, or
  // with not_found, payload_too_large, signals_limit, unavailable, unknown_outcome. A resolution
  // without `checked_at` gets the current time.
  void submit_request(JobId job, engine::ControlRequest request, async::Done<Result<Value>> done);
  // Claims this job for this process if it can be claimed now; false: it cannot.
  void claim_job(JobId job, async::Done<Result<bool>> done);
  using JobSnapshot = runtime::JobSnapshot;
  JobReader& reader() { return job_reader_; }
  // The whole snapshot, of a short log: it is destroyed on the loop.
  void read(const JobId& job, async::Done<Result<JobSnapshot>> done);
  // Without events, as JobReader::read_state; the snapshot is destroyed on the loop.
  void read_state(const JobId& job, async::Done<Result<JobSnapshot>> done);

  // Stops claiming, drains every driver, then calls `stopped`. `grace`: how long to wait for calls
  // in flight.
  void stop(Duration grace, std::function<void()> stopped);
  // The capabilities that the job needs and this process does not offer.
  std::vector<std::string> missing_capabilities(const store::JobRow& row) const;
  // Does this process claim jobs of this agent that need these capabilities?
  bool may_claim(const std::string& agent,
                 const std::vector<std::string>& capabilities) const override;
  // Does this process run jobs of the agent with the tools of this plan? Fails with needs_version:
  // it has another version of a tool, or it owns the store, so that no other process can run them,
  // and lacks a tool or the agent.
  Status check_can_run(const std::string& agent, const engine::Plan& plan) const;
  // Capabilities that this process offers, including the versions of its agents.
  const std::vector<std::string>& offered() const { return offered_; }
  // Why this process cannot run the job; nullptr if it can, or has not tried.
  const Error* refusal_of(const JobId& job) const {
    auto it = refused_.find(job);
    return it == refused_.end() ? nullptr : &it->second;
  }
  // Claims jobs of these agents, with these execution versions, from now on; of none: nothing.
  // `code_agents`: those that are code. Offered under the same conditions as those of the options.
  void offer(std::vector<std::string> agents,
             std::map<std::string, std::string, std::less<>> agent_versions,
             std::set<std::string, std::less<>> code_agents = {});
  void retry_refused();  // this process has other tools or code now: claims jobs that lacked them
  // Workers offer other code, or have room again. Parked jobs that wait for it are resumed.
  void on_routines_changed();
  // A worker reports about calls that an earlier process gave to it: the rest was never begun.
  void on_worker_left(const engine::WorkerName& worker, const routines::LeftCalls& left);
  // How such a call ended.
  void on_worker_late(const engine::WorkerName& worker, const routines::CallName& call,
                      const Outcome& outcome);
  // Drops the cached state, so that the job is read again: its values were erased.
  void drop_cached(const JobId& job) { static_cast<void>(job_cache_.extract(job)); }
  bool is_leased(const JobId& job) const { return drivers_.contains(job); }
  // Agent of a job that runs here; "" = it does not, or is not loaded yet.
  std::string agent_of(const JobId& job) const;
  // State of a job that runs here, including events that are not committed yet; nullptr = it does
  // not run here. Valid until the current loop task ends.
  const engine::State* state_of(const JobId& job) const override;
  std::size_t leased_jobs() const { return drivers_.size(); }
  const Counters& counters() const { return counters_; }
  const RuntimeOptions& options() const { return options_; }

 private:
  engine::PlanCache& plans() override { return plans_; }
  Durability durability() const override { return options_.durability; }
  bool is_resident() const override { return options_.is_resident; }
  const std::string& version_of(const std::string& agent) const override {
    return options_.version_of(agent);
  }
  std::uint64_t checkpoint_every() const override { return options_.checkpoint_every; }
  bool is_observed(EventType type) const;
  std::vector<Event> observed_events(std::vector<Event> events) const override;
  void on_committed_events(const JobId& job, const std::vector<Event>& events) override;
  void on_verification(const JobId& job, const ConfirmationChecked& event);
  void on_driver_exit(const JobDriver& driver, std::optional<Error> problem,
                      ExitState exit_state) override;
  std::optional<CachedJob> extract_cached(const JobId& job) override {
    return job_cache_.extract(job);
  }
  void cache_job(const JobId& job, CachedJob cached) override {
    job_cache_.insert(job, std::move(cached));
  }
  bool left_unknown_call(const JobId& job) const override {
    return jobs_with_unknown_call_.contains(job);
  }
  bool lost_to_outage(const JobId& job, const AttemptId& attempt) const override {
    auto it = lost_to_outage_.find(job);
    return it != lost_to_outage_.end() && it->second.contains(attempt);
  }
  void on_inbox_written(const JobId& job) override;
  void on_inbox_puts(const std::vector<JobId>& jobs) override;
  tools::Tool& runtime_tool(const engine::ToolPolicy& policy) override {
    if (policy.child) return child_jobs_;
    return job_messages_;
  }
  void on_inbox_reply(const JobId& job, const std::string& id, const std::string& reply) override;
  void on_claimable() override;
  const WorkerReports& worker_reports() const override { return worker_reports_; }
  void on_version_wait(Duration wait) override;
  void check_offered_elsewhere(const store::JobRow& row, const std::string& version,
                               async::Done<Result<bool>> done) override;
  void on_late_result(const JobId& job, const engine::SentTry& sent,
                      const Outcome& outcome) override;
  std::weak_ptr<JobDriverHost*> handle() override { return handle_; }
  void store_stopped(const Error& error) override;
  void on_reload() override { counters_.aetheris_job_reload_total++; }
  void warn(const JobId& job, const std::string& what) override;
  void update_store_health(const Error* error);

  void update_offered();
  void sweep_versions();
  void offer_versions(const JobId& job, async::Done<Result<bool>> resumed);
  void run_after_death_recorded(async::Task next);
  void claim_now(const JobId& job, async::Done<Result<bool>> done);
  void tick();
  void on_hint(const store::Hint& hint);
  void claim_more();
  std::shared_ptr<JobDriver> acquire(store::Lease lease);
  void start_driver(store::Lease lease);
  void fire_due_timers();
  void fire_timers_of(std::vector<JobId> due);
  void schedule_next_due();
  void heartbeat();
  void announce(Duration ttl);
  bool can_start(const store::NewJob& row) const override;
  void start_created(CreatedJob&& created, store::Lease lease) override;
  JobDriverHost& host() { return *this; }

  World world_;
  std::shared_ptr<JobDriverHost*> handle_ =
      std::make_shared<JobDriverHost*>(static_cast<JobDriverHost*>(this));
  RuntimeOptions options_;
  RuntimeObserver* observer_;
  Counters counters_;
  // capabilities, including the versions of this process's agents
  std::vector<std::string> offered_;
  engine::PlanCache own_plans_;
  engine::PlanCache& plans_;
  JobCache job_cache_;
  JobReader job_reader_;
  RequestSubmitter request_submitter_;
  JobCreator job_creator_;
  ChildJobs child_jobs_;
  JobMessages job_messages_;
  LateResults late_results_;
  std::map<JobId, std::shared_ptr<JobDriver>> drivers_;
  // Jobs whose timers are being fired; true: the job has become due meanwhile.
  std::map<JobId, bool> fired_jobs_;
  VersionSweeper version_sweeper_;
  // Jobs that this process cannot run (a missing tool, a newer version), and why.
  std::map<JobId, Error> refused_;
  // Released by this process with a call whose outcome is unknown
  std::set<JobId> jobs_with_unknown_call_;
  // Attempts of this process that lost their lease because the store did not respond in time.
  std::map<JobId, std::set<AttemptId>> lost_to_outage_;
  bool started_ = false, stopping_ = false, claiming_ = false, claimable_ = true, firing_ = false,
       fire_again_ = false;
  bool store_unavailable_ = false, store_stopped_ = false;
  std::uint64_t ticks_ = 0;
  std::optional<async::TimerId> tick_timer_, heartbeat_timer_, due_timer_, version_wait_timer_;
  Instant version_wait_due_;
  WorkerReports worker_reports_;
  Duration last_sweep_{};                 // steady clock
  std::vector<async::Task> after_death_;  // tasks that wait until the process death is recorded
  Duration grace_{};
  std::function<void()> stopped_;
  async::Alive alive_;
};

}  // namespace ae::runtime
