// Plan: a task graph as the log records it (`plan_generated.task_graph`), compiled for the engine.
//
// The task graph is self-contained: it holds the policies of its tools, so that the next action
// depends on the log alone; only transports (URLs, programs, secrets) stay in the agents file.
// Stored: a different shape has a different plan_hash. The agents module and planners write it;
// `Plan::compile` checks it. The compiled plan keeps it, for readers of what the author wrote.
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
//                          "schema"?: schema, "repair"?: n, "on_reject"?: "fail",
//                          "thread"?: true,
//                          "context"?: {"limit", "policy": "truncate"} | {"limit",
//                           "policy": "summarize", "tool", "model", "temperature"?,
//                           "max_tokens"?}}},
//                {"id", "kind": "planner",   (the only node, or the first of the plan that it made)
//                 "planner": {"tool": "model:NAME", "model": text, "told": text,
//                             "system"?: template, "prompt": template, "tools": [name…],
//                             "max_nodes": n, "temperature"?, "max_tokens"?, "schema": schema,
//                             "repair"?: n}},
//                {"id", "kind": "code", "needs"?, "when"?, "on_error"?,
//                 "code": {"agent": name, "version"?: text, "digest"?: 64 hex, "language": text,
//                          "parallel"?: n, "on_exception"?: "fail", "output_schema"?: schema,
//                          "tools": [name…]}} ],       of a worker (engine/code/code.h)
//     "output"?: template,
//     "deadline"?: duration, "max_attempts"?: n,
//     "versions"?: {"policy": "strict" | "route",      absent: warn (VersionPolicy)
//                   "wait"?: "5m"},                    of code with route: version_wait
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
//                       "function"?: true, "child"?: {"name", …}, "sends"?: true,
//                       "records"?: "time" | "random" | "uuid"},
//                                   makes no call (engine/values/recorded_value.h)
//              "model:NAME": {…, "effect": "read", "provider": "openai" | "anthropic",
//                             "price"?: {"input", "output", "cached"?}} },      plan/price.h
//     "prices"?: {MODEL: {"input", "output", "cached"?}},
//                                                   of models that functions of code call themselves
//     "confirm"?: "strict" | "warn" | "human",      the mode of tools whose "verify" has none
//     "budget"?: {"tokens"?, "cost_micros"?, "model_calls"?, "tool_calls"?, "wall"?, "soft"?},
//                                                   plan/budget.h
//     "grants"?: [text…],                           capabilities for a plan made by a model
//     "conditions"?: "strict" }                     `when` of rules and `approval` fail if an
//                                                   argument that they read is null or absent, or
//                                                   if they compare values of different types
//                                                   (engine/policy/policy.h); absent: null is a
//                                                   value, and any two values have an order
//   rule = {"action": "allow" | "require_approval" | "deny", "when"?: template over .args and .job,
//           "label"?: "name:value", "reason"?: text, "expires"?: duration}
//          the first rule that matches applies (engine/policy/policy.h)
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
#include <map>
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
#include "plan/plan_graph.h"
#include "plan/plan_node.h"
#include "plan/price.h"
#include "plan/tool_policy.h"

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

// What happens when a process of another execution version claims a job (SPEC §12). warn: the log
// records it and the job continues. strict: the process does not run the job; the job parks `until:
// version` if no process offers its version. route: only a process that offers its version claims
// the job; it stays queued until then.
//
// For code, workers offer the versions, and the job has the one that its code ran under. strict and
// route: the code runs under that version; with route, under another one if none is offered for
// `version_wait`. warn: it runs under the newest one that fits (engine/version/code_version.h).
enum class VersionPolicy : std::uint8_t { warn, strict, route };
inline constexpr Duration kVersionWait = std::chrono::minutes(5);

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
  // Of code with `route`: so long no worker offers the job's version before another one is tried
  Duration version_wait = kVersionWait;
  Limits budget;  // of each job
  // By the model's name at its provider: of models that functions of code call themselves
  std::map<std::string, Price, std::less<>> prices;
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
// Has the plan a node of kind code?
bool has_code(const Plan& plan);
// The author of a plan, by its nodes: `model:NAME` if the first node is a planner and others
// follow, else `file`. Keeps the grants of a fork within those of its origin, whose plan a model
// made.
std::string_view plan_author(const Plan& plan);

}  // namespace ae::engine
