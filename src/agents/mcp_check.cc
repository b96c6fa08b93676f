// check_server: an MCP server of the agents file: one entry, and its pinned tools.
//
// Each tool is checked as if it were written in the file: the policy of the server's entry,
// overridden by the tool's entry in `tools`; the server's schemas fill the gaps. Annotations come
// from the server, so they are not trusted and decide nothing, except that a trusted `readOnlyHint`
// makes a tool `effect: read`.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "agents/checks.h"
#include "agents/condition_check.h"
#include "json/json.h"

namespace ae::agents {
namespace {

constexpr std::size_t kSchemaDepth = 40;  // of a schema that the user cannot correct
constexpr std::size_t kNamesShown = 12;

// A generated value, positioned at `at`.
SourceTree to_source_tree(const Value& value, SourceLocation at) {
  SourceTree out;
  out.at = at;
  if (value.is_object()) {
    out.kind = SourceTree::Kind::mapping;
    for (const auto& [key, member] : value.members()) {
      out.keys.push_back({key, at});
      out.items.push_back(to_source_tree(member, at));
    }
  } else if (value.is_array()) {
    out.kind = SourceTree::Kind::list;
    for (const Value& item : value.items()) out.items.push_back(to_source_tree(item, at));
  } else {
    out.scalar = value;
  }
  return out;
}

std::size_t depth(const Value& value) {
  std::size_t below = 0;
  if (value.is_array()) {
    for (const Value& item : value.items()) below = std::max(below, depth(item));
  } else if (value.is_object()) {
    for (const auto& [key, member] : value.members()) below = std::max(below, depth(member));
  }
  return below + 1;
}

void put(SourceTree& mapping, std::string_view key, SourceTree value) {
  for (std::size_t i = 0; i < mapping.keys.size(); ++i) {
    if (mapping.keys[i].text == key) {
      mapping.items[i] = std::move(value);
      return;
    }
  }
  mapping.keys.push_back({std::string(key), value.at});
  mapping.items.push_back(std::move(value));
}

void put_if_absent(SourceTree& mapping, std::string_view key, const Value& value,
                   SourceLocation at) {
  if (mapping.find(key) == nullptr) put(mapping, key, to_source_tree(value, at));
}

// Older dialects with the same keywords are accepted.
Value without_dialect(const Value& schema) {
  const std::string_view dialect = schema.text("$schema");
  const bool older = dialect.starts_with("http://json-schema.org/draft-0") ||
                     dialect.starts_with("https://json-schema.org/draft/2019-09");
  if (!older) return schema;
  std::vector<Member> members;
  for (const Member& member : schema.members()) {
    if (member.first != "$schema") members.push_back(member);
  }
  return Value::object(std::move(members));
}

constexpr std::string_view kTasksOnly =
    "supports MCP task calls only (`taskSupport: required`), which are not supported";

// Revision 2025-11-25: the server refuses a plain call of such a tool.
bool is_task_only(const Value& pinned) {
  return pinned["execution"].text("taskSupport") == "required";
}

class ServerTools {
 public:
  ServerTools(CheckContext& check, std::string_view name, const SourceNode& source_node,
              ServerCheck into)
      : check_(check), name_(name), source_node_(source_node), into_(into) {}

  void run() {
    const std::size_t before = check_.count();
    check_.mapping(source_node_, Mapping::mcp_server);
    if (const auto description = source_node_.find("description")) check_.text(*description);
    if (const auto trust = source_node_.find("trust_annotations")) {
      is_trusted_ = check_.boolean(*trust).value_or(false);
    }
    const SourceNode mcp = *source_node_.find("mcp");
    connection_ = check_connection(check_, mcp);
    overrides();
    check_single_entry();
    if (check_.count() != before) return check_.mark_tools_unknown(name_);
    const auto& ask = check_.source().server_tools;
    if (!ask) {
      check_.report(mcp, "the tools of an MCP server cannot be listed here", {}, Code::unsupported);
      return check_.mark_tools_unknown(name_);
    }
    const auto pinned = ask(name_, connection_);
    if (!pinned) {
      check_.report(mcp, pinned.error().message, {}, pinned.error().code);
      return check_.mark_tools_unknown(name_);
    }
    check_override_names(*pinned);
    for (const Value& tool : pinned->items()) add(tool);
    check_approval_arguments(*pinned);
    note_suggestion(read_only_tools_, "readOnlyHint",
                    "with `effect: read` a call is retried after a crash");
    note_suggestion(idempotent_tools_, "idempotentHint",
                    "use `effect: idempotent` for tools that deduplicate by key");
  }

 private:
  // Checks the entry's policy once, so that its errors are reported once.
  void check_single_entry() {
    into_.generated.push_back(policy());
    const Value no_tool = Value::object({{"name", "any"}, {"digest", "0"}});
    const ServerTool any{name_, connection_, no_tool};
    check_tool(check_, name_, {&into_.generated.back(), source_node_.path}, &any);
  }

  // The entry without the keys that are not its policy, and without aliases.
  SourceTree policy() const {
    SourceTree mapping = *source_node_.value;
    for (SourceTree::Key& key : mapping.keys) {
      key.text = shape_of(Mapping::mcp_server).key_of(key.text);
    }
    for (const std::string_view key : {"tools", "trust_annotations", "description"}) {
      for (std::size_t i = 0; i < mapping.keys.size(); ++i) {
        if (mapping.keys[i].text != key) continue;
        mapping.keys.erase(mapping.keys.begin() + static_cast<std::ptrdiff_t>(i));
        mapping.items.erase(mapping.items.begin() + static_cast<std::ptrdiff_t>(i));
        break;
      }
    }
    return mapping;
  }

  void overrides() {
    const auto tools = source_node_.find("tools");
    if (!tools || !check_.any_mapping(*tools)) return;
    for (std::size_t i = 0; i < (*tools)->items.size(); ++i) {
      check_.mapping({&(*tools)->items[i], tools->path_of((*tools)->keys[i].text)},
                     Mapping::mcp_tool);
    }
  }

  void check_override_names(const Value& pinned) {
    const auto tools = source_node_.find("tools");
    if (!tools || !(*tools)->is_mapping()) return;
    for (const SourceTree::Key& key : (*tools)->keys) {
      const auto is_it = [&](const Value& tool) { return tool.text("name") == key.text; };
      if (std::ranges::any_of(pinned.items(), is_it)) continue;
      check_.report_at(
          key.at, tools->path_of(key.text),
          fmt::format("the lock file has no tool {}; to accept a new tool, check with --accept",
                      quote(key.text)),
          check_.nearest(key.text, pinned.items(),
                         [](const Value& tool) { return tool.text("name"); }));
    }
  }

  void add(const Value& pinned) {
    if (check_.full()) return;
    const std::string tool(pinned.text("name"));
    if (is_task_only(pinned)) {
      const std::string why(kTasksOnly);
      into_.notes.push_back(
          {source_node_.path, fmt::format("`{}` {}; it is not offered", tool, why)});
      return check_.mark_unusable(fmt::format("{}.{}", name_, tool), why);
    }
    const SourceLocation at = source_node_.find("mcp")->at();
    SourceTree merged = policy();
    std::string path = source_node_.path;
    if (const auto tools = source_node_.find("tools")) {
      if (const auto own = tools->find(tool)) {
        for (std::size_t i = 0; i < (*own)->items.size(); ++i) {
          put(merged, shape_of(Mapping::mcp_tool).key_of((*own)->keys[i].text), (*own)->items[i]);
        }
        path = own->path;
      }
    }
    const Value& hints = pinned["annotations"];
    if (merged.find("effect") == nullptr) {
      if (hints["readOnlyHint"] == Value(true)) {
        if (is_trusted_)
          put(merged, "effect", to_source_tree("read", at));
        else
          read_only_tools_.push_back(tool);
      } else if (hints["idempotentHint"] == Value(true)) {
        idempotent_tools_.push_back(tool);
      }
    }
    if (const Value* text = pinned.find("description")) {
      put_if_absent(merged, "description", *text, at);
    }
    schema(merged, "args_schema", tool, pinned["inputSchema"], at);
    if (const Value* output = pinned.find("outputSchema")) {
      schema(merged, "result_schema", tool, *output, at);
    }
    into_.generated.push_back(std::move(merged));
    const ServerTool of{name_, connection_, pinned};
    const std::string full = fmt::format("{}.{}", name_, tool);
    CheckedTool checked = check_tool(check_, full, {&into_.generated.back(), path}, &of);
    checked.tool.line = into_.line;
    into_.tools.insert_or_assign(full, std::move(checked));
  }

  // Checks that the tools have the arguments that `approval` conditions read. The entry's condition
  // applies to all tools without their own.
  void check_approval_arguments(const Value& pinned) {
    const auto of_entry = source_node_.find("approval");
    std::vector<ConditionTool> under_entry;
    for (const Value& one : pinned.items()) {
      if (is_task_only(one)) continue;
      const auto found = into_.tools.find(fmt::format("{}.{}", name_, one.text("name")));
      if (found == into_.tools.end() || !found->second.is_valid) return;
      const ConditionTool condition_tools{.name = found->first,
                                          .args_schema = found->second.policy.find("args_schema"),
                                          .of_server = true};
      const auto tools = source_node_.find("tools");
      const auto own = tools ? tools->find(one.text("name")) : std::nullopt;
      const auto condition = own ? own->find("approval") : std::nullopt;
      if (condition) {
        check_condition(check_, *condition, {condition_tools}, nullptr);
      } else {
        under_entry.push_back(condition_tools);
      }
    }
    if (of_entry) check_condition(check_, *of_entry, under_entry, &into_.notes);
  }

  // Adds the server's schema of arguments or results, if it can be used for validation.
  void schema(SourceTree& merged, std::string_view key, const std::string& tool,
              const Value& server_schema, SourceLocation at) {
    if (merged.find(key) != nullptr) return;
    const Value usable = without_dialect(server_schema);
    std::string why = depth(usable) > kSchemaDepth ? "nested too deep" : "";
    if (why.empty()) {
      if (auto compiled = Schema::compile(usable); !compiled) why = compiled.error().message;
    }
    if (why.empty()) return put(merged, key, to_source_tree(usable, at));
    if (key == "args_schema")
      put(merged, key, to_source_tree(Value::object({{"type", "object"}}), at));
    into_.notes.push_back(
        {source_node_.path,
         fmt::format("{} of {} are not validated; the server's schema is not usable: {}",
                     key == "args_schema" ? "arguments" : "results", quote(tool), why)});
  }

  void note_suggestion(const std::vector<std::string>& tools, const char* hint, const char* what) {
    if (tools.empty()) return;
    std::string names;
    for (std::size_t i = 0; i < tools.size() && i < kNamesShown; ++i) {
      names += (i == 0 ? "" : ", ") + tools[i];
    }
    if (tools.size() > kNamesShown) names += ", …";
    into_.notes.push_back(
        {source_node_.path, fmt::format("the server declares {} for {}; they stay at_most_once "
                                        "unless this file sets `effect`: {}",
                                        hint, names, what)});
  }

  CheckContext& check_;
  std::string_view name_;
  const SourceNode& source_node_;
  ServerCheck into_;
  bool is_trusted_ = false;
  Value connection_;
  std::vector<std::string> read_only_tools_, idempotent_tools_;
};

}  // namespace

void check_server(CheckContext& check, std::string_view name, const SourceNode& source_node,
                  ServerCheck into) {
  ServerTools(check, name, source_node, into).run();
}

}  // namespace ae::agents
