#include "api/command_line.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "engine/state/action.h"
#include "json/json.h"
#include "log/field_names.h"

namespace ae::api {
namespace {

constexpr std::size_t kFieldsShown = 64;
constexpr std::size_t kFieldNameShown = 64;  // bytes

// Quotes one word of a shell command line.
std::string shell_word(std::string_view text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:,@%+=";
  if (!text.empty() && text.find_first_not_of(kPlain) == text.npos) return std::string(text);
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

// Placeholder for a value that the user must choose: not valid JSON, so the unedited command is
// rejected.
std::string_view placeholder_for(std::string_view type) {
  if (type == "integer") return "<integer>";
  if (type == "number") return "<number>";
  if (type == "boolean") return "<true or false>";
  return type == "array" ? "<list>" : "<text>";
}

// Template of the required members of a form: {"n":<integer>,"who":<text>}. The schema comes from
// an MCP server and may contain anything.
std::string form_template(const Value& schema) {
  if (!schema["required"].is_array()) return "{…}";
  std::set<std::string_view> names;
  std::string form;
  for (const Value& name : schema["required"].items()) {
    if (!name.is_string() || names.contains(name.as_string())) continue;
    if (!form.empty()) form += ',';
    if (names.size() == kFieldsShown || name.as_string().size() > kFieldNameShown) {
      form += "…";
      break;
    }
    names.insert(name.as_string());
    const std::string_view type = schema["properties"][name.as_string()].text("type");
    form += fmt::format("{}:{}", canonical(name), placeholder_for(type));
  }
  return fmt::format("{{{}}}", form.empty() ? "…" : form);
}

// " --tokens 200 --cost 5"
std::string limit_options(const Value& limits) {
  std::string options;
  for (const Value& one : limits.items()) {
    std::string name(one.text("limit"));
    std::ranges::replace(name, '_', '-');
    options += fmt::format(" --{} {}", name, one.text("total"));
  }
  return options;
}

// The command without the choice.
std::string words_of(std::string_view act, const Value& arguments) {
  const std::string_view job = arguments.text("job_id");
  if (act == engine::act::kApprove) {
    const Value* const form = arguments.find("schema");
    const std::string option =
        form ? fmt::format(" --arguments {}", shell_word(form_template(*form))) : "";
    return fmt::format("aetheris approve {}{}", arguments.text("id"), option);
  }
  if (act == engine::act::kReject) return fmt::format("aetheris reject {}", arguments.text("id"));
  if (act == engine::act::kMessage) {
    return fmt::format("aetheris message {} {} '{{}}'", job,
                       shell_word(arguments.text(field::channel)));
  }
  if (act == engine::act::kSignal) {
    return fmt::format("aetheris signal {} {} '{{}}'", job,
                       shell_word(arguments.text(field::correlation_key)));
  }
  if (act == engine::act::kResolve)
    return fmt::format("aetheris resolve {} {}", job, arguments.text("call"));
  if (act == engine::act::kBudget)
    return fmt::format("aetheris budget {}{}", job, limit_options(arguments["limits"]));
  if (act == engine::act::kRun) return fmt::format("aetheris run FILE --job-id {}", job);
  return fmt::format("aetheris {} {}", act, job);
}

Value without(const Value& object, std::string_view name) {
  std::vector<Member> members;
  for (const Member& member : object.members()) {
    if (member.first != name) members.push_back(member);
  }
  return Value::object(std::move(members));
}

Value wait_with_commands(const Value& wait) {
  const Value shown = with_commands(wait);
  const Value& commands = shown[field::commands];
  return shown.with("command", commands.size() > 0 ? commands.items()[0] : Value());
}

Value list_with_commands(const Value& list, Value (*convert)(const Value&)) {
  std::vector<Value> entries;
  for (const Value& entry : list.items()) entries.push_back(convert(entry));
  return Value::array(std::move(entries));
}

}  // namespace

std::vector<std::string> command_lines(const Value& action) {
  if (!action.is_object()) return {};
  const std::string words = words_of(action.text("act"), action[field::arguments]);
  if (action["choices"].size() == 0) return {words};
  std::vector<std::string> lines;
  for (const Value& choice : action["choices"].items()) {
    const std::string& name = choice.as_string();
    lines.push_back(fmt::format("{} {}{}", words, name, name == "happened" ? " RESULT" : ""));
  }
  return lines;
}

std::string command_line(const Value& action) {
  const std::vector<std::string> lines = command_lines(action);
  return lines.empty() ? std::string() : lines.front();
}

Value with_commands(const Value& entry) {
  const Value* const actions = entry.find("actions");
  if (actions == nullptr) return entry;
  std::vector<Value> commands;
  for (const Value& action : actions->items()) {
    for (std::string& line : command_lines(action)) commands.emplace_back(std::move(line));
  }
  return without(entry, "actions").with(field::commands, Value::array(std::move(commands)));
}

Value with_wait_commands(const Value& view) {
  return view.with(field::waits, list_with_commands(view[field::waits], wait_with_commands));
}

Value with_all_commands(const Value& view) {
  Value shown =
      with_wait_commands(view)
          .with(field::in_doubt, list_with_commands(view[field::in_doubt], with_commands))
          .with("confirmations", list_with_commands(view["confirmations"], with_commands));
  if (view["waiting"].is_object()) {
    shown = shown.with("waiting", wait_with_commands(view["waiting"]));
  }
  if (!view["parked"].is_object()) return shown;
  const std::string unpark = command_line(view["parked"]["action"]);
  return shown.with(
      "parked",
      without(view["parked"], "action").with("command", unpark.empty() ? Value() : Value(unpark)));
}

}  // namespace ae::api
