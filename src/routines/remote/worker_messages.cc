#include "routines/remote/worker_messages.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/utf8.h"
#include "json/json.h"
#include "log/field_names.h"
#include "log/seal.h"
#include "tools/output.h"

namespace ae::routines {
namespace {

constexpr std::size_t kDepthMax = kJsonDepthMax - 10;  // events have some levels of their own
constexpr std::size_t kTextMax = 4'096;                // bytes of a message or a stack
constexpr std::size_t kNameMax = 256;
constexpr std::size_t kCodeMax = 128;
constexpr std::size_t kWhereMax = 4'096;
constexpr std::uint64_t kMillisecondsMax = 36'500ULL * 24 * 3'600 * 1'000;

std::unexpected<Error> wrong(std::string_view name, std::string_view expected) {
  return fail(Code::input_invalid, "`{}` is not {}", name, expected);
}

// Shown to people: bounded, without control characters.
std::string shown(std::string_view text) {
  return tools::printable(truncate_utf8(text, kTextMax), tools::LineBreaks::keep);
}

Result<std::string> read_text(const Value& message, std::string_view name, std::size_t bytes_max) {
  const Value& value = message[name];
  if (!value.is_string()) return wrong(name, "a text");
  if (value.as_string().size() > bytes_max) {
    return fail(Code::payload_too_large, "`{}` has more than {} bytes", name, bytes_max);
  }
  return value.as_string();
}

// "" if it is absent.
Result<std::string> read_optional_text(const Value& message, std::string_view name,
                                       std::size_t bytes_max) {
  if (message.find(name) == nullptr) return std::string();
  return read_text(message, name, bytes_max);
}

Result<bool> read_flag(const Value& message, std::string_view name, bool otherwise) {
  const Value* const value = message.find(name);
  if (value == nullptr) return otherwise;
  if (!value->is_bool()) return wrong(name, "true or false");
  return value->as_bool();
}

// Without one: no items.
Result<std::span<const Value>> read_items(const Value& message, std::string_view name) {
  const Value* const value = message.find(name);
  if (value == nullptr) return std::span<const Value>();
  if (!value->is_array()) return wrong(name, "an array");
  return value->items();
}

Result<std::optional<Duration>> read_duration(const Value& message, std::string_view name) {
  if (message.find(name) == nullptr) return std::optional<Duration>();
  AE_ASSIGN(const std::uint64_t ms, read_number(message, name));
  if (ms > kMillisecondsMax) return wrong(name, "at most 36500 days");
  return std::optional<Duration>(std::chrono::milliseconds(ms));
}

Result<std::string> read_position(const Value& message, std::string_view name) {
  AE_ASSIGN(std::string position, read_text(message, name, engine::kPositionMax));
  if (!engine::is_position(position)) return wrong(name, "a position");
  return position;
}

Status check_value(const Value& value, std::string_view name, std::size_t bytes_max) {
  if (value.extent().depth > kDepthMax) return wrong(name, "a value of so few levels");
  if (canonical_exceeds(value, bytes_max)) {
    return fail(Code::payload_too_large, "`{}` has more than {} KiB", name, bytes_max >> 10);
  }
  return {};
}

Result<Value> read_value(const Value& message, std::string_view name) {
  const Value* const value = message.find(name);
  if (value == nullptr) return wrong(name, "there");
  AE_TRY(check_value(*value, name, kValueMax));
  return *value;
}

Result<std::uint32_t> read_try(const Value& message) {
  AE_ASSIGN(const std::uint64_t number, read_number(message, field::try_));
  if (number == 0 || number > std::numeric_limits<std::uint32_t>::max()) {
    return wrong(field::try_, "a number of a try");
  }
  return static_cast<std::uint32_t>(number);
}

// ---------------------------------------------------------------- parts of an advance

Result<engine::NewWait> read_wait(const Value& wait) {
  if (!wait.is_object()) return wrong("wait", "an object");
  engine::NewWait made;
  constexpr engine::WaitType kTypes[] = {engine::WaitType::timer, engine::WaitType::signal,
                                         engine::WaitType::webhook, engine::WaitType::human,
                                         engine::WaitType::message};
  const auto type = std::ranges::find_if(kTypes, [&](engine::WaitType one) {
    return wait["type"].is_string() && engine::to_text(one) == wait["type"].as_string();
  });
  if (type == std::end(kTypes)) return wrong("type", "a type of a wait");
  made.type = *type;
  AE_ASSIGN(made.key, read_optional_text(wait, "key", kNameMax));
  AE_ASSIGN(made.channel, read_optional_text(wait, field::channel, kNameMax));
  AE_ASSIGN(made.lasts, read_duration(wait, "lasts_ms"));
  AE_ASSIGN(made.expires, read_duration(wait, "expires_ms"));
  AE_ASSIGN(made.accepts_data, read_flag(wait, "accepts_data", false));
  // The engine checks their sizes.
  AE_ASSIGN(made.question, read_optional_text(wait, "question", kValueMax));
  if (const Value* data = wait.find("data")) {
    AE_TRY(check_value(*data, "data", kValueMax));
    made.data = *data;
  }
  if (wait.find(field::due_at) != nullptr) {
    AE_ASSIGN(const std::string due, read_text(wait, field::due_at, kNameMax));
    AE_ASSIGN(made.due_at, instant_from_text(due));
  }
  const bool is_timer = made.type == engine::WaitType::timer;
  if (is_timer != (made.lasts.has_value() != made.due_at.has_value()) ||
      (!is_timer && (made.lasts || made.due_at))) {
    return wrong("wait", "a timer with one of `lasts_ms` and `due_at`, or another wait without");
  }
  if (made.type == engine::WaitType::message && made.channel.empty()) {
    return wrong(field::channel, "the channel of a message");
  }
  return made;
}

Result<engine::NewRequest> read_request(const Value& request, const engine::Plan& plan,
                                        const engine::CodeSpec& code) {
  if (!request.is_object()) return wrong("requests", "an array of objects");
  engine::NewRequest made;
  AE_ASSIGN(made.position, read_position(request, field::position));
  AE_ASSIGN(made.delivered, read_number(request, field::delivered));
  const std::string_view kind = request.text(field::kind);
  if (kind == "wait") {
    made.kind = engine::NodeKind::wait;
    AE_ASSIGN(made.wait, read_wait(request["wait"]));
    return made;
  }
  if (kind != "tool" && kind != "llm") return wrong(field::kind, "tool, llm or wait");
  made.kind = kind == "llm" ? engine::NodeKind::llm : engine::NodeKind::tool;
  AE_ASSIGN(made.options, engine::call_options_of(request[field::options]));
  AE_ASSIGN(const std::string tool, read_text(request, "tool", kNameMax));
  const auto found = std::ranges::find_if(code.tools, [&](std::uint32_t index) {
    return plan.tools[index].name == tool && plan.tools[index].is_model() == (kind == "llm");
  });
  if (found == code.tools.end()) {
    return fail(Code::tool_not_granted,
                "the plan of this job does not grant the tool \"{}\", and does not change: add the "
                "tool to `uses` of the agent, cancel the job, and create another",
                shown(tool));
  }
  made.tool = *found;
  AE_ASSIGN(made.arguments, read_value(request, field::arguments));
  if (!made.arguments.is_object()) return wrong(field::arguments, "an object");
  return made;
}

Result<engine::Advance::Item> read_item(const Value& item) {
  const std::string_view kind = item.text(field::kind);
  if (kind == field::value) {
    engine::Advance::NewValue value;
    AE_ASSIGN(value.name, read_text(item, "name", engine::kPositionMax + kNameMax));
    AE_ASSIGN(value.value, read_value(item, field::value));
    if (!engine::is_code_value(value.name, value.value)) return wrong(field::value, "of this name");
    return value;
  }
  if (kind == "scope_begun") {
    engine::Advance::ScopeBegun begun;
    AE_ASSIGN(begun.position, read_position(item, field::position));
    AE_ASSIGN(begun.delivered, read_number(item, field::delivered));
    AE_ASSIGN(begun.is_turn, read_flag(item, "turn", false));
    return begun;
  }
  if (kind == "scope_ended") {
    engine::Advance::ScopeEnded ended;
    AE_ASSIGN(ended.position, read_position(item, field::position));
    AE_ASSIGN(ended.delivered, read_number(item, field::delivered));
    if ((item.find(field::result) != nullptr) == (item.find("failure") != nullptr)) {
      return wrong("items", "a scope that ended with one of `result` and `failure`");
    }
    if (item.find(field::result) != nullptr) {
      AE_ASSIGN(ended.result, read_value(item, field::result));
    } else {
      AE_ASSIGN(ended.failure, read_failure(item["failure"]));
    }
    return ended;
  }
  if (kind == "emitted") {
    engine::Advance::Emitted emitted;
    AE_ASSIGN(emitted.name, read_text(item, "name", kNameMax));
    AE_ASSIGN(emitted.scope, read_optional_text(item, field::scope, engine::kPositionMax));
    AE_ASSIGN(emitted.is_published, read_flag(item, field::published, false));
    AE_ASSIGN(emitted.value, read_value(item, field::value));
    AE_TRY(check_value(emitted.value, field::value, engine::kEmittedMax));
    return emitted;
  }
  return wrong("items", "an array of value, scope_begun, scope_ended and emitted");
}

Result<engine::RoutineEnd> read_routine_end(const Value& end) {
  engine::RoutineEnd made;
  const int ways = (end.find(field::result) != nullptr) + (end.find("failure") != nullptr) +
                   (end.find("exception") != nullptr);
  if (ways != 1) return wrong("end", "one of `result`, `failure` and `exception`");
  if (end.find(field::result) != nullptr) {
    AE_ASSIGN(made.result, read_value(end, field::result));
  } else if (end.find("failure") != nullptr) {
    AE_ASSIGN(made.failure, read_failure(end["failure"]));
  } else {
    const Value& exception = end["exception"];
    AE_ASSIGN(const std::string name, read_text(exception, "name", kFrameMax));
    AE_ASSIGN(const std::string message, read_text(exception, "message", kFrameMax));
    AE_ASSIGN(const std::string stack, read_optional_text(exception, "stack", kFrameMax));
    std::vector<Member> members{{"message", shown(message)}, {"name", shown(name)}};
    if (!stack.empty()) members.emplace_back("stack", shown(stack));
    made.exception = Value::object(std::move(members));
  }
  return made;
}

}  // namespace

Result<std::uint64_t> read_number(const Value& message, std::string_view name) {
  const Value& value = message[name];
  if (!value.is_integer() || value.as_int() < 0) return wrong(name, "a number from 0");
  return static_cast<std::uint64_t>(value.as_int());
}

Result<WorkerFrame> read_frame(std::string_view text) {
  AE_ASSIGN(const Value frame,
            parse_json(text, {.bytes_max = kFrameMax, .depth_max = kJsonDepthMax}));
  WorkerFrame made;
  AE_ASSIGN(made.number, read_number(frame, "frame"));
  AE_ASSIGN(made.ack, read_number(frame, "ack"));
  made.messages = frame["messages"];
  if (!made.messages.is_array()) return wrong("messages", "an array");
  return made;
}

Result<CallName> read_call_name(const Value& message) {
  CallName name;
  AE_ASSIGN(const std::string job, read_text(message, "job", kNameMax));
  AE_ASSIGN(const std::string invocation, read_text(message, "invocation", kNameMax));
  AE_ASSIGN(name.try_no, read_try(message));
  name.job = JobId(job);
  name.invocation = InvocationId(invocation);
  return name;
}

Result<Hello> read_hello(const Value& message) {
  AE_ASSIGN(const std::uint64_t protocol, read_number(message, "protocol"));
  if (protocol != 1) return fail(Code::unsupported, "this server speaks protocol 1");
  Hello hello;
  AE_ASSIGN(hello.sdk, read_text(message, "sdk", kNameMax));
  AE_ASSIGN(hello.worker, read_text(message, "worker", kNameMax));
  AE_ASSIGN(const auto agents, read_items(message, "agents"));
  AE_ASSIGN(const auto tools, read_items(message, "tools"));
  if (agents.size() > kAgentsMax || tools.size() > kToolsMax) {
    return fail(Code::payload_too_large, "a worker has at most {} agents and {} tools", kAgentsMax,
                kToolsMax);
  }
  for (const Value& one : agents) {
    WorkerAgent agent{.name = {}, .version = {}, .definition = one};
    AE_ASSIGN(agent.name, read_text(one, "name", kNameMax));
    AE_ASSIGN(agent.version, read_optional_text(one, field::version, kNameMax));
    hello.agents.push_back(std::move(agent));
  }
  for (const Value& one : tools) {
    WorkerTool tool{.name = {}, .definition = one};
    AE_ASSIGN(tool.name, read_text(one, "name", kNameMax));
    if (tool.name.empty() || tool.name.find(':') != tool.name.npos) {
      return wrong("name", "the name of a tool");
    }
    hello.tools.push_back(std::move(tool));
  }
  AE_ASSIGN(hello.routines_max, read_number(message["capacity"], "routines"));
  AE_ASSIGN(hello.calls_max, read_number(message["capacity"], "calls"));
  if (const Value* const resume = message.find("resume")) {
    AE_ASSIGN(hello.resume, read_text(*resume, "session", kNameMax));
    AE_ASSIGN(hello.resume_ack, read_number(*resume, "ack"));
  }
  if (message.find("left") != nullptr) {
    AE_ASSIGN(const auto left, read_items(message, "left"));
    if (left.size() > kLeftMax) return wrong("left", "an array of so few calls");
    hello.left.emplace();
    AE_ASSIGN(hello.left->covers, read_duration(message, "left_for_ms"));
    for (const Value& one : left) {
      AE_ASSIGN(CallName name, read_call_name(one));
      hello.left->received.push_back(std::move(name));
    }
  }
  if (message.find("connection") != nullptr) {
    AE_ASSIGN(hello.connection, read_number(message, "connection"));
  }
  return hello;
}

namespace {

// The tokens that a function used which called a model itself, as a token_usage. null: none.
Result<Value> read_usage(const Value& message) {
  const Value* const usage = message.find(field::usage);
  if (usage == nullptr) return Value();
  if (!usage->is_object()) return wrong(field::usage, "an object");
  std::vector<Member> members;
  for (const char* name :
       {"cached_tokens", "input_tokens", "output_tokens", "reasoning_tokens", "total_tokens"}) {
    if (usage->find(name) == nullptr) continue;
    AE_ASSIGN(const std::uint64_t count, read_number(*usage, name));
    members.emplace_back(name, count);
  }
  AE_ASSIGN(const std::string model, read_optional_text(*usage, "model", kNameMax));
  if (!model.empty()) members.emplace_back("model", model);
  AE_ASSIGN(const bool is_incomplete, read_flag(*usage, "incomplete", false));
  const Value &input = (*usage)["input_tokens"], &output = (*usage)["output_tokens"];
  if (is_incomplete || input.is_null() || output.is_null()) {
    members.emplace_back("incomplete", true);
  }
  return Value::object(std::move(members));
}

}  // namespace

Result<std::vector<FunctionSuccess>> read_functions(const Value& message) {
  AE_ASSIGN(const auto items, read_items(message, "functions"));
  if (items.size() > engine::kOpenRequestsMax)
    return wrong("functions", "an array of so few calls");
  std::vector<FunctionSuccess> functions;
  for (const Value& item : items) {
    FunctionSuccess success;
    success.outcome.kind = OutcomeKind::success;
    AE_ASSIGN(success.call, read_number(item, "call"));
    AE_ASSIGN(success.outcome.delivered, read_number(item, field::delivered));
    AE_ASSIGN(success.outcome.result, read_value(item, field::result));
    AE_ASSIGN(success.outcome.usage, read_usage(item));
    functions.push_back(std::move(success));
  }
  return functions;
}

Result<WorkerAdvance> read_advance(const Value& message, const engine::Plan& plan,
                                   std::uint32_t node) {
  WorkerAdvance made;
  AE_ASSIGN(made.functions, read_functions(message));
  AE_ASSIGN(made.advance.delivered, read_number(message, field::delivered));
  AE_ASSIGN(made.advance.has_settled, read_flag(message, field::settled, true));
  AE_ASSIGN(const auto items, read_items(message, "items"));
  if (items.size() > kItemsMax) {
    return fail(Code::input_invalid, "an advance has more than {} items", kItemsMax);
  }
  for (const Value& one : items) {
    AE_ASSIGN(engine::Advance::Item item, read_item(one));
    made.advance.recorded.items.push_back(std::move(item));
  }
  AE_ASSIGN(const auto requests, read_items(message, "requests"));
  if (requests.size() > engine::kOpenRequestsMax) {
    return fail(Code::input_invalid, "an advance has more than {} requests",
                engine::kOpenRequestsMax);
  }
  for (const Value& one : requests) {
    AE_ASSIGN(engine::NewRequest request, read_request(one, plan, *plan.nodes[node].code));
    made.advance.requests.push_back(std::move(request));
  }
  AE_ASSIGN(const auto cancelled, read_items(message, "cancelled"));
  if (cancelled.size() > engine::kOpenRequestsMax) {
    return wrong("cancelled", "an array of so few positions");
  }
  for (const Value& one : cancelled) {
    if (!one.is_string() || !engine::is_position(one.as_string())) {
      return wrong("cancelled", "an array of positions");
    }
    made.advance.cancelled.push_back(one.as_string());
  }
  if (message.find("end") != nullptr) {
    AE_ASSIGN(made.advance.end, read_routine_end(message["end"]));
  }
  return made;
}

Result<Divergence> read_diverged(const Value& message) {
  Divergence found;
  AE_ASSIGN(const std::string finding, read_text(message, "finding", kCodeMax));
  const std::string_view known[] = {field::arguments, "missing", "ended"};
  if (std::ranges::find(known, finding) == std::end(known)) {
    return wrong("finding", "arguments, missing or ended");
  }
  found.finding = finding;
  AE_ASSIGN(const std::uint64_t delivered, read_number(message, field::delivered));
  found.delivered = static_cast<std::int64_t>(delivered);
  AE_ASSIGN(found.position, read_position(message, field::position));
  if (const Value* const what = message.find("found"); what != nullptr && !what->is_null()) {
    AE_TRY(check_value(*what, "found", 16u << 10));
    found.found = *what;
  }
  if (const Value* const where = message.find("where"); where != nullptr && !where->is_null()) {
    AE_ASSIGN(const std::string text, read_text(message, "where", kWhereMax));
    const Value what = found.found.is_object() ? found.found : Value::object({});
    found.found = what.with("where", tools::printable(text, tools::LineBreaks::escape));
  }
  return found;
}

Result<engine::Failure> read_failure(const Value& message) {
  AE_ASSIGN(std::string code, read_text(message, field::code, kCodeMax));
  AE_ASSIGN(const std::string text, read_text(message, "message", kFrameMax));
  if (code.empty()) return wrong(field::code, "a code");
  return engine::Failure{tools::printable(code, tools::LineBreaks::escape), shown(text)};
}

Result<Outcome> read_end(const Value& message) {
  const int ways = (message.find(field::result) != nullptr) + (message.find("failure") != nullptr) +
                   (message.find(field::unknown) != nullptr);
  if (ways != 1) return fail(Code::input_invalid, "a call ends with one of three ways");
  Outcome outcome;
  if (const Value* const result = message.find(field::result)) {
    outcome.kind = OutcomeKind::success;
    AE_ASSIGN(outcome.usage, read_usage(message));
    if (check_value(*result, field::result, kValueMax)) {
      outcome.result = *result;
    } else {  // it has happened
      const std::string text =
          result->extent().depth > kDepthMax ? std::string() : canonical(*result);
      outcome.invalid = tools::invalid_output("the result cannot be recorded", text, text.size());
    }
    return outcome;
  }
  if (message.find(field::usage) != nullptr) {
    return wrong(field::usage, "allowed without a result");
  }
  const bool has_failed = message.find("failure") != nullptr;
  const Value& end = message[has_failed ? "failure" : field::unknown];
  AE_ASSIGN(engine::Failure failure, read_failure(end));
  outcome.error_code = std::move(failure.code);
  outcome.error_message = std::move(failure.message);
  if (!has_failed) return outcome;
  outcome.kind = OutcomeKind::failure;
  AE_ASSIGN(outcome.definite, read_flag(end, field::definite, false));
  AE_ASSIGN(outcome.retryable, read_flag(end, field::retryable, false));
  AE_ASSIGN(outcome.retry_after, read_duration(end, field::retry_after_ms));
  return outcome;
}

}  // namespace ae::routines
