// ToolPolicy: what a plan records of a tool: how its calls may be sent, retried, resolved, approved
// and undone. Transports are not part of it.
//
// The form in a task graph: plan/plan.h. Threads: immutable values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/time.h"
#include "expr/expr.h"
#include "plan/budget.h"
#include "plan/price.h"
#include "schema/schema.h"

namespace ae::engine {

enum class EffectClass : std::uint8_t { read, idempotent, at_most_once };
enum class OnInDoubt : std::uint8_t { resend, park, fail, probe };
std::string_view to_text(EffectClass effect);

// Of a tool, and of a job that is claimed again.
inline constexpr std::uint32_t kMaxAttemptsMax = 1'000;

struct RetryPolicy {
  std::uint32_t max_attempts = 1;
  Duration initial_backoff = std::chrono::milliseconds(200);
  Duration max_backoff = std::chrono::seconds(10);
  double multiplier = 2;
  std::vector<std::string> retry_on = {"connect"};  // timeout connect 429 5xx, or an error code

  // Does `retry_on` contain this error code (http_503, connect, timeout, exit_1, …)?
  bool covers(std::string_view error_code) const;
  // Delay before try `next` (2, 3, …): between half and all of the exponential value, with jitter
  // from `jitter_seed`. `retry_after` (Retry-After) raises it, up to max_backoff.
  Duration backoff(std::uint32_t next, std::uint64_t jitter_seed,
                   std::optional<Duration> retry_after) const;
};

// A call about another call: a probe, which queries its outcome, or a compensation. Its expressions
// read `.args` and `.call` of the other call, and `.result`: for a compensation the result of that
// call, in `happened` the probe's own result.
struct SideCall {
  std::uint32_t tool = 0;  // index into Plan::tools
  Template args;
  bool has_args = false;  // without: {}
  Template happened;      // of a probe: null = the call did not happen, else its result
};

// What happens when a resource that the job changed is not as the job left it (SPEC §8): strict:
// the job fails; warn: the mismatch is counted and logged; human: an operator decides.
enum class ConfirmMode : std::uint8_t { strict, warn, human };
std::string_view to_text(ConfirmMode mode);

// The result of the policies for a call before it is declared, from least to most restrictive.
enum class PolicyAction : std::uint8_t { allow, require_approval, deny };
std::string_view to_text(PolicyAction action);

// Limits of policies and capabilities; agents files are checked against them, too.
constexpr std::size_t kCapabilitiesMax = 64;     // of one tool, or granted to one agent
constexpr std::size_t kCapabilityMax = 64;       // bytes
constexpr std::size_t kPolicyReasonMax = 1'024;  // bytes
constexpr std::size_t kPolicyLabelMax = 256;     // bytes of a label's name, and of its value

// A policy rule that may apply to this tool's calls (engine/policy/policy.h).
struct PolicyRule {
  PolicyAction action = PolicyAction::allow;
  std::optional<Template> when;         // of .args and .job; nullopt = always
  std::string label_name, label_value;  // the job must have this label; "" = any job
  std::string reason;                   // shown to the approver, or in the error
  std::optional<Duration> expires;      // of the approval request; nullopt = the tool's
};

// What a tool without a call records: `decide` produces the value, and an event of its own holds
// it.
enum class RecordedKind : std::uint8_t { nothing, time, random, uuid };

// A tool whose calls create child jobs (docs/child-jobs.md).
struct ChildPolicy {
  std::string agent;
  bool detached = false;  // the call succeeds once the child is created
  // Of the child; what is absent here is the parent's.
  std::vector<std::pair<std::string, std::string>> labels;
  std::optional<std::int64_t> priority;
  std::optional<std::string> queue;
  std::optional<Duration> deadline;
  Limits budget;  // lowers what is left of the parent's
};

struct ToolPolicy {
  std::string name;
  std::string version;  // 16 hex digits: digest of the resolved definition
  EffectClass effect = EffectClass::at_most_once;
  OnInDoubt on_in_doubt = OnInDoubt::park;
  Duration timeout = std::chrono::seconds(30);
  Duration grace = std::chrono::seconds(30);
  std::optional<Duration> dedupe_window = std::chrono::hours(24);  // nullopt = unlimited
  // A program with no effect outside of this machine: once it has ended, its effect is complete
  bool local = false;
  // A function of the worker that runs the code: run:EFFECT, or one that the worker registered
  bool function = false;
  // A function that the code states with its call: run:EFFECT, fetch:EFFECT. Only its own routine
  // can perform it.
  bool is_stated_in_code() const {
    return function && (name.starts_with("run:") || name.starts_with("fetch:"));
  }
  std::optional<ChildPolicy> child;
  // Does the job await the end of the child?
  bool awaits_child() const { return child && !child->detached; }
  // A call sends a message or a signal to another job (agents/send_tool.h).
  bool sends = false;
  // The runtime itself performs its calls.
  bool is_of_runtime() const { return child || sends; }
  // Its calls need no tool of this process: a routine, or the runtime itself, performs them.
  bool needs_no_transport() const { return is_stated_in_code() || is_of_runtime(); }
  RetryPolicy retry;
  std::optional<Schema> args_schema;
  std::string schema_digest;  // 64 hex digits: of args_schema, or of null
  std::optional<Schema> result_schema;
  std::string result_digest;   // 64 hex digits: of result_schema; "" = none
  std::string provider;        // of a model; "" = not a model
  std::optional<Price> price;  // of a model
  bool is_model() const { return !provider.empty(); }
  RecordedKind records = RecordedKind::nothing;
  bool makes_call() const { return records == RecordedKind::nothing; }
  // Is an approval required before the call? Depends on the arguments (approval_when), always, or
  // never.
  bool approval_required = false;
  std::optional<Template> approval_when;
  std::optional<Duration> approval_expires;  // after the request; nullopt = never
  bool may_require_approval() const { return approval_required || approval_when.has_value(); }
  std::vector<PolicyRule> rules;          // in evaluation order
  std::vector<std::string> capabilities;  // sorted
  // How long a question of the tool waits for an answer during a call; then the tool is told that
  // there is none.
  Duration ask_expires = std::chrono::hours(24);
  std::optional<SideCall> probe, compensate;
  // External changes of a successful call: each template yields {type, id, op, version, etag, ref}
  // from .args, .call and .result.
  std::vector<Template> changes;
  std::string verified_by;  // kind of its verifier; "" = none
  ConfirmMode confirm = ConfirmMode::strict;
};

}  // namespace ae::engine
