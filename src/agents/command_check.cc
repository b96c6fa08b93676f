// check_command: the program of a command tool or of an MCP server: its arguments, its environment,
// its folder and its sandbox.
#include "agents/command_check.h"

#include <fmt/core.h>

#include <utility>

#include "agents/tool_text.h"
#include "agents/transport_check.h"

namespace ae::agents {
namespace {

constexpr std::uint64_t kSandboxBytesMax = std::uint64_t{1} << 40;
constexpr std::uint32_t kSandboxCountMax = 1'000'000;

class CommandCheck {
 public:
  CommandCheck(CheckContext& check, const SourceNode& tool, std::vector<Member>& definition)
      : check_(check), text_(check), tool_(tool), definition_(definition) {}

  void run(const SourceNode& source_node) {
    if (check_.list(source_node) && is_within_limit(check_, source_node)) argv(source_node);
    if (const auto env = tool_.find("env")) environment(*env);
    if (const auto allow = tool_.find("env_allow")) env_allow(*allow);
    if (const auto box = tool_.find("sandbox")) sandbox(*box);
    if (const auto cwd = tool_.find("cwd")) {
      if (auto text = text_.literal(*cwd)) {
        if (text->empty()) check_.report(*cwd, "must be a folder path");
        put("cwd", *std::move(text));
      }
    }
  }

 private:
  void argv(const SourceNode& source_node) {
    if (source_node->items.empty()) {
      check_.report(source_node, "a command needs a program, such as [\"date\", \"-u\"]");
      return;
    }
    std::vector<Value> words;
    bool takes_options = true;
    for (std::size_t i = 0; i < source_node->items.size(); ++i) {
      const SourceNode item = source_node.item(i);
      auto text = text_.resolved(item, Secrets::refused);
      if (!text) continue;
      if (i == 0 && (text->empty() || has_expression(*text))) {
        check_.report(item, "the program must be literal and not empty");
      }
      if (text->find('\0') != text->npos)
        check_.report(item, "a command argument cannot contain NUL");
      // Arguments after `-c` are for the shell's script, those after `--` are not options.
      takes_options = takes_options && *text != "--" && *text != "-c";
      if (i > 0 && takes_options && text->starts_with("${")) {
        check_.add_note(
            item.path,
            "a value that starts with - can be read as an option; put \"--\" before it if the "
            "program supports that");
      }
      words.emplace_back(*std::move(text));
    }
    put("command", Value::array(std::move(words)));
  }

  void environment(const SourceNode& source_node) {
    if (!check_.any_mapping(source_node) || !is_within_limit(check_, source_node)) return;
    std::vector<Member> members;
    for (std::size_t i = 0; i < source_node->items.size(); ++i) {
      const SourceTree::Key& key = source_node->keys[i];
      const SourceNode value{&source_node->items[i], source_node.path_of(key.text)};
      env_key(key.text, key.at, value.path);
      if (auto text = text_.resolved(value, Secrets::replaced)) {
        if (text->find('\0') != text->npos)
          check_.report(value, "an environment variable cannot contain NUL");
        members.emplace_back(key.text, *std::move(text));
      }
    }
    put("env", as_object(std::move(members)));
  }

  void env_allow(const SourceNode& source_node) {
    if (!check_.list(source_node) || !is_within_limit(check_, source_node)) return;
    std::vector<Value> names;
    for (std::size_t i = 0; i < source_node->items.size(); ++i) {
      const SourceNode item = source_node.item(i);
      if (auto text = check_.text(item)) {
        env_key(*text, item.at(), item.path);
        names.emplace_back(*std::move(text));
      }
    }
    put("env_allow", Value::array(std::move(names)));
  }

  void env_key(std::string_view name, SourceLocation at, const std::string& path) {
    if (!is_env_name(name)) {
      check_.report_at(at, path,
                       fmt::format("{} is not a valid environment variable name", quote(name)));
    } else if (name.starts_with("AETHERIS_")) {
      check_.report_at(at, path, "AETHERIS_… variables are set by the runtime; remove it");
    }
  }

  void sandbox(const SourceNode& source_node) {
    if (source_node->is_string()) {
      if (const auto word = check_.word(source_node, Words::sandbox)) put("sandbox", *word);
      return;
    }
    if (!check_.mapping(source_node, Mapping::sandbox_limits)) {
      return;
    }
    std::vector<Member> members;
    for (const std::string_view key : {"read", "write"}) {
      const auto list = source_node.find(key);
      if (!list || !check_.list(*list) || !is_within_limit(check_, *list)) continue;
      std::vector<Value> paths;
      for (std::size_t i = 0; i < (*list)->items.size(); ++i) {
        const SourceNode item = list->item(i);
        auto text = text_.literal(item);
        if (!text) continue;
        if (text->empty() || text->find('\0') != text->npos) check_.report(item, "must be a path");
        paths.emplace_back(*std::move(text));
      }
      members.emplace_back(key, Value::array(std::move(paths)));
    }
    if (const auto network = source_node.find("network")) {
      if (const auto word = check_.word(*network, Words::network); word == "none") {
        members.emplace_back("network", *word);
      }
    }
    for (const std::string_view key : {"memory", "file_size"}) {
      const auto most = source_node.find(key);
      if (!most) continue;
      if (const auto bytes = check_.size(*most, kSandboxBytesMax))
        members.emplace_back(key, *bytes);
    }
    for (const std::string_view key : {"processes", "open_files"}) {
      const auto most = source_node.find(key);
      if (!most) continue;
      if (const auto count = check_.count(*most, kSandboxCountMax))
        members.emplace_back(key, std::uint64_t{*count});
    }
    if (const auto cpu = source_node.find("cpu")) {
      if (const auto span = check_.duration(*cpu, std::chrono::seconds(1))) {
        members.emplace_back("cpu", to_text(*span));
      }
    }
    put("sandbox", Value::object(std::move(members)));
  }

  void put(std::string_view key, Value value) { definition_.emplace_back(key, std::move(value)); }

  CheckContext& check_;
  ToolText text_;
  const SourceNode& tool_;
  std::vector<Member>& definition_;
};

}  // namespace

void check_command(CheckContext& check, const SourceNode& tool, const SourceNode& command,
                   std::vector<Member>& definition) {
  CommandCheck(check, tool, definition).run(command);
}

}  // namespace ae::agents
