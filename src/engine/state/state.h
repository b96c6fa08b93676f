// State: what the log of one job says, folded. `apply` is the only way it changes.
//
//   state' = apply(state, event)      pure; the same for worker, recovery, replay, verify and simulation
//
// A job is a set of steps: each node of the plan has one (steps[node.index]), each item of a map gets its own when it
// starts. A step moves through phases; `todo` holds the steps that `decide` has something to say about, so that a
// decision costs the same at step 100,000 as at step 1. Threads: a value; one owner.
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
#include "plan/budget.h"
#include "plan/model_calls.h"
#include "plan/plan.h"

namespace ae::engine {

// What evaluations, and checks of values against schemas, have cost together, in steps (ExprScope::charge).
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

// The table of SPEC §2: the status after `event`, or nullopt when the event is illegal there. `ends_own_park`: a
// wait_completed whose wait was opened by the park itself.
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

// Does the newest try stand in the job's budget, and where? (plan/budget.h)
enum class Charge : std::uint8_t { none, reserved, spent };

// What a tool asked a person for when a try of its call ended, and the answers (schema/question.h). The newest round counts:
// every later try sends it along.
struct Questions {
  Value asked;          // {requests, state?}
  Value answers;        // by key of a request
  bool erased = false;  // `asked` was, from the log (log/redacted.h)
  std::uint32_t rounds = 0;
  std::uint32_t number = 0;  // of the question that was put last, over all rounds
};

// The invocation of a tool step: all its tries share keys and arguments.
struct Invocation {
  InvocationId id;
  IdempotencyKey key;
  ExternalKey external_key;
  Value arguments;
  bool erased = false;  // they were, from the log (log/redacted.h)
  std::string arguments_hash, tool, tool_version;
  std::uint32_t try_no = 0;  // the newest try
  std::uint32_t counted_tries =
      0;  // tries that count against max_attempts (not withdrawn, not a resend after a crash)
  // A try may have happened, and nothing that came after says more: no answer from the other side under this key, no
  // person's word.
  bool outcome_unknown = false;
  std::uint32_t unsent_tries =
      0;  // the newest tries in a row that were withdrawn before a byte was sent
  std::uint32_t absent_tries = 0;  // tries of which a probe said that they did not happen
  std::uint32_t late = 0;          // the newest try whose result came after its fate was decided
  bool open = false;               // the newest try is started and not finished
  AttemptId attempt;               // that declared the newest try
  Instant first_send_by, send_by, deadline;
  // When another attempt first had the job while this try was open: the lease that it was sent under had ended by then.
  std::optional<Instant> taken_over_at;
  // On a store that one process owns: the opening that the newest try was sent under, and the first one of another process
  // that had the job after it. That process had the lock, so by then the sender was dead.
  std::optional<Instant> sent_opening, next_opening;
  bool unsettled = false;  // a try ended and its request may still take effect
  // A check that was made before this says nothing of the newest try: when the tries before it were ruled out, and from its
  // own end on when that was seen.
  std::optional<Instant> checkable_from;
  std::optional<Instant> ended_at;          // the newest try; for people
  std::set<std::uint32_t> uncertain_tries;  // the tries that ended without a certain result
  // The newest finished try:
  OutcomeKind outcome = OutcomeKind::unknown;
  bool definite = false, retryable = false;
  Failure error;
  std::optional<Duration> retry_after;
  Charge charge = Charge::none;
  Reservation reserved;  // of each try, when it is a model's in a job with a budget
  std::unique_ptr<Questions> questions;
};

enum class StepPhase : std::uint8_t {
  blocked,    // needs are not complete
  ready,      // may start
  calling,    // a try is open
  settled,    // the newest try ended without success: retry, doubt or failure is to be decided
  backoff,    // a retry is decided; not before `not_before`
  redo,       // a person said that it did not happen: one new try
  in_doubt,   // a resolve wait is open
  probing,    // it may have happened, and its probe is asking
  committed,  // the command is committed; the node is not finished
  asking,     // a person is asked whether its call may be made
  waiting,    // its wait is open
  answered,   // its wait is completed, or its call not approved; the node is not finished
  mapping,    // items are under way
  refused,    // a person said fail
  done,
  looping,     // a model leads: a turn of it, or what that asked for, is under way
  questioned,  // its tool has asked a person something
  recorded,    // its value of time, chance or an id is in the log; the command is not committed
};

// What a person said of a call, or is asked. It is good for exactly this call, and for one invocation of it.
// `denied`: nobody was asked, a policy forbids it.
enum class ApprovalState : std::uint8_t {
  requested,
  approved,
  rejected,
  expired,
  withdrawn,
  denied
};
struct Approval {
  std::string id;  // 16 hex digits: the decision that requested it
  ApprovalState state = ApprovalState::requested;
  Value arguments;  // until the invocation holds them
  std::string arguments_hash, tool, tool_version, schema_digest;
  std::optional<Instant> expires_at;
  StepPhase from = StepPhase::ready;  // where the step goes on when it is approved
  std::uint32_t asked = 1;            // how often this command has been asked for
  bool used = false;                  // an invocation was declared with it
  std::string by, note;               // who answered, and what they added; of a denial, why
  // Whoever approved it changed the arguments: the digest of those that were asked for; "" = nobody did.
  std::string edited_from;
};

struct MapProgress {
  Value over;                  // the recorded array
  std::vector<Value> results;  // by item
  std::vector<bool> finished;  // by item
  bool erased = false;         // one of the results was, from the log
  std::uint32_t started = 0;   // the next item to start; those before it have
  std::uint32_t active = 0, done = 0;
  std::uint32_t asking = 0;        // items whose call, or whose tool, waits for a person
  std::optional<Failure> failure;  // of the first item that failed for good
};

// A call that a model asked for in one answer.
struct LoopCall {
  std::string id;                   // the model's own name of it
  std::uint32_t tool = 0;           // index into Plan::tools; meaningless when it was refused
  std::uint32_t step = 0xffffffff;  // kNoStep: it has not begun
  std::optional<Failure> refused;   // it is not made, and this is what the model is told
  std::optional<Value> edited;      // what was sent instead: the arguments of whoever approved it
};

struct LoopTurn {
  std::uint32_t step = 0;  // that asks the model
  bool chosen = false;     // what it asked for is recorded
  std::vector<LoopCall> calls;
  std::optional<std::string>
      repair;  // its answer broke the schema, and this is what the model is told of it
};

struct LoopProgress {
  std::vector<LoopTurn> turns;
  // Of the newest turn:
  std::uint32_t next = 0;  // the next call to begin; those before it have, or are refused
  std::uint32_t active = 0, asking = 0;
  // What the newest turn's model was told: the end of the chain over its messages, and how many they are (engine/loop/loop.h).
  std::string conversation;
  std::uint64_t message_count = 0;
  std::optional<Failure> failure;  // nothing more begins
  std::set<Limit> noticed_limits;  // of which its model knows that little is left
  std::uint32_t repairs = 0;       // turns whose answer was to be mended
};

// What a step stands on whose call another job made: the job that this one is forked from.
struct Imported {
  std::string tool, arguments_hash;  // of the call; empty: it made none
  // Of a turn of a loop that goes on here:
  Value arguments;          // with which its model was asked
  InvocationId invocation;  // that its answer is the result of
};

constexpr std::uint32_t kNoItem = 0xffffffff;
constexpr std::uint32_t kNoTurn = 0xffffffff;
constexpr std::uint32_t kNoStep = 0xffffffff;

// What a step is: a node (or a part of one: an item of a map, a turn of a loop or a call of one), a probe of a call in doubt, or what undoes a committed call.
enum class Role : std::uint8_t { node, probe, undo };

struct Step {
  StepId id;
  std::uint32_t node = 0;
  // Where it stands in the plan that it was begun under: its path is made of these. `node` is its place in the plan of now.
  std::uint32_t start_plan = 0, start_node = 0;
  std::uint32_t item = kNoItem;
  // Of a loop: the turn, and which of the calls that its answer asked for; without: it is what asks the model.
  std::uint32_t turn = kNoTurn, nth = kNoTurn;
  std::uint32_t tool = kNoTurn;  // of such a call: index into Plan::tools
  Role role = Role::node;
  std::uint32_t of = kNoStep;     // of a probe or undo: the step whose call it is about
  std::uint32_t of_try = 0;       // of a probe: the try that it asks about
  std::uint32_t probe = kNoStep;  // the newest probe of this step's call
  std::uint32_t undo = kNoStep;   // what undoes this step's call
  StepPhase phase = StepPhase::blocked;
  // node_started, command_committed, step_committed are in the log
  bool started = false, committed = false, barrier = false;
  std::uint32_t changed = 0;  // state_changed of its call
  std::uint32_t needs_left = 0;
  std::optional<bool> branch;  // the recorded value of `when`
  std::unique_ptr<Invocation> call;
  std::unique_ptr<Approval> approval;
  std::unique_ptr<MapProgress> map;
  std::unique_ptr<LoopProgress> loop;
  std::unique_ptr<Imported> imported;  // it was done before this job was forked
  Instant not_before;
  std::string wait_key;    // of its newest wait, also of that of a call in doubt
  bool timed_out = false;  // its wait ended by expiry
  bool rejected = false;   // a person said no to its wait
  std::optional<Failure> failure;
  Value result;
  bool erased = false;  // what it gave was, from the log (log/redacted.h)
  ResultType result_type = ResultType::none;
  bool skipped = false;

  // It stands below the step of its node, steps[node]: an item of a map, a turn of a loop, a call of a turn.
  bool is_part() const { return item != kNoItem || turn != kNoTurn; }
  bool is_turn() const { return turn != kNoTurn && nth == kNoTurn; }
  bool is_loop_call() const { return nth != kNoTurn; }
};

struct Wait {
  std::uint32_t step = 0;
  WaitType type = WaitType::signal;
  std::optional<Instant> due_at, expires_at;
  bool resolve = false;   // the wait of an in-doubt call
  bool approval = false;  // the wait of a call that a person is to approve
  bool question = false;  // of what a tool asks in the middle of its call
  Instant opened_at;      // the writer's claim; for people
  std::string reason;
  std::string channel;           // of a message wait
  std::uint64_t opened_seq = 0;  // the first to wait for a channel is the first to be served
};

struct ClosedWait {
  WaitType type = WaitType::signal;
  std::string outcome;
  Value payload;
  std::string signal_id;  // of the act that ended it; "" = none did
  std::string approval;   // the id under which it was listed among approvals; "" = it was not
};

// A message, or an early signal, that nobody has waited for yet.
struct BufferedMessage {
  std::string id, by, wait_type;
  Value payload;
  bool erased = false;  // the payload was, from the log
};

// What a look at a resource showed that is not as it was recorded, or that nobody could look.
struct Deviation {
  std::string verdict;   // mismatch | unreachable
  std::string observed;  // of a mismatch
};

// The last thing that a call of this job did to a resource outside, and what was seen of it since (engine/confirm/confirm.h).
struct Change {
  std::string resource_type, resource_id, operation;
  std::string version, etag, external_ref;  // "" = not recorded
  std::string tool;
  std::uint32_t step = 0;
  std::uint64_t seq = 0;               // of its state_changed
  AttemptId attempt;                   // that made the call
  std::string verdict;                 // of the last look; "" = there was none
  std::optional<Deviation> escalated;  // a person is asked
  std::optional<Deviation> accepted;   // a person said that this is well
};

// Somebody wants the job to rest; it does as soon as nothing is in flight.
struct PauseRequest {
  std::string by, reason;
};

struct Ending {
  bool cancelled = false;  // else failed
  std::string code, message, node_id, by;
  bool compensate = true;  // committed steps whose tools name a compensation are undone first
};

// What a person found out about a call whose outcome was unknown when the job ended.
struct NotedOutcome {
  std::string resolution, by;  // happened | not_happened
  Instant at;
  Value result, note;  // null = none was given
};

// A call whose outcome is unknown, or is asked about: what people need to find it out and to name it.
struct UnknownCall {
  StepId step;
  std::string node_id, tool;
  std::uint32_t item = kNoItem;
  InvocationId invocation;
  IdempotencyKey key;
  ExternalKey external_key;                 // "" = it could not be made, for want of arguments
  std::uint32_t try_no = 0;                 // the newest try; 0 = none
  std::set<std::uint32_t> uncertain_tries;  // the tries that ended without a certain result
  Failure error;
  Value arguments;
  std::optional<Instant> ended_at;  // the newest try
  // From when on a check shows what the newest try did; nullopt = at any time.
  std::optional<Instant> checkable_at;
  StepId compensates;     // "" = it undoes nothing
  bool given_up = false;  // the job went on without its outcome
};

// The reason of the job_requeued that counts such a death, and of the park after the last one.
inline constexpr std::string_view kProcessDied = "process_died";
inline constexpr std::string_view kWornOut = "worn_out";
inline constexpr std::uint32_t kProcessDeathsMax = 2;

class State {
 public:
  JobId job;
  std::string agent;
  Value input, labels;
  Value job_root;     // `.job` of expressions: {id, agent, labels, created_at}
  Value forked_from;  // {job_id, seq, hash}; null = it began from nothing
  // Its secret in hashes of values (base/ids.h); "" = it has none, or it was erased.
  std::string blind;
  bool blind_erased =
      false;  // erased: these hashes cannot be computed again, only compared with each other
  std::string execution_version;
  std::string traceparent, tracestate;  // of whoever asked for it; "" = none
  JobStatus status = JobStatus::none;
  std::uint64_t seq = 0;  // of the last event applied
  Instant updated_at;     // its created_at: the writer's claim; for people

  AttemptId attempt;  // that runs it, or ran it last
  std::uint64_t epoch = 0;
  std::optional<Instant> opened_at;  // the opening of the store under which that attempt began
  // Attempts in a row that ended without a release and without progress.
  std::uint32_t lost_claims = 0;
  // Times in a row that a process died while it ran a slice of this job, without a new command between them.
  std::uint32_t process_deaths = 0;
  std::optional<Instant> deadline, not_before;
  bool deadline_fired = false;

  std::shared_ptr<const Plan> plan;
  std::uint32_t plan_number = 0;
  bool planned_by_model = false;  // then only what is granted may be called (engine/heart/policy.h)
  std::deque<Step> steps;         // the first plan->nodes.size() are the nodes'
  std::unordered_map<StepId, std::uint32_t> by_id;
  std::set<std::uint32_t> todo;       // steps that decide has something to say about
  std::set<std::uint32_t> startable;  // calls that may start as soon as the limits allow
  std::set<std::uint32_t> calling;    // steps with an open try that is awaited
  std::uint32_t open_tries = 0;       // with those whose fate a person is to decide
  std::uint64_t tries_started = 0;    // of all steps
  std::uint32_t nodes_left = 0;
  std::uint64_t map_items = 0;  // of all maps that have begun, whatever became of them

  std::map<std::string, Wait> waits;  // open, by correlation key
  std::map<std::string, ClosedWait> closed_waits;
  std::map<std::string, std::deque<BufferedMessage>>
      pending_messages;  // messages not delivered, by channel
  std::map<std::string, std::deque<BufferedMessage>>
      early;                            // signals before their wait, by correlation key
  std::set<std::string> message_keys;   // of all messages and early signals there were
  std::optional<PauseRequest> pausing;  // and it does not rest yet
  std::string parked_reason, parked_until;
  std::optional<Instant> parked_since;
  std::optional<Ending> ending;
  // Committed steps whose tools name a compensation, in the order of their step_committed: undone from the end.
  std::vector<std::uint32_t> undoable;
  std::vector<std::uint32_t> undone, given_up;  // compensated; not, since a person said so
  Value result;
  std::optional<Failure> error;                            // of job_failed
  Value final_in_doubt;                                    // in_doubt[] of the terminal event
  std::map<std::string, NotedOutcome, std::less<>> noted;  // by invocation
  // Of unknown outcome, and no step of this plan stands for them: another plan dropped the step, or they are calls of the job
  // that this one is forked from.
  std::vector<UnknownCall> earlier_unknown;
  // Accepted signals that the end of the job overtook: {correlation_key, signal_id}.
  std::vector<Value> undelivered;
  std::uint64_t signals = 0;  // accepted and taken in
  ModelUsage models;
  Budget budget;
  std::map<std::string, Change> changes;  // the last one of each resource, by resource_key
  // What an attempt that took the job over has to confirm before its first new command.
  std::set<std::string> to_confirm;
  std::uint32_t escalated = 0;  // changes of which a person is asked

  const Node& node_of(const Step& step) const { return plan->nodes[step.node]; }
  // The hash of a value by which this job knows it: arguments_hash, prompt_hash, plan_input_hash. REQUIRES: the blind is
  // not gone.
  std::string hash_of(const Value& value) const;
  // A model, a planner or code chose the arguments of its call, and would perhaps choose others in a restored store.
  bool is_chosen(const Step& step) const { return step.is_loop_call() || planned_by_model; }
  // The tool that the step's call is made with: index into Plan::tools.
  std::uint32_t tool_index(const Step& step) const;
  const ToolPolicy& tool_of(const Step& step) const { return plan->tools[tool_index(step)]; }
  // Its call is in doubt and could be undone: the job does not end before the outcome is known or the call is given up
  // (SPEC §7).
  bool blocks_ending(const Step& step) const;
  // Has this call in doubt to be decided before the job ends?
  bool must_settle_before_end(const Step& call) const;
  // Is a person asked about a call that has to be decided before the job ends?
  bool awaits_person_before_end() const;
  // Is there something to undo, or a call in doubt that may turn out to be?
  bool needs_undo() const;
  // Has the job to undo something before it ends?
  bool must_undo() const { return ending && ending->compensate && needs_undo(); }
  // The call of a step, as people see it.
  UnknownCall call_of(const Step& step) const;
  // The calls whose outcome is unknown.
  std::vector<UnknownCall> unknown() const;
  // Their idempotency keys.
  std::vector<Value> unknown_calls() const;
  // The command that asks about the newest try of a step's call, or undoes the call.
  StepId side_step_id(const Step& step, Role role) const;
  // May a command with this id begin beside `step`, and what is it?
  std::optional<Role> side_role(const Step& step, const StepId& id) const;
  // Its call may be asked about: it may have happened, and the probe has not said so of as many tries as it may have.
  bool may_probe(const Step& step) const;
  // The key that a person names the call by; also of one that could not be made, for want of arguments.
  IdempotencyKey key_of(const Step& step) const;
  // The kind of the step itself: a part of a map or a loop is a call, and so is what asks about one or undoes it.
  NodeKind kind_of(const Step& step) const;
  // A try is live when the attempt that runs the job declared it; otherwise it is an orphan of a crash.
  bool is_live(const Step& step) const {
    return step.call && step.call->open && status == JobStatus::running &&
           step.call->attempt == attempt;
  }
  bool has_live_call() const {
    return std::ranges::any_of(calling, [&](std::uint32_t index) { return is_live(steps[index]); });
  }
  // Until when a request of the step's call may still take effect; nullopt = all of them are over. A probe and a person's
  // `not_happened` count from then on, on every store. REQUIRES: step.call.
  std::optional<Instant> settles_at(const Step& step) const;
  // From when on a check shows what the newest try did: it had been sent by then, and has settled. nullopt = at any time.
  // REQUIRES: step.call.
  std::optional<Instant> checkable_at(const Step& step) const;
  // Its newest try ended without an answer that says what it did, and nobody has said it since.
  bool may_have_happened(const Step& step) const;
  // Its call, or that which it asks about, may have changed something outside that is not recorded.
  bool may_have_changed(const Step& step) const;
  // Parked since a look at what it changed showed something, or could not be taken: a person answers.
  bool awaits_confirmation() const {
    return status == JobStatus::parked && parked_until == "confirmation";
  }
  // Parked for want of budget: who raises it ends that.
  bool awaits_budget() const { return status == JobStatus::parked && parked_until == "budget"; }
  // Parked until a process offers its execution version (SPEC §12, strict).
  bool awaits_version() const { return status == JobStatus::parked && parked_until == "version"; }
  // Parked by `pause`: only `resume`, a cancel or the deadline end that.
  // It killed or held up the process that ran it as often as a job may: it runs when a person resumes it.
  bool is_worn_out() const { return process_deaths >= kProcessDeathsMax; }
  bool is_paused() const { return status == JobStatus::parked && parked_until == "resume"; }
  // The key of a wait that the plan names so. A plan that let an open wait go opens it again under a key of its own.
  std::string unique_wait_key(const std::string& named) const;
  // The id under which an open wait stands among the approvals; "" = it does not.
  std::string approval_id(const Wait& wait) const;
  std::string path_of(const Step& step) const;
  StepId item_step_id(const Node& map_node, std::uint32_t item) const;
  std::string item_path(const Node& map_node, std::uint32_t item) const;
  // Of a turn of a loop (`nth` = kNoTurn), or of a call of one.
  StepId part_step_id(const Step& loop, std::uint32_t turn, std::uint32_t nth) const;
  std::string part_path(const Step& loop, std::uint32_t turn, std::uint32_t nth) const;
  // The earliest instant at which a timer, an expiry or the deadline is due; nullopt = none.
  std::optional<Instant> next_due() const;
  // The result as dependents see it: null when skipped, {error: …} when it failed and the job went on.
  Value result_for_dependents(const Step& step) const;
};

// The id of a decision: from the plan of now, and what is decided, by path.
DecisionId decision_at(const State& state, std::string_view path);
// Is a job's planner done, so that its plan is to follow?
bool awaits_plan(const State& state);
// Steps as lists name them: [{node_id, step_id, item?, turn?, turn_call?}].
Value steps_list(const State& state, const std::vector<std::uint32_t>& steps);
// Steps that could have been undone before the job ended and were not.
std::vector<std::uint32_t> not_undone(const State& state);
// The request that is put next: the first one without an answer; nullptr = each has one, or nothing was asked.
const Member* open_question(const Invocation& call);
// The id under which the question that is put now stands among the approvals.
std::string question_id(const State& state, const Step& step);
// Is the next try the first that sends what people answered? It is another call for a job's budget.
bool is_first_with_answers(const Invocation& call);
// With what the model of a turn was asked; here, or in the job that this one was forked from. REQUIRES: it was asked.
const Value& turn_arguments(const Step& turn);

// Fails with log_corrupt when the event cannot stand here (SPEC §2, unknown step, second result, …),
// job_terminal after the end, plan_invalid for a plan that does not compile. The state is then unusable.
Status apply(State& state, const EventBody& event, Instant created_at, const PlanSource& plans);
// The same of an event that stands in a log, of which values may have been erased.
Status apply(State& state, const Event& event, const PlanSource& plans);

Result<State> fold(const JobId& job, const std::vector<Event>& events, const PlanSource& plans);

// The same, one event at a time: applying an event may evaluate expressions. Borrows the events.
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
