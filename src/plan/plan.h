// Plan: a task graph as the log records it (`plan_generated.task_graph`), compiled for the engine.
//
// The task graph is self-contained: it holds the policies of the tools it uses, so that what happens next depends on
// the log alone; only transports (URLs, programs, secrets) stay in the agents file. Stored: changing the shape
// changes plan_hash. The agents module writes it, `Plan::compile` is the only reader.
//
//   { "schema": 1,
//     "nodes": [ {"id", "kind": "tool", "tool", "args"?: template, "needs"?: [id…], "when"?: template,
//                 "on_error"?: "continue"},
//                {"id", "kind": "wait", "wait": {"type": "timer", "for": duration | template}
//                                             | {"type": "timer", "until": template}
//                                             | {"type": "signal" | "webhook" | "human", "key"?: template,
//                                                "expires"?: duration, "on_expire"?: "continue",
//                                                "on_reject"?: "continue", "answer"?: "data" (both: human)}
//                                             | {"type": "message", "channel": template, "expires"?, "on_expire"?},
//                 "needs"?, "when"?, "on_error"?},
//                {"id", "kind": "map", "over": template, "as"?: name, "max_parallel": n, "on_item_error"?: "collect",
//                 "do": {"tool", "args"?: template}, "needs"?, "when"?, "on_error"?},
//                {"id", "kind": "llm", "tool": "model:NAME", "args": request, "repair"?: n, "needs"?, "when"?, "on_error"?},
//                {"id", "kind": "loop", "needs"?, "when"?, "on_error"?,
//                 "loop": {"tool": "model:NAME", "model": text, "system"?: template, "prompt": template, "tools": [name…],
//                          "max_turns": n, "parallel_tools": n, "temperature"?, "max_tokens"?, "schema"?: schema,
//                          "repair"?: n, "on_reject"?: "fail"}},
//                {"id", "kind": "planner", "planner": {"tool": "model:NAME", "model": text, "told": text, "system"?: template,
//                          "prompt": template, "tools": [name…], "max_nodes": n, "temperature"?, "max_tokens"?,
//                          "schema": schema, "repair"?: n}} ],      alone, or first of the plan that it made
//     "output"?: template,
//     "deadline"?: duration, "max_attempts"?: n,
//     "tools": { name: {"effect": "read" | "idempotent" | "at_most_once", "on_in_doubt": "resend" | "park" | "fail" | "probe",
//                       "timeout": duration, "grace": duration, "dedupe_window": duration | "unlimited",
//                       "retry": {"max_attempts": n, "initial_backoff", "max_backoff": durations, "multiplier": x,
//                                 "retry_on": [text…]},
//                       "version": 16 hex digits, "description"?: text, "args_schema"?: schema, "result_schema"?: schema,
//                       "approval"?: "required" | template over .args, "approval_expires"?: duration,
//                       "capabilities"?: [text…], "rules"?: [rule…], "local"?: true,
//                       "probe"?: {"tool", "args"?: template, "happened": template},  with "on_in_doubt": "probe"
//                       "compensate"?: {"tool", "args"?: template},
//                       "changes"?: [{"type", "id", "op", "version"?, "etag"?, "ref"?}…]  templates over
//                                   .args .call .result
//                       "verify"?: {"by": http_etag | http_last_modified | http_json | file | git_ref | github | sql,
//                                   "mode"?: "strict" | "warn" | "human"},              with "changes"
//                       "records"?: "time" | "random" | "uuid"},   it makes no call (engine/heart/recorded_value.h)
//              "model:NAME": {…, "effect": "read", "provider": "openai" | "anthropic",
//                             "price"?: {"input", "output", "cached"?}} },   plan/price.h
//     "confirm"?: "strict" | "warn" | "human",      the mode of tools whose "verify" names none
//     "budget"?: {"tokens"?, "cost_micros"?, "model_calls"?, "tool_calls"?, "wall"?, "soft"?},   plan/budget.h
//     "grants"?: [text…],                           capabilities that a plan made by a model may use
//     "conditions"?: "strict" }                     `when` of rules and `approval` fail where an argument that they look up
//                                                   is null or not there, or values of different types are compared
//                                                   (engine/heart/policy.h); without: null is a value, and any two have an order
//   rule = {"action": "allow" | "require_approval" | "deny", "when"?: template over .args and .job, "label"?: "name:value",
//           "reason"?: text, "expires"?: duration}       the first one that holds is the one (engine/heart/policy.h)
//   request = {"model": text, "messages": [{"role", "content": template | [part…]}…] | template, "temperature"?,
//              "max_tokens"?, "schema"?}
//   part = {"type": "text", "text": template} | {"type": "image", "url": template whose host is literal}
//   repair: so many turns more for a model whose answer breaks its schema (engine/loop/loop.h); without: it fails the node.
//   A model is a tool that nodes of kind llm call, and the `do` of a map: its args are a request.
//
// Optional members are left out when they have their default. Threads: compiled plans are immutable values.
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

// What makes a task graph of an agents file (`plan_generated.planner_version`): another number where the same file gives
// another graph. Stored.
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

// What happens when a job meets a process of another execution version (SPEC §12). warn: the log notes it and the job goes
// on. strict: the job is not run there, and parks `until: version` when no process offers its version. route: only a
// process that offers its version claims it; it stays queued until then.
enum class VersionPolicy : std::uint8_t { warn, strict, route };

struct RetryPolicy {
  std::uint32_t max_attempts = 1;
  Duration initial_backoff = std::chrono::milliseconds(200);
  Duration max_backoff = std::chrono::seconds(10);
  double multiplier = 2;
  std::vector<std::string> retry_on = {"connect"};  // timeout connect 429 5xx, or an error code

  // Does an error code (http_503, connect, timeout, exit_1, …) match `retry_on`?
  bool covers(std::string_view error_code) const;
  // The wait before try `next` (2, 3, …), with jitter from `jitter_seed`: between half and all of the exponential value.
  // `asked_for` (Retry-After) raises it, up to max_backoff.
  Duration backoff(std::uint32_t next, std::uint64_t jitter_seed,
                   std::optional<Duration> asked_for) const;
};

// A call that is about a call: it asks what became of it, or undoes it. Its expressions read `.args` and `.call` of
// that call, and `.result`: of that call when it is undone, the answer of the probe in `happened`.
struct SideCall {
  std::uint32_t tool = 0;  // index into Plan::tools
  Template args;
  bool has_args = false;  // without: {}
  Template happened;      // of a probe: null = it did not happen, else its result
};

// What follows when something that the job changed is not as it left it (SPEC §8): the job fails; it is counted and said;
// a person is asked.
enum class ConfirmMode : std::uint8_t { strict, warn, human };
std::string_view to_text(ConfirmMode mode);

// What is said of a call before it is declared, from the mildest to the strictest.
enum class PolicyAction : std::uint8_t { allow, require_approval, deny };
std::string_view to_text(PolicyAction action);

// Of policies and of what tools can do; agents files are held to them, too.
constexpr std::size_t kCapabilitiesMax = 64;     // of one tool, or granted to one agent
constexpr std::size_t kCapabilityMax = 64;       // bytes
constexpr std::size_t kPolicyReasonMax = 1'024;  // bytes
constexpr std::size_t kPolicyLabelMax = 256;     // bytes of a label's name, and of its value

// A line of the policies that may be about this tool's calls (engine/heart/policy.h).
struct PolicyRule {
  PolicyAction action = PolicyAction::allow;
  std::optional<Template> when;         // of .args and .job; nullopt = always
  std::string label_name, label_value;  // that the job has; "" = any job
  std::string reason;                   // for who is asked, or told
  std::optional<Duration> expires;      // of the request; nullopt = the tool's
};

// What a tool records that makes no call: `decide` draws the value, and an event of its own holds it.
enum class RecordedKind : std::uint8_t { nothing, time, random, uuid };

struct ToolPolicy {
  std::string name;
  std::string version;  // 16 hex digits: digest of the resolved definition
  EffectClass effect = EffectClass::at_most_once;
  OnInDoubt on_in_doubt = OnInDoubt::park;
  Duration timeout = std::chrono::seconds(30);
  Duration grace = std::chrono::seconds(30);
  std::optional<Duration> dedupe_window = std::chrono::hours(24);  // nullopt = unlimited
  bool local =
      false;  // a program that sends nothing off the machine: once it has ended, all it did is done
  RetryPolicy retry;
  std::optional<Schema> args_schema;
  std::string schema_digest;  // 64 hex digits: of args_schema, or of null
  std::optional<Schema> result_schema;
  std::string result_digest;   // 64 hex digits: of result_schema; "" = it has none
  std::string provider;        // of a model; "" = it is a tool
  std::optional<Price> price;  // of a model
  bool is_model() const { return !provider.empty(); }
  RecordedKind records = RecordedKind::nothing;
  bool makes_call() const { return records == RecordedKind::nothing; }
  // Is a person asked before the call? By a condition on its arguments, always, or never.
  bool approval_required = false;
  std::optional<Template> approval_when;
  std::optional<Duration> approval_expires;  // after it is asked for; nullopt = never
  bool may_require_approval() const { return approval_required || approval_when.has_value(); }
  std::vector<PolicyRule> rules;          // in the order in which they are asked
  std::vector<std::string> capabilities;  // what it can do, sorted
  // How long a person has to answer what the tool asks in the middle of a call; then it is told that nobody did.
  Duration ask_expires = std::chrono::hours(24);
  std::optional<SideCall> probe, compensate;
  // What a success changed outside: each gives {type, id, op, version, etag, ref} from .args, .call and .result.
  std::vector<Template> changes;
  std::string verified_by;  // the kind of its verifier; "" = it has none
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

// Who needs whom, by node index; both doors (the file's and the log's) look at it in the same way.
using Needs = std::vector<std::vector<std::uint32_t>>;

struct TopologicalOrder {
  std::vector<std::uint32_t>
      order;  // every node after its needs; meaningless when there is a cycle
  // Cycles that share no node: each node needs the next one, the last needs the first.
  std::vector<std::vector<std::uint32_t>> cycles;
};
TopologicalOrder topological_order(const Needs& needs);

// Which nodes a node sees in `.steps`: its needs, their needs, and so on. n²/8 bytes.
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
// May a map call its items so (`as`)? An identifier of the expression language that is no root of its own.
bool is_item_name(std::string_view text);

// A model that is asked, turn by turn, until it asks for no tool any more (engine/loop/loop.h). A node of kind llm whose answer
// may be mended is one that calls none.
struct LoopSpec {
  Value settings;  // of every request: {model, temperature?, max_tokens?}
  std::optional<Template> system;
  Template prompt;
  std::vector<std::uint32_t> tools;  // that it may call: indices into Plan::tools
  Value tool_definitions;    // the same as a request says it: [{name, description?, parameters}]
  std::string tools_digest;  // 64 hex digits; "" = no tool is offered
  std::uint32_t max_turns = 20, parallel_tools = 4;
  std::optional<Schema> schema;  // of its last answer
  Value schema_source;
  std::string schema_digest;  // 64 hex digits; "" = it has none
  std::uint32_t repairs = 0;  // turns for an answer that breaks it, beyond max_turns
  bool fail_on_reject = false;
  // Of a planner, which offers no tools: those that its plan may call, how long that may be, what it is told before all else.
  std::vector<std::uint32_t> planner_tools;
  std::uint32_t nodes_max = 0;
  std::string told;
};

struct Node {
  std::string id;
  std::uint32_t index = 0;  // position in the file, from 0
  NodeKind kind = NodeKind::tool;
  std::vector<std::uint32_t> needs, dependents;
  std::optional<Template> when;
  bool continue_on_error = false;

  // tool and llm, and what a map does per item; of a loop, its model
  std::uint32_t tool = 0;  // index into Plan::tools
  // One call, and no turns?
  bool is_single_call() const { return kind == NodeKind::tool || (kind == NodeKind::llm && !loop); }
  Template args;
  bool has_args = false;  // without: {}

  // wait
  WaitType wait_type = WaitType::signal;
  std::optional<Template> wait_for, wait_until, wait_key, wait_channel;
  std::optional<Duration> wait_expires;
  bool continue_on_expire = false, continue_on_reject = false;
  bool accepts_data =
      false;  // of a human wait: any answer but a rejection counts, not only a decision

  // map
  Template over;
  std::string as;  // "" = only .item
  std::uint32_t max_parallel = 8;
  bool collect_errors = false;

  std::shared_ptr<const LoopSpec>
      loop;  // of a loop, of a planner, and of a node of kind llm whose answer may be mended
};

struct Plan {
  Value task_graph;
  Hash hash;
  DecisionId decision;
  std::vector<Node> nodes;
  std::unordered_map<std::string, std::uint32_t> by_id;
  std::vector<ToolPolicy> tools;
  std::optional<Template> output;
  std::optional<Duration> deadline;
  std::uint32_t max_attempts = 0;  // claims that ended by lease expiry; 0 = the runtime's default
  VersionPolicy versions = VersionPolicy::warn;
  Limits budget;                    // of each job
  std::vector<std::string> grants;  // capabilities that it may use when a model made it, sorted
  bool strict_conditions = false;   // of policies and approvals

  // Does a tool of it record a random number or a UUID? Only then needs a DecisionContext entropy.
  bool needs_entropy() const;
  // Has every model of it a price? Only then can a cost be limited.
  bool all_models_priced() const;

  // Fails with plan_invalid. The agents module has checked the file with positions; this is the last door.
  static Result<std::shared_ptr<const Plan>> compile(const Value& task_graph,
                                                     const PlanLimits& limits = {});

  // "<plan#>/<node index>" and "<plan#>/<node index>/<item index>"
  // and, of a loop, "<plan#>/<node index>/<turn>" and "<plan#>/<node index>/<turn>/<call>"
  static std::string path(std::uint32_t plan_number, std::uint32_t node);
  static std::string path(std::uint32_t plan_number, std::uint32_t node, std::uint32_t item);
};

// hex SHA256(canonicalize(task_graph))
Hash plan_hash(const Value& task_graph);

// Compiled plans by hash, so that jobs of one agent share one.
using PlanSource = std::function<Result<std::shared_ptr<const Plan>>(const Value& task_graph,
                                                                     std::string_view plan_hash)>;
PlanSource uncached_plan_source();

// Is the whole plan one planner, which has not made another yet?
bool is_planner_only(const Plan& plan);
// Who made a plan, by its nodes: `model:NAME`, when a planner comes first and others follow, or `file`. So a fork of a job
// whose plan a model made is granted no more than that job.
std::string_view plan_author(const Plan& plan);

}  // namespace ae::engine
