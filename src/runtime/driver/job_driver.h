// JobDriver: runs one job whose lease this process holds: decide → seal → commit → perform → record
// outcome, until the job is idle.
//
// An actor on the loop. Outcomes and inbox entries are queued; `pump` turns all of them into
// events, calls `decide` until it returns no events, and commits everything as one batch (fused) or
// in the order of SPEC §5 (split). Calls declared by a commit are performed only after it is
// durable. One commit is in flight at a time.
// The state in memory is what the driver wrote: it does not read the log again between steps. All
// errors of a write are handled in `on_committed`. Threads: the loop's (decision record 0007).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/heart/decide.h"
#include "engine/heart/ingest.h"
#include "engine/state/state.h"
#include "runtime/driver/confirmer.h"
#include "runtime/driver/drafts.h"
#include "runtime/driver/job_driver_host.h"
#include "runtime/driver/job_routines.h"
#include "runtime/driver/ledger.h"
#include "runtime/driver/performed_calls.h"
#include "runtime/driver/progress_reports.h"
#include "runtime/log_writer.h"
#include "runtime/open_questions.h"
#include "runtime/running_slot.h"
#include "runtime/world.h"

namespace ae::runtime {

struct LoadedState;

class JobDriver : public std::enable_shared_from_this<JobDriver> {
 public:
  JobDriver(World& world, JobDriverHost& host, JobId job, store::Lease lease, std::string worker);

  // Starts a claimed job: reads its log, ends calls left over by a crash, begins the attempt and
  // continues.
  void begin();
  // Starts a job that was created and claimed in one commit. `state` is the fold of the written
  // events, whose size is `bytes`.
  void adopt(engine::State state, const Hash& head, std::size_t bytes);

  // The job's inbox has new entries.
  void on_inbox_notify();
  void on_lease_renewed(Instant lease_until) {
    lease_.lease_until = lease_until;
    store_unavailable_ = false;
  }
  // The lease could not be renewed because the store was unavailable.
  void on_renewal_failed() { store_unavailable_ = true; }
  bool is_store_unavailable() const { return store_unavailable_; }
  // A heartbeat was sent; on_heartbeat_answered: its reply arrived, whatever it is.
  void on_heartbeat_sent(Instant at) { pending_heartbeats_.insert(at); }
  void on_heartbeat_answered(Instant at) { pending_heartbeats_.extract(at); }
  // A worker reports about calls that an earlier process gave to it.
  // Is a call of this step in flight here?
  bool performs(const StepId& step) const { return in_flight_.find(step) != nullptr; }
  void on_worker_report(const engine::WorkerName& worker, const WorkerReport& report);
  // The lease is lost: stops at once and writes nothing more except late results.
  void on_lease_lost();
  // Nothing more can be written: calls answered since the last commit have an unknown outcome.
  void give_up();
  // Graceful shutdown: starts nothing new, waits up to `grace` for calls in flight, then cuts them
  // off and releases the job.
  void drain(Duration grace);

  const store::Fence& fence() const { return lease_.fence; }
  const JobId& job() const { return job_; }
  const std::string& agent() const { return state_.agent; }
  const engine::State& state() const { return state_; }
  Instant lease_until() const { return lease_.lease_until; }

 private:
  void on_loaded(Result<LoadedState> loaded_state);
  std::optional<std::string> missing_version();
  void defer_to_other_version(const std::string& version, std::shared_ptr<store::LoadedJob> loaded);
  void take_over(const store::LoadedJob& loaded);
  bool should_checkpoint(bool release) const;
  void release_claim(Error problem);
  void begin_attempt();
  Result<std::uint64_t> import_effect_records(const store::LoadedJob& loaded);
  void repair_ledger(const store::LoadedJob& loaded);
  Status end_leftover_calls(const store::LoadedJob& loaded);
  Status resolve_tools();
  void perform_declared();
  void pump();
  void stop_for_newer_request();
  void collect_events();
  bool is_slice_over() const;
  void add(EventBody&& draft, std::optional<TrySlot> undecided = std::nullopt);
  void add_decided(EventBody&& draft);
  bool record(ObservedOutcome& observed);
  void apply_inbox();
  Result<Value> apply_received(const Result<engine::ControlRequest>& request);
  void add_checkpoint_event(PendingCommit& pending_commit, const LogWriter& writer);
  void commit_next();
  void send();
  void retry_commit(const Error& error);
  Error write_error() const;
  void on_committed(Result<store::CommitResult> result);
  void on_all_durable();
  void abandon_open_questions();
  void cancel_model_calls();
  void abandon_cancelled_calls();
  void perform(const StepId& step);
  tools::Call request_of(const engine::Step& step, Value arguments,
                         const std::shared_ptr<const PerformedCall>& call);
  // nullptr: the driver has finished with the job.
  static std::shared_ptr<JobDriver> driver_of(const PerformedCall& call);
  void on_outcome(std::shared_ptr<const PerformedCall> call, Outcome&& outcome);
  void on_progress(const StepId& step, std::uint32_t try_no, Value value);
  void add_progress_reports();
  bool record(ObservedAdvance& observed);
  void on_advance(ObservedAdvance observed);
  void on_routine_dropped(std::uint32_t node);
  bool start_routines();
  void schedule_pump(Instant at);
  void start_checks(const std::vector<std::string>& keys);
  void reload(std::string_view why);
  void end(std::optional<Error> problem);
  void retry_later(void (JobDriver::*what)());
  void on_inbox_loaded(Result<store::LoadedJob> loaded);
  void cut_off_calls();
  void abandon_all();
  std::array<std::uint64_t, 4> entropy();
  engine::DecisionContext context(Instant now);

  World& world_;
  JobDriverHost& host_;
  JobId job_;
  store::Lease lease_;
  std::string worker_;
  const std::string slice_name_;  // name of this job's slice in the running slot
  Ledger ledger_;
  const engine::DecideLimits limits_{};

  engine::State state_;  // includes all drafts; equals the log once all commits are durable
  LogEnd durable_end_;   // of the durable log
  engine::SummaryKey summary_key_;  // after the last commit that was sent
  std::size_t state_bytes_ = 0;     // as CachedJob::bytes
  // The execution version that this process offered for the job's agent when the attempt began.
  std::optional<std::string> version_;
  std::vector<std::string> tool_versions_;
  std::uint64_t checkpoint_seq_ = 0, checkpoint_bytes_ = 0;  // of the newest checkpoint

  std::optional<Confirmer> confirmer_;  // created when `decide` first requests a verification

  Observations observed_;  // recorded again if their commit fails, or as late results
  std::vector<InFlightNote> notes_;
  std::vector<store::InboxEntry> inbox_;
  bool inbox_notified_ = false;

  Drafts drafts_;
  std::vector<StepId> to_perform_;
  std::vector<async::Done<Status>> pending_note_callbacks_;
  std::optional<Instant> next_decision_at_;
  // Cursor of the last decision, while no event was added since
  std::optional<engine::DecisionCursor> unfinished_;
  std::uint64_t inbox_read_ = 0;  // number of the last inbox entry that was read
  bool release_ = false;
  // The inbox holds a request that only a newer version can read; the driver stops
  std::optional<Error> newer_request_;
  bool stopped_for_newer_request_ = false;  // and everything is recorded
  // The drafts open, expire or cancel a wait: commit only if all accepted inbox entries have been
  // read, because they come first.
  bool must_read_inbox_ = false;
  std::vector<PendingCommit> pending_commits_;
  std::optional<store::Batch> batch_;  // in flight; kept so that it can be sent again
  bool committing_ = false;
  bool is_partly_durable_ = false;  // some of the drafts are, and others are in pending_commits_
  Duration slice_started_{};        // steady clock
  Instant slice_time_;              // the store's clock when the slice began
  std::uint32_t failures_ = 0;      // consecutive failed reads and writes
  std::uint32_t reloads_ = 0;       // consecutive reloads

  JobRoutines routines_;
  InFlightCalls in_flight_;
  std::vector<OpenQuestion> open_questions_;
  ProgressReports progress_reports_;                       // of calls in `in_flight_`
  Instant batch_time_;                                     // time of all events drafted together
  std::map<InvocationId, std::uint32_t> tries_with_note_;  // calls with an in-flight row to erase
  ReportedCalls reported_;
  std::multiset<Instant> pending_heartbeats_;  // lease renewals without a reply
  std::optional<async::TimerId> timer_, drain_timer_;
  std::vector<Event> observed_events_;                                   // of the commit in flight
  std::vector<std::pair<std::string, std::string>> committing_replies_;  // by id of the entry
  LogEnd sealed_end_;  // of the log after the commit in flight
  bool ended_ = false, draining_ = false, calls_cut_off_ = false, store_unavailable_ = false;
};

}  // namespace ae::runtime
