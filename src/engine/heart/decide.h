// decide: computes the next action of a job.
//
//   decide(state)            for each step that needs a decision: events to append, and calls to
//                            perform once these are durable
//   admit(state, request)    for a command that was declared before: use its record, declare another
//                            try, wait or refuse (SPEC §4)
//   requested_steps(state)   the steps whose commands the plan requests
//
// Pure. A DecisionContext supplies the inputs that cannot be recomputed: the store's clock
// (compared only with instants that earlier decisions recorded), the lease, and random numbers. The
// runtime appends and applies the events, decides again until there are no more, commits, and only
// then performs the calls. Threads: pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "engine/state/state.h"
#include "log/check_result.h"
#include "log/decisions.h"
#include "log/event.h"

namespace ae::engine {

// The result of verifying one resource.
struct Confirmation {
  std::uint64_t seq = 0;  // of the state_changed that it verifies
  CheckResult result;
};
// By resource_key.
using Confirmations = std::map<std::string, Confirmation>;

struct CodeOffers;  // version/code_version.h
struct Routine;

struct DecisionContext {
  Instant now;          // the store's clock
  Instant lease_until;  // no request is sent after it
  // One process owns the store, and no earlier process still runs the job. A try that may be
  // retried is retried at once, as after the end of a lease and its grace period. Requests of an
  // earlier process may still take effect: State::settles_at.
  bool owned = true;
  std::uint64_t jitter_seed = 0;
  // For random numbers and UUIDs of steps (engine/values/recorded_value.h): 256 bits of the random
  // source, if the plan needs_entropy.
  std::array<std::uint64_t, 4> entropy{};
  // The versions of the plan's tools that this process offers, by index into Plan::tools;
  // nullptr = the plan's own. A started event records the offered version; a call is not
  // resent with another version.
  const std::vector<std::string>* tool_versions = nullptr;
  // The execution version that this process offers for the job's agent; nullptr = the job's own.
  const std::string* execution_version = nullptr;
  // Verifications of the job's changes (engine/confirm/confirm.h); nullptr = none were made.
  const Confirmations* confirmations = nullptr;
  // The routines of the job's code in this process, by the index of the node (routine.h); nullptr =
  // none.
  const std::map<std::uint32_t, Routine>* routines = nullptr;
  // Calls that an earlier attempt gave to a worker process are left alone until then: the worker may
  // report about them. nullopt = not at all.
  std::optional<Instant> functions_held_until = {};
  // Those that their worker reported as received, until their deadline. nullptr = none.
  const std::set<InvocationId>* held_calls = nullptr;
  // The versions of the job's code that workers of this process offer (version/code_version.h), for
  // a request; nullptr = none.
  const CodeOffers* code_offers = nullptr;
};

struct DecideLimits {
  std::size_t parallel_max = 64;  // open tries of one job
  // From the declaration of a try to the last moment of sending it.
  Duration send_window = std::chrono::seconds(10);
  Duration leased_backoff_max = std::chrono::seconds(5);  // a longer back-off releases the job
  std::uint32_t lost_claims_max = 10;                     // if the plan has no max_attempts
  std::size_t events_max = 512;                           // per call of decide; then decide again
  // Work per call of decide, for expressions and schemas; the evaluation that exceeds it is the
  // last one. Then decide again.
  std::size_t work_max = 500'000;
  std::uint64_t job_events_max = 10'000'000;  // then the job fails: events_limit
};

// A request to call a tool at a step. `decide` checks the approval and the budget of a try when it
// declares it (Decider::fits_budget), so it passes only the first three members to `admit`.
struct CallRequest {
  std::uint32_t step = 0;
  std::string_view tool;
  Hash arguments_hash;
  // When it is about to be declared: the arguments, the tool version and the time, for which an
  // approval must be valid. nullptr = approval is checked later.
  const Value* arguments = nullptr;
  std::string_view tool_version = {};
  Instant now = {};
  Work* work = nullptr;  // optional; conditions of policies add to it
};
// The step of an item that a map is about to start; it does not exist yet.
constexpr std::uint32_t kNewItem = 0xffffffff;

enum class Verdict : std::uint8_t {
  recorded,         // a success is in the log: use it, never call
  declare,          // nothing open, nothing recorded: a try may be declared
  in_doubt,         // an earlier try may have happened: the tool's on_in_doubt decides
  not_yet,          // in flight
  unapproved,       // it needs an approval and has none yet
  refuse,           // the job is ending, or the step does not wait for a call
  non_determinism,  // another tool or other arguments than recorded for this command
};
Verdict admit(const State& state, const CallRequest& request);
// Is exactly this call approved, or does it need no approval? `step`: nullptr =
// the command has none yet.
bool is_approved(const State& state, const Step* step, const ToolPolicy& tool,
                 const CallRequest& request);

// The steps whose commands the plan requests next, in order of position.
std::vector<std::uint32_t> requested_steps(const State& state);
// Is this step among them?
bool is_requested(const State& state, std::uint32_t step);

// Where a decision stopped because its work was used up, and the findings of the
// decisions since the first step.
struct DecisionCursor {
  bool startable = false;  // it stopped in State::startable, else in State::todo
  std::uint32_t step = 0;  // the next step to visit
  // They have added events, so that the steps before this one may need another decision.
  bool added_events = false;
  std::vector<ExceededLimit> over;
  // If they have added none:
  bool limit_reached = false;
  std::optional<Instant> revisit_at, decide_again_at;
};

struct Decision {
  std::vector<EventBody> events;
  std::vector<StepId> perform;  // steps whose open try is to be sent, once the events are durable
  std::vector<std::string> confirm;        // keys of State::changes to be verified
  bool release = false;                    // release the claim with this commit
  std::optional<Instant> decide_again_at;  // unless something else happens before
  // The next decision continues from here, even if this one has no events.
  std::optional<DecisionCursor> unfinished;
  Work work = 0;  // of the evaluated expressions and schemas
  // If it parks the job for its budget: each limit that leaves no room for the next call.
  std::vector<ExceededLimit> exceeded;

  void clear();  // keeps its memory
};
// `from`: of the last decision, if only its events were applied since; nullptr = the first step.
Decision decide(const State& state, const DecisionContext& context, const DecideLimits& limits = {},
                const DecisionCursor* from = nullptr);
// The same, into a decision that is no longer needed: it reuses its memory. `from` is not a part
// of it.
void decide(const State& state, const DecisionContext& context, const DecideLimits& limits,
            const DecisionCursor* from, Decision& decision);

// The job is strict and the process offers another execution version: the process
// may not run it (SPEC §12).
bool has_wrong_version(const State& state, const DecisionContext& context);
// The keys of resolve waits whose calls this process may resend: they were left to an operator
// because another version of the tool was offered.
std::vector<std::string> unknown_calls_to_resend(const State& state, const DecisionContext& context,
                                                 const DecideLimits& limits = {});

// The first events of a job: job_created and plan_generated.
struct NewJobEvents {
  std::string agent;
  Value input;
  Value labels;  // object of strings, or null
  std::string idempotency_key, execution_version;
  std::int64_t priority = 0;
  std::string queue;  // "" = the default queue
  std::vector<std::string> required_capabilities;
  std::optional<Instant> deadline;
  Value explicit_options;  // which of these four the request set; null = none
  const Plan* plan = nullptr;
  std::string planner_version = std::string(kPlannerVersion);  // of the plan; "" = unknown
  std::optional<JobParent> parent;                             // of a child job
  // Of a fork, with the events that import the results of the origin.
  std::optional<ForkOrigin> forked_from;
  std::vector<EventBody> imported;
  // 32 random hex digits, or those of the origin; "" = none, as for an origin without one.
  std::string blind;
  std::string traceparent, tracestate;  // of the creating request (base/trace_context.h); "" = none
  Limits budget;                        // none = the plan's
  Usage spent;                          // of the budget, before the job starts: of a fork
  Instant now;                          // the store's clock: `wall` counts from here
};
std::vector<EventBody> job_events(const NewJobEvents& job);
// `opened_at`: when the owner process opened the store; nullopt = the store is shared.
EventBody running_event(const AttemptId& attempt, std::uint64_t epoch, std::string_view worker,
                        std::optional<Instant> opened_at = {});
EventBody paused_event(std::string_view reason);
EventBody requeued_event(std::string_view reason, std::optional<Instant> not_before);

}  // namespace ae::engine
