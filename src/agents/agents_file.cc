// load: turns the text of an agents file into its tools and agents, or reports all its errors.
#include "agents/agents_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "agents/checks.h"
#include "agents/diagnostics.h"
#include "agents/source_tree.h"
#include "agents/tool_text.h"
#include "base/utf8.h"
#include "json/json.h"
#include "log/field_names.h"

namespace ae::agents {
namespace {

// The first byte that is not valid UTF-8. By line, because a line feed is never
// part of a longer character.
std::size_t first_bad_byte(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
    if (!is_utf8(text.substr(at, end - at))) break;
    at = end;
  }
  while (at < text.size()) {
    std::size_t length = 1;
    while (length <= 4 && !is_utf8(text.substr(at, length))) ++length;
    if (length > 4) return at;
    at += length;
  }
  return text.npos;
}

std::uint32_t characters(std::string_view text) {
  return static_cast<std::uint32_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

// "…: what at byte 12" → "…: what", 12
std::size_t strip_byte_offset(std::string& message) {
  const std::size_t at = message.rfind(" at byte ");
  if (at == message.npos) return 0;
  const std::size_t byte = std::strtoull(message.c_str() + at + 9, nullptr, 10);
  message.erase(at);
  return byte;
}

bool read(const Source& source, std::string_view text, Diagnostics& diagnostics, SourceTree& out) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  const bool named_json = source.name.ends_with(".json");
  if (named_json || (first != text.npos && (text[first] == '{' || text[first] == '['))) {
    auto json = parse_json(text);
    if (json) return read_json(text, diagnostics, out);
    if (named_json) {
      std::string message = std::move(json).error().message;
      const std::size_t byte = std::min(strip_byte_offset(message), text.size());
      diagnostics.add({.character = characters(text.substr(0, byte))},
                      {.path = {}, .message = std::move(message)});
      return false;
    }
  }
  return read_yaml(text, diagnostics, out);
}

// The line of a position; fast if positions are queried in the order of the file.
class LineCount {
 public:
  explicit LineCount(std::string_view text) : text_(text) {}
  std::size_t line_of(SourceLocation place) {
    if (place.character < character_) at_ = character_ = 0, line_ = 1;
    for (; character_ < place.character && at_ < text_.size(); ++character_) {
      line_ += text_[at_] == '\n' ? 1 : 0;
      do ++at_;
      while (at_ < text_.size() && (static_cast<unsigned char>(text_[at_]) & 0xC0) == 0x80);
    }
    return line_;
  }

 private:
  std::string_view text_;
  std::size_t at_ = 0, character_ = 0, line_ = 1;
};

// What the agents of a file may use.
struct FileDefinitions {
  CheckedTools tools;
  CheckedModels models;
  std::vector<Note> notes;
  std::deque<SourceTree> generated;  // tools refer to nodes in it
  std::vector<Policy> policies;
};

constexpr std::size_t kOutboundMax = 1'000;

bool is_outbound_host(std::string_view text) {
  const bool is_ip6 = text.starts_with('[');
  const std::size_t colon = text.find(':', is_ip6 ? std::min(text.find(']'), text.size()) : 0);
  const std::string_view host = text.substr(0, colon);
  const std::string_view port = colon == text.npos ? "1" : text.substr(colon + 1);
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (port.empty() || port.size() > 5 || port[0] == '0' || !std::ranges::all_of(port, is_digit) ||
      std::stoi(std::string(port)) > 65'535) {
    return false;
  }
  constexpr std::string_view kName =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._";
  constexpr std::string_view kIp6 = "0123456789abcdefABCDEF:.";
  if (is_ip6) {
    return host.size() > 3 && host.ends_with(']') &&
           host.substr(1, host.size() - 2).find_first_not_of(kIp6) == host.npos;
  }
  return !host.empty() && host.size() <= 253 && host.find_first_not_of(kName) == host.npos;
}

// `outbound.allow`: hosts in internal networks that data may choose.
void check_outbound(CheckContext& check, const SourceNode& top) {
  const auto outbound = top.find("outbound");
  if (!outbound || !check.mapping(*outbound, Mapping::outbound)) return;
  const auto list = check.required(*outbound, "allow", "a list of HOST or HOST:PORT");
  if (!list || !check.list(*list)) return;
  if ((*list)->items.size() > kOutboundMax) return check.report(*list, "at most 1,000 hosts");
  ToolText text(check);
  for (std::size_t i = 0; i < (*list)->items.size(); ++i) {
    const SourceNode item = list->item(i);
    auto host = text.literal(item);
    if (!host) continue;
    if (!is_outbound_host(*host)) {
      check.report(item, "must be HOST or HOST:PORT, such as things.internal or 127.0.0.1:8080");
    }
    check.outbound().emplace_back(*std::move(host));
  }
}

// Has the file agents with `code`?
bool has_code_agents(const SourceNode& top) {
  const auto agents = top.find("agents");
  return agents && (*agents)->is_mapping() &&
         std::ranges::any_of((*agents)->items, [](const SourceTree& agent) {
           return agent.is_mapping() && agent.find(field::code) != nullptr;
         });
}

FileDefinitions check_definitions(CheckContext& check, const SourceNode& top,
                                  std::string_view text) {
  LineCount lines(text);
  FileDefinitions definitions;
  check_outbound(check, top);
  if (const auto source_node = top.find("tools"); source_node && check.any_mapping(*source_node)) {
    for (std::size_t i = 0; i < (*source_node)->items.size() && !check.full(); ++i) {
      const SourceTree::Key& key = (*source_node)->keys[i];
      const SourceNode tool{&(*source_node)->items[i], source_node->path_of(key.text)};
      const bool named = check.name("a tool", key.text, key.at, tool.path);
      if (tool->is_mapping() && tool->find("mcp") != nullptr) {
        if (!named) {
          check.mark_tools_unknown(key.text);
          continue;
        }
        check_server(
            check, key.text, tool,
            {definitions.tools, definitions.generated, definitions.notes, lines.line_of(key.at)});
        continue;
      }
      CheckedTool checked = check_tool(check, key.text, tool);
      checked.tool.line = lines.line_of(key.at);
      definitions.tools.insert_or_assign(key.text, std::move(checked));
    }
    check_side_calls(check, definitions.tools);
  }
  if (const auto source_node = top.find("models"); source_node && check.any_mapping(*source_node)) {
    for (std::size_t i = 0; i < (*source_node)->items.size() && !check.full(); ++i) {
      const SourceTree::Key& key = (*source_node)->keys[i];
      const SourceNode model{&(*source_node)->items[i], source_node->path_of(key.text)};
      check.name("a model", key.text, key.at, model.path);
      CheckedModel checked = check_model(check, key.text, model);
      checked.tool.line = lines.line_of(key.at);
      definitions.models.insert_or_assign(key.text, std::move(checked));
    }
  }
  for (Note& note : check.take_notes()) definitions.notes.push_back(std::move(note));
  if (check.source().policies) definitions.policies = *check.source().policies;
  if (const auto source_node = top.find("policies")) {
    const KnownTools known{
        .tools = definitions.tools, .has_code = has_code_agents(top), .notes = definitions.notes};
    for (Policy& policy : check_policies(check, *source_node, &known)) {
      definitions.policies.push_back(std::move(policy));
    }
  }
  return definitions;
}

void check_version(CheckContext& check, const SourceNode& top) {
  const auto version = check.required(top, "aetheris", "start the file with `aetheris: 1`");
  if (!version) return;
  if (!(*version)->scalar.is_integer()) {
    check.report(*version, "must be the number 1");
  } else if ((*version)->scalar.as_int() != 1) {
    check.report(*version, "unsupported version; this build reads version 1", {},
                 Code::unsupported);
  }
}

void check_file(CheckContext& check, const SourceTree& root, std::string_view text,
                AgentsFile& out) {
  LineCount lines(text);
  const SourceNode top{&root, {}};
  if (!check.mapping(top, Mapping::agents_file,
                     {{"cron", "schedules are not available yet"},
                      {"schedules", "schedules are not available yet"}})) {
    return;
  }
  check_version(check, top);
  check.set_agents(top.find("agents"));
  auto [tools, models, notes, generated, policies] = check_definitions(check, top, text);
  const bool is_needed = check.source().needs_agents;
  const auto source_node = is_needed
                               ? check.required(top, "agents", "the agents of this file, by name")
                               : top.find("agents");
  if (source_node && check.any_mapping(*source_node)) {
    if (is_needed && (*source_node)->items.empty())
      check.report(*source_node, "a file needs at least one agent");
    for (std::size_t i = 0; i < (*source_node)->items.size() && !check.full(); ++i) {
      const SourceTree::Key& key = (*source_node)->keys[i];
      const SourceNode agent{&(*source_node)->items[i], source_node->path_of(key.text)};
      check.name("an agent", key.text, key.at, agent.path);
      Agent checked = check_agent(check, key.text, agent, {tools, models, policies, &notes});
      checked.definition = agent->value();
      checked.line = lines.line_of(key.at);
      out.agents.insert_or_assign(key.text, std::move(checked));
    }
  }
  if (const auto of_file = top.find("policies");
      of_file && source_node && source_node->value->is_mapping()) {
    std::vector<std::string_view> known;
    for (const SourceTree::Key& key : (*source_node)->keys) known.push_back(key.text);
    check_policy_agents(check, *of_file, known);
  }
  out.notes = std::move(notes);
  for (auto& [name, tool] : tools) out.tools.emplace(name, std::move(tool.tool));
  for (auto& [name, model] : models) out.models.emplace(model.tool.name, std::move(model.tool));
}

// Adds what is defined in code to the tree of the file.
bool add_code(std::string_view json, Diagnostics& diagnostics, SourceTree& root) {
  const auto parsed = parse_json(json, {.bytes_max = kFileMax});
  if (!parsed) {
    diagnostics.add({}, {.path = std::string(field::code), .message = parsed.error().message});
    return false;
  }
  SourceTree code;
  if (!read_json(json, diagnostics, code)) return false;
  for (const std::string_view section : {"tools", "models", "agents"}) {
    const SourceTree* const added = code.find(section);
    if (added == nullptr || !added->is_mapping() || !root.is_mapping()) continue;
    auto found = std::ranges::find(root.keys, section, &SourceTree::Key::text);
    if (found == root.keys.end()) {
      root.keys.push_back({std::string(section), {}});
      root.items.push_back({.kind = SourceTree::Kind::mapping});
      found = root.keys.end() - 1;
    }
    SourceTree& into = root.items[static_cast<std::size_t>(found - root.keys.begin())];
    for (std::size_t i = 0; i < added->keys.size(); ++i) {
      const std::string& name = added->keys[i].text;
      if (into.find(name) != nullptr) {
        diagnostics.add({}, {.path = fmt::format("{}.{}", section, name),
                             .message = "is defined in the file and in code"});
        continue;
      }
      into.keys.push_back({name, {}});
      into.items.push_back(added->items[i]);
    }
  }
  return true;
}

// Parses the text and passes its root to `visit`.
template <class Visit>
std::vector<Diagnostic> parse_and_visit(const Source& source, const Visit& visit) {
  Diagnostics diagnostics;
  std::string_view text = source.text;
  if (text.size() > kFileMax) {
    diagnostics.add({}, {.path = {}, .message = "an agents file can have at most 8 MiB"});
    return diagnostics.finish(source.name, {});
  }
  if (const std::size_t bad = first_bad_byte(text); bad != text.npos) {
    text = text.substr(0, bad);
    diagnostics.add({.character = characters(text)},
                    {.path = {}, .message = fmt::format("not UTF-8 at byte {}", bad)});
    return diagnostics.finish(source.name, text);
  }
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  SourceTree root;
  if (read(source, text, diagnostics, root) &&
      (source.code.empty() || add_code(source.code, diagnostics, root))) {
    CheckContext check(source, diagnostics);
    visit(check, root, text);
  }
  return diagnostics.finish(source.name, text);
}

}  // namespace

bool Agent::is_code() const { return definition.find(field::code) != nullptr; }

std::vector<Diagnostic> load(const Source& source, AgentsFile& out) {
  AgentsFile file;
  auto diagnostics =
      parse_and_visit(source, [&](CheckContext& check, const SourceTree& root,
                                  std::string_view text) { check_file(check, root, text, file); });
  if (diagnostics.empty()) out = std::move(file);
  return diagnostics;
}

std::vector<Diagnostic> load_policies(const Source& source, std::vector<Policy>& out) {
  std::vector<Policy> policies;
  auto diagnostics =
      parse_and_visit(source, [&](CheckContext& check, const SourceTree& root, std::string_view) {
        const SourceNode top{&root, {}};
        if (!check.mapping(top, Mapping::policies_file)) return;
        check_version(check, top);
        if (const auto list = check.required(top, "policies", "the list of policies, in order")) {
          policies = check_policies(check, *list, nullptr);
        }
      });
  if (diagnostics.empty()) out = std::move(policies);
  return diagnostics;
}

std::vector<Diagnostic> load_agent(const Source& file, std::string_view name, std::string_view json,
                                   Agent& out) {
  Diagnostics own_diagnostics;
  SourceTree agent;
  const auto parsed = parse_json(json, {.bytes_max = kFileMax});
  if (!parsed) {
    std::string message = parsed.error().message;
    const std::size_t byte = std::min(strip_byte_offset(message), json.size());
    own_diagnostics.add({.character = characters(json.substr(0, byte))},
                        {.path = {}, .message = std::move(message)});
    return own_diagnostics.finish({}, json);
  }
  if (!read_json(json, own_diagnostics, agent)) return own_diagnostics.finish({}, json);
  Diagnostics file_diagnostics;
  SourceTree root;
  std::string_view text = file.text;
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  FileDefinitions definitions;
  if (read(file, text, file_diagnostics, root)) {
    CheckContext file_context(file, file_diagnostics);
    definitions = check_definitions(file_context, SourceNode{&root, {}}, text);
  }
  if (!file_diagnostics.empty()) return file_diagnostics.finish(file.name, text);
  CheckContext check(file, own_diagnostics);
  const SourceNode source_node{&agent, std::string(name)};
  Agent checked;
  if (check.name("an agent", name, source_node.at(), source_node.path)) {
    checked = check_agent(check, name, source_node,
                          {definitions.tools, definitions.models, definitions.policies});
  }
  checked.definition = *parsed;
  if (own_diagnostics.empty()) out = std::move(checked);
  return own_diagnostics.finish({}, json);
}

bool is_capability(std::string_view text) {
  return !text.empty() && text.size() <= engine::kCapabilityMax &&
         std::ranges::all_of(text, [](char c) {
           return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
                  c == '.' || c == '_' || c == '-';
         });
}

}  // namespace ae::agents
