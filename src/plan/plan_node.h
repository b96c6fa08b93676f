// Node: a compiled node of a plan: a call, a wait, a map, a loop or a planner.
//
// The form in a task graph: plan/plan.h. Threads: immutable values.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/time.h"
#include "expr/expr.h"
#include "json/value.h"
#include "schema/schema.h"

namespace ae::engine {

enum class NodeKind : std::uint8_t {
  tool,
  wait,
  map,
  llm,
  loop,
  planner,
  code,
  scope,  // only of a request of code
  turn    // a scope of which only the last one that ended counts: a turn of a loop of code
};
// A scope of code, or a turn.
constexpr bool is_scope(NodeKind kind) { return kind == NodeKind::scope || kind == NodeKind::turn; }
// `job`: only of the call of a tool that creates a child job.
enum class WaitType : std::uint8_t { webhook, human, timer, signal, message, job };
std::string_view to_text(NodeKind kind);
std::string_view to_text(WaitType type);

// `[A-Za-z_][A-Za-z0-9_-]{0,63}`: names of nodes, tools and agents.
bool is_name(std::string_view text);
// May a map use this name for its items (`as`)? An identifier of the expression language that is
// not a predefined root.
bool is_item_name(std::string_view text);

// What is done when a conversation may exceed the context of its model (engine/loop/context.h).
struct ContextPolicy {
  std::uint64_t limit = 0;  // tokens
  bool summarizes = false;  // else the oldest messages are only left out
  // If so:
  std::uint32_t summary_tool = 0;  // index into Plan::tools
  Value summary_settings;          // of its requests: {model, temperature?, max_tokens?}
};

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
  bool thread = false;  // after its answer it waits for the next message
  std::optional<ContextPolicy> context;
  // Planners only, which offer no tools to the model: the tools that the generated plan may call,
  // its maximum number of nodes, and the initial instructions.
  std::vector<std::uint32_t> planner_tools;
  std::uint32_t nodes_max = 0;
  std::string instructions;
};

inline constexpr std::uint32_t kCodeParallelMax = 1'024;

// Specification of a code node: a function of a worker, which requests calls and waits
// (engine/code/code.h).
struct CodeSpec {
  std::string agent;    // as its worker registered it
  std::string version;  // of the code; "" = none was given
  std::string digest;   // 64 hex digits: of its definition; "" = none
  std::string language;
  std::vector<std::uint32_t> tools;  // that it may call: indices into Plan::tools, sorted
  std::uint32_t parallel = 64;       // its open tries
  bool fail_on_exception = false;    // else an exception parks the job
  std::optional<Schema> output_schema;
};

// What a wait accepts, and how it ends.
struct WaitRules {
  WaitType type = WaitType::signal;
  bool continue_on_expire = false, continue_on_reject = false;
  // Of a human wait: any answer except a rejection completes it, not only a decision
  bool accepts_data = false;
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
  WaitRules wait;
  std::optional<Template> wait_for, wait_until, wait_key, wait_channel;
  std::optional<Duration> wait_expires;

  // map
  Template over;
  std::string as;  // "" = only .item
  std::uint32_t max_parallel = 8;
  bool collect_errors = false;

  // Of a loop, of a planner, and of a node of kind llm with `repair`
  std::shared_ptr<const LoopSpec> loop;
  // Of a code node
  std::shared_ptr<const CodeSpec> code;
};

}  // namespace ae::engine
