// The checks of the tools, models, policies and agents of an agents file. Threads: one owner.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agents/agents_file.h"
#include "agents/check_context.h"

namespace ae::agents {

struct CheckedTool {
  ToolDefinition tool;
  Value policy;                                 // in the form of the task graph (plan/plan.h)
  std::string description = {};                 // for the models that may call it
  bool is_valid = false;                        // no errors
  std::optional<SourceNode> probe, compensate;  // the nodes that name them
};
using CheckedTools = std::map<std::string, CheckedTool, std::less<>>;

// True if `retry_on` may name this failure code.
using MayRetry = std::function<bool(std::string_view entry)>;
void check_retry(CheckContext& check, const SourceNode& source_node, engine::RetryPolicy& retry,
                 const MayRetry& may);
// The retry policy of a model, and of a tool with `effect: read`, without `retry`. Plans record it,
// so a plan recorded by an older build keeps its own. The version of a tool does not cover it:
// other defaults do not change the version.
engine::RetryPolicy default_read_retry();
// The same for a `retry` in the file: `policy` is the output of check_retry; keys that the file
// does not set get the defaults above.
engine::RetryPolicy read_retry(const SourceNode& written, const engine::RetryPolicy& policy);
Value retry_value(const engine::RetryPolicy& retry);

// A model is a tool for nodes with `llm`.
struct CheckedModel : CheckedTool {
  std::string model;  // its name at the provider
  std::optional<Value> temperature, max_tokens;
};
using CheckedModels = std::map<std::string, CheckedModel, std::less<>>;
constexpr std::uint32_t kMaxTokensMax = 10'000'000;
// `most`: 2, or the provider's limit.
std::optional<Value> check_temperature(CheckContext& check, const SourceNode& source_node,
                                       double most = 2);
std::optional<Value> check_max_tokens(CheckContext& check, const SourceNode& source_node);

// The largest temperature that a provider accepts.
double temperature_max(std::string_view provider);
// Checks a content that is a list of parts: texts, and images with a literal host in the URL; the
// caller checks expressions.
void check_parts(CheckContext& check, const SourceNode& content);
// The schema of an answer, as it is recorded.
std::optional<Value> check_answer_schema(CheckContext& check, const SourceNode& source_node,
                                         std::string_view provider);
// True if an answer that breaks the schema is repaired: `repair`, a sibling of
// `schema`; default: true.
bool repairs_answers(CheckContext& check, const SourceNode& source_node);

// A tool of an MCP server, and its pinned definition.
struct ServerTool {
  std::string_view server;
  const Value& connection;
  const Value& pinned;
};
// `of`: nullptr, or `source_node` is generated (mcp_check.cc) and contains only the policy.
CheckedTool check_tool(CheckContext& check, std::string_view name, const SourceNode& source_node,
                       const ServerTool* server_tool = nullptr);
// The connection settings of an MCP server, as in ToolDefinition.
Value check_connection(CheckContext& check, const SourceNode& source_node);
// Adds every tool of an MCP server as NAME.TOOL. `generated` holds intermediate nodes and must
// outlive the tools.
struct ServerCheck {
  CheckedTools& tools;
  std::deque<SourceTree>& generated;
  std::vector<Note>& notes;
  std::size_t line;
};
void check_server(CheckContext& check, std::string_view name, const SourceNode& source_node,
                  ServerCheck into);
// Checks the tools named by probes and compensations, once all tools are known.
void check_side_calls(CheckContext& check, CheckedTools& tools);
CheckedModel check_model(CheckContext& check, std::string_view name, const SourceNode& source_node);
// The tools that the policies of a file may name.
struct KnownTools {
  const CheckedTools& tools;
  bool has_code = false;  // the file has agents with `code`
  std::vector<Note>& notes;
};
// Checks the `policies` of a file. `known`: nullptr = the tools belong to other files.
std::vector<Policy> check_policies(CheckContext& check, const SourceNode& source_node,
                                   const KnownTools* known);
// Checks the agents that policies name, once all are known.
void check_policy_agents(CheckContext& check, const SourceNode& source_node,
                         const std::vector<std::string_view>& known);
// The rules for a tool's calls by an agent, in order, in the form of the task graph.
std::vector<Value> rules_for(const std::vector<Policy>& policies, std::string_view agent,
                             std::string_view tool, const Value& capabilities);
// Reports a capability that no tool of the file has, if all tools are known.
void check_capability_known(CheckContext& check, const SourceNode& source_node,
                            std::string_view name, const CheckedTools& tools);
// A list of capabilities, sorted, unique.
std::vector<std::string> check_capabilities(CheckContext& check, const SourceNode& source_node);
// What the nodes of a plan may call, and the policies for it.
struct CallableTools {
  const CheckedTools& tools;
  const CheckedModels& models;
  const std::vector<Policy>& policies;
  std::vector<Note>* notes = nullptr;  // of the agents; borrowed
};
Agent check_agent(CheckContext& check, std::string_view name, const SourceNode& source_node,
                  const CallableTools& callable);

}  // namespace ae::agents
