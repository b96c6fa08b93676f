// CheckContext: functions that validate parts of an agents file. Each returns the value of a
// SourceNode or reports what is wrong and continues, so one pass finds all errors of a file.
// Threads: one owner.
#pragma once

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
#include "agents/grammar.h"
#include "agents/source_tree.h"
#include "base/time.h"
#include "expr/expr.h"

namespace ae::agents {

// A value of the file and its path. Borrows the value.
struct SourceNode {
  const SourceTree* value = nullptr;
  std::string path;

  SourceLocation at() const { return value->at; }
  const SourceTree* operator->() const { return value; }
  std::optional<SourceNode> find(std::string_view key) const;
  SourceNode item(std::size_t index) const;
  // The path of a key of this mapping, whether or not it exists.
  std::string path_of(std::string_view key) const;
};

constexpr Duration kDurationMin = std::chrono::milliseconds(1);
constexpr std::size_t kHeadersMax = 64;  // of one request

using NameList = std::initializer_list<std::string_view>;

// Reserved keys that this version does not implement.
struct UnsupportedKey {
  std::string_view key;
  std::string_view why;  // follows "…: " in the message
};
using UnsupportedKeys = std::initializer_list<UnsupportedKey>;

class CheckContext {
 public:
  CheckContext(const Source& source, Diagnostics& diagnostics)
      : source_(source), diagnostics_(diagnostics) {}

  void report(const SourceNode& source_node, std::string message, std::string suggestion = {},
              Code code = Code::plan_invalid);
  void report_at(SourceLocation at, std::string path, std::string message,
                 std::string suggestion = {}, Code code = Code::plan_invalid);
  std::size_t count() const { return diagnostics_.size(); }
  bool full() const { return diagnostics_.full(); }
  // The tools of this MCP server are unknown; names of its tools are then not reported.
  void mark_tools_unknown(std::string_view server) { unknown_servers_.emplace_back(server); }
  // True if an unknown tool might have this name or match this pattern.
  bool may_be_unknown(std::string_view tool) const;
  // The tool exists but cannot be called.
  void mark_unusable(std::string tool, std::string why) {
    unusable_.insert_or_assign(std::move(tool), std::move(why));
  }
  // The message for a reference to a tool that cannot be called.
  std::string describe_missing_tool(std::string_view name) const;
  const Source& source() const { return source_; }
  // Hosts that data may choose, from the file's `outbound`.
  std::vector<Value>& outbound() { return outbound_; }
  // Adds a warning that is not an error.
  void add_note(const std::string& path, std::string message) {
    notes_.push_back({path, std::move(message)});
  }
  // The agents of the file, as they are written; absent: it has none.
  void set_agents(std::optional<SourceNode> agents) { agents_ = std::move(agents); }
  std::optional<SourceNode> find_agent(std::string_view name) const {
    if (!agents_ || !(*agents_)->is_mapping()) return std::nullopt;
    return agents_->find(name);
  }
  std::vector<Note> take_notes() { return std::exchange(notes_, {}); }

  // Checks for a mapping without unknown keys; false = not a mapping.
  bool mapping(const SourceNode& source_node, Names known, UnsupportedKeys unsupported_keys = {}) {
    return mapping(source_node, Shape{.keys = known}, unsupported_keys);
  }
  bool mapping(const SourceNode& source_node, Mapping mapping_of_grammar,
               UnsupportedKeys unsupported_keys = {}) {
    return mapping(source_node, shape_of(mapping_of_grammar), unsupported_keys);
  }
  bool mapping(const SourceNode& source_node, const Shape& shape, UnsupportedKeys unsupported_keys);
  bool any_mapping(const SourceNode& source_node);
  // Reports the keys that only mappings of other kinds have. `message`: for the key and the kinds
  // that have it; "" = reported elsewhere.
  using MisplacedMessage =
      std::function<std::string(std::string_view key, const std::vector<std::string_view>& kinds)>;
  void misplaced(const SourceNode& source_node, const Shape& shape, std::string_view kind,
                 const MisplacedMessage& message);
  bool list(const SourceNode& source_node);
  // The value of this key; reports an error if it is missing.
  std::optional<SourceNode> required(const SourceNode& source_node, std::string_view key,
                                     std::string_view hint);

  std::optional<std::string> text(const SourceNode& source_node);
  std::optional<bool> boolean(const SourceNode& source_node);
  std::optional<std::uint32_t> count(const SourceNode& source_node, std::uint32_t most);
  std::optional<Duration> duration(const SourceNode& source_node, Duration least);
  std::optional<std::uint64_t> size(const SourceNode& source_node, std::uint64_t most);
  // One of the words.
  std::optional<std::string_view> word(const SourceNode& source_node, Names words);
  std::optional<std::string_view> word(const SourceNode& source_node, Words words) {
    return word(source_node, words_of(words));
  }
  // Validates a key that names something (a node, tool or agent).
  bool name(std::string_view what, std::string_view text, SourceLocation at,
            const std::string& path);
  std::optional<Schema> schema(const SourceNode& source_node);

  // Compiles every string in `source_node`; `visit` is called for each with an expression. False =
  // an error was reported.
  using TemplateVisitor = std::function<void(const SourceNode& string, const Template& compiled)>;
  bool templates(const SourceNode& source_node, const TemplateVisitor& visit);
  // The closest known name; "" if none is close, or if too many comparisons were made.
  template <class Range, class NameOf>
  std::string nearest(std::string_view misspelt, const Range& known, NameOf name_of) {
    if (comparisons_left_ < known.size()) return {};
    comparisons_left_ -= known.size();
    ClosestName found(misspelt);
    for (const auto& one : known) found.consider(name_of(one));
    return found.best();
  }
  // True if a string with expressions is within its size limit.
  bool text_fits(const SourceNode& source_node);
  // Reports the errors of one template, at their position in the string at `source_node`.
  void report_template_errors(const SourceNode& source_node,
                              std::span<const Template::Diagnostic> found);
  // Reports a root or step that cannot be read here, at its position in the string.
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
  std::optional<SourceNode> agents_;
  std::vector<std::string> unknown_servers_;
  std::map<std::string, std::string, std::less<>> unusable_;
};

// An empty scope, for templates that read nothing.
class NoScope final : public ExprScope {
 public:
  const Value* root(std::string_view) const override { return nullptr; }
  const Value* step(std::string_view) const override { return nullptr; }
  Value steps() const override { return {}; }
};

// The value at a JSON pointer relative to the node, or its nearest existing ancestor.
SourceNode follow(SourceNode source_node, std::string_view pointer);
// Plans are recorded, so they must not contain env. or secrets.
void reject_env_and_secrets(CheckContext& check, const SourceNode& source_node);
// Also reports each expression that reads another root. True if there was none.
bool reads_only(CheckContext& check, const SourceNode& source_node, NameList roots);
// Reports expressions that read unknown members of fixed roots (`.job`, `.call`).
void check_members(CheckContext& check, const SourceNode& string, const ExprRoots& read);
// True for a string that consists of one `${ … }`.
bool is_one_expression(const SourceTree& value);
// True for exactly `secret:NAME`.
bool is_secret_reference(std::string_view text);
// True if the text may contain an expression or an escaped one.
inline bool has_expression(std::string_view text) { return text.find("${") != text.npos; }

}  // namespace ae::agents
