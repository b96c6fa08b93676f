// The agents file (API.md §1): YAML or the same as JSON, checked as a whole and compiled.
//
// All faults of a file are reported at once, each with line, column, the path of the key and, for a misspelt key or
// name, a suggestion. A key that this version does not act on is `unsupported`, never accepted and ignored.
// Threads: pure functions over text (reading the file is the caller's).
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
  std::string message;             // what is wrong and what to do
  std::string file;
  std::size_t line = 0, column = 0;  // from 1
  std::string path;                  // tools.charge.timeout, agents.refund.plan[2].when
  std::string suggestion;            // "" = none
};

// What a tool's transport needs, normalised and checked; secrets stay references, `${ env.NAME }` is replaced.
//   http     {"method", "url", "headers"?, "body"?: template, "definite_failures"?: [status…], "result"?: "full",
//             "numbers"?: "string", "output_max"?: bytes}
//   command  {"command": [text…], "output"?: "json", "numbers"?: "string", "env"?: {NAME: text}, "env_allow"?: [NAME…],
//             "cwd"?: text, "output_max"?: bytes, "sandbox"?: "none" or {"read"?: [path…], "write"?: [path…],
//             "network"?: "none", "memory"?: bytes, "processes"?: n, "file_size"?: bytes, "open_files"?: n, "cpu"?: span}}
//   native   {"function": name}
//   mcp      {"server": its name in the file, "connection": {"command", "env"?, "env_allow"?, "cwd"?, "sandbox"?} or {"url", "headers"?},
//             "tool": its name there, "digest": of what is pinned, "output_max"?: bytes}
//   openai   {"base_url": template without expressions, "api_key"?: "secret:NAME", "max_tokens_name"?: "max_tokens",
//             "stream"?: false}
// url, headers, env and the words of a command behind the program are string templates over .args and .call
// (Template::parts). Members are left out when they have their default.
struct ToolDefinition {
  std::string name;
  std::string kind;  // http | command | native | mcp; of a model its provider: openai
  Value definition;
  Value args_schema = {};  // as it is written, or pinned; null: it takes anything
  Value verify;            // who looks at what it changed (tools/verify/verify.h); null: nobody
  engine::ToolPolicy policy;
  std::size_t line = 0;  // where it stands in its file, from 1
};

struct Agent {
  std::string name;
  Value task_graph;  // plan/plan.h; without `tools` it does not use
  std::optional<Value> input_schema;
  std::vector<std::pair<std::string, std::string>> labels;
  std::vector<std::string> required_capabilities;  // sorted, each once
  std::string queue;                               // "" = the default one
  std::string execution_version;                   // "" = the program's
  Value definition;                                // its part of the file, as JSON
  std::size_t line = 0;                            // where it stands in its file, from 1
};

// A line of `policies`: which calls it is about, and what it says of them. A plan holds it with each tool that it names.
struct Policy {
  std::vector<std::string> tools;   // names, NAME.* and *; empty = all
  std::vector<std::string> agents;  // names; empty = all
  std::string capability;           // that the tool has; "" = any tool
  Value rule;                       // as a task graph holds it (plan/plan.h)
  std::string path;                 // in its file: policies[2]
};

// Not wrong, and good to know.
struct Note {
  std::string path;
  std::string message;
};

struct AgentsFile {
  std::map<std::string, ToolDefinition, std::less<>> tools;
  std::map<std::string, ToolDefinition, std::less<>>
      models;  // by the name of their tool, model:NAME
  std::map<std::string, Agent, std::less<>> agents;
  std::vector<Note> notes;
};

struct Source {
  std::string_view name;  // for messages
  std::string_view text;
  std::function<std::optional<std::string>(std::string_view)> env;  // for `env.NAME` in tools
  std::function<bool(std::string_view)> native;  // is there a native function of this name?
  // Can this machine run this tool? The message begins with the key at fault: "command[0]: …". Empty = not asked.
  std::function<Status(const ToolDefinition&)> usable;
  // What is pinned of the tools of an MCP server: [{name, description?, inputSchema, outputSchema?, annotations?, digest}…].
  // `connection` as in ToolDefinition. Empty = nobody is asked, and such a server is a fault.
  std::function<Result<Value>(std::string_view server, const Value& connection)> server_tools = {};
  // What whoever runs the file says of all files (load_policies); it comes before what the file says itself. Borrowed.
  const std::vector<Policy>* policies = nullptr;
};

// A capability, or an execution version: 1 to 64 of A-Z a-z 0-9 . _ -
bool is_capability(std::string_view text);

// Empty faults = `out` is complete.
std::vector<Diagnostic> load(const Source& source, AgentsFile& out);

// A policies file, {aetheris: 1, policies: […]}: rules for tools and agents of other files. Empty faults = `out` is complete.
std::vector<Diagnostic> load_policies(const Source& source, std::vector<Policy>& out);

// Those of a policies file that no tool or no agent of these files is under, or whose condition can hold for none of these
// tools, and the names of the others that nothing of these files has: meant for other files, or misspelt.
std::vector<Note> unused_policies(const std::vector<Policy>& policies,
                                  const std::vector<const AgentsFile*>& files);

// Do people or rules decide about calls of these files' agents?
bool has_approvals(const std::vector<const AgentsFile*>& files);
// The programs of a file that could write the store or the file, and so get around what people and rules decide:
// command tools and MCP servers without `sandbox: { read, write }`. Not those whose every call is approved.
std::optional<Note> unsandboxed_programs(const AgentsFile& file);

// One agent, given as JSON, that uses the tools and models of a file. Paths begin at the agent; line and column are those
// of the JSON. A file that has faults gives these. Empty faults = `out` is complete.
std::vector<Diagnostic> load_agent(const Source& file, std::string_view name, std::string_view json,
                                   Agent& out);

// {ok, faults: [{code, message, file, line, column, path, suggestion}]}
Value diagnostics_json(const std::vector<Diagnostic>& diagnostics);
// "file:line:column: path: message (did you mean X?)", one a line.
std::string diagnostics_text(const std::vector<Diagnostic>& diagnostics);

// The JSON Schema of the file, as `aetheris` ships it (docs/agents.schema.json).
std::string_view agents_schema_json();

}  // namespace ae::agents
