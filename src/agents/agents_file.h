// AgentsFile: the agents file (API.md §1), YAML or equivalent JSON, checked
// as a whole and compiled.
//
// All errors of a file are reported at once, each with line, column, the path of the key and, for a
// misspelt key or name, a suggestion. A key that this version does not implement is `unsupported`,
// never silently ignored.
// Threads: pure functions over text; the caller reads the file.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "json/value.h"
#include "plan/plan.h"
#include "schema/schema.h"

namespace ae::agents {

struct Diagnostic {
  Code code = Code::plan_invalid;  // plan_invalid or unsupported
  std::string message;             // the error and how to fix it
  std::string file;
  std::size_t line = 0, column = 0;  // from 1; 0 = not in a file: in the code of a worker
  std::string path;                  // tools.charge.timeout, agents.refund.plan[2].when
  std::string suggestion;            // "" = none
};

// The settings of a tool's transport, normalised and validated; secrets remain references,
// `${ env.NAME }` is replaced.
//   http     {"method", "url", "headers"?, "body"?: template, "definite_failures"?: [status…],
//             "result"?: "full", "numbers"?: "string", "output_max"?: bytes}
//   command  {"command": [text…], "output"?: "json", "numbers"?: "string", "env"?: {NAME: text},
//             "env_allow"?: [NAME…], "cwd"?: text, "output_max"?: bytes,
//             "sandbox"?: "none" or {"read"?: [path…], "write"?: [path…], "network"?: "none",
//             "memory"?: bytes, "processes"?: n, "file_size"?: bytes, "open_files"?: n,
//             "cpu"?: span}}
//   native   {"function": name}
//   worker   {"function": name, "definite_failures"?: [status…], "output_max"?: bytes,
//             "heartbeat_timeout"?: duration}
//   mcp      {"server": its name in the file,
//             "connection": {"command", "env"?, "env_allow"?, "cwd"?, "sandbox"?}
//             or {"url", "headers"?},
//             "tool": its name on the server, "digest": of the pinned definition,
//             "output_max"?: bytes}
//   openai   {"base_url": template without expressions, "api_key"?: "secret:NAME",
//             "max_tokens_name"?: "max_tokens", "stream"?: false,
//             "defaults": {"model", "temperature"?, "max_tokens"?}, of requests without "model"}
// url, headers, env and a command's arguments are string templates over .args and .call
// (Template::parts). Members with default values are omitted.
struct ToolDefinition {
  std::string name;
  std::string kind;  // http | command | native | worker | mcp; of a model: its provider
  Value definition;
  Value args_schema = {};  // as written, or pinned; null: any arguments
  Value verify;            // the verifier (tools/verify/verify.h); null: none
  engine::ToolPolicy policy;
  std::size_t line = 0;  // in its file, from 1
};

struct Agent {
  std::string name;
  Value task_graph;  // plan/plan.h; contains only the tools it uses
  std::optional<Value> input_schema;
  std::vector<std::pair<std::string, std::string>> labels;
  std::vector<std::string> required_capabilities;  // sorted, unique
  std::string queue;                               // "" = the default queue
  std::string execution_version;                   // of its code; "" = the program's
  Value definition;                                // its part of the file, as JSON
  std::size_t line = 0;                            // in its file, from 1

  bool is_code() const;
};

// An entry of `policies`: the calls it applies to, and its rule. A plan contains it with
// each tool it applies to.
struct Policy {
  std::vector<std::string> tools;   // names, NAME.* and *; empty = all
  std::vector<std::string> agents;  // names; empty = all
  std::string capability;           // required of the tool; "" = any tool
  Value rule;                       // in the form of the task graph (plan/plan.h)
  std::string path;                 // in its file: policies[2]
};

// A warning that is not an error.
struct Note {
  std::string path;
  std::string message;
};

struct AgentsFile {
  std::map<std::string, ToolDefinition, std::less<>> tools;
  std::map<std::string, ToolDefinition, std::less<>> models;  // by tool name, model:NAME
  std::map<std::string, Agent, std::less<>> agents;
  std::vector<Note> notes;
};

struct Source {
  std::string_view name;  // for messages
  std::string_view text;
  std::function<std::optional<std::string>(std::string_view)> env;  // for `env.NAME` in tools
  std::function<bool(std::string_view)> native;  // whether a native function of this name exists
  // Whether this machine can run the tool. The error starts with the invalid key: "command[0]: …".
  // Empty = not checked.
  std::function<Status(const ToolDefinition&)> usable;
  // The pinned tools of an MCP server: [{name, description?, inputSchema, outputSchema?,
  // annotations?, digest}…]. `connection` as in ToolDefinition. Empty = MCP servers are errors.
  std::function<Result<Value>(std::string_view server, const Value& connection)> server_tools = {};
  // Agents and tools that are defined in code, as JSON of the same form: {"tools"?, "agents"?}. They
  // are checked together with those of `text`, whose tools and models they may use; positions in
  // `text` do not apply to them. "" = none.
  std::string_view code = {};
  bool needs_agents = true;  // false: a file without agents is valid, for a server of workers
  // Operator policies for all files (load_policies); they precede those of the file. Borrowed.
  const std::vector<Policy>* policies = nullptr;
};

// A capability or an execution version: 1 to 64 of A-Z a-z 0-9 . _ -
bool is_capability(std::string_view text);

// No diagnostics = `out` is complete.
std::vector<Diagnostic> load(const Source& source, AgentsFile& out);

// Loads a policies file, {aetheris: 1, policies: […]}: rules for tools and agents of other files.
// No diagnostics = `out` is complete.
std::vector<Diagnostic> load_policies(const Source& source, std::vector<Policy>& out);

// Entries of a policies file that apply to no tool or no agent of these files, or whose condition
// can never hold for these tools; and names in other entries that these files do not have: meant
// for other files, or misspelt.
std::vector<Note> unused_policies(const std::vector<Policy>& policies,
                                  const std::vector<const AgentsFile*>& files);

// True if calls of these files' agents need approvals or are subject to policies.
bool has_approvals(const std::vector<const AgentsFile*>& files);
// The programs of a file that could write to the store or the file, and so bypass approvals and
// policies: command tools and MCP servers without `sandbox: { read, write }`, except command tools
// whose every call needs an approval.
std::optional<Note> unsandboxed_programs(const AgentsFile& file);

// Loads one agent, given as JSON, that uses the tools and models of a file. Paths are relative to
// the agent; line and column are those of the JSON. Diagnostics of the file are returned instead,
// if it has any. None = `out` is complete.
std::vector<Diagnostic> load_agent(const Source& file, std::string_view name, std::string_view json,
                                   Agent& out);

// {ok, faults: [{code, message, file, line, column, path, suggestion}]}
Value diagnostics_json(const std::vector<Diagnostic>& diagnostics);
// "file:line:column: path: message (did you mean X?)", one a line.
std::string diagnostics_text(const std::vector<Diagnostic>& diagnostics);

// The JSON Schema of the file, embedded in `aetheris` (docs/agents.schema.json).
std::string_view agents_schema_json();

}  // namespace ae::agents
