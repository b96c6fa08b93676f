// Runtime: claims jobs, runs them, fires timers and applies control requests.
//
// It does not decide what a job does next: each JobDriver calls engine::decide for that. Threads:
// the loop's.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/fork/fork.h"
#include "engine/heart/ingest.h"
#include "plan/plan.h"
#include "plan/plan_cache.h"
#include "runtime/job_cache.h"
#include "runtime/job_driver.h"
#include "runtime/row.h"
#include "runtime/versions.h"
#include "runtime/world.h"

namespace ae::runtime {

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
  std::string execution_version = "0.1.0";
  // Events between checkpoints; fewer when a job is released
  std::uint64_t checkpoint_every = 1000;
  // Execution versions of the agents that this process offers; any other agent has
  // `execution_version`.
  std::map<std::string, std::string, std::less<>> agent_versions;
  std::vector<std::string> capabilities;  // capabilities that this worker offers
  std::vector<store::QueueLimit> queues;  // limits of running jobs per queue, over all workers

  const std::string& version_of(std::string_view agent) const {
    auto it = agent_versions.find(agent);
    return it == agent_versions.end() ? execution_version : it->second;
  }
};

// A plan that replaces the initial plan of a fork (engine/replan/replan.h).
struct PlanReplacement {
  std::shared_ptr<const engine::Plan> plan;
  std::vector<std::string> drop;  // nodes whose committed effects may be abandoned
  std::string by;                 // who submitted it
};

struct NewJobRequest {
  JobId job;  // empty = a new UUIDv7
  std::string agent;
  std::shared_ptr<const engine::Plan> plan;
  Value input;
  std::vector<std::pair<std::string, std::string>> labels;
  std::string idempotency_key;
  std::int64_t priority = 0;
  std::string queue;                               // "" = the default queue
  std::vector<std::string> required_capabilities;  // sorted, without duplicates
  // The job fails with `deadline_exceeded` at this time or at its agent's deadline, whichever is
  // earlier. If it has already passed, the job ends before anything is done.
  std::optional<Instant> deadline = {};
  engine::Limits budget = {};  // of the job; none = its agent's
  // The options above that the request set itself and that are not the agent's: they are part of
  // what the idempotency key identifies. null = none.
  Value explicit_options;
  // Create the job with a lease and run it here at once, if there is capacity; false: leave it
  // queued.
  bool start_here = true;
  std::shared_ptr<const engine::Fork> fork;  // the fork's initial contents; nullptr = not a fork
  // Of a fork: replaces `plan` before anything is done
  std::optional<PlanReplacement> plan_replacement = {};
  std::optional<store::AuditEntry> audit;  // written with the job
  std::string traceparent,
      tracestate;  // of the caller (base/trace_context.h); not compared for idempotency
};

struct ForkRequest {
  JobId origin;
  std::uint64_t at = 0;        // an event of the origin's log; 0 = where a failed job is retried
  JobId job;                   // id of the new job; empty = a new UUIDv7
  std::optional<Value> input;  // nullopt = the origin's
  std::string idempotency_key;
  std::string by;                       // who requested it
  Value task_graph;                     // a replacement plan; null = the origin's
  std::vector<std::string> drop;        // as in PlanReplacement; with `task_graph`
  std::string traceparent, tracestate;  // as in NewJobRequest
  // Effects of the origin that may be repeated: all, or those with these idempotency keys, step ids
  // or node ids.
  bool repeat_all = false;
  std::vector<std::string> repeat;
};

struct CreateResult {
  JobId job;
  bool existing = false;  // an earlier request with this idempotency key created it
  // Of an existing job: its input was erased, so only the rest of the request was compared.
  bool input_erased = false;
};

// Counts since the process started, under the names that /metrics shows.
struct Counters {
  // Mismatches after which a job continued
  std::uint64_t aetheris_confirmation_replay_warn_total = 0;
  std::uint64_t aetheris_lease_acquired = 0,
                aetheris_lease_acquire_failed = 0;  // jobs; failed claims
  std::uint64_t aetheris_lease_conflict_total = 0;  // jobs lost, or possibly lost, to other workers
  std::uint64_t aetheris_store_hint_total = 0;      // hints from other processes
};

struct ForkResult {
  CreateResult created;
  // Not empty: no job was created, because these effects were not allowed to repeat
  // (engine::Fork::effects)
  std::vector<Value> repeated;
  Value changes;  // engine::plan_changes of the replacement plan
};

// Callbacks of the runtime. Called on the loop, after the events are durable.
class RuntimeObserver {
 public:
  virtual ~RuntimeObserver() = default;
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

class Runtime : private JobDriverHost {
 public:
  Runtime(World world, RuntimeOptions options, RuntimeObserver* observer);
  ~Runtime() override;

  void start();
  // Fails with input_invalid, already_exists (this job id), idempotency_conflict, unavailable,
  // unknown_outcome.
  void create(NewJobRequest request, async::Done<Result<CreateResult>> done);
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
  // Reads a job's log and folds it.
  struct JobSnapshot {
    store::JobRow row;
    std::vector<Event> events;
    engine::State state;
    std::vector<store::EffectRow> effects;
    std::vector<store::InboxEntry> inbox;  // accepted, not applied yet
    std::size_t bytes = 0;                 // as in LoadedState
    std::uint64_t checkpoint_seq = 0, checkpoint_bytes = 0;
  };
  void read(JobId job, async::Done<Result<JobSnapshot>> done);
  // As `read`, without events, starting at the job's checkpoint: the cost does not grow with the
  // log.
  void read_state(JobId job, async::Done<Result<JobSnapshot>> done);

  // Stops claiming, drains every driver, then calls `stopped`. `grace`: how long to wait for calls
  // in flight.
  void stop(Duration grace, std::function<void()> stopped);
  // The capabilities that the job needs and this process does not offer.
  std::vector<std::string> missing_capabilities(const store::JobRow& row) const;
  // Does this process claim jobs of this agent that need these capabilities?
  bool may_claim(const std::string& agent, const std::vector<std::string>& capabilities) const;
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
  // Claims jobs of these agents, with these execution versions, from now on. REQUIRES: not empty;
  // offered under the same conditions as those of the options.
  void offer(std::vector<std::string> agents,
             std::map<std::string, std::string, std::less<>> agent_versions);
  // Drops the cached state, so that the job is read again: its values were erased.
  void drop_cached(const JobId& job) { static_cast<void>(job_cache_.extract(job)); }
  bool is_leased(const JobId& job) const { return drivers_.contains(job); }
  // Agent of a job that runs here; "" = it does not, or is not loaded yet.
  std::string agent_of(const JobId& job) const;
  // State of a job that runs here, including events that are not committed yet; nullptr = it does
  // not run here. Valid until the current loop task ends.
  const engine::State* state_of(const JobId& job) const;
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
  void check_offered_elsewhere(const store::JobRow& row, const std::string& version,
                               async::Done<Result<bool>> done) override;
  void on_late_result(const JobId& job, const engine::SentTry& sent,
                      const Outcome& outcome) override;
  std::weak_ptr<JobDriverHost*> handle() override { return handle_; }
  void store_stopped(const Error& error) override;
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
  void schedule_next_due();
  void heartbeat();
  void announce(Duration ttl);
  struct LogReading;
  struct ActiveRequest;
  void read_with_cache(const JobId& job, std::optional<CachedJob> cached,
                       async::Done<Result<JobSnapshot>> done);
  void cache_state(const JobId& job, JobSnapshot&& read);
  void try_request(std::shared_ptr<ActiveRequest> active);
  void apply_or_enqueue(std::shared_ptr<ActiveRequest> active, JobSnapshot&& read);
  void post_to_inbox(std::shared_ptr<ActiveRequest> active, const engine::AppliedRequest& applied);
  void recheck_accepted(std::shared_ptr<ActiveRequest> active, Value answer);
  void wait_for_plan(std::shared_ptr<ActiveRequest> active, Value answer);
  engine::DecisionContext request_context();
  std::vector<std::string> tool_versions(const engine::State& state);
  JobId new_job_id();
  void compare_with_existing(JobId job, Hash known, JobRequest job_request,
                             async::Done<Result<CreateResult>> done);
  void store_late_result(std::shared_ptr<store::Batch> batch, int tries);
  void on_late_result_stored(std::shared_ptr<store::Batch> batch, int tries,
                             Result<store::CommitResult> result);
  void retry_late_result(const std::shared_ptr<store::Batch>& batch, int tries,
                         const std::string& what, const Error& error);
  JobDriverHost& host() { return *this; }
  AttemptId new_attempt_id();

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
  std::map<JobId, std::shared_ptr<JobDriver>> drivers_;
  JobCache job_cache_;
  VersionSweeper version_sweeper_;
  // Jobs that this process cannot run (a missing tool, a newer version), and why.
  std::map<JobId, Error> refused_;
  // Released by this process with a call whose outcome is unknown
  std::set<JobId> jobs_with_unknown_call_;
  // Attempts of this process that lost their lease because the store did not respond in time.
  std::map<JobId, std::set<AttemptId>> lost_to_outage_;
  bool started_ = false, stopping_ = false, claiming_ = false, claimable_ = true, firing_ = false;
  bool store_unavailable_ = false, store_stopped_ = false;
  std::uint64_t ticks_ = 0;
  std::optional<async::TimerId> tick_timer_, heartbeat_timer_, due_timer_;
  Duration last_sweep_{};                 // steady clock
  std::vector<async::Task> after_death_;  // tasks that wait until the process death is recorded
  Duration grace_{};
  std::function<void()> stopped_;
};

// A job's effect records as the engine takes them. The result borrows from the rows.
std::vector<engine::StoredEffect> stored_effects(const std::vector<store::EffectRow>& effects);

// Opens the commits of a job: its events with their hashes. Fails with log_corrupt, needs_version.
Result<std::vector<Event>> open_log(const JobId& job, const store::LoadedJob& loaded,
                                    const ValueLookup& lookup = {});
// The first event of a log that was loaded from 1 or as kFirstCommit; reads only the first commit.
// Fails as open_log.
Result<Event> open_job_created(const JobId& job, const store::LoadedJob& loaded);

// State of a job, from the first of these that is usable: its cached state and newer events; its
// checkpoint and newer events; its whole log. The chain is verified from there on.
struct LoadedState {
  store::LoadedJob loaded;      // contains only the part of the log that was needed
  Result<engine::State> state;  // or why the log cannot be folded
  std::size_t bytes = 0;  // total size of what the state was folded from, including earlier reads
  std::uint64_t checkpoint_seq = 0, checkpoint_bytes = 0;  // of the newest known checkpoint
};
// Borrows `store` and `plans` until `done` is called.
void load_state(store::Store& store, const JobId& job, const engine::PlanCache& plans,
                std::optional<CachedJob> cached, async::Done<Result<LoadedState>> done);

// Did this attempt make a call whose outcome is unknown? Its process is alive, so the call may
// still be in flight.
bool has_own_unknown_call(const engine::State& state, const AttemptId& attempt);

}  // namespace ae::runtime
