// State: the state of one job, folded from its log. Only `apply` changes it.
//
//   state' = apply(state, event)   pure; the same for workers, recovery, replay, verify, simulation
//
// A job is a set of steps (step.h). Each node of the plan has one (steps[node.index]); each item of
// a map gets its own when it starts. A step moves through phases. `todo` holds the steps that need
// a decision, so a decision costs the same at step 100,000 as at step 1. Threads: a value; one
// owner.
//
// Long: the fields of one value, the queries that read several of them, and the fold that makes it.
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
#include <vector>

#include "base/boxed.h"
#include "base/error.h"
#include "base/ids.h"
#include "base/time.h"
#include "engine/state/change.h"
#include "engine/state/invocation.h"
#include "engine/state/job_status.h"
#include "engine/state/number_set.h"
#include "engine/state/step.h"
#include "engine/state/steps.h"
#include "engine/state/unknown_call.h"
#include "engine/state/wait.h"
#include "json/value.h"
#include "log/event.h"
#include "log/park_until.h"
#include "plan/budget.h"
#include "plan/model_calls.h"
#include "plan/plan.h"

namespace ae::engine {

// The total cost of expression evaluations and schema checks, in steps (ExprScope::charge).
using Work = std::size_t;

// A requested pause. The job parks as soon as no call is in flight.
struct PendingPause {
  std::string by, reason;
};

struct Ending {
  bool cancelled = false;  // else failed
  std::string code, message, node_id, by;
  bool compensate = true;  // undo committed steps whose tools name a compensation first
};

// `by` of what the runtime records on its own.
inline constexpr std::string_view kRuntimeActor = "runtime";
// The reason of a job_requeued that counts a process death, and of the park after the last one.
inline constexpr std::string_view kProcessDied = "process_died";
inline constexpr std::string_view kWornOut = "worn_out";
inline constexpr std::uint32_t kProcessDeathsMax = 2;

// The `effect_id` of the timer_fired of the job's deadline, and of the `wall` limit of its budget.
inline constexpr std::string_view kDeadlineTimer = "deadline";
inline constexpr std::string_view kWallTimer = "budget";

// The name of the end of a child job among the answers of its call.
inline constexpr std::string_view kChildAnswer = "job";

class State {
 public:
  State();
  State(State&& other) noexcept;
  State& operator=(State&& other) noexcept;
  ~State();

  // ---- read or changed by most events and decisions
  JobId job;
  JobStatus status = JobStatus::none;
  bool planned_by_model = false;  // then only granted tools may be called (engine/policy/policy.h)
  bool deadline_fired = false;
  // A try ended without a certain result, or an operator was asked for the outcome of a call.
  bool had_unknown_outcome = false;
  // `blind` is erased: hashes of values cannot be recomputed, only compared with each other.
  bool blind_erased = false;
  std::uint32_t plan_number = 0;
  std::shared_ptr<const Plan> plan;
  std::uint64_t seq = 0;             // of the last event applied
  Instant updated_at;                // its created_at, by the writer's clock; for display
  AttemptId attempt;                 // that runs the job, or ran it last
  std::optional<Instant> opened_at;  // the store opening under which that attempt began
  Steps steps;                       // the first plan->nodes.size() are those of the nodes
  NumberSet todo;                    // steps that need a decision
  NumberSet startable;               // calls that may start once the limits allow
  NumberSet calling;                 // steps with an open try
  NumberSet routines;                // code nodes that have started and not finished
  std::uint32_t nodes_left = 0;
  std::uint32_t folded_steps = 0;   // requests of code, folded since steps were last dropped
  bool keeps_folded = false;        // they are never dropped: for views of the job
  std::uint32_t open_tries = 0;     // including tries of calls with an open resolve wait
  std::uint64_t tries_started = 0;  // of all steps
  // Consecutive attempts that ended without a release and without progress.
  std::uint32_t lost_claims = 0;
  // Consecutive deaths of a process that ran a slice of this job, without progress in between.
  std::uint32_t process_deaths = 0;
  std::optional<Instant> deadline, not_before;
  Boxed<PendingPause> pause_request;  // requested, and not in effect yet
  Boxed<Ending> ending;
  // Committed steps whose tools name a compensation, in the order of their step_committed. They are
  // undone last to first.
  std::vector<std::uint32_t> undoable;
  // Changes that a new attempt must verify before its first new command.
  std::set<std::string> to_confirm;
  std::map<std::string, Wait> waits;  // open, by correlation key
  // The job's secret in hashes of values (base/ids.h); "" = none, or erased.
  std::string blind;
  Value input;
  Value job_root;  // `.job` of expressions: {id, agent, labels, created_at}
  Budget budget;

  // ---- of its creation and its attempts
  std::string agent;
  Value labels;
  std::optional<ForkOrigin> forked_from;
  std::optional<JobParent> parent;  // of a child job
  std::int64_t priority = 0;
  std::string queue;            // "" = the default queue
  Value required_capabilities;  // null = none
  std::string execution_version;
  std::string traceparent, tracestate;  // of the request that created the job; "" = none
  std::uint64_t epoch = 0;
  std::optional<Instant> started_at;  // the first attempt began, by the writer's clock; for display

  // ---- of some jobs
  ModelUsage models;
  std::uint64_t map_items = 0;      // of all started maps, in any state
  std::uint32_t open_children = 0;  // waits of type job
  // The calls that have created child jobs, in this order. They stay when their steps are dropped.
  std::vector<StepId> child_calls;
  // Of these children: the detached ones, and those that have ended, by status.
  std::map<std::string, std::uint64_t> child_counts;
  // Of children that have ended with calls whose outcome is unknown.
  std::vector<ChildInDoubt> children_in_doubt;
  OpenRequests open_requests;  // a count of `waits`
  std::map<std::string, ClosedWait> closed_waits;
  // Undelivered messages, by channel.
  std::map<std::string, std::deque<BufferedMessage>> pending_messages;
  // Signals that arrived before their wait, by correlation key.
  std::map<std::string, std::deque<BufferedMessage>> early_signals;
  std::set<std::string> message_keys;  // of all messages and early signals so far
  std::uint64_t signals = 0;           // accepted and applied
  std::string parked_reason, parked_until;
  std::optional<Instant> parked_since;
  std::map<std::string, Change> changes;  // the last one of each resource, by resource_key
  std::uint32_t escalated = 0;            // changes that wait for an operator's answer

  // ---- of its end
  std::vector<std::uint32_t> undone, given_up;  // compensated; given up by an operator's decision
  Value result;
  Boxed<Failure> error;                                    // of job_failed
  Value final_in_doubt;                                    // in_doubt[] of the terminal event
  std::map<std::string, NotedOutcome, std::less<>> noted;  // by invocation
  // Calls with an unknown outcome and no step in the current plan: a re-plan dropped the step, or
  // the origin of this fork made the call.
  std::vector<UnknownCall> earlier_unknown;
  // Accepted signals that arrived too late, after the job's end was decided.
  std::vector<UndeliveredMessage> undelivered;

  // The index of the step with this id; kNoStep: there is none.
  std::uint32_t index_of(const StepId& id) const { return steps.index_of(id); }
  std::uint32_t index_of(const Step& step) const {
    const bool of_node = step.node < steps.size() && &steps[step.node] == &step;
    return of_node ? step.node : index_of(step.id);
  }
  // nullptr: there is none.
  const Step* find_step(const StepId& id) const {
    const std::uint32_t index = index_of(id);
    return index == kNoStep ? nullptr : &steps[index];
  }
  const Node& node_of(const Step& step) const { return plan->nodes[step.node]; }
  // This job's hash of a value: arguments_hash, prompt_hash, plan_input_hash. REQUIRES:
  // the blind is not erased.
  DigestText hash_of(const Value& value) const;
  // A model, a planner or code chose the arguments of the call, and could choose others after a
  // restore of the store.
  bool is_chosen(const Step& step) const {
    if (step.role != Role::node) return is_chosen(steps[step.of]);
    return step.is_loop_call() || step.request || planned_by_model;
  }
  // Is it a call, or made of calls? Not a wait, code, or a scope of code.
  bool has_tool(const Step& step) const;
  // The tool of the step's call: index into Plan::tools. REQUIRES: has_tool.
  std::uint32_t tool_index(const Step& step) const;
  const ToolPolicy& tool_of(const Step& step) const { return plan->tools[tool_index(step)]; }
  // The policy of the step's tool, with what its request set for this call.
  Duration timeout_of(const Step& step) const;
  std::uint32_t max_attempts_of(const Step& step) const;
  OnInDoubt on_in_doubt_of(const Step& step) const;
  // What the request of this step set for its call; nullptr: nothing.
  const CallOptions* options_of(const Step& step) const;
  // The call has an unknown outcome and can be compensated: the job does not end before the outcome
  // is known or the call is given up (SPEC §7).
  bool blocks_ending(const Step& step) const;
  // Must this call with an unknown outcome be resolved before the job ends?
  bool must_settle_before_end(const Step& call) const;
  // Is an operator asked about a call that must be resolved before the job ends?
  bool awaits_operator_before_end() const;
  // Is there a step to undo, or a call with an unknown outcome that may need it?
  bool needs_undo() const;
  // Must the job undo a step before it ends, or learn whether a child job exists?
  bool must_undo() const {
    return ending && (ending->compensate ? needs_undo() : has_unknown_child());
  }
  // Does its call create a child job whose end the job awaits?
  bool awaits_child(const Step& step) const {
    return step.role == Role::node && has_tool(step) && tool_of(step).awaits_child();
  }
  // The child has ended, and the next try of its call records its outcome.
  bool has_ended_child(const Step& step) const;
  // A try to create a child has an unknown outcome: the child may exist.
  bool has_unknown_child() const;
  // The call of a step, for display.
  UnknownCall call_of(const Step& step) const;
  // The calls whose outcome is unknown.
  std::vector<UnknownCall> unknown_calls() const;
  std::size_t unknown_call_count() const;
  // Their idempotency keys.
  std::vector<std::string> unknown_call_keys() const;
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
  // Its code failed, diverged from the log, or can not go on: it runs again with other code, or when
  // an operator resumes it.
  bool awaits_code() const {
    return awaits_version() && parked_reason != code_name(Code::execution_version_mismatch);
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
  // The newest wait of the step, if it is open; else waits.end().
  auto open_wait_of(const Step& step) const {
    return step.wait_key ? waits.find(*step.wait_key) : waits.end();
  }
  // The id of an open wait in the list of approvals; "" = not listed.
  std::string approval_id(const Wait& wait) const;
  // What the step's wait accepts. REQUIRES: it is a wait.
  const WaitRules& wait_rules_of(const Step& step) const {
    return step.request ? step.request->wait : node_of(step).wait;
  }
  std::string path_of(const Step& step) const;
  StepId item_step_id(const Node& map_node, std::uint32_t item) const;
  std::string item_path(const Node& map_node, std::uint32_t item) const;
  // Of a turn of a loop (`nth` = kNoTurn), of its summary (kSummary), or of a call of one.
  StepId part_step_id(const Step& loop, std::uint32_t turn, std::uint32_t nth) const;
  std::string part_path(const Step& loop, std::uint32_t turn, std::uint32_t nth) const;
  // Of a request of code. A turn has the id that a scope at its position would have: the end of a
  // scope states only its position, and a position is used once.
  StepId request_step_id(const Step& code, std::string_view position, NodeKind kind) const;
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
std::vector<StepReference> steps_list(const State& state, const std::vector<std::uint32_t>& steps);
// Steps that could have been undone before the job ended and were not.
std::vector<std::uint32_t> not_undone(const State& state);
// The id of the current question in the list of approvals.
std::string question_id(const State& state, const Step& step);
// The permanent name of a message or an early signal: one with the same name is a duplicate.
std::string message_key(std::string_view channel, std::string_view key, std::string_view id);

// Fails with log_corrupt (the event is not possible here: SPEC §2, unknown step, second
// result, …), job_terminal (after the end), plan_invalid (the plan does not compile).
// The state is then unusable.
Status apply(State& state, const EventBody& event, Instant created_at, const PlanSource& plans);
// The same for an event read from a log, whose values may have been erased.
Status apply(State& state, const Event& event, const PlanSource& plans);

Result<State> fold(const JobId& job, const std::vector<Event>& events, const PlanSource& plans);
// Drops the steps of folded requests that nothing refers to. Indexes change; those of nodes do not,
// nor does the order of the others.
void drop_all_folded_steps(State& state);
// The same, if they are many. `apply` does this after an event.
void drop_folded_steps(State& state);

// The same, one event at a time, because applying an event may evaluate
// expressions. Borrows the events.
class IncrementalFold {
 public:
  // `keeps_folded`: State::keeps_folded.
  IncrementalFold(const JobId& job, std::span<const Event> events, PlanSource plans,
                  bool keeps_folded = false);
  bool next();  // false: no event is left, or one could not be applied
  Result<State> take() && { return std::move(state_); }

 private:
  Result<State> state_{std::in_place};
  std::span<const Event> left_;
  PlanSource plans_;
};

}  // namespace ae::engine
