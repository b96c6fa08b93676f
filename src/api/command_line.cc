#include "api/command_line.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>

#include "api/target.h"
#include "base/action.h"
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

// How an act is shown: the words of its command, its request (empty if the API has none), and what
// both do. `{name}` is an argument.
struct Form {
  std::string_view act, command, request, purpose;
};
constexpr Form kForms[] = {
    {act::kAcceptRollback, "doctor --accept-rollback", "",
     "accepts the loss and parks unfinished jobs"},
    {act::kAcceptTools, "check {file} --accept", "", "pins the tools that the servers offer now"},
    {act::kApprovals, "approvals", "GET /api/approvals", "lists the open requests"},
    {act::kApprove, "approve {id}", "POST /api/approvals/{id}", "answers it"},
    {act::kBackup, "backup {file}", "", "copies the store"},
    {act::kBudget, "budget {job_id}", "POST /api/jobs/{job_id}/budget", "raises the budget"},
    {act::kCreateKey, "keys create --role admin", "POST /api/keys", "creates one"},
    {act::kEvents, "events {job_id}", "GET /api/jobs/{job_id}/events", "lists its events"},
    {act::kFork, "fork {job_id} --at SEQ", "POST /api/jobs/{job_id}/fork",
     "starts a new job at one of its events"},
    {act::kJob, "job {job_id}", "GET /api/jobs/{job_id}", "shows what the job waits for"},
    {act::kJobs, "jobs", "GET /api/jobs", "lists the jobs"},
    {act::kKeys, "keys list", "GET /api/keys", "lists the keys"},
    {act::kMessage, "message {job_id} {channel} '{}'", "POST /api/jobs/{job_id}/message",
     "sends a message"},
    {act::kMigrate, "migrate", "", "brings it up to date"},
    {act::kPause, "pause {job_id}", "POST /api/jobs/{job_id}/pause", "pauses the job"},
    {act::kPinTools, "check {file}", "", "pins them"},
    {act::kReject, "reject {id}", "POST /api/approvals/{id}", "rejects it"},
    {act::kResolve, "resolve {job_id} {call}", "POST /api/jobs/{job_id}/resolve", "resolves it"},
    {act::kResume, "resume {job_id}", "POST /api/jobs/{job_id}/resume", "resumes the job"},
    {act::kRun, "run {file} --job-id {job_id}", "", "runs the job"},
    {act::kSandbox, "doctor --sandbox", "", "shows what this machine supports"},
    {act::kSignal, "signal {job_id} {correlation_key} '{}'", "POST /api/jobs/{job_id}/signal",
     "answers the wait"},
    {act::kTrace, "trace {job_id}", "GET /api/jobs/{job_id}/trace", "shows its calls and answers"},
    {act::kVerify, "verify {job_id}", "GET /api/jobs/{job_id}/verify", "verifies its log"},
    {act::kWorkers, "workers", "GET /api/workers", "lists the workers that are connected"}};

// nullptr: unknown, from a newer server.
const Form* find_form(const Value& action) {
  const auto* const found = std::ranges::find(kForms, action.text("act"), &Form::act);
  return found == std::end(kForms) ? nullptr : found;
}

// The pattern with each `{name}` replaced by write(name).
template <class Write>
std::string filled(std::string_view pattern, const Write& write) {
  std::string out;
  while (!pattern.empty()) {
    const std::size_t open = pattern.find('{');
    out += pattern.substr(0, open);
    if (open == pattern.npos) break;
    const std::size_t close = pattern.find('}', open);
    const std::string_view name = pattern.substr(open + 1, close - open - 1);
    out += name.empty() ? "{}" : write(name);
    pattern.remove_prefix(close + 1);
  }
  return out;
}

// The command without the choice. An absent argument is a word in capitals.
std::string words_of(const Form& form, const Value& arguments) {
  std::string words = filled(form.command, [&](std::string_view name) -> std::string {
    if (arguments.find(name) != nullptr) return shell_word(arguments.text(name));
    if (name == "file") return "FILE";
    return name == "id" || name == "job_id" ? "ID" : "KEY";
  });
  if (form.act == act::kBudget) words += limit_options(arguments["limits"]);
  if (const Value* const schema = arguments.find("schema"); schema && form.act == act::kApprove)
    words += fmt::format(" --arguments {}", shell_word(form_template(*schema)));
  return fmt::format("aetheris {}", words);
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
  const Form* const form = find_form(action);
  if (form == nullptr) return {};
  const std::string words = words_of(*form, action[field::arguments]);
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

std::string request_line(const Value& action) {
  const Form* const form = find_form(action);
  if (form == nullptr) return {};
  const Value& arguments = action[field::arguments];
  return filled(form->request, [&](std::string_view name) -> std::string {
    const std::string_view value = arguments.text(name);
    return value.empty() ? "{id}" : target({std::string(value)}, {}).substr(1);
  });
}

std::string message_with_command(const Error& error) {
  if (!error.action) return error.message;
  const Value action = engine::action_json(*error.action);
  const Form* const form = find_form(action);
  if (form == nullptr) return error.message;
  return fmt::format("{}; `{}` {}", error.message, command_line(action), form->purpose);
}

Value problem_with_command(const Value& problem) {
  const Value* const action = problem.find("action");
  if (action == nullptr) return problem;
  const std::string command = command_line(*action);
  const Value shown = without(problem, "action");
  return command.empty() ? shown : shown.with("command", command);
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
