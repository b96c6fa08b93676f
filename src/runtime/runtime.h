// Runtime: holds jobs, claims more, fires timers, and takes in what others want of a job.
//
// Nothing here decides what a job does next: that is engine::decide, asked by a Holder. Threads: the loop's.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/absorb.h"
#include "engine/fork.h"
#include "engine/plan.h"
#include "engine/plan_cache.h"
#include "runtime/holder.h"
#include "runtime/resting.h"
#include "runtime/row.h"
#include "runtime/versions.h"
#include "runtime/world.h"

namespace ae::runtime {

struct RuntimeOptions {
  std::string worker = "worker";
  Duration lease = std::chrono::seconds(30);
  std::size_t held_max = 256;               // jobs held at once
  Duration poll = std::chrono::seconds(1);  // the floor under every hint
  Durability durability = Durability::fused;
  bool claims = true;  // false: only jobs that are created or asked for here
  bool stays =
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

// A plan that replaces the one that a fork begins with (engine/replan.h).
struct AnotherPlan {
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
  bool hold = true;
  std::shared_ptr<const engine::Fork> fork;  // what it begins with; nullptr = it is no fork
  std::optional<AnotherPlan> another_plan =
      {};                                  // of a fork: it replaces `plan` before anything is done
  std::optional<store::AuditEntry> audit;  // written with the job
  std::string traceparent,
      tracestate;  // of whoever asks (core/trace_context.h); no part of what is asked
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

struct Created {
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

struct Forked {
  Created created;
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
  virtual void on_rested(const JobId&) {}
  virtual void on_warning(const JobId&, const std::string&) {}
  // The store does not answer from now on, or, with nothing, answers again.
  virtual void on_store(const std::optional<Error>&) {}
  // The store writes nothing more until the process starts anew (store_stopped). Nothing is held any longer.
  virtual void on_store_stopped(const Error&) {}
};

class Runtime : private HolderHost {
 public:
  Runtime(World world, RuntimeOptions options, RuntimeObserver* observer);
  ~Runtime() override;

  void start();
  // Fails with input_invalid, already_exists (this job id), idempotency_conflict, unavailable, unknown_outcome.
  void create(NewJobRequest request, async::Done<Result<Created>> done);
  // A new job that begins where another one stood; it is left queued. The origin is read, with its chain, and not
  // touched. Fails with not_found, log_corrupt, as engine::fork_at and retry_point do, as `create`, and as an act that gives
  // another plan.
  void fork(ForkRequest request, async::Done<Result<Forked>> done);
  // A signal, a message, an approval, a cancel, a pause, a resolution. The answer says {"delivered"| …} when it is
  // written, or {"accepted": true} when it is in the inbox of whoever holds the job, and will be taken in. Fails as
  // engine::take_in does, or not_found, unavailable, unknown_outcome. A resolution that does not say when its giver
  // looked was given now.
  void act(JobId job, engine::Act act, async::Done<Result<Value>> done);
  // Claim this job here when it can be claimed now.
  void claim_job(JobId job, async::Done<Result<bool>> done);
  // Reads a job's log and folds it.
  struct Read {
    store::JobRow row;
    std::vector<Event> events;
    engine::State state;
    std::vector<store::EffectRow> effects;
    std::vector<store::InboxEntry> inbox;  // accepted, and not taken in yet
    std::size_t bytes = 0;                 // as in Stood
    std::uint64_t checkpoint_seq = 0, checkpoint_bytes = 0;
  };
  void read(JobId job, async::Done<Result<Read>> done);
  // The same without the events, from the job's checkpoint on: what it costs does not grow with the log.
  void read_state(JobId job, async::Done<Result<Read>> done);

  // Stops claiming, drains every holder, then answers. `grace`: how long calls in flight are awaited.
  void stop(Duration grace, std::function<void()> stopped);
  // What a worker must offer for this job and this process does not; empty = nothing is missing.
  std::vector<std::string> missing(const store::JobRow& row) const;
  // Does it claim jobs that ask for this, when they are ready?
  bool claims(const std::string& agent, const std::vector<std::string>& capabilities) const;
  // Does this process run jobs of the agent with the tools of this plan? Fails with needs_version: it has another version
  // of one; or it owns the store, so that no other process can run them, and lacks one or the agent.
  Status offers(const std::string& agent, const engine::Plan& plan) const;
  // What this process offers a job: capabilities, with the versions of its agents.
  const std::vector<std::string>& offered() const { return offered_; }
  // Why this process cannot run the job; nullptr when it can, or has not tried.
  const Error* refuses(const JobId& job) const {
    auto it = refused_.find(job);
    return it == refused_.end() ? nullptr : &it->second;
  }
  // From now on jobs of these agents are claimed, with these execution versions. REQUIRES: not none; they are offered as
  // those of the options were.
  void offer(std::vector<std::string> agents,
             std::map<std::string, std::string, std::less<>> agent_versions);
  // What this process remembers of the job is read anew: its values have been dropped.
  void forget(const JobId& job) { static_cast<void>(resting_.take(job)); }
  bool holds(const JobId& job) const { return holders_.contains(job); }
  // Of a job that is held here; "" = it is not, or not loaded yet.
  std::string agent_of(const JobId& job) const;
  // Of a job that is held here, with its log and what is about to be committed; nullptr = it is not held. Valid until
  // the loop runs on.
  const engine::State* state_of(const JobId& job) const;
  std::size_t held() const { return holders_.size(); }
  const Counters& counters() const { return counters_; }
  const RuntimeOptions& options() const { return options_; }

 private:
  engine::PlanCache& plans() override { return plans_; }
  Durability durability() const override { return options_.durability; }
  bool stays() const override { return options_.stays; }
  const std::string& version_of(const std::string& agent) const override {
    return options_.version_of(agent);
  }
  std::uint64_t checkpoint_every() const override { return options_.checkpoint_every; }
  void committed(const JobId& job, const std::vector<Event>& events) override;
  void confirmed(const JobId& job, const Event& event);
  void ended(const Holder& holder, std::optional<Error> problem, Fate fate) override;
  std::optional<Rested> rested(const JobId& job) override { return resting_.take(job); }
  void rests(const JobId& job, Rested rested) override { resting_.keep(job, std::move(rested)); }
  bool left_in_doubt(const JobId& job) const override { return left_in_doubt_.contains(job); }
  bool lost_to_outage(const JobId& job, const AttemptId& attempt) const override {
    auto it = lost_to_outage_.find(job);
    return it != lost_to_outage_.end() && it->second.contains(attempt);
  }
  void offered_elsewhere(const store::JobRow& row, const std::string& version,
                         async::Done<Result<bool>> done) override;
  void came_late(const JobId& job, const engine::Sent& sent, const Outcome& outcome) override;
  std::weak_ptr<HolderHost*> handle() override { return handle_; }
  void store_stopped(const Error& error) override;
  void warn(const JobId& job, const std::string& what) override;
  void store_answered(const Error* error);

  void note_offered();
  void sweep_versions();
  void offer_versions(const JobId& job, async::Done<Result<bool>> resumed);
  void when_death_is_recorded(async::Task next);
  void claim_now(const JobId& job, async::Done<Result<bool>> done);
  void tick();
  void hinted(const store::Hint& hint);
  void claim_more();
  std::shared_ptr<Holder> take_on(store::Lease lease);
  void hold(store::Lease lease);
  void fire_due();
  void look_ahead();
  void heartbeat();
  void announce(Duration lasts);
  struct Reading;
  struct Acting;
  void look(const JobId& job, std::optional<Rested> rested, async::Done<Result<Read>> done);
  void keep_resting(const JobId& job, Read&& read);
  void try_act(std::shared_ptr<Acting> acting);
  void act_on(std::shared_ptr<Acting> acting, Read&& read);
  void put(std::shared_ptr<Acting> acting, const engine::Taken& taken);
  void accepted(std::shared_ptr<Acting> acting, Value answer);
  void wait_for_plan(std::shared_ptr<Acting> acting, Value answer);
  engine::Stamp act_stamp();
  std::vector<std::string> tool_versions(const engine::State& state);
  JobId fresh_job_id();
  void created_before(JobId job, Hash known, JobRequest wish, async::Done<Result<Created>> done);
  void commit_surely(std::shared_ptr<store::Batch> batch,
                     async::Done<Result<store::Committed>> done, int tries = 0);
  void keep_late(std::shared_ptr<store::Batch> batch, int tries);
  void late_is_kept(std::shared_ptr<store::Batch> batch, int tries,
                    Result<store::Committed> result);
  void keep_late_again(const std::shared_ptr<store::Batch>& batch, int tries,
                       const std::string& what, const Error& error);
  HolderHost& host() { return *this; }
  AttemptId fresh_attempt();

  World world_;
  std::shared_ptr<HolderHost*> handle_ =
      std::make_shared<HolderHost*>(static_cast<HolderHost*>(this));
  RuntimeOptions options_;
  RuntimeObserver* observer_;
  Counters counters_;
  std::vector<std::string> offered_;  // capabilities, with the versions of our agents
  engine::PlanCache own_plans_;
  engine::PlanCache& plans_;
  std::map<JobId, std::shared_ptr<Holder>> holders_;
  RestingJobs resting_;
  Versions versions_;
  // This process cannot run these (a tool is missing, a newer version), and why.
  std::map<JobId, Error> refused_;
  std::set<JobId> left_in_doubt_;  // parked by this process with a call in doubt
  // Attempts of this process that ended by the end of their lease, since the store did not answer in time.
  std::map<JobId, std::set<AttemptId>> lost_to_outage_;
  bool started_ = false, stopping_ = false, claiming_ = false, claimable_ = true, firing_ = false;
  bool store_out_ = false, store_stopped_ = false;
  std::uint64_t ticks_ = 0;
  std::optional<async::TimerId> tick_timer_, beat_timer_, look_timer_;
  Duration swept_at_{};                   // of the steady clock
  std::vector<async::Task> after_death_;  // wait until it is recorded
  Duration grace_{};
  std::function<void()> stopped_;
};

// A job's effects as the engine takes them. They borrow from the rows.
std::vector<engine::StoredEffect> stored_effects(const std::vector<store::EffectRow>& effects);

// Opens the commits of a job: envelope events with their hashes. Fails with log_corrupt, needs_version.
Result<std::vector<Event>> open_log(const JobId& job, const store::Loaded& loaded,
                                    const KnownValue& known = {});
// The first event, of what was loaded from 1 or as kFirstCommit; nothing behind its commit is read. Fails as open_log.
Result<Event> open_created(const JobId& job, const store::Loaded& loaded);

// The state of a job by what this process remembers of it and what came after that; else by its checkpoint and what came
// after; else by its whole log. The chain is proved from there on.
struct Stood {
  store::Loaded loaded;         // of the log, only what was needed
  Result<engine::State> state;  // or why the log cannot be folded
  std::size_t bytes = 0;        // of all that it was folded from, now and before
  std::uint64_t checkpoint_seq = 0, checkpoint_bytes = 0;  // of the newest one that is known
};
// Borrows both until it has answered.
void load_state(store::Store& store, const JobId& job, const engine::PlanCache& plans,
                std::optional<Rested> rested, async::Done<Result<Stood>> done);

// Is a call in doubt that this attempt made? Then its process lives, and the call may still be under way.
bool doubts_own_call(const engine::State& state, const AttemptId& attempt);

}  // namespace ae::runtime
