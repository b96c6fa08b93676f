// Runtime: holds jobs, claims more, fires timers, and takes in what others want of a job.
//
// Nothing here decides what a job does next: that is engine::decide, asked by a JobDriver. Threads: the loop's.
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
  std::size_t leased_max = 256;             // jobs held at once
  Duration poll = std::chrono::seconds(1);  // the floor under every hint
  Durability durability = Durability::fused;
  bool may_claim = true;  // false: only jobs that are created or asked for here
  bool is_resident =
      true;  // false: the process ends when its jobs rest, and keeps no call open for a person
  std::vector<std::string> agents;  // claim only jobs of these; empty = any
  std::string execution_version = "0.1.0";
  std::uint64_t checkpoint_every = 1000;  // events; fewer for a job that is given back
  // Of the agents that this process offers; another agent's jobs have `execution_version`.
  std::map<std::string, std::string, std::less<>> agent_versions;
  std::vector<std::string> capabilities;  // what this worker offers
  std::vector<store::QueueLimit> queues;  // of these, so many jobs at once, whoever holds them

  const std::string& version_of(std::string_view agent) const {
    auto it = agent_versions.find(agent);
    return it == agent_versions.end() ? execution_version : it->second;
  }
};

// A plan that replaces the one that a fork begins with (engine/replan/replan.h).
struct PlanReplacement {
  std::shared_ptr<const engine::Plan> plan;
  std::vector<std::string> drop;  // nodes whose committed effects it need not carry over
  std::string by;                 // who gave it
};

struct NewJobRequest {
  JobId job;  // empty = a fresh UUIDv7
  std::string agent;
  std::shared_ptr<const engine::Plan> plan;
  Value input;
  std::vector<std::pair<std::string, std::string>> labels;
  std::string idempotency_key;
  std::int64_t priority = 0;
  std::string queue;                               // "" = the default one
  std::vector<std::string> required_capabilities;  // sorted, each once
  // The job fails `deadline_exceeded` then, or at its agent's deadline, whichever is earlier. One that has passed ends it
  // before anything is done.
  std::optional<Instant> deadline = {};
  engine::Limits budget = {};  // that the job has; none = its agent's
  // Of these, what the request named itself and the agent did not: the idempotency key stands for it, too. null = nothing.
  Value asked;
  // Run it here at once (born claimed), if there is room; false: leave it queued.
  bool start_here = true;
  std::shared_ptr<const engine::Fork> fork;  // what it begins with; nullptr = it is no fork
  std::optional<PlanReplacement> plan_replacement =
      {};                                  // of a fork: it replaces `plan` before anything is done
  std::optional<store::AuditEntry> audit;  // written with the job
  std::string traceparent,
      tracestate;  // of whoever asks (base/trace_context.h); no part of what is asked
};

struct ForkRequest {
  JobId origin;
  std::uint64_t at = 0;        // an event of its log; 0 = where a job that failed is tried again
  JobId job;                   // of the new one; empty = a fresh UUIDv7
  std::optional<Value> input;  // nullopt = the origin's
  std::string idempotency_key;
  std::string by;                       // who
  Value task_graph;                     // another plan for it; null = the origin's
  std::vector<std::string> drop;        // of another plan
  std::string traceparent, tracestate;  // as in NewJobRequest
  // Effects of the origin that may happen again: all of them, or those with these idempotency keys, step ids or nodes.
  bool repeat_all = false;
  std::vector<std::string> repeat;
};

struct CreateResult {
  JobId job;
  bool existing = false;  // the idempotency key had made it before
  // Of an existing one: its input was erased, so that only the rest of the request could be compared.
  bool input_erased = false;
};

// Counted since this process started, under the names that /metrics shows.
struct Counters {
  std::uint64_t aetheris_confirmation_replay_warn_total = 0;  // mismatches with which a job went on
  std::uint64_t aetheris_lease_acquired = 0, aetheris_lease_acquire_failed = 0;  // jobs; claims
  std::uint64_t aetheris_lease_conflict_total = 0;  // jobs that were lost to others, or might be
  std::uint64_t aetheris_store_hint_total = 0;      // what other processes said early
};

struct ForkResult {
  CreateResult created;
  std::vector<Value>
      repeated;  // not empty: nothing was made, since these were not agreed to (engine::Fork::effects)
  Value changes;  // engine::plan_changes, of another plan
};

// What watchers hear. On the loop, after the events are durable.
class RuntimeObserver {
 public:
  virtual ~RuntimeObserver() = default;
  virtual void on_events(const JobId&, const std::vector<Event>&) {}
  // The job is no longer held here: ended, blocked, queued for later, or lost.
  virtual void on_released(const JobId&, const std::optional<Error>&) {}
  // Another process has ended the job, or left it to wait. May be lost.
  virtual void on_idle(const JobId&) {}
  virtual void on_warning(const JobId&, const std::string&) {}
  // The store does not answer from now on, or, with nothing, answers again.
  virtual void on_store_health(const std::optional<Error>&) {}
  // The store writes nothing more until the process starts anew (store_stopped). Nothing is held any longer.
  virtual void on_store_stopped(const Error&) {}
};

class Runtime : private JobDriverHost {
 public:
  Runtime(World world, RuntimeOptions options, RuntimeObserver* observer);
  ~Runtime() override;

  void start();
  // Fails with input_invalid, already_exists (this job id), idempotency_conflict, unavailable, unknown_outcome.
  void create(NewJobRequest request, async::Done<Result<CreateResult>> done);
  // A new job that begins where another one stood; it is left queued. The origin is read, with its chain, and not
  // touched. Fails with not_found, log_corrupt, as engine::fork_at and retry_point do, as `create`, and as an act that gives
  // another plan.
  void fork(ForkRequest request, async::Done<Result<ForkResult>> done);
  // A signal, a message, an approval, a cancel, a pause, a resolution. The answer says {"delivered"| …} when it is
  // written, or {"accepted": true} when it is in the inbox of whoever holds the job, and will be taken in. Fails as
  // engine::apply_request does, or not_found, unavailable, unknown_outcome. A resolution that does not say when its giver
  // looked was given now.
  void submit_request(JobId job, engine::ControlRequest act, async::Done<Result<Value>> done);
  // Claim this job here when it can be claimed now.
  void claim_job(JobId job, async::Done<Result<bool>> done);
  // Reads a job's log and folds it.
  struct JobSnapshot {
    store::JobRow row;
    std::vector<Event> events;
    engine::State state;
    std::vector<store::EffectRow> effects;
    std::vector<store::InboxEntry> inbox;  // accepted, and not taken in yet
    std::size_t bytes = 0;                 // as in LoadedState
    std::uint64_t checkpoint_seq = 0, checkpoint_bytes = 0;
  };
  void read(JobId job, async::Done<Result<JobSnapshot>> done);
  // The same without the events, from the job's checkpoint on: what it costs does not grow with the log.
  void read_state(JobId job, async::Done<Result<JobSnapshot>> done);

  // Stops claiming, drains every holder, then answers. `grace`: how long calls in flight are awaited.
  void stop(Duration grace, std::function<void()> stopped);
  // What a worker must offer for this job and this process does not; empty = nothing is missing.
  std::vector<std::string> missing_capabilities(const store::JobRow& row) const;
  // Does it claim jobs that ask for this, when they are ready?
  bool may_claim(const std::string& agent, const std::vector<std::string>& capabilities) const;
  // Does this process run jobs of the agent with the tools of this plan? Fails with needs_version: it has another version
  // of one; or it owns the store, so that no other process can run them, and lacks one or the agent.
  Status check_can_run(const std::string& agent, const engine::Plan& plan) const;
  // What this process offers a job: capabilities, with the versions of its agents.
  const std::vector<std::string>& offered() const { return offered_; }
  // Why this process cannot run the job; nullptr when it can, or has not tried.
  const Error* refusal_of(const JobId& job) const {
    auto it = refused_.find(job);
    return it == refused_.end() ? nullptr : &it->second;
  }
  // From now on jobs of these agents are claimed, with these execution versions. REQUIRES: not none; they are offered as
  // those of the options were.
  void offer(std::vector<std::string> agents,
             std::map<std::string, std::string, std::less<>> agent_versions);
  // What this process remembers of the job is read anew: its values have been dropped.
  void drop_cached(const JobId& job) { static_cast<void>(job_cache_.take(job)); }
  bool is_leased(const JobId& job) const { return drivers_.contains(job); }
  // Of a job that is held here; "" = it is not, or not loaded yet.
  std::string agent_of(const JobId& job) const;
  // Of a job that is held here, with its log and what is about to be committed; nullptr = it is not held. Valid until
  // the loop runs on.
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
  std::optional<CachedJob> take_cached(const JobId& job) override { return job_cache_.take(job); }
  void cache_job(const JobId& job, CachedJob cached) override {
    job_cache_.put(job, std::move(cached));
  }
  bool left_call_in_doubt(const JobId& job) const override {
    return jobs_left_in_doubt_.contains(job);
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
  void post_to_inbox(std::shared_ptr<ActiveRequest> active, const engine::AppliedRequest& taken);
  void recheck_accepted(std::shared_ptr<ActiveRequest> active, Value answer);
  void wait_for_plan(std::shared_ptr<ActiveRequest> active, Value answer);
  engine::DecisionContext request_context();
  std::vector<std::string> tool_versions(const engine::State& state);
  JobId new_job_id();
  void compare_with_existing(JobId job, Hash known, JobRequest wish,
                             async::Done<Result<CreateResult>> done);
  void commit_until_known(std::shared_ptr<store::Batch> batch,
                          async::Done<Result<store::CommitResult>> done, int tries = 0);
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
  std::vector<std::string> offered_;  // capabilities, with the versions of our agents
  engine::PlanCache own_plans_;
  engine::PlanCache& plans_;
  std::map<JobId, std::shared_ptr<JobDriver>> drivers_;
  JobCache job_cache_;
  VersionSweeper version_sweeper_;
  // This process cannot run these (a tool is missing, a newer version), and why.
  std::map<JobId, Error> refused_;
  std::set<JobId> jobs_left_in_doubt_;  // parked by this process with a call in doubt
  // Attempts of this process that ended by the end of their lease, since the store did not answer in time.
  std::map<JobId, std::set<AttemptId>> lost_to_outage_;
  bool started_ = false, stopping_ = false, claiming_ = false, claimable_ = true, firing_ = false;
  bool store_unavailable_ = false, store_stopped_ = false;
  std::uint64_t ticks_ = 0;
  std::optional<async::TimerId> tick_timer_, heartbeat_timer_, due_timer_;
  Duration last_sweep_{};                 // of the steady clock
  std::vector<async::Task> after_death_;  // wait until it is recorded
  Duration grace_{};
  std::function<void()> stopped_;
};

// A job's effects as the engine takes them. They borrow from the rows.
std::vector<engine::StoredEffect> stored_effects(const std::vector<store::EffectRow>& effects);

// Opens the commits of a job: envelope events with their hashes. Fails with log_corrupt, needs_version.
Result<std::vector<Event>> open_log(const JobId& job, const store::LoadedJob& loaded,
                                    const ValueLookup& known = {});
// The first event, of what was loaded from 1 or as kFirstCommit; nothing behind its commit is read. Fails as open_log.
Result<Event> open_job_created(const JobId& job, const store::LoadedJob& loaded);

// The state of a job by what this process remembers of it and what came after that; else by its checkpoint and what came
// after; else by its whole log. The chain is proved from there on.
struct LoadedState {
  store::LoadedJob loaded;      // of the log, only what was needed
  Result<engine::State> state;  // or why the log cannot be folded
  std::size_t bytes = 0;        // of all that it was folded from, now and before
  std::uint64_t checkpoint_seq = 0, checkpoint_bytes = 0;  // of the newest one that is known
};
// Borrows both until it has answered.
void load_state(store::Store& store, const JobId& job, const engine::PlanCache& plans,
                std::optional<CachedJob> cached, async::Done<Result<LoadedState>> done);

// Is a call in doubt that this attempt made? Then its process lives, and the call may still be under way.
bool has_own_call_in_doubt(const engine::State& state, const AttemptId& attempt);

}  // namespace ae::runtime
