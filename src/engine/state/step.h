// Step: a node of the plan or a part of one, with its phase and its progress: its call, its
// approval, the items of a map, the turns of a loop, the requests of code.
//
// Only `apply` changes it. Threads: a value; one owner.
//
// Long: the progress of each kind of node.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/boxed.h"
#include "base/ids.h"
#include "base/time.h"
#include "engine/state/invocation.h"
#include "engine/state/outcome_order.h"
#include "json/value.h"
#include "plan/budget.h"
#include "plan/call_options.h"
#include "plan/plan_node.h"

namespace ae::engine {

enum class ResultType : std::uint8_t {
  none,
  pure,
  side_effect_committed,
  permanent_failure,
  compensatable_failure,
  compensated
};
std::string_view to_text(ResultType type);

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
  running,     // its code runs: a code node, or a scope of one
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
  std::uint32_t asking = 0;  // items whose call waits for approval or for an answer
  Boxed<Failure> failure;    // of the first item that failed permanently
};

constexpr std::uint32_t kNoItem = 0xffffffff;
constexpr std::uint32_t kNoTurn = 0xffffffff;
constexpr std::uint32_t kNoStep = 0xffffffff;
constexpr std::uint32_t kSummary = 0xfffffffe;

// A call that a model requested in one answer.
struct LoopCall {
  std::string id;                // chosen by the model
  std::uint32_t tool = 0;        // index into Plan::tools; meaningless if `refused`
  std::uint32_t step = kNoStep;  // kNoStep: it has not started
  Boxed<Failure> refused;        // the call is not made; the model receives this error
  std::optional<Value> edited;   // the arguments sent instead, edited by the approver
};

struct LoopTurn {
  std::uint32_t step = 0;  // of the model call
  bool chosen = false;     // its requested calls are recorded
  std::vector<LoopCall> calls;
  // Its answer broke the schema; the model receives this message.
  std::optional<std::string> repair;
  std::optional<Value>
      message;  // of a thread: the message after its answer, which the next turn has
};

// Which messages the requests of a loop begin with, if the oldest ones are left out
// (engine/loop/context.h): the system prompt, a summary of what is left out, and the message of the
// exchange that the turn `from` belongs to. That turn and later ones follow.
struct ContextStart {
  std::uint32_t from = 0;  // 0: nothing is left out
  Value system, task;      // arrays of messages; null = none
  std::string summary;     // "" = none
};

struct LoopProgress {
  // From `first_turn` on: earlier ones are left out, and have left the state.
  std::vector<LoopTurn> turns;
  std::uint32_t first_turn = 0;
  std::uint32_t turn_count() const { return first_turn + static_cast<std::uint32_t>(turns.size()); }
  // REQUIRES: it is in the state.
  LoopTurn& turn(std::uint32_t number) { return turns[number - first_turn]; }
  const LoopTurn& turn(std::uint32_t number) const { return turns[number - first_turn]; }
  // Of the newest turn:
  std::uint32_t next = 0;  // the next call to start; earlier ones have started or are refused
  std::uint32_t active = 0, asking = 0;
  // The messages sent to the model in the newest turn: the end of their hash chain, and their
  // number (engine/loop/loop.h).
  std::string conversation;
  std::uint64_t message_count = 0;
  Boxed<Failure> failure;          // no further part starts
  std::set<Limit> noticed_limits;  // low limits that the model has been notified of
  std::uint32_t repairs = 0;       // turns of this exchange that ended with a repair message
  // Of a thread. An exchange is a message and the turns until its answer.
  bool waiting = false;             // the wait for the next message is open
  bool ended = false;               // there is no next message: the last answer is the result
  bool interrupted = false;         // the newest exchange ends without an answer
  std::uint64_t exchanges = 1;      // that have begun
  std::uint32_t exchange_turn = 0;  // the first turn of the newest one
  // Of a loop with a context policy.
  ContextStart context;
  std::uint64_t context_tokens = 0;  // estimated, of the newest turn's request
  std::uint32_t summary = kNoStep;   // step of the summary for the next turn
};

// What code requested: a call, a wait, or a scope whose result is recorded (engine/code/code.h).
struct CodeRequest {
  std::string position;  // its name within the code
  NodeKind kind = NodeKind::tool;
  std::uint64_t delivered = 0;         // outcomes that the routine had been given before it
  std::optional<Hash> arguments_hash;  // of a call, once its arguments are recorded
  bool ended = false;                  // its outcome is in CodeProgress::outcomes
  bool folded = false;  // inside of a scope that has ended, or a turn that has: no routine makes it
  bool succeeded = false;      // with a success of its call, whose output is valid
  WaitRules wait;              // of a wait
  Boxed<CallOptions> options;  // of a call, as far as it set any
};

// A loop of code, of which a turn has ended. A later routine begins with the end of the last one.
struct CodeLoop {
  std::uint64_t ended = 0;      // turns
  std::uint64_t delivered = 0;  // of the last one that ended: as CodeRequest::delivered
  std::uint64_t position = 0;   // of its end, in the order of delivery
  Value result;
  Boxed<Failure> failure;
  bool erased = false;  // `result` was erased from the log
};

// What a code node has requested, and the order of the outcomes.
struct CodeProgress {
  OutcomeOrder outcomes;     // of its requests, each with the index of its step
  std::uint32_t open = 0;    // requests without an end
  std::uint32_t scopes = 0;  // of its requests
  std::map<std::string, CodeLoop, std::less<>> loops;  // by position
  std::map<std::string, Value> values;  // recorded times, seeds, UUIDs and patches, by name
  std::map<std::string, std::uint64_t> emitted;  // values emitted, by scope
  // The version of the code that runs the job: that of the plan, until a trial of another one has
  // made the recorded requests (engine/version/code_version.h).
  std::string version;
  Boxed<WorkerName> worker;  // runs the newest routine
  // Versions that did not fit since the last request, at most kVersionsTriedMax, the oldest first.
  std::vector<std::string> tried;
  // An operator resumed the job since: the next routine may be of a version that was tried.
  bool may_repeat = false;

  static constexpr std::size_t kVersionsTriedMax = 64;
  bool was_tried(std::string_view one) const {
    return std::ranges::find(tried, one) != tried.end();
  }
};

// What a step takes over from the call of another job: the origin of this fork.
struct Imported {
  std::string tool, arguments_hash;  // of the call; empty: it made none
  // Of a turn of a loop that continues here:
  Value arguments;          // of the model call
  InvocationId invocation;  // the invocation whose result is the answer
};

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
  // Of a loop: the turn, and the index of the call in its answer; without an index: the model call;
  // kSummary: the call that summarizes what this turn leaves out.
  std::uint32_t turn = kNoTurn, nth = kNoTurn;
  // Of such a call or summary, or of a call of code: index into Plan::tools.
  std::uint32_t tool = kNoTurn;
  std::uint32_t of = kNoStep;     // of a probe or undo: the step of the call
  std::uint32_t of_try = 0;       // of a probe: the try that it checks
  std::uint32_t probe = kNoStep;  // the newest probe of this step's call
  std::uint32_t undo = kNoStep;   // the compensation of this step's call
  std::uint32_t changed = 0;      // number of state_changed events of its call
  std::uint32_t needs_left = 0;
  Role role = Role::node;
  StepPhase phase = StepPhase::blocked;
  // In the log: node_started, command_committed, step_committed.
  bool started = false, committed = false, barrier = false;
  std::optional<bool> branch;  // the recorded value of `when`
  bool timed_out = false;      // its wait expired
  bool rejected = false;       // its wait was answered with a rejection
  bool skipped = false;
  bool erased = false;  // `result` was erased from the log (log/redacted.h)
  ResultType result_type = ResultType::none;
  Value result;
  Boxed<Failure> failure;
  std::unique_ptr<Invocation> call;
  std::unique_ptr<Approval> approval;
  std::unique_ptr<MapProgress> map;
  std::unique_ptr<LoopProgress> loop;
  std::unique_ptr<CodeProgress> code;
  std::unique_ptr<CodeRequest> request;  // code made this request
  std::unique_ptr<Imported> imported;    // its result comes from the origin of this fork
  Boxed<std::string> wait_key;           // of its newest wait, also of a resolve wait
  Instant not_before;

  // It is below the step of its node, steps[node]: an item of a map, a turn of a loop, a call of a
  // turn, a request of code.
  bool is_part() const { return item != kNoItem || turn != kNoTurn || request != nullptr; }
  bool is_turn() const { return turn != kNoTurn && nth == kNoTurn; }
  bool is_summary() const { return nth == kSummary; }
  bool is_loop_call() const { return nth != kNoTurn && nth != kSummary; }
};

// The arguments of the model call of a turn, here or in the origin of this fork.
// REQUIRES: the model was called.
const Value& turn_arguments(const Step& turn);

}  // namespace ae::engine
