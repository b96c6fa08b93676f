// Plan: a task graph as the log records it (`plan_generated.task_graph`), compiled for the engine.
//
// The task graph is self-contained: it holds the policies of its tools, so that the next action
// depends on the log alone; only transports (URLs, programs, secrets) stay in the agents file.
// Stored: a different shape has a different plan_hash. The agents module writes it; `Plan::compile`
// is the only reader.
//
//   { "schema": 1,
//     "nodes": [ {"id", "kind": "tool", "tool", "args"?: template, "needs"?: [id…],
//                 "when"?: template, "on_error"?: "continue"},
//                {"id", "kind": "wait",
//                 "wait": {"type": "timer", "for": duration | template}
//                       | {"type": "timer", "until": template}
//                       | {"type": "signal" | "webhook" | "human", "key"?: template,
//                          "expires"?: duration, "on_expire"?: "continue",
//                          "on_reject"?: "continue", "answer"?: "data"}         (both: human)
//                       | {"type": "message", "channel": template, "expires"?, "on_expire"?},
//                 "needs"?, "when"?, "on_error"?},
//                {"id", "kind": "map", "over": template, "as"?: name, "max_parallel": n,
//                 "on_item_error"?: "collect", "do": {"tool", "args"?: template},
//                 "needs"?, "when"?, "on_error"?},
//                {"id", "kind": "llm", "tool": "model:NAME", "args": request, "repair"?: n,
//                 "needs"?, "when"?, "on_error"?},
//                {"id", "kind": "loop", "needs"?, "when"?, "on_error"?,
//                 "loop": {"tool": "model:NAME", "model": text, "system"?: template,
//                          "prompt": template, "tools": [name…], "max_turns": n,
//                          "parallel_tools": n, "temperature"?, "max_tokens"?,
//                          "schema"?: schema, "repair"?: n, "on_reject"?: "fail"}},
//                {"id", "kind": "planner",   (the only node, or the first of the plan that it made)
//                 "planner": {"tool": "model:NAME", "model": text, "told": text,
//                             "system"?: template, "prompt": template, "tools": [name…],
//                             "max_nodes": n, "temperature"?, "max_tokens"?, "schema": schema,
//                             "repair"?: n}} ],
//     "output"?: template,
//     "deadline"?: duration, "max_attempts"?: n,
//     "versions"?: {"policy": "strict" | "route"},     absent: warn (VersionPolicy)
//     "tools": { name: {"effect": "read" | "idempotent" | "at_most_once",
//                       "on_in_doubt": "resend" | "park" | "fail" | "probe",
//                       "timeout": duration, "grace": duration,
//                       "dedupe_window": duration | "unlimited",
//                       "retry": {"max_attempts": n, "initial_backoff", "max_backoff": durations,
//                                 "multiplier": x, "retry_on": [text…]},
//                       "version": 16 hex digits, "description"?: text,
//                       "args_schema"?: schema, "result_schema"?: schema,
//                       "approval"?: "required" | template over .args,
//                       "approval_expires"?: duration, "ask_expires"?: duration,
//                       "capabilities"?: [text…], "rules"?: [rule…], "local"?: bool,
//                       "probe"?: {"tool", "args"?: template, "happened": template},
//                                 with "on_in_doubt": "probe"
//                       "compensate"?: {"tool", "args"?: template},
//                       "changes"?: [{"type", "id", "op", "version"?, "etag"?, "ref"?}…],
//                                   templates over .args .call .result
//                       "verify"?: {"by": "http_etag" | "http_last_modified" | "http_json"
//                                       | "file" | "git_ref" | "github" | "sql",
//                                   "mode"?: "strict" | "warn" | "human"},      with "changes"
//                       "records"?: "time" | "random" | "uuid"},
//                                   makes no call (engine/heart/recorded_value.h)
//              "model:NAME": {…, "effect": "read", "provider": "openai" | "anthropic",
//                             "price"?: {"input", "output", "cached"?}} },      plan/price.h
//     "confirm"?: "strict" | "warn" | "human",      the mode of tools whose "verify" has none
//     "budget"?: {"tokens"?, "cost_micros"?, "model_calls"?, "tool_calls"?, "wall"?, "soft"?},
//                                                   plan/budget.h
//     "grants"?: [text…],                           capabilities for a plan made by a model
//     "conditions"?: "strict" }                     `when` of rules and `approval` fail if an
//                                                   argument that they read is null or absent, or
//                                                   if they compare values of different types
//                                                   (engine/heart/policy.h); absent: null is a
//                                                   value, and any two values have an order
//   rule = {"action": "allow" | "require_approval" | "deny", "when"?: template over .args and .job,
//           "label"?: "name:value", "reason"?: text, "expires"?: duration}
//          the first rule that matches applies (engine/heart/policy.h)
//   request = {"model": text, "messages": [{"role", "content": template | [part…]}…] | template,
//              "temperature"?, "max_tokens"?, "schema"?}
//   part = {"type": "text", "text": template}
//        | {"type": "image", "url": template with a literal host}
//   repair: number of additional turns if an answer breaks its schema (engine/loop/loop.h);
//           absent: such an answer fails the node.
//   A model is a tool that nodes of kind llm, and the `do` of a map, call: its args are a request.
//
// Optional members are omitted when they have their default. Threads: compiled plans are immutable
// values.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "base/ids.h"
#include "base/time.h"
#include "expr/expr.h"
#include "json/value.h"
#include "plan/budget.h"
#include "plan/price.h"
#include "schema/schema.h"

namespace ae::engine {

// Version of the conversion from agents file to task graph (`plan_generated.planner_version`): it
// changes when the same file yields another graph. Stored.
inline constexpr std::string_view kPlannerVersion = "file/2";

// SPEC §14. Checked before anything is written.
struct PlanLimits {
  std::size_t nodes_max = 10'000;
  std::size_t map_items_max = 100'000;
  std::size_t nodes_times_items_max = 1'000'000;
};

enum class EffectClass : std::uint8_t { read, idempotent, at_most_once };
enum class OnInDoubt : std::uint8_t { resend, park, fail, probe };
std::string_view to_text(EffectClass effect);

// What happens when a process of another execution version claims a job (SPEC §12). warn: the log
// records it and the job continues. strict: the process does not run the job; the job parks `until:
// version` if no process offers its version. route: only a process that offers its version claims
// the job; it stays queued until then.
enum class VersionPolicy : std::uint8_t { warn, strict, route };

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

// A policy rule that may apply to this tool's calls (engine/heart/policy.h).
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

enum class NodeKind : std::uint8_t {
  tool,
  wait,
  map,
  llm,
  loop,
  planner
};  // spelled as in step_id
enum class WaitType : std::uint8_t { webhook, human, timer, signal, message };
std::string_view to_text(NodeKind kind);
std::string_view to_text(WaitType type);

// The needs of each node, by node index. The agents file and the log are checked with the same
// functions.
using Needs = std::vector<std::vector<std::uint32_t>>;

struct TopologicalOrder {
  std::vector<std::uint32_t> order;  // every node after its needs; meaningless if there is a cycle
  // Cycles without a common node: each node needs the next one, the last needs the first.
  std::vector<std::vector<std::uint32_t>> cycles;
};
TopologicalOrder topological_order(const Needs& needs);

// The nodes that a node can read in `.steps`: its needs, their needs, and so on. n²/8 bytes.
class Reachability {
 public:
  // REQUIRES: topological_order(needs) without cycles.
  Reachability(const Needs& needs, const std::vector<std::uint32_t>& order);
  bool reaches(std::uint32_t node, std::uint32_t other) const;

 private:
  std::size_t words_;
  std::vector<std::uint64_t> bits_;
};

// `[A-Za-z_][A-Za-z0-9_-]{0,63}`: names of nodes, tools and agents.
bool is_name(std::string_view text);
// May a map use this name for its items (`as`)? An identifier of the expression language that is
// not a predefined root.
bool is_item_name(std::string_view text);

// Specification of a loop: a model is called turn by turn until it requests no more tool calls
// (engine/loop/loop.h). A node of kind llm with `repair` is a loop without tools.
struct LoopSpec {
  Value settings;  // of every request: {model, temperature?, max_tokens?}
  std::optional<Template> system;
  Template prompt;
  std::vector<std::uint32_t> tools;  // tools that the model may call: indices into Plan::tools
  Value tool_definitions;            // as in a request: [{name, description?, parameters}]
  std::string tools_digest;          // 64 hex digits; "" = no tools
  std::uint32_t max_turns = 20, parallel_tools = 4;
  std::optional<Schema> schema;  // of the final answer
  Value schema_source;
  std::string schema_digest;  // 64 hex digits; "" = none
  std::uint32_t repairs = 0;  // turns beyond max_turns for an answer that breaks the schema
  bool fail_on_reject = false;
  // Planners only, which offer no tools to the model: the tools that the generated plan may call,
  // its maximum number of nodes, and the initial instructions.
  std::vector<std::uint32_t> planner_tools;
  std::uint32_t nodes_max = 0;
  std::string instructions;
};

struct Node {
  std::string id;
  std::uint32_t index = 0;  // position in the file, from 0
  NodeKind kind = NodeKind::tool;
  std::vector<std::uint32_t> needs, dependents;
  std::optional<Template> when;
  bool continue_on_error = false;

  // tool and llm; map: the call per item; loop: its model
  std::uint32_t tool = 0;  // index into Plan::tools
  // Does the node make exactly one call, without turns?
  bool is_single_call() const { return kind == NodeKind::tool || (kind == NodeKind::llm && !loop); }
  Template args;
  bool has_args = false;  // without: {}

  // wait
  WaitType wait_type = WaitType::signal;
  std::optional<Template> wait_for, wait_until, wait_key, wait_channel;
  std::optional<Duration> wait_expires;
  bool continue_on_expire = false, continue_on_reject = false;
  // Of a human wait: any answer except a rejection completes it, not only a decision
  bool accepts_data = false;

  // map
  Template over;
  std::string as;  // "" = only .item
  std::uint32_t max_parallel = 8;
  bool collect_errors = false;

  // Of a loop, of a planner, and of a node of kind llm with `repair`
  std::shared_ptr<const LoopSpec> loop;
};

struct Plan {
  Value task_graph;
  std::string task_graph_text;  // canonical
  Hash hash;                    // of the text
  DecisionId decision;
  std::vector<Node> nodes;
  std::unordered_map<std::string, std::uint32_t> by_id;
  std::vector<ToolPolicy> tools;
  std::optional<Template> output;
  std::optional<Duration> deadline;
  // Maximum number of claims that end by lease expiry; 0 = the runtime's default
  std::uint32_t max_attempts = 0;
  VersionPolicy versions = VersionPolicy::warn;
  Limits budget;                    // of each job
  std::vector<std::string> grants;  // capabilities that the plan may use if a model made it, sorted
  bool strict_conditions = false;   // of policies and approvals

  // Does a tool of the plan record a random number or a UUID? Only then a DecisionContext needs
  // entropy.
  bool needs_entropy() const;
  // Has every model of the plan a price? Only then the cost can be limited.
  bool all_models_priced() const;

  // Fails with plan_invalid. The agents module has checked the file with locations; this is the
  // last check.
  static Result<std::shared_ptr<const Plan>> compile(const Value& task_graph,
                                                     const PlanLimits& limits = {});

  // "<plan#>/<node index>" and "<plan#>/<node index>/<item index>"
  // and, of a loop, "<plan#>/<node index>/<turn>" and "<plan#>/<node index>/<turn>/<call>"
  static std::string path(std::uint32_t plan_number, std::uint32_t node);
  static std::string path(std::uint32_t plan_number, std::uint32_t node, std::uint32_t item);
};

// hex SHA256(canonicalize(task_graph))
Hash plan_hash(const Value& task_graph);

// Source of compiled plans by hash, so that jobs of one agent share a plan.
using PlanSource = std::function<Result<std::shared_ptr<const Plan>>(const Value& task_graph,
                                                                     std::string_view plan_hash)>;
PlanSource uncached_plan_source();

// Does the plan consist of one planner that has not made its plan yet?
bool is_planner_only(const Plan& plan);
// The author of a plan, by its nodes: `model:NAME` if the first node is a planner and others
// follow, else `file`. Keeps the grants of a fork within those of its origin, whose plan a model
// made.
std::string_view plan_author(const Plan& plan);

}  // namespace ae::engine
