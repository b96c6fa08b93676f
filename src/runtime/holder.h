// Holder: one job, held by this process: decide → seal → commit → perform → absorb, until it rests.
//
// An actor on the loop. Outcomes and inbox entries queue up; `pump` turns all of them into events, asks `decide` until
// nothing is left to say, and commits everything as one batch (fused) or in the order of SPEC §5 (split). Calls
// declared by a commit are performed only after it is durable. One commit is under way at a time.
// What it holds in memory is what it wrote: it does not read the log again between steps.
// Whatever goes wrong with a write is answered here, in one place: `on_committed`.
// Threads: the loop's. See docs/architecture.md and docs/decisions/0007-callback-actors.md.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/absorb.h"
#include "engine/decide.h"
#include "engine/state.h"
#include "runtime/confirmer.h"
#include "runtime/ledger.h"
#include "runtime/resting.h"
#include "runtime/running_slot.h"
#include "runtime/world.h"

namespace ae::runtime {

enum class Durability { fused, split };

struct Stood;

// A try that ended with a question: here may be a call that is kept open for the answer (Tool::abandon).
struct Asker {
  StepId step;
  std::string tool;
  InvocationId invocation;
  std::uint32_t try_no;
};
std::vector<Asker> askers_of(const engine::State& state);
// Nobody will be asked for it: its call is given up, if it is kept here.
void stop_asking(Performers& performers, const Asker& asker);

class Holder;

// What the runtime that owns a holder wants to know and provides.
class HolderHost {
 public:
  virtual ~HolderHost() = default;
  virtual engine::PlanCache& plans() = 0;
  virtual Durability durability() const = 0;
  virtual bool stays() const = 0;
  virtual const std::string& version_of(const std::string& agent) const = 0;
  virtual std::uint64_t checkpoint_every() const = 0;
  // Events became durable.
  virtual void committed(const JobId& job, const std::vector<Event>& events) = 0;
  // The holder is done with the job (released, lost, or given up). It is destroyed after this call returns.
  enum class Fate {
    goes_on,
    over,
    in_doubt
  };  // in_doubt: a call of this process may still be under way
  virtual void ended(const Holder& holder, std::optional<Error> problem, Fate fate) = 0;
  // What this process remembers of a job that rests, taken out; and the other way.
  virtual std::optional<Rested> rested(const JobId& job) = 0;
  virtual void rests(const JobId& job, Rested rested) = 0;
  // Did an earlier attempt of this process leave a call in doubt?
  virtual bool left_in_doubt(const JobId& job) const = 0;
  // Did this attempt of this process lose the job since the store did not answer? Then it is no lost claim.
  virtual bool lost_to_outage(const JobId& job, const AttemptId& attempt) const = 0;
  // What was seen of a call that nobody here holds any more: what is certain goes into the effect store alone.
  virtual void came_late(const JobId& job, const engine::Sent& sent, const Outcome& outcome) = 0;
  // For callbacks that may outlive the host.
  virtual std::weak_ptr<HolderHost*> handle() = 0;
  // Does another process that shares the store offer this execution version, and all else that the job needs?
  virtual void offered_elsewhere(const store::JobRow& row, const std::string& version,
                                 async::Done<Result<bool>> done) = 0;
  // The store writes nothing more until the process starts anew: every holder is given up.
  virtual void store_stopped(const Error& error) = 0;
  virtual void warn(const JobId& job, const std::string& what) = 0;
};

class Holder : public std::enable_shared_from_this<Holder> {
 public:
  Holder(World& world, HolderHost& host, JobId job, store::Lease lease, std::string worker);

  // A job that was claimed: read its log, end what a crash left behind, begin the attempt, go on.
  void begin();
  // A job created and claimed in one commit: `state` holds what was written, in `bytes`.
  void adopt(engine::State state, const Hash& head, std::size_t bytes);

  // There are entries in the job's inbox.
  void told();
  void renewed(Instant lease_until) {
    lease_.lease_until = lease_until;
    store_is_out_ = false;
  }
  // The lease could not be renewed: the store did not take it.
  void not_renewed() { store_is_out_ = true; }
  bool store_is_out() const { return store_is_out_; }
  // It is asked to be renewed; that question has its answer, whatever it is.
  void asks(Instant at) { asked_.insert(at); }
  void answered(Instant at) {
    if (const auto it = asked_.find(at); it != asked_.end()) asked_.erase(it);
  }
  // The lease is lost: stop at once, write nothing more but late results.
  void lost();
  // Nothing can be written any more: calls that were answered since the last commit are in doubt.
  void give_up();
  // Stop politely: start nothing new, await calls in flight for `grace`, then cut them off and give the job back.
  void drain(Duration grace);

  const store::Fence& fence() const { return lease_.fence; }
  const JobId& job() const { return job_; }
  const std::string& agent() const { return state_.agent; }
  const engine::State& state() const { return state_; }
  Instant lease_until() const { return lease_.lease_until; }

 private:
  struct Part {  // one commit
    std::vector<EventDraft> events;
    std::vector<store::EffectRow> effects;
    std::vector<store::LedgerRow> ledger_put;
    std::vector<std::pair<InvocationId, std::uint32_t>> effects_absent, ledger_erase;
    std::vector<std::uint64_t> taken;
    std::vector<std::string_view> points;
    std::optional<store::RowState> row;  // nullopt: as the state has it
    bool release = false;
  };
  struct Seen {
    engine::Sent sent;
    Outcome outcome;
  };
  struct Report {  // the newest of a call, not written yet
    std::uint32_t try_no;
    Value said;
  };
  struct Note {
    InvocationId invocation;
    std::uint32_t try_no;
    Value note;
    async::Done<Status> noted;
  };

  void loaded(Result<Stood> stood);
  void leave_to_version(std::shared_ptr<store::Loaded> loaded);
  void take_over(const store::Loaded& loaded);
  bool wants_checkpoint(bool release) const;
  void give_back(Error problem);
  void begin_attempt();
  Status catch_up(const store::Loaded& loaded);
  void repair_ledger(const store::Loaded& loaded);
  Status end_left_overs(const store::Loaded& loaded);
  Status offers_tools();
  Status fits_its_row(const store::JobRow& row) const;
  std::optional<Error> newer_act(const std::vector<store::InboxEntry>& inbox) const;
  void perform_declared();
  void pump();
  void leave();
  void collect();
  bool slice_is_over() const;
  void add(EventDraft draft);
  void add_decided(EventDraft draft);
  void add_outcome(Seen seen);
  void add_acts();
  void plan_parts();
  void note_checkpoint(Part& part, const SealInput& sealing);
  void commit_next();
  void send();
  void again(const Error& error);
  Error cannot_write() const;
  void on_committed(Result<store::Committed> result);
  void all_durable();
  void let_go_of_askers();
  void hush();
  void perform(const StepId& step);
  void seen(const engine::Sent& sent, Outcome outcome);
  void reported(const StepId& step, std::uint32_t try_no, Value said);
  void add_reports();
  std::optional<Instant> next_report() const;
  void ask_again(Instant at);
  void confirm(const std::vector<std::string>& keys);
  void reload(std::string_view why);
  void end(std::optional<Error> problem);
  void soon(void (Holder::*what)());
  void told_and_loaded(Result<store::Loaded> loaded);
  void cut_off();
  void abandon_all();
  std::array<std::uint64_t, 4> entropy();
  engine::Stamp stamp();

  World& world_;
  HolderHost& host_;
  JobId job_;
  store::Lease lease_;
  std::string worker_;
  const std::string slice_name_;  // in the running slot
  Ledger ledger_;

  engine::State state_;        // with everything drafted; equals the log once all parts are durable
  std::uint64_t durable_ = 0;  // last seq that is
  Hash head_;
  std::size_t bytes_ = 0;  // of the log, as Rested counts them
  // The execution version that this process offered for the job's agent when the attempt began.
  std::optional<std::string> version_;
  std::vector<std::string> tool_versions_;
  std::uint64_t checkpoint_seq_ = 0, checkpoint_bytes_ = 0;  // of the newest one

  std::optional<Confirmer> confirmer_;  // begun when decide wants something to be confirmed

  std::deque<Seen> seen_;
  std::deque<Note> notes_;
  std::vector<store::InboxEntry> inbox_;
  bool inbox_told_ = false;

  // What is being made durable: drafts with what goes beside them, cut into commits by plan_parts.
  struct Drafted {
    EventDraft event;
    // An unknown call is decided here: a result that has come meanwhile refuses the commit.
    std::optional<std::pair<InvocationId, std::uint32_t>> slot;
    std::optional<store::EffectRow> effect;  // split: its own commit before this event
    std::optional<store::LedgerRow> ledger;  // split: beside a declaration, after a record
    std::optional<store::RowState> row;      // split: as the log has it with this event
  };
  std::vector<Drafted> drafts_;
  std::vector<StepId> to_perform_;
  std::vector<std::uint64_t> taken_;          // inbox entries
  std::vector<store::LedgerRow> ledger_put_;  // notes of what is in flight, repairs
  std::vector<std::pair<InvocationId, std::uint32_t>> ledger_erase_;
  std::vector<async::Done<Status>> noted_;
  std::optional<Instant> next_ask_;
  std::optional<engine::Unfinished>
      unfinished_;                // of the last decision, when nothing was added since
  std::uint64_t inbox_read_ = 0;  // the last entry of the inbox that was read
  bool release_ = false;
  std::optional<Error> newer_;  // its inbox holds what a newer program is to read: it is being left
  bool leaves_ = false;         // … and all is recorded
  // A wait opens, expires or is cancelled: not past what the inbox has accepted, which is taken in first.
  bool reads_inbox_ = false;
  bool records_ = false;
  // Outcomes in these drafts; if the commit is refused they are recorded anew, or late.
  std::vector<Seen> recorded_;
  std::deque<Part> parts_;
  std::optional<store::Batch> batch_;  // under way; kept to be sent again
  bool committing_ = false;
  Duration slice_began_{};      // of the steady clock
  std::uint32_t failures_ = 0;  // of a write or a read, in a row
  std::uint32_t reloads_ = 0;   // in a row

  struct InFlight {
    tools::Tool* tool;
    InvocationId invocation;
    std::uint32_t try_no;
    Instant sent;
    std::optional<Instant> told = std::nullopt;  // when a report was written last
    Instant may_tell() const;
  };
  std::map<StepId, InFlight> in_flight_;
  std::vector<Asker> askers_;
  std::map<StepId, Report> reports_;                   // of these
  Instant batch_time_;                                 // of all events drafted together
  std::map<InvocationId, std::uint32_t> noted_tries_;  // with an in-flight row to erase
  std::multiset<Instant> asked_;                       // to renew the lease, and not answered yet
  std::optional<async::TimerId> timer_, drain_timer_;
  std::vector<Event> sealed_events_;  // of the commit under way
  Hash sealed_head_;
  bool ended_ = false, draining_ = false, cut_ = false, store_is_out_ = false;
};

}  // namespace ae::runtime
