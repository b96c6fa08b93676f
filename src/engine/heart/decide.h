// decide: what a job does next. The only place that knows.
//
//   requested_steps(state)   which commands the program wants: for a plan, what became ready
//   admit(state, ask)  whether a command may happen, whoever asks: the ledger's rules (SPEC §4)
//   decide(state)      both, over what needs a decision: events to append, calls to perform once they are durable
//
// Pure. A DecisionContext brings what may only be recorded: the store's clock (compared only with instants that earlier
// decisions recorded), the lease, and chance for jitter. The runtime appends the events, applies them, asks again
// until nothing is left to say, commits, and only then performs. Threads: pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/state/state.h"
#include "log/check_result.h"
#include "log/event.h"

namespace ae::engine {

// What was seen of one resource.
struct Confirmation {
  std::uint64_t seq = 0;  // of the state_changed it is about
  CheckResult seen;
};
// By resource_key.
using Confirmations = std::map<std::string, Confirmation>;

struct DecisionContext {
  Instant now;          // the store's clock
  Instant lease_until;  // nothing is sent after it
  // One process owns the store, and no earlier one holds the job any more: what may be sent again is sent at once, as after
  // the end of a lease and its grace. What an earlier process sent may still take effect: State::settles_at.
  bool owned = true;
  std::uint64_t jitter_seed = 0;
  // For random numbers and UUIDs of steps (engine/heart/recorded_value.h): 256 bits of the random source, of a plan that
  // needs_entropy.
  std::array<std::uint64_t, 4> entropy{};
  // The versions of the plan's tools that the performing process offers, by index into Plan::tools; nullptr = the
  // plan's own. A started event records the offered one; a resend with another version is not made.
  const std::vector<std::string>* tool_versions = nullptr;
  // The execution version that the performing process offers for the job's agent; nullptr = the job's own.
  const std::string* execution_version = nullptr;
  // What was seen of what the job changed (engine/confirm/confirm.h); nullptr = nobody has looked.
  const Confirmations* confirmations = nullptr;
};

struct DecideLimits {
  std::size_t parallel_max = 64;  // open tries of one job
  Duration send_window =
      std::chrono::seconds(10);  // from declaration to the last moment of sending
  Duration leased_backoff_max = std::chrono::seconds(5);  // a longer back-off releases the job
  std::uint32_t lost_claims_max = 10;                     // when the plan names no max_attempts
  std::size_t events_max = 512;                           // per call of decide; ask again
  // Of expressions and schemas, per call; the evaluation that exceeds it is the last one. Ask again.
  std::size_t work_max = 500'000;
  std::uint64_t job_events_max = 10'000'000;  // then the job fails: events_limit
};

// A wish to call a tool at a step.
struct CallRequest {
  std::uint32_t step = 0;
  std::string_view tool;
  std::string_view arguments_hash;
  // When it is about to be declared: what is sent, by which version of the tool, and now. A person's approval is good for
  // exactly this. nullptr = whether it is approved is asked later.
  const Value* arguments = nullptr;
  std::string_view tool_version = {};
  Instant now = {};
  const Usage* use = nullptr;  // what it asks for of the budget; nullptr = that is asked later
  Work* work = nullptr;        // the conditions of policies add to it, if there is any
};
// The step of an item that a map is about to start; there is nothing of it yet.
constexpr std::uint32_t kNewItem = 0xffffffff;

enum class Verdict : std::uint8_t {
  recorded,         // a success is in the log: inject it, never call
  declare,          // nothing open, nothing recorded: a try may be declared
  in_doubt,         // an earlier try may have happened: the tool's on_in_doubt decides
  not_yet,          // in flight
  unapproved,       // a person must be asked first, or has not answered yet
  over_budget,      // it asks for more than the job may still use
  refuse,           // the job ends, or the step does not wait for a call
  non_determinism,  // another tool or other arguments than recorded for this command
};
Verdict admit(const State& state, const CallRequest& ask);
// Is this very call approved, or needs no approval? `step`: what there is of the command; nullptr = nothing yet.
bool is_approved(const State& state, const Step* step, const ToolPolicy& tool,
                 const CallRequest& ask);

// The steps whose commands a plan wants next, in order of position.
std::vector<std::uint32_t> requested_steps(const State& state);
// Is this step among them?
bool is_requested(const State& state, std::uint32_t step);

// Where a decision stopped since its work was used up, and what the decisions before it found, from the first step on.
struct DecisionCursor {
  bool startable = false;  // it stopped in State::startable, else in State::todo
  std::uint32_t step = 0;  // the next one to look at
  bool added_events =
      false;  // they have added events: the steps before this one may have more to say
  std::vector<ExceededLimit> over;
  // When they have added none:
  bool limit_reached = false;
  std::optional<Instant> revisit_at, decide_again_at;
};

struct Decision {
  std::vector<EventBody> events;
  std::vector<StepId> perform;  // steps whose open try is to be sent, once the events are durable
  std::vector<std::string> confirm;        // keys of State::changes that are to be looked at
  bool release = false;                    // give the claim back with this commit
  std::optional<Instant> decide_again_at;  // when nothing else happens before
  // The next decision goes on from here, also when this one has no events.
  std::optional<DecisionCursor> unfinished;
  Work work = 0;  // of the expressions and schemas that it has evaluated
  // When it parks the job for its budget: each limit that leaves no room for the next call.
  std::vector<ExceededLimit> exceeded;
};
// `from`: of the last decision, when nothing but its events was applied since; nullptr = the first step.
Decision decide(const State& state, const DecisionContext& context, const DecideLimits& limits = {},
                const DecisionCursor* from = nullptr);

// The job is strict and the process offers another execution version: it runs nothing there (SPEC §12).
bool has_wrong_version(const State& state, const DecisionContext& context);
// Waits for a resolution, by key, whose calls may be sent again by the tools of this process: they were left to a person
// since another version of the tool was offered.
std::vector<std::string> unknown_calls_to_resend(const State& state, const DecisionContext& context,
                                                 const DecideLimits& limits = {});

// The first events of a job: job_created and plan_generated.
struct NewJobEvents {
  std::string agent;
  Value input;
  Value labels;  // object of texts, or null
  std::string idempotency_key, execution_version;
  std::int64_t priority = 0;
  std::string queue;  // "" = the default one
  std::vector<std::string> required_capabilities;
  std::optional<Instant> deadline;
  Value asked;  // of these four, what the request named itself; null = nothing
  const Plan* plan = nullptr;
  std::string planner_version = std::string(kPlannerVersion);  // what wrote the plan; "" = unknown
  // Of a fork: {job_id, seq, hash}, and the events that bring in what was done before.
  Value forked_from;
  std::vector<EventBody> imported;
  std::string
      blind;  // 32 hex digits of chance, or those of the origin; "" = none, as in an origin without one
  std::string traceparent, tracestate;  // of whoever asked for it (base/trace_context.h); "" = none
  Limits budget;                        // none = the plan's
  Usage spent;                          // of it, before the job begins: of a fork
  Instant now;                          // the store's clock: `wall` counts from here
};
std::vector<EventBody> job_events(const NewJobEvents& job);
// `opened_at`: when the process that owns the store opened it; nullopt = the store is shared.
EventBody running_event(const AttemptId& attempt, std::uint64_t epoch, std::string_view worker,
                        std::optional<Instant> opened_at = {});
EventBody paused_event(std::string_view reason);
EventBody requeued_event(std::string_view reason, std::optional<Instant> not_before);

}  // namespace ae::engine
