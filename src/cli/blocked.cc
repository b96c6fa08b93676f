// Explains why a job does not continue, with the commands that answer.
#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cli/code_end.h"
#include "cli/phrases.h"
#include "cli/shared.h"
#include "inspect/aliases.h"
#include "inspect/request_kind.h"
#include "json/json.h"
#include "log/field_names.h"
#include "log/park_until.h"
#include "net/system.h"
#include "plan/budget.h"
#include "store/rules.h"

namespace ae::cli {
namespace {

constexpr std::size_t kArgumentsShown = 2'000;  // columns

std::vector<std::string> commands_of(const Value& commands, const std::string& flag) {
  std::vector<std::string> out;
  if (!commands.is_array()) return out;
  for (const Value& command : commands.items()) {
    if (command.is_string()) out.push_back(safe(command.as_string()) + flag);
  }
  return out;
}

Value with_store_flag(const Value& object, const std::string& flag) {
  if (!object.is_object()) return object;
  Value out = object;
  if (const std::string_view command = object.text("command"); !command.empty()) {
    out = out.with("command", std::string(command) + flag);
  }
  if (object[field::commands].is_array()) {
    std::vector<Value> commands;
    for (const Value& command : object[field::commands].items()) {
      commands.push_back(command.is_string() ? Value(command.as_string() + flag) : command);
    }
    out = out.with(field::commands, Value::array(std::move(commands)));
  }
  return out;
}

}  // namespace

std::string unknown_outcome_text(const Value& doubt) {
  const std::string tool = safe(doubt.text("tool"));
  const std::string cause =
      cause_of(doubt.text(field::reason), doubt.text(engine::plain_name::kErrorMessage));
  // A compensation may have failed definitely: then its step is not undone.
  if (doubt["compensates"].is_string()) {
    const bool worded =
        !cause.empty() && doubt.text(field::reason).find(' ') != std::string_view::npos;
    return fmt::format("compensation by tool \"{}\" is not confirmed{}", tool,
                       worded ? fmt::format(": {}", safe(doubt.text(field::reason))) : cause);
  }
  return fmt::format("the outcome of the {} is unknown{}", call_of(doubt.text("tool")), cause);
}

std::string resources_text(const Value& resources) {
  std::string text;
  if (!resources.is_array()) return text;
  for (const Value& resource : resources.items()) {
    const char* const state = resource.text(field::verdict) == "unreachable"
                                  ? "which cannot be checked"
                              : resource.text("observed") == "absent" ? "which no longer exists"
                                                                      : "which has changed";
    text += fmt::format("{} {} {}, {}", text.empty() ? "" : ",",
                        safe(resource.text(field::resource_type)),
                        safe(resource.text(field::resource_id)), state);
  }
  return text;
}

std::string names_text(const Value& nodes) {
  constexpr std::size_t kColumns = 60;
  std::string text;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const std::string name = (i == 0 ? "" : ", ") + safe(nodes.items()[i].as_string());
    if (i > 0 && text.size() + name.size() > kColumns) return text + ", …";
    text += name;
  }
  return text;
}

namespace {

bool is_kind(const Value& request, engine::RequestKind kind) {
  return request.text(field::kind) == to_text(kind);
}

// What an operator can answer, unknown outcomes and confirmations first. The budget is among what
// the job is parked for.
std::vector<Value> answerable_requests(const Value& job) {
  constexpr std::string_view kFirst[] = {to_text(engine::RequestKind::unknown_outcome),
                                         to_text(engine::RequestKind::confirmation)};
  const auto rank = [&](const Value& entry) {
    return std::ranges::find(kFirst, entry.text(field::kind)) - std::begin(kFirst);
  };
  std::vector<Value> all;
  if (job["requests"].is_array()) {
    for (const Value& request : job["requests"].items()) {
      if (!is_kind(request, engine::RequestKind::budget)) all.push_back(request);
    }
  }
  // Signals and messages are no requests to operators, but end a wait.
  if (job[field::waits].is_array()) {
    for (const Value& wait : job[field::waits].items()) {
      if (!wait[field::approval_id].is_string()) all.push_back(wait);
    }
  }
  std::ranges::stable_sort(all, {}, rank);
  return all;
}

}  // namespace

std::vector<std::vector<std::string>> answer_commands(const Value& job,
                                                      const app::StoreUrl& store) {
  std::vector<std::vector<std::string>> all;
  for (const Value& request : answerable_requests(job)) {
    auto commands = commands_of(request[field::commands], store_flag(store));
    if (!commands.empty()) all.push_back(std::move(commands));
  }
  return all;
}

Value with_store(const Value& job, const app::StoreUrl& store) {
  const std::string flag = store_flag(store);
  if (flag.empty() || !job.is_object()) return job;
  Value out = job;
  for (const char* name : {"parked", "waiting", engine::plain_name::kNoWorker}) {
    if (job[name].is_object()) out = out.with(name, with_store_flag(job[name], flag));
  }
  for (const char* name : {field::in_doubt, field::waits, "confirmations", "requests"}) {
    if (!job[name].is_array()) continue;
    std::vector<Value> items;
    for (const Value& item : job[name].items()) {
      const Value shown = with_store_flag(item, flag);
      const Value& detail = item[field::detail];
      items.push_back(detail.is_object() ? shown.with(field::detail, with_store_flag(detail, flag))
                                         : shown);
    }
    out = out.with(name, Value::array(std::move(items)));
  }
  return engine::with_aliases(std::move(out));
}

std::string shortfall_text(const Value& budget) {
  std::string text;
  if (!budget[engine::plain_name::kShortfall].is_array()) return text;
  for (const Value& one : budget[engine::plain_name::kShortfall].items()) {
    const std::string limit = safe(one.text("limit"));
    const auto shown = [&](const Value& amount) {
      const auto n = static_cast<std::uint64_t>(amount.is_integer() ? amount.as_int() : 0);
      return limit == "cost" ? engine::cost_text(n) : std::to_string(n);
    };
    const std::string needed = shown(one[engine::plain_name::kRequested]);
    const std::string what =
        limit == "wall"
            ? fmt::format("the time limit of {} has passed", safe(budget["limits"].text("wall")))
        : one["most"].is_null() ? fmt::format("the next call needs {}", needed)
                                : fmt::format("{} of {} used, and the next call needs {}",
                                              shown(one["used"]), shown(one["most"]), needed);
    text += fmt::format("\n  {}: {}", limit, what);
  }
  return text;
}

std::size_t argument_columns(const Terminal& terminal, Stream stream) {
  const bool is_pipe = stream == Stream::err ? !terminal.err_is_terminal() : terminal.width() == 0;
  return is_pipe ? 0 : kArgumentsShown;
}

std::vector<std::string> call_lines(const Value& call, std::size_t columns) {
  std::vector<std::string> lines;
  if (!call[field::arguments].is_null()) {
    const std::string all = safe_json(canonical(call[field::arguments]));
    const std::string shown = columns == 0 ? all : cut(all, columns);
    lines.push_back(
        fmt::format("arguments: {}{}", shown, shown == all ? "" : " (cut: --json has them all)"));
  }
  if (const std::string_view message = call.text(engine::plain_name::kErrorMessage);
      !message.empty()) {
    const char* lead = "error: ";
    for (const std::string& line : message_lines(message)) {
      lines.push_back(lead + (columns == 0 ? line : cut(line, columns)));
      lead = "  ";
    }
  }
  if (call[field::external_key].is_string()) {
    lines.push_back(fmt::format("external key: {} (sent to the tool as the idempotency key)",
                                safe(call.text(field::external_key))));
  }
  return lines;
}

std::vector<std::string> unknown_outcome_lines(const Value& doubt, std::size_t columns) {
  std::vector<std::string> lines{
      fmt::format("node {}: {}", place_text(doubt), unknown_outcome_text(doubt))};
  for (const std::string& line : call_lines(doubt, columns)) lines.push_back("  " + line);
  const auto until = instant_from_text(doubt.text("resolvable_at"));
  if (until && *until > net::SystemClock().now()) {
    lines.push_back(fmt::format("  its request may still take effect until {}",
                                short_time_after(doubt.text("resolvable_at"))));
  }
  if (doubt["given_up"] == Value(true)) {
    lines.emplace_back("  given up: no longer waited for");
  }
  return lines;
}

std::string noted_text(const Value& doubt) {
  const Value& noted = doubt["noted"];
  if (!noted.is_object()) return "";
  const std::string by =
      noted[field::by].is_string() ? fmt::format(", by {}", safe(noted.text(field::by))) : "";
  const std::string note =
      noted[field::note].is_string() ? fmt::format(": {}", safe(noted.text(field::note))) : "";
  return fmt::format("noted: {}{} at {}{}", safe(noted.text(field::resolution)), by,
                     short_time(noted.text(field::at)), note);
}

std::vector<std::string> final_unknown_outcomes(const Value& job, const app::StoreUrl& store,
                                                std::size_t columns) {
  std::vector<std::string> all;
  const std::string_view status = job.text("status");
  const bool ended = store::has_ended(status);
  // For a blocked job, print_blocked lists them with its waits.
  if (store::is_blocked(status) || !job[field::in_doubt].is_array()) return all;
  for (const Value& doubt : job[field::in_doubt].items()) {
    const bool is_open = doubt[field::commands].is_array() && doubt[field::commands].size() > 0;
    if (!ended && !is_open && !(doubt["given_up"] == Value(true))) continue;
    for (std::string& line : unknown_outcome_lines(doubt, columns)) all.push_back(std::move(line));
    all.push_back(fmt::format("  call: {}", safe(doubt.text(field::idempotency_key))));
    if (const std::string noted = noted_text(doubt); !noted.empty()) {
      all.push_back("  " + noted);
    } else if (store.kind != app::StoreUrl::Kind::memory) {
      const char* lead = ended ? "  record with:  " : "  resolve with: ";
      for (const std::string& command : commands_of(doubt[field::commands], store_flag(store))) {
        all.push_back(lead + command);
        all.push_back(fmt::format("                ({})",
                                  answer_note(command, {.doubt = doubt, .ended = ended})));
        lead = "            or: ";
      }
    }
  }
  return all;
}

std::string wait_sentence(const Value& wait) {
  const std::string_view key = wait.text(field::correlation_key), tool = wait.text("tool");
  const std::string type = safe(wait.text(field::wait_type));
  std::string what;
  if (wait["question"].is_object() && !tool.empty()) {
    what = fmt::format(": the {} asks a question", call_of(tool));
  } else if (key.starts_with("resolve/")) {
    what = " waits for the outcome of its call (aetheris resolve)";
  } else if (key.starts_with("approval/")) {
    what = tool.empty() ? " waits for approval of its call"
                        : fmt::format(" waits for approval of the {}", call_of(tool));
  } else if (type == "message") {
    what = fmt::format(" waits for a message on the channel {}", safe(wait.text(field::channel)));
  } else if (type == "timer") {
    what = " waits for a timer";
  } else if (type == "job") {
    what = fmt::format(" waits for {}job {}", wait["cancelled"] == Value(true) ? "cancelled " : "",
                       safe(wait.text("job")));
  } else {
    what = fmt::format(" waits for a {} with the key {}", type == "human" ? "decision" : type,
                       safe(key));
  }
  std::string text = fmt::format("node {}{}", place_text(wait), what);
  if (wait[field::due_at].is_string()) {
    text += fmt::format(", due {}", short_time(wait.text(field::due_at)));
  }
  const std::string expires = short_time(wait.text(field::expires_at));
  if (wait["expired"] == Value(true)) {
    return fmt::format("{}: expired at {}; it continues without an answer when a process runs it",
                       text, expires);
  }
  if (wait[field::expires_at].is_string()) text += fmt::format(", until {}", expires);
  return text;
}

namespace {

// A wait for an operator, a signal or a timer.
std::string wait_text(const Value& wait, std::size_t columns) {
  std::string text = "\n  " + wait_sentence(wait);
  if (wait["expired"] == Value(true)) return text;
  if (wait["question"].is_object()) {
    text +=
        fmt::format("\n    question: {}", message_text(wait["question"].text("message"), "      "));
    if (const Value* data = wait["question"].find("data"); data != nullptr && !data->is_null())
      text += fmt::format("\n    data: {}", message_text(canonical(*data), "      "));
  }
  if (wait[field::reason].is_string()) {
    text += fmt::format("\n    reason: {}", message_text(wait.text(field::reason), "      "));
  }
  for (const std::string& line : call_lines(wait, columns)) text += "\n    " + line;
  return text;
}

// Calls that may still take effect; their probes run later, or the job continues.
std::string settling_text(const Value& job) {
  std::string text;
  if (!job["settling"].is_array()) return text;
  for (const Value& call : job["settling"].items()) {
    const bool continues = call["probes"] == Value(false);
    text +=
        fmt::format("\n  node {}: the {} may still take effect until {}; then {}", place_text(call),
                    call_of(call.text("tool")), short_time_after(call.text(field::until)),
                    continues ? "the job continues" : "its probe runs");
  }
  return text;
}

// Everything that the job waits for.
std::string waits_text(const Value& job, std::size_t columns) {
  std::string text;
  if (job[field::in_doubt].is_array()) {
    for (const Value& doubt : job[field::in_doubt].items()) {
      for (const std::string& line : unknown_outcome_lines(doubt, columns)) text += "\n  " + line;
    }
  }
  for (const Value& request : answerable_requests(job)) {
    if (!is_kind(request, engine::RequestKind::confirmation)) continue;
    text += fmt::format("\n  node {} has changed{}", place_text(request[field::detail]),
                        resources_text(request[field::detail]["resources"]));
  }
  if (job[field::waits].is_array()) {
    for (const Value& wait : job[field::waits].items()) {
      if (!wait.text(field::correlation_key).starts_with("resolve/"))
        text += wait_text(wait, columns);
    }
  }
  return text;
}

// Writes lines to one of the two streams.
struct Writer {
  Terminal& terminal;
  Stream stream;

  void line(const std::string& text) const {
    if (stream == Stream::err) return terminal.note(text);
    terminal.print(text + "\n");
  }
  const Paint& paint() const { return stream == Stream::err ? terminal.err() : terminal.out(); }
  void commands(const std::vector<std::string>& all, const AnswerTo& to = {}) const {
    for (std::size_t i = 0; i < all.size(); ++i) {
      line(fmt::format("{} {}", i == 0 ? "answer:" : "    or:", paint()(Tint::bold, all[i])));
      if (const std::string note = answer_note(all[i], to); !note.empty()) {
        line(fmt::format("        {}", paint()(Tint::dim, fmt::format("({})", note))));
      }
    }
  }
};

bool has_open_approvals(const std::vector<Value>& requests) {
  using engine::RequestKind;
  return std::ranges::any_of(requests, [](const Value& request) {
    return is_kind(request, RequestKind::call) || is_kind(request, RequestKind::question) ||
           is_kind(request, RequestKind::wait);
  });
}

}  // namespace

namespace {

// "a" → "a-retry-1", "a-retry-1" → "a-retry-2". A job id has at most 64 characters.
std::string retry_id(std::string_view id) {
  constexpr std::string_view kMark = "-retry-";
  unsigned number = 0;
  if (const auto mark = id.rfind(kMark); mark != std::string_view::npos) {
    const std::string_view digits = id.substr(mark + kMark.size());
    const auto [end, fault] = std::from_chars(digits.begin(), digits.end(), number);
    if (fault == std::errc() && end == digits.end() && number < 1'000'000) {
      id = id.substr(0, mark);
    } else {
      number = 0;
    }
  }
  const std::string suffix = fmt::format("{}{}", kMark, number + 1);
  return fmt::format("{}{}", id.substr(0, 64 - suffix.size()), suffix);
}

}  // namespace

std::string retry_command_text(std::string_view id, std::string_view file,
                               const std::string& store_flag, std::string_view next) {
  const std::string plan = file.empty() ? "" : fmt::format(" {}", quoted(std::string(file)));
  return fmt::format("aetheris retry {}{} --job-id {}{}", quoted(std::string(id)), plan,
                     quoted(next.empty() ? retry_id(id) : std::string(next)), store_flag);
}

RetryChain find_retries(const app::StoreUrl& store, std::string_view id) {
  constexpr int kLookedFor = 1'000;
  RetryChain found;
  if (store.kind == app::StoreUrl::Kind::memory && !uses_server()) return found;
  const auto client = app::ApiClient::open(store, app::OpenMode::read);
  if (!client) return found;
  std::string next = retry_id(id);
  for (int i = 0; i < kLookedFor; ++i) {
    api::ApiRequest request;
    request.path = {"api", "jobs", next};
    const auto job = (*client)->send(request);
    if (!job || job->status != 200) break;
    const std::string_view origin = job->body[field::forked_from].text("job_id");
    if (origin == id || (!found.last.empty() && origin == found.last)) {
      found.last = next;
      found.status = job->body.text("status");
    }
    next = retry_id(next);
  }
  found.next = std::move(next);
  return found;
}

std::string retried_text(const RetryChain& retry_chain) {
  if (retry_chain.last.empty()) return "";
  return fmt::format("Retried as job {} ({}).", safe(retry_chain.last), safe(retry_chain.status));
}

void print_retry(std::string_view id, std::string_view file, const app::StoreUrl& store,
                 Terminal& terminal) {
  const RetryChain known = find_retries(store, id);
  if (!known.last.empty()) terminal.note(retried_text(known));
  if (!known.may_retry()) return;
  const std::string command = retry_command_text(known.of(id), file, store_flag(store), known.next);
  terminal.note(
      fmt::format("To retry with the file's plan: {}", terminal.err()(Tint::bold, command)));
}

namespace {

// Can the failed job be retried without a change of its plan?
bool keeps_plan(std::string_view code) {
  constexpr std::string_view kReasons[] = {"connect",        "tls",      "timeout",  "reset",
                                           "http_401",       "http_403", "http_404", "http_408",
                                           "secret_missing", "rejected"};
  return std::ranges::count(kReasons, code) > 0 || code.starts_with("http_3") ||
         code.starts_with("http_5");
}

bool is_plain(std::string_view name) {
  return !name.empty() && std::ranges::all_of(name, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-';
  });
}

// The arguments that give a new job another input. `names`: the members that the failed expression
// reads; `reads`: its text.
std::string input_words(const Value& input, const Value& names, std::string_view reads) {
  constexpr std::size_t kWordsMax = 4;
  constexpr const char* kWhole = " --input JSON";
  constexpr std::string_view kOtherTypes[] = {"a number", "an integer", "a boolean",
                                              "an array", "an object",  "true or false"};
  // NAME=VALUE gives a string; NAME:=JSON any type.
  const bool is_no_string = std::ranges::any_of(kOtherTypes, [&](std::string_view type) {
    return reads.contains(fmt::format("must be {}", type));
  });
  std::vector<std::string> members;
  for (const Value& name : names.items()) {
    members.emplace_back(name.as_string());
    for (const char* below : {".", "["}) {  // a string has no members
      if (reads.contains(fmt::format(".input.{}{}", name.as_string(), below))) return kWhole;
    }
  }
  if (!input.is_object()) return kWhole;
  for (const auto& [name, value] : input.members()) {
    if (!value.is_string()) return kWhole;
    if (std::ranges::find(members, name) == members.end()) members.push_back(name);
  }
  if (members.empty() || members.size() > kWordsMax || !std::ranges::all_of(members, is_plain)) {
    return kWhole;
  }
  std::string words;
  for (const std::string& name : members) {
    const bool is_read = std::ranges::any_of(
        names.items(), [&](const Value& read) { return read.as_string() == name; });
    words += is_no_string && is_read ? fmt::format(" {}:=JSON", name)
             : name == "message"     ? " --message TEXT"
                                     : fmt::format(" {}=VALUE", name);
  }
  return words;
}

}  // namespace

namespace {

// The nodes with a call whose outcome is unknown.
std::vector<std::string> unknown_nodes(const Value& job) {
  std::vector<std::string> nodes;
  if (!job[field::in_doubt].is_array()) return nodes;
  for (const Value& doubt : job[field::in_doubt].items()) {
    const std::string_view node = doubt.text(field::node_id);
    if (doubt["noted"].is_object() || node.empty()) continue;
    if (std::ranges::find(nodes, node) == nodes.end()) nodes.emplace_back(node);
  }
  return nodes;
}

// The nodes whose calls are repeated only with --repeat: their outcome is unknown, or their result
// was refused.
std::vector<std::string> repeated_nodes(const Value& job) {
  std::vector<std::string> nodes = unknown_nodes(job);
  const Value& error = job[field::error];
  const std::string node(error.text(field::node_id));
  if (error.text(field::code) != "tool_output_invalid" || !error["committed"].is_array())
    return nodes;
  const bool took_effect = std::ranges::count(error["committed"].items(), Value(node)) > 0;
  if (took_effect && std::ranges::find(nodes, node) == nodes.end()) nodes.push_back(node);
  return nodes;
}

}  // namespace

namespace {

// For a tool whose service limits the rate of requests.
std::optional<NextCommand> retry_policy(const Value& error) {
  const std::string tool = safe(error.text("tool"));
  if (error.text(field::code) != "http_429" || tool.empty()) return std::nullopt;
  const Value& counted = error["tries"];
  const std::int64_t tries = counted.is_integer() ? counted.as_int() : 0;
  const std::string policy =
      tries > 1
          ? fmt::format(
                "It was tried {} times. To try it more often, raise in the file for tool {}: ",
                tries, tool)
          : fmt::format("To retry it within the job, declare in the file for tool {}: ", tool);
  return NextCommand(
      {"policy", policy,
       tries > 1 ? "retry.max_attempts" : "retry: { max_attempts: 4, retry_on: [429] }", true});
}

}  // namespace

std::vector<NextCommand> next_commands(const Value& job, const FailedJobFile& file) {
  const Value& error = job[field::error];
  const std::string_view code = error.text(field::code);
  const std::string path = file.path.empty() ? "FILE" : file.path;
  const bool of_input = error["reads_input"].is_array();
  std::vector<NextCommand> next;
  if (!file.retry_chain.last.empty()) {
    next.push_back({"retried", retried_text(file.retry_chain), "", true});
    if (!file.retry_chain.may_retry()) return next;
  }
  if (job["code_agent"].is_object()) {
    next.push_back(new_code_job(job, path, file.store_flag));
    return next;
  }
  const std::vector<std::string> repeated = repeated_nodes(job);
  const bool has_unknown = !unknown_nodes(job).empty();
  const std::string_view refused = error.text(field::idempotency_key);
  if (!refused.empty()) {
    next.push_back(
        {"record",
         fmt::format(
             "Node {} took effect and its result was refused. To keep the call, first run: ",
             safe(error.text(field::node_id))),
         fmt::format("aetheris resolve {} {} happened RESULT{}",
                     quoted(std::string(job.text("id"))), safe(refused.substr(0, 12)),
                     file.store_flag),
         true});
  }
  const char* const lead = code == "rejected" ? "To request approval again, run: "
                           : !refused.empty() ? "Then correct the file, and run: "
                           : has_unknown      ? "After resolving the unknown outcome, run: "
                           : of_input         ? "After correcting the file, run: "
                                              : "After fixing the cause, run: ";
  const bool without = file.path.empty() && keeps_plan(code);
  const std::string retry =
      retry_command_text(file.retry_chain.of(job.text("id")), without ? "" : path, file.store_flag,
                         file.retry_chain.next);
  next.push_back({"retry", lead, retry, !repeated.empty()});
  if (error["reads_kept"].is_array()) {
    for (const Value& node : error["reads_kept"].items()) {
      const std::string name = safe(node.as_string());
      next.push_back({"kept",
                      fmt::format("To run node {} again, whose result was kept, add: ", name),
                      fmt::format("--drop {}", quoted(name)), true});
    }
  }
  if (!repeated.empty()) {
    std::string command = retry;
    for (const std::string& node : repeated) command += fmt::format(" --repeat {}", quoted(node));
    const char* const effect = code == "tool_output_invalid" ? "took" : "may have taken";
    next.push_back(
        {"repeat",
         fmt::format("To make the call of node {} again, which {} effect, run: ",
                     names_text(Value::array({repeated.begin(), repeated.end()})), effect),
         std::move(command), true});
  }
  if (auto policy = retry_policy(error)) next.push_back(*std::move(policy));
  if (!of_input) return next;
  const std::string agent =
      file.has_one_agent ? "" : fmt::format(" {}", quoted(std::string(job.text(field::agent))));
  const std::string again = names_text(error["committed"]);
  const std::string where = fmt::format("{} {}", error.text("expression"), error.text("summary"));
  next.push_back(
      {"new job",
       again.empty() ? "With another input, run: "
                     : fmt::format("With another input, which repeats {}, run: ", again),
       fmt::format("aetheris run {}{}{}{}", quoted(path), agent,
                   input_words(job[field::input], error["reads_input"], where), file.store_flag),
       !again.empty()});
  return next;
}

std::string failure_text(const Value& error) {
  const std::string_view summary = error.text("summary");
  const std::string what = message_text(summary.empty() ? error.text("message") : summary);
  return fmt::format("{} {} [{}]", error[field::node_id].is_string() ? " at" : ":", what,
                     safe(error.text(field::code)));
}

void print_blocked(const Value& job, const app::StoreUrl& store, Terminal& terminal,
                   Stream stream) {
  const Writer to{terminal, stream};
  const std::string id = safe(job.text("id")), flag = store_flag(store);
  const std::string status(job.text("status"));
  if (job[engine::plain_name::kNoWorker].is_object()) {
    to.line(fmt::format("no worker runs job {}: {}", id,
                        safe(job[engine::plain_name::kNoWorker].text("message"))));
    to.commands(commands_of(job[engine::plain_name::kNoWorker][field::commands], flag));
  }
  if (const std::string settling = settling_text(job); !settling.empty()) {
    to.line(fmt::format("job {} has calls with an unknown outcome{}", id, settling));
  }
  if (job["needs_version"].is_string() && status == "running") {
    to.line(fmt::format("job {} waits: {}", id, safe(job.text("needs_version"))));
  }
  if (!store::is_blocked(status)) return;
  to.line(fmt::format("job {} is {}{}", id, to.paint()(status_tint(status), status),
                      waits_text(job, argument_columns(terminal, stream))));
  if (job["parked"].is_object()) {
    to.line(fmt::format("parked: {}{}", parked_text(job["parked"], job[field::in_doubt]),
                        shortfall_text(job[field::budget])));
    for (const std::string& line : code_end_lines(job, flag)) to.line(line);
    if (job["parked"].text(field::until) == park_until::kVersion &&
        !is_parked_by_code(job["parked"])) {
      to.line(fmt::format(
          "start a process with `versions: {{ execution: {0} }}` for agent {1}, or: `aetheris plan "
          "{2} FILE{3}` (new plan), `aetheris cancel {2}{3}`",
          safe(job.text(field::execution_version)), safe(job.text(field::agent)), id, flag));
    }
  }
  if (store.kind == app::StoreUrl::Kind::memory) {
    to.line(
        "the memory store ends with this process, so the job cannot be answered; use --store "
        "sqlite:PATH");
    return;
  }
  const std::vector<Value> requests = answerable_requests(job);
  if (has_open_approvals(requests)) {
    to.line(fmt::format("see:    {}",
                        to.paint()(Tint::bold, fmt::format("aetheris approvals{}", flag))));
  }
  const std::string_view until = job["parked"].text(field::until);
  const auto is_confirmation = [](const Value& request) {
    return is_kind(request, engine::RequestKind::confirmation);
  };
  const bool has_confirmations = std::ranges::any_of(requests, is_confirmation);
  const bool own_command = until == park_until::kBudget || until == park_until::kVersion;
  if (((until == park_until::kResume && !has_confirmations) || own_command) &&
      job["parked"]["command"].is_string()) {
    if (job["exception"].text("name") == code_name(Code::tool_not_granted)) {
      return to.commands({fmt::format("aetheris cancel {}{}", quoted(id), flag)});
    }
    if (is_parked_by_code(job["parked"])) to.line("after correcting the code, run:");
    return to.commands({safe(job["parked"].text("command")) + flag});
  }
  for (const Value& request : requests) {
    to.commands(commands_of(request[field::commands], flag),
                {.doubt = request[field::detail], .confirms = is_confirmation(request)});
  }
}

}  // namespace ae::cli
