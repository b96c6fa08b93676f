// State: the state of one job, folded from its log. Only `apply` changes it.
//
//   state' = apply(state, event)   pure; the same for workers, recovery, replay, verify, simulation
//
// A job is a set of steps. Each node of the plan has one (steps[node.index]); each item of a map
// gets its own when it starts. A step moves through phases. `todo` holds the steps that need a
// decision, so a decision costs the same at step 100,000 as at step 1. Threads: a value; one owner.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "base/ids.h"
#include "base/time.h"
#include "json/value.h"
#include "log/event.h"
#include "log/outcome.h"
#include "log/park_until.h"
#include "plan/budget.h"
#include "plan/model_calls.h"
#include "plan/plan.h"

namespace ae::engine {

// The total cost of expression evaluations and schema checks, in steps (ExprScope::charge).
using Work = std::size_t;

enum class JobStatus : std::uint8_t {
  none,
  queued,
  running,
  waiting,
  parked,
  completed,
  failed,
  cancelled
};
std::string_view to_text(JobStatus status);
bool is_terminal(JobStatus status);
bool is_blocked(JobStatus status);  // waiting or parked: never claimed, never reclaimed

// The status table of SPEC §2: the status after `event`, or nullopt if the event is illegal in
// `status`. `ends_own_park`: a wait_completed for a wait that the park itself opened.
std::optional<JobStatus> next_status(JobStatus status, EventType event, bool ends_own_park = false);

enum class ResultType : std::uint8_t {
  none,
  pure,
  side_effect_committed,
  permanent_failure,
  compensatable_failure,
  compensated
};
std::string_view to_text(ResultType type);

struct Failure {
  std::string code, message;
};

// How the newest try is accounted in the job's budget (plan/budget.h).
enum class Charge : std::uint8_t { none, reserved, spent };

// The questions with which a try of a call ended, and the user's answers (schema/question.h). Only
// the newest round counts; every later try sends it.
struct Questions {
  Value input_required;  // {requests, state?}
  Value answers;         // by key of a request
  bool erased = false;   // `input_required` was erased from the log (log/redacted.h)
  std::uint32_t rounds = 0;
  std::uint32_t number = 0;  // of the newest question, over all rounds
};

// The call of a step. All its tries share keys and arguments.
struct Invocation {
  InvocationId id;
  IdempotencyKey key;
  ExternalKey external_key;
  Value arguments;
  bool erased = false;  // `arguments` was erased from the log (log/redacted.h)
  DigestText arguments_hash;
  std::string tool;
  ShortDigest tool_version;
  std::uint32_t try_no = 0;  // the newest try
  // Tries that count against max_attempts: neither withdrawn tries nor resends after a crash.
  std::uint32_t counted_tries = 0;
  // A try may have taken effect, and neither a later response under this key nor an
  // operator has settled it.
  bool outcome_unknown = false;
  std::uint32_t unsent_tries = 0;  // newest consecutive tries withdrawn before a byte was sent
  std::uint32_t absent_tries = 0;  // tries that a probe reported as not happened
  std::uint32_t last_late_try =
      0;              // the newest try with a late result: its outcome was already decided
  bool open = false;  // the newest try has started and not finished
  AttemptId attempt;  // declared the newest try
  Instant first_send_by, send_by, deadline;
  // When another attempt first ran the job while this try was open. The sender's
  // lease had ended by then.
  std::optional<Instant> taken_over_at;
  // On a store with a single owner process: the store opening under which the newest try was sent,
  // and the first later one, by another process, that ran the job. That process held the store
  // lock, so the sender was dead.
  std::optional<Instant> sent_opening, next_opening;
  bool unsettled = false;  // a try ended and its request may still take effect
  // A check made before this instant does not cover the newest try. Set when the earlier tries are
  // ruled out, then to the time at which the end of the newest try was observed.
  std::optional<Instant> checkable_from;
  std::optional<Instant> ended_at;          // of the newest try; for display
  std::set<std::uint32_t> uncertain_tries;  // tries that ended without a certain result
  // Of the newest finished try:
  OutcomeKind outcome = OutcomeKind::unknown;
  bool definite = false, retryable = false;
  Failure error;
  std::optional<Duration> retry_after;
  Charge charge = Charge::none;
  Reservation reserved;  // per try, for a model call of a job with a budget
  std::unique_ptr<Questions> questions;
};

enum class StepPhase : std::uint8_t {
  blocked,    // dependencies are not complete
  ready,      // may start
  calling,    // a try is open
  settled,    // the newest try ended without success: next action undecided
  backoff,    // a retry is scheduled, not before `not_before`
  redo,       // decided as not happened: one new try
  in_doubt,   // a resolve wait is open
  probing,    // the outcome is unknown and its probe is running
  committed,  // the command is committed; the node is not finished
  asking,     // the call waits for approval
  waiting,    // its wait is open
  answered,   // its wait has completed, or its call was not approved; the node is not finished
  mapping,    // items are running
  refused,    // resolved as `fail`
  done,
  looping,     // a turn of the loop, or a call of that turn, is running
  questioned,  // its tool has asked a user a question
  recorded,    // its time, random number or UUID is recorded; the command is not committed
};

// An approval of a call. It is valid for exactly this call and for one invocation of it. `denied`:
// a policy forbids the call; no approver was asked.
enum class ApprovalState : std::uint8_t {
  requested,
  approved,
  rejected,
  expired,
  withdrawn,
  denied
};
std::string_view to_text(ApprovalState state);
struct Approval {
  std::string id;  // 16 hex digits: the decision that requested it
  ApprovalState state = ApprovalState::requested;
  Value arguments;  // until the invocation holds them
  std::string arguments_hash, tool, tool_version, schema_digest;
  std::optional<Instant> expires_at;
  StepPhase from = StepPhase::ready;  // the phase to return to when it is approved
  std::uint32_t request_count = 1;    // how often approval was requested for this command
  bool used = false;                  // an invocation was declared with it
  std::string by, note;               // the approver and their note; of a denial, the reason
  // The approver edited the arguments: the digest of the requested ones; "" = not edited.
  std::string edited_from;
};

struct MapProgress {
  Value over;                  // the recorded array
  std::vector<Value> results;  // by item
  std::vector<bool> finished;  // by item
  bool erased = false;         // one of the results was erased from the log
  std::uint32_t started = 0;   // the next item to start; all earlier ones have started
  std::uint32_t active = 0, done = 0;
  std::uint32_t asking = 0;        // items whose call waits for approval or for an answer
  std::optional<Failure> failure;  // of the first item that failed permanently
};

// A call that a model requested in one answer.
struct LoopCall {
  std::string id;                   // chosen by the model
  std::uint32_t tool = 0;           // index into Plan::tools; meaningless if `refused`
  std::uint32_t step = 0xffffffff;  // kNoStep: it has not started
  std::optional<Failure> refused;   // the call is not made; the model receives this error
  std::optional<Value> edited;      // the arguments sent instead, edited by the approver
};

struct LoopTurn {
  std::uint32_t step = 0;  // of the model call
  bool chosen = false;     // its requested calls are recorded
  std::vector<LoopCall> calls;
  // Its answer broke the schema; the model receives this message.
  std::optional<std::string> repair;
};

struct LoopProgress {
  std::vector<LoopTurn> turns;
  // Of the newest turn:
  std::uint32_t next = 0;  // the next call to start; earlier ones have started or are refused
  std::uint32_t active = 0, asking = 0;
  // The messages sent to the model in the newest turn: the end of their hash chain, and their
  // number (engine/loop/loop.h).
  std::string conversation;
  std::uint64_t message_count = 0;
  std::optional<Failure> failure;  // no further part starts
  std::set<Limit> noticed_limits;  // low limits that the model has been notified of
  std::uint32_t repairs = 0;       // turns that ended with a repair message
};

// What a step takes over from the call of another job: the origin of this fork.
struct Imported {
  std::string tool, arguments_hash;  // of the call; empty: it made none
  // Of a turn of a loop that continues here:
  Value arguments;          // of the model call
  InvocationId invocation;  // the invocation whose result is the answer
};

constexpr std::uint32_t kNoItem = 0xffffffff;
constexpr std::uint32_t kNoTurn = 0xffffffff;
constexpr std::uint32_t kNoStep = 0xffffffff;

// The role of a step: a node or a part of one (an item of a map, a turn of a loop, a call of a
// turn), a probe of a call with an unknown outcome, or the compensation of a committed call.
enum class Role : std::uint8_t { node, probe, undo };

struct Step {
  StepId id;
  std::uint32_t node = 0;
  // Its position in the plan under which it started: its path is made of these. `node` is its
  // position in the current plan.
  std::uint32_t start_plan = 0, start_node = 0;
  std::uint32_t item = kNoItem;
  // Of a loop: the turn, and the index of the call in its answer; without an index: the model call.
  std::uint32_t turn = kNoTurn, nth = kNoTurn;
  std::uint32_t tool = kNoTurn;  // of such a call: index into Plan::tools
  Role role = Role::node;
  std::uint32_t of = kNoStep;     // of a probe or undo: the step of the call
  std::uint32_t of_try = 0;       // of a probe: the try that it checks
  std::uint32_t probe = kNoStep;  // the newest probe of this step's call
  std::uint32_t undo = kNoStep;   // the compensation of this step's call
  StepPhase phase = StepPhase::blocked;
  // In the log: node_started, command_committed, step_committed.
  bool started = false, committed = false, barrier = false;
  std::uint32_t changed = 0;  // number of state_changed events of its call
  std::uint32_t needs_left = 0;
  std::optional<bool> branch;  // the recorded value of `when`
  std::unique_ptr<Invocation> call;
  std::unique_ptr<Approval> approval;
  std::unique_ptr<MapProgress> map;
  std::unique_ptr<LoopProgress> loop;
  std::unique_ptr<Imported> imported;  // its result comes from the origin of this fork
  Instant not_before;
  std::string wait_key;    // of its newest wait, also of a resolve wait
  bool timed_out = false;  // its wait expired
  bool rejected = false;   // its wait was answered with a rejection
  std::optional<Failure> failure;
  Value result;
  bool erased = false;  // `result` was erased from the log (log/redacted.h)
  ResultType result_type = ResultType::none;
  bool skipped = false;

  // It is below the step of its node, steps[node]: an item of a map, a turn of
  // a loop, a call of a turn.
  bool is_part() const { return item != kNoItem || turn != kNoTurn; }
  bool is_turn() const { return turn != kNoTurn && nth == kNoTurn; }
  bool is_loop_call() const { return nth != kNoTurn; }
};

struct Wait {
  std::uint32_t step = 0;
  WaitType type = WaitType::signal;
  std::optional<Instant> due_at, expires_at;
  bool resolve = false;   // for a call with an unknown outcome
  bool approval = false;  // for a call that needs approval
  bool question = false;  // for a question of a tool during its call
  Instant opened_at;      // the writer's clock; for display
  std::string reason;
  std::string channel;           // of a message wait
  std::uint64_t opened_seq = 0;  // waits for one channel are served in this order
};

// Open waits, by what an operator is asked for.
struct OpenRequests {
  std::uint32_t calls = 0;      // approvals of calls
  std::uint32_t waits = 0;      // human waits
  std::uint32_t questions = 0;  // of tools, in the middle of their calls
};

struct ClosedWait {
  WaitType type = WaitType::signal;
  std::string outcome;
  Value payload;
  std::string signal_id;  // of the request that ended it; "" = none
  std::string approval;   // its id in the list of approvals; "" = not listed
};

// A message, or an early signal, that no wait has taken yet.
struct BufferedMessage {
  std::string id, by, wait_type;
  Value payload;
  bool erased = false;  // `payload` was erased from the log
};

// A verification that found a resource changed, or that could not be made.
struct Deviation {
  std::string verdict;   // mismatch | unreachable
  std::string observed;  // of a mismatch
};

// The last change by this job of an external resource, and its newest verification
// (engine/confirm/confirm.h).
struct Change {
  std::string resource_type, resource_id, operation;
  std::string version, etag, external_ref;  // "" = not recorded
  std::string tool;
  std::uint32_t step = 0;
  std::uint64_t seq = 0;               // of its state_changed
  AttemptId attempt;                   // made the call
  std::string verdict;                 // of the newest verification; "" = none yet
  std::optional<Deviation> escalated;  // an operator is asked
  std::optional<Deviation> accepted;   // an operator accepted it
};

// A requested pause. The job parks as soon as no call is in flight.
struct PendingPause {
  std::string by, reason;
};

struct Ending {
  bool cancelled = false;  // else failed
  std::string code, message, node_id, by;
  bool compensate = true;  // undo committed steps whose tools name a compensation first
};

// An outcome noted later for a call that was given up or whose job has ended.
struct NotedOutcome {
  std::string resolution, by;  // happened | not_happened
  Instant at;
  Value result, note;  // null = none was given
};

// A call whose outcome is unknown or is being probed: what an operator needs
// to check and to name it.
struct UnknownCall {
  StepId step;
  std::string node_id, tool;
  std::uint32_t item = kNoItem;
  InvocationId invocation;
  IdempotencyKey key;
  ExternalKey external_key;                 // "" = the arguments could not be evaluated
  std::uint32_t try_no = 0;                 // the newest try; 0 = none
  std::set<std::uint32_t> uncertain_tries;  // tries that ended without a certain result
  Failure error;
  Value arguments;
  std::optional<Instant> ended_at;  // of the newest try
  // The time from which a check shows what the newest try did; nullopt = at any time.
  std::optional<Instant> checkable_at;
  StepId compensates;     // "" = it is no compensation
  bool given_up = false;  // the job continued without its outcome
};

// The reason of a job_requeued that counts a process death, and of the park after the last one.
inline constexpr std::string_view kProcessDied = "process_died";
inline constexpr std::string_view kWornOut = "worn_out";
inline constexpr std::uint32_t kProcessDeathsMax = 2;

// The `effect_id` of the timer_fired of the job's deadline, and of the `wall` limit of its budget.
inline constexpr std::string_view kDeadlineTimer = "deadline";
inline constexpr std::string_view kWallTimer = "budget";

class State {
 public:
  JobId job;
  std::string agent;
  Value input, labels;
  Value job_root;     // `.job` of expressions: {id, agent, labels, created_at}
  Value forked_from;  // {job_id, seq, hash}; null = not a fork
  // The job's secret in hashes of values (base/ids.h); "" = none, or erased.
  std::string blind;
  // Erased: these hashes cannot be recomputed, only compared with each other.
  bool blind_erased = false;
  std::string execution_version;
  std::string traceparent, tracestate;  // of the request that created the job; "" = none
  JobStatus status = JobStatus::none;
  std::uint64_t seq = 0;  // of the last event applied
  Instant updated_at;     // its created_at, by the writer's clock; for display

  AttemptId attempt;  // that runs the job, or ran it last
  std::uint64_t epoch = 0;
  std::optional<Instant> opened_at;  // the store opening under which that attempt began
  // Consecutive attempts that ended without a release and without progress.
  std::uint32_t lost_claims = 0;
  // Consecutive deaths of a process that ran a slice of this job, without progress in between.
  std::uint32_t process_deaths = 0;
  std::optional<Instant> deadline, not_before;
  bool deadline_fired = false;

  std::shared_ptr<const Plan> plan;
  std::uint32_t plan_number = 0;
  bool planned_by_model = false;  // then only granted tools may be called (engine/heart/policy.h)
  std::deque<Step> steps;         // the first plan->nodes.size() are those of the nodes
  std::unordered_map<StepId, std::uint32_t> by_id;
  std::set<std::uint32_t> todo;       // steps that need a decision
  std::set<std::uint32_t> startable;  // calls that may start once the limits allow
  std::set<std::uint32_t> calling;    // steps with an open try
  std::uint32_t open_tries = 0;       // including tries of calls with an open resolve wait
  std::uint64_t tries_started = 0;    // of all steps
  // A try ended without a certain result, or an operator was asked for the outcome of a call.
  bool had_unknown_outcome = false;
  std::uint32_t nodes_left = 0;
  std::uint64_t map_items = 0;  // of all started maps, in any state

  std::map<std::string, Wait> waits;  // open, by correlation key
  OpenRequests open_requests;         // a count of `waits`
  std::map<std::string, ClosedWait> closed_waits;
  // Undelivered messages, by channel.
  std::map<std::string, std::deque<BufferedMessage>> pending_messages;
  // Signals that arrived before their wait, by correlation key.
  std::map<std::string, std::deque<BufferedMessage>> early_signals;
  std::set<std::string> message_keys;         // of all messages and early signals so far
  std::optional<PendingPause> pause_request;  // requested, and not in effect yet
  std::string parked_reason, parked_until;
  std::optional<Instant> parked_since;
  std::optional<Ending> ending;
  // Committed steps whose tools name a compensation, in the order of their step_committed. They are
  // undone last to first.
  std::vector<std::uint32_t> undoable;
  std::vector<std::uint32_t> undone, given_up;  // compensated; given up by an operator's decision
  Value result;
  std::optional<Failure> error;                            // of job_failed
  Value final_in_doubt;                                    // in_doubt[] of the terminal event
  std::map<std::string, NotedOutcome, std::less<>> noted;  // by invocation
  // Calls with an unknown outcome and no step in the current plan: a re-plan dropped the step, or
  // the origin of this fork made the call.
  std::vector<UnknownCall> earlier_unknown;
  // Accepted signals that arrived too late, after the job's end was decided:
  // {correlation_key, signal_id}.
  std::vector<Value> undelivered;
  std::uint64_t signals = 0;  // accepted and applied
  ModelUsage models;
  Budget budget;
  std::map<std::string, Change> changes;  // the last one of each resource, by resource_key
  // Changes that a new attempt must verify before its first new command.
  std::set<std::string> to_confirm;
  std::uint32_t escalated = 0;  // changes that wait for an operator's answer

  const Node& node_of(const Step& step) const { return plan->nodes[step.node]; }
  // This job's hash of a value: arguments_hash, prompt_hash, plan_input_hash. REQUIRES:
  // the blind is not erased.
  DigestText hash_of(const Value& value) const;
  // A model, a planner or code chose the arguments of the call, and could choose others after a
  // restore of the store.
  bool is_chosen(const Step& step) const { return step.is_loop_call() || planned_by_model; }
  // The tool of the step's call: index into Plan::tools.
  std::uint32_t tool_index(const Step& step) const;
  const ToolPolicy& tool_of(const Step& step) const { return plan->tools[tool_index(step)]; }
  // The call has an unknown outcome and can be compensated: the job does not end before the outcome
  // is known or the call is given up (SPEC §7).
  bool blocks_ending(const Step& step) const;
  // Must this call with an unknown outcome be resolved before the job ends?
  bool must_settle_before_end(const Step& call) const;
  // Is an operator asked about a call that must be resolved before the job ends?
  bool awaits_operator_before_end() const;
  // Is there a step to undo, or a call with an unknown outcome that may need it?
  bool needs_undo() const;
  // Must the job undo a step before it ends?
  bool must_undo() const { return ending && ending->compensate && needs_undo(); }
  // The call of a step, for display.
  UnknownCall call_of(const Step& step) const;
  // The calls whose outcome is unknown.
  std::vector<UnknownCall> unknown_calls() const;
  // Their idempotency keys.
  std::vector<Value> unknown_call_keys() const;
  // The command that probes the newest try of a step's call, or that undoes the call.
  StepId side_step_id(const Step& step, Role role) const;
  // The role of the command with this id that may start for `step`; nullopt = none may.
  std::optional<Role> side_role(const Step& step, const StepId& id) const;
  // May its call be probed? Its outcome is unknown, its newest try has no probe yet, and probes
  // have reported fewer tries as not happened than the tool's max_attempts.
  bool may_probe(const Step& step) const;
  // The key that identifies the call for operators, also if the arguments could not be evaluated.
  IdempotencyKey key_of(const Step& step) const;
  // The kind of the step itself: a part of a map or loop is a call, as are
  // probes and compensations.
  NodeKind kind_of(const Step& step) const;
  // A try is live if the current attempt declared it. Otherwise it was orphaned by a crash.
  bool is_live(const Step& step) const {
    return step.call && step.call->open && status == JobStatus::running &&
           step.call->attempt == attempt;
  }
  bool has_live_call() const {
    return std::ranges::any_of(calling, [&](std::uint32_t index) { return is_live(steps[index]); });
  }
  // Until when a request of the step's call may still take effect; nullopt = none can. Probes and
  // `not_happened` decisions are valid from then on, on every store. REQUIRES: step.call.
  std::optional<Instant> settles_at(const Step& step) const;
  // From when on a check shows what the newest try did: it was sent before then and has settled.
  // nullopt = at any time. REQUIRES: step.call.
  std::optional<Instant> checkable_at(const Step& step) const;
  // Its newest try ended without a conclusive result, and the outcome has not been resolved since.
  bool may_have_happened(const Step& step) const;
  // Its call, or the call that it probes, may have changed an external
  // resource without a record of it.
  bool may_have_changed(const Step& step) const;
  // Parked because a verification found a mismatch or could not be made. An operator answers.
  bool awaits_confirmation() const {
    return status == JobStatus::parked && parked_until == park_until::kConfirmation;
  }
  // Parked because the budget is used up. Raising the budget ends the park.
  bool awaits_budget() const {
    return status == JobStatus::parked && parked_until == park_until::kBudget;
  }
  // Parked until a process offers its execution version (SPEC §12, strict).
  bool awaits_version() const {
    return status == JobStatus::parked && parked_until == park_until::kVersion;
  }
  // It killed or blocked the process that ran it as often as a job may. It runs again when an
  // operator resumes it.
  bool is_worn_out() const { return process_deaths >= kProcessDeathsMax; }
  // Parked by `pause`: only `resume`, a cancel or the deadline end the park.
  bool is_paused() const {
    return status == JobStatus::parked && parked_until == park_until::kResume;
  }
  // The correlation key for a wait with this key in the plan. If a re-plan abandoned an open wait
  // with this key, the new wait gets a key of its own.
  std::string unique_wait_key(const std::string& named) const;
  // The id of an open wait in the list of approvals; "" = not listed.
  std::string approval_id(const Wait& wait) const;
  std::string path_of(const Step& step) const;
  StepId item_step_id(const Node& map_node, std::uint32_t item) const;
  std::string item_path(const Node& map_node, std::uint32_t item) const;
  // Of a turn of a loop (`nth` = kNoTurn), or of a call of one.
  StepId part_step_id(const Step& loop, std::uint32_t turn, std::uint32_t nth) const;
  std::string part_path(const Step& loop, std::uint32_t turn, std::uint32_t nth) const;
  // The earliest instant at which a timer, an expiry or the deadline is due; nullopt = none.
  std::optional<Instant> next_due() const;
  // The result that dependents read: {error: …} if the step failed and the job
  // continued, null if it was skipped.
  Value result_for_dependents(const Step& step) const;
};

// The id of a decision, from the current plan and the path of the decision.
DecisionId decision_at(const State& state, std::string_view path);
// Is the job's planner done, so that its plan must follow?
bool awaits_plan(const State& state);
// Steps in the form used by lists: [{node_id, step_id, item?, turn?, turn_call?}].
Value steps_list(const State& state, const std::vector<std::uint32_t>& steps);
// Steps that could have been undone before the job ended and were not.
std::vector<std::uint32_t> not_undone(const State& state);
// The next request to ask: the first one without an answer; nullptr = all are
// answered, or there are none.
const Member* open_question(const Invocation& call);
// The id of the current question in the list of approvals.
std::string question_id(const State& state, const Step& step);
// Is the next try the first one that sends the user's answers? A job's budget
// counts it as another call.
bool is_first_with_answers(const Invocation& call);
// The arguments of the model call of a turn, here or in the origin of this fork.
// REQUIRES: the model was called.
const Value& turn_arguments(const Step& turn);

// Fails with log_corrupt (the event is not possible here: SPEC §2, unknown step, second
// result, …), job_terminal (after the end), plan_invalid (the plan does not compile).
// The state is then unusable.
Status apply(State& state, const EventBody& event, Instant created_at, const PlanSource& plans);
// The same for an event read from a log, whose values may have been erased.
Status apply(State& state, const Event& event, const PlanSource& plans);

Result<State> fold(const JobId& job, const std::vector<Event>& events, const PlanSource& plans);

// The same, one event at a time, because applying an event may evaluate
// expressions. Borrows the events.
class IncrementalFold {
 public:
  IncrementalFold(const JobId& job, std::span<const Event> events, PlanSource plans);
  bool next();  // false: no event is left, or one could not be applied
  Result<State> take() && { return std::move(state_); }

 private:
  Result<State> state_{std::in_place};
  std::span<const Event> left_;
  PlanSource plans_;
};

}  // namespace ae::engine
