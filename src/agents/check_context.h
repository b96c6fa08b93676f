// Check: how a part of the agents file is read. A reader takes what stands at a SourceNode or says what is wrong with it,
// and goes on, so that all faults of a file are found in one pass.
// Threads: one owner.
#pragma once

#include <deque>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agents/agents_file.h"
#include "agents/diagnostics.h"
#include "agents/source_tree.h"
#include "base/time.h"
#include "expr/expr.h"

namespace ae::agents {

// A value of the file and the path of keys that leads to it. Borrows the value.
struct SourceNode {
  const SourceTree* value = nullptr;
  std::string path;

  SourceLocation at() const { return value->at; }
  const SourceTree* operator->() const { return value; }
  std::optional<SourceNode> find(std::string_view key) const;
  SourceNode item(std::size_t index) const;
  // The path of a key of this mapping, whether it is there or not.
  std::string path_of(std::string_view key) const;
};

constexpr Duration kDurationMin = std::chrono::milliseconds(1);
constexpr std::size_t kHeadersMax = 64;  // of one request

using NameList = std::initializer_list<std::string_view>;

// Keys and words that the language has, and this version does not act on yet.
struct UnsupportedKey {
  std::string_view word;
  std::string_view why;  // a sentence that ends "…: <why>"
};
using UnsupportedKeys = std::initializer_list<UnsupportedKey>;

class CheckContext {
 public:
  CheckContext(const Source& source, Diagnostics& diagnostics)
      : source_(source), diagnostics_(diagnostics) {}

  void report(const SourceNode& source_node, std::string message, std::string suggestion = {},
              Code code = Code::plan_invalid);
  void inject_at(SourceLocation at, std::string path, std::string message,
                 std::string suggestion = {}, Code code = Code::plan_invalid);
  std::size_t count() const { return diagnostics_.size(); }
  bool full() const { return diagnostics_.full(); }
  // The tools of this MCP server are not known: what names one of them is no fault of its own.
  void mark_tools_unknown(std::string_view server) { unknown_servers_.emplace_back(server); }
  // May there be a tool of this name, or of this pattern, that is not known?
  bool may_be_unknown(std::string_view tool) const;
  // This tool is there, and no call of ours can be made of it.
  void mark_unusable(std::string tool, std::string why) {
    unusable_.insert_or_assign(std::move(tool), std::move(why));
  }
  // What is said where a tool is named that no call can be made of.
  std::string describe_missing_tool(std::string_view name) const;
  const Source& source() const { return source_; }
  // Hosts that data may choose, of the file's `outbound`.
  std::vector<Value>& outbound() { return outbound_; }
  // Not wrong, and good to know.
  void add_note(const std::string& path, std::string message) {
    notes_.push_back({path, std::move(message)});
  }
  std::vector<Note> take_notes() { return std::exchange(notes_, {}); }

  // A mapping without unknown keys; false = it is no mapping at all.
  bool mapping(const SourceNode& source_node, NameList known,
               UnsupportedKeys unsupported_keys = {});
  bool any_mapping(const SourceNode& source_node);
  // Keys that are known here, and mean something elsewhere only.
  void misplaced(const SourceNode& source_node, std::string_view owner, NameList keys);
  bool list(const SourceNode& source_node);
  // Is the value of this key there? Diagnostics when it is not.
  std::optional<SourceNode> required(const SourceNode& source_node, std::string_view key,
                                     std::string_view hint);

  std::optional<std::string> text(const SourceNode& source_node);
  std::optional<bool> boolean(const SourceNode& source_node);
  std::optional<std::uint32_t> count(const SourceNode& source_node, std::uint32_t most);
  std::optional<Duration> duration(const SourceNode& source_node, Duration least);
  std::optional<std::uint64_t> size(const SourceNode& source_node, std::uint64_t most);
  // Which of the words.
  std::optional<std::size_t> word(const SourceNode& source_node, NameList words,
                                  UnsupportedKeys unsupported_keys = {});
  // A key that names something (a node, tool or agent).
  bool name(std::string_view what, std::string_view text, SourceLocation at,
            const std::string& path);
  std::optional<Schema> schema(const SourceNode& source_node);

  // Compiles every string below `source_node`; `visit` is called for each that holds an expression. False = a fault.
  using TemplateVisitor = std::function<void(const SourceNode& string, const Template& compiled)>;
  bool templates(const SourceNode& source_node, const TemplateVisitor& visit);
  // What a misspelt name was meant to be, among many; "" also when too much has been compared already.
  template <class Range, class NameOf>
  std::string nearest(std::string_view misspelt, const Range& known, NameOf name_of) {
    if (comparisons_left_ < known.size()) return {};
    comparisons_left_ -= known.size();
    ClosestName found(misspelt);
    for (const auto& one : known) found.consider(name_of(one));
    return found.take();
  }
  // Is a string that holds expressions within its limit?
  bool text_fits(const SourceNode& source_node);
  // The faults of one template, placed inside of the string at `source_node`.
  void report_template_errors(const SourceNode& source_node,
                              std::span<const Template::Diagnostic> found);
  // One root or step that may not be read here, placed where the string mentions it.
  void report_root(const SourceNode& string, std::string_view mention, std::string message,
                   std::string suggestion = {}, Code code = Code::plan_invalid);

 private:
  bool literal_key(const SourceTree::Key& key, const std::string& path);
  bool templates_below(const SourceNode& source_node, const TemplateVisitor& visit,
                       std::size_t depth);

  const Source& source_;
  Diagnostics& diagnostics_;
  std::size_t comparisons_left_ = 50'000;
  std::vector<Value> outbound_;
  std::vector<Note> notes_;
  std::vector<std::string> unknown_servers_;
  std::map<std::string, std::string, std::less<>> unusable_;
};

// Nothing is known: for templates that read nothing.
class NoScope final : public ExprScope {
 public:
  const Value* root(std::string_view) const override { return nullptr; }
  const Value* step(std::string_view) const override { return nullptr; }
  Value steps() const override { return {}; }
};

// What stands at a JSON pointer below a spot, or the nearest value above it.
SourceNode follow(SourceNode source_node, std::string_view pointer);
// A plan is recorded: neither env. nor secrets stand in it.
void reject_env_and_secrets(CheckContext& check, const SourceNode& source_node);
// The same, and a fault for each expression below that reads another root than these. True when there was none.
bool reads_only(CheckContext& check, const SourceNode& source_node, NameList roots);
// A fault where an expression names what a root with fixed members (`.job`, `.call`) does not have.
void check_members(CheckContext& check, const SourceNode& string, const ExprRoots& read);
// A string that is one `${ … }` and nothing else.
bool is_one_expression(const SourceTree& value);
// `secret:NAME` and nothing around it.
bool names_secret_only(std::string_view text);
// Can this text hold an expression or an escape of one at all?
inline bool has_expression(std::string_view text) { return text.find("${") != text.npos; }

// ---- the two halves of the file

struct CheckedTool {
  ToolDefinition tool;
  Value policy;                                 // as the task graph holds it (plan/plan.h)
  std::string description = {};                 // for the models that may call it
  bool good = false;                            // without faults
  std::optional<SourceNode> probe, compensate;  // where it names them
};
using CheckedTools = std::map<std::string, CheckedTool, std::less<>>;

// Is a failure of this code such that `retry_on` may name it?
using MayRetry = std::function<bool(std::string_view entry)>;
void check_retry(CheckContext& check, const SourceNode& source_node, engine::RetryPolicy& retry,
                 const MayRetry& may);
// The policy of a model, and of a tool with `effect: read`, without `retry`. Its plan records it; a plan that was recorded
// by an older build keeps its own. The version of the tool does not cover it: with other defaults it is the same tool.
engine::RetryPolicy default_read_retry();
// The same for a `retry` that the file sets: `policy` as check_retry read it, its missing keys with the defaults above.
engine::RetryPolicy read_retry(const SourceNode& written, const engine::RetryPolicy& policy);
Value retry_value(const engine::RetryPolicy& retry);

// A model is a tool that nodes with `llm` call.
struct CheckedModel : CheckedTool {
  std::string model;  // its name at the provider
  std::optional<Value> temperature, max_tokens;
};
using CheckedModels = std::map<std::string, CheckedModel, std::less<>>;
constexpr std::uint32_t kMaxTokensMax = 10'000'000;
// `most`: 2, or what the model's provider takes.
std::optional<Value> check_temperature(CheckContext& check, const SourceNode& source_node,
                                       double most = 2);
std::optional<Value> check_max_tokens(CheckContext& check, const SourceNode& source_node);

// The largest temperature that a provider takes.
double temperature_max(std::string_view provider);
// A content that is a list of parts: texts, and images whose URL names its host; expressions are the caller's to look at.
void check_parts(CheckContext& check, const SourceNode& content);
// What the JSON of an answer must be, as it is recorded.
std::optional<Value> check_answer_schema(CheckContext& check, const SourceNode& source_node,
                                         std::string_view provider);
// Is an answer that breaks it to be mended? By `repair`, which stands beside `schema`; without it: yes.
bool repairs_answers(CheckContext& check, const SourceNode& source_node);

// A tool of an MCP server, and what it is there.
struct ServerTool {
  std::string_view server;
  const Value& connection;
  const Value& pinned;
};
// `of`: nullptr, or `source_node` is made (mcp_check.cc) and says the policy only.
CheckedTool check_tool(CheckContext& check, std::string_view name, const SourceNode& source_node,
                       const ServerTool* of = nullptr);
// The settings of an MCP server's connection, as ToolDefinition has them.
Value check_connection(CheckContext& check, const SourceNode& source_node);
// Every tool of an MCP server, as NAME.TOOL. What is made on the way stands in `generated`, which outlives the tools.
struct ServerCheck {
  CheckedTools& tools;
  std::deque<SourceTree>& generated;
  std::vector<Note>& notes;
  std::size_t line;
};
void check_server(CheckContext& check, std::string_view name, const SourceNode& source_node,
                  ServerCheck into);
// What probes and compensations name, once all tools are known.
void check_side_calls(CheckContext& check, CheckedTools& tools);
CheckedModel check_model(CheckContext& check, std::string_view name, const SourceNode& source_node);
// `policies` of a file. `known`: the tools that it may name, and then `notes` is not nullptr; nullptr = those of files that are
// not known here.
std::vector<Policy> check_policies(CheckContext& check, const SourceNode& source_node,
                                   const CheckedTools* known, std::vector<Note>* notes);
// Agents that a file's policies name, once all are known.
void check_policy_agents(CheckContext& check, const SourceNode& source_node,
                         const std::vector<std::string_view>& known);
// The rules that are about a tool's calls by an agent, in order, as a task graph holds them.
std::vector<Value> rules_for(const std::vector<Policy>& policies, std::string_view agent,
                             std::string_view tool, const Value& capabilities);
// Has a tool of the file this capability? A fault at the spot when none has (and all of them are known).
void check_capability_known(CheckContext& check, const SourceNode& source_node,
                            std::string_view name, const CheckedTools& tools);
// A list of capabilities, sorted, each once.
std::vector<std::string> check_capabilities(CheckContext& check, const SourceNode& source_node);
// What the nodes of a plan may call, and what is said of that.
struct CallableTools {
  const CheckedTools& tools;
  const CheckedModels& models;
  const std::vector<Policy>& policies;
  std::vector<Note>* notes = nullptr;  // of the agents; borrowed
};
Agent check_agent(CheckContext& check, std::string_view name, const SourceNode& source_node,
                  const CallableTools& callable);

}  // namespace ae::agents
