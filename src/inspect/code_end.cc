#include "inspect/code_end.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/code/code.h"
#include "inspect/field_json.h"
#include "log/field_names.h"
#include "log/records.h"

namespace ae::engine {
namespace {

constexpr std::size_t kPointersMax = 8;

// ---------------------------------------------------------------- exceptions

std::string_view trimmed(std::string_view line) {
  const std::size_t from = line.find_first_not_of(" \t");
  return from == line.npos ? std::string_view() : line.substr(from);
}

bool is_of_library(std::string_view frame) {
  constexpr std::string_view kLibraries[] = {
      "node_modules/", "(node:",         " node:",         "site-packages", "<anonymous>",
      "/aetheris/",    "sdk/typescript", "sdk_typescript", "/lib/python"};
  return std::ranges::any_of(
      kLibraries, [&](std::string_view library) { return frame.find(library) != frame.npos; });
}

// The frame of the author's code that is nearest to the exception: Node states it first, Python
// last. "" = the stack has none.
std::string where_of(std::string_view stack) {
  std::string node, python;
  while (!stack.empty()) {
    const std::size_t end = std::min(stack.find('\n'), stack.size());
    const std::string_view line = trimmed(stack.substr(0, end));
    stack.remove_prefix(std::min(end + 1, stack.size()));
    if (is_of_library(line)) continue;
    if (line.starts_with("at ") && node.empty()) node = line.substr(3);
    if (line.starts_with("File \"")) python = line;
  }
  return node.empty() ? python : node;
}

// ---------------------------------------------------------------- divergences

template <class Wanted>
const Event* last_of(std::span<const Event> events) {
  for (std::size_t i = events.size(); i > 0; --i) {
    if (as<Wanted>(events[i - 1]) != nullptr) return &events[i - 1];
  }
  return nullptr;
}

// What the log has at the position.
Value recorded_view(const State& state, const Step& code, const std::string& position,
                    std::span<const Event> events) {
  const auto step = std::ranges::find_if(state.steps, [&](const Step& one) {
    return one.request && one.node == code.node && one.request->position == position &&
           one.role == Role::node;
  });
  if (step == state.steps.end()) return {};
  Value seq, version, arguments;
  for (const Event& event : events) {
    if (const auto* began = as<RoutineStarted>(event); began != nullptr && seq.is_null()) {
      version = began->version ? Value(*began->version) : Value();
    }
    if (const auto* started = as<NodeStarted>(event);
        started != nullptr && started->step_id == step->id && seq.is_null()) {
      seq = Value(std::uint64_t{event.seq});
    }
    if (const auto* call = as<ToolInvocationStarted>(event);
        call != nullptr && call->step_id == step->id) {
      arguments = call->arguments.value;
    }
  }
  return Value::object(
      {{field::arguments, std::move(arguments)},
       {field::kind, to_text(step->request->kind)},
       {"seq", std::move(seq)},
       {"tool", state.has_tool(*step) ? Value(state.tool_of(*step).name) : Value()},
       {field::version, std::move(version)}});
}

bool has_digits(std::string_view text, std::size_t from, std::size_t count) {
  return text.size() >= from + count &&
         std::ranges::all_of(text.substr(from, count),
                             [](unsigned char c) { return std::isdigit(c) != 0; });
}

bool is_time(const Value& value) {
  if (value.is_string()) {  // 2026-01-01T…
    const std::string_view text = value.as_string();
    return has_digits(text, 0, 4) && text.size() > 10 && text[4] == '-' && text[7] == '-' &&
           (text[10] == 'T' || text[10] == ' ');
  }
  // From 2001 to 2100, in seconds or milliseconds.
  if (!value.is_number()) return false;
  const double number = value.as_number();
  return (number > 1e9 && number < 4.1e9) || (number > 1e12 && number < 4.1e12);
}

bool is_uuid(const Value& value) {
  if (!value.is_string()) return false;
  const std::string_view text = value.as_string();
  constexpr std::size_t kDashes[] = {8, 13, 18, 23};
  return text.size() == 36 &&
         std::ranges::all_of(kDashes, [&](std::size_t at) { return text[at] == '-'; });
}

bool is_random(const Value& value) {
  if (!value.is_number() || value.is_integer()) return false;
  const double number = std::abs(value.as_number());
  return number > 0 && number < 1 && std::floor(number * 1e6) != number * 1e6;
}

// JSON pointers of values that look as if code had made them.
void find_made(const Value& value, const std::string& at, std::vector<std::string>& found) {
  if (found.size() >= kPointersMax) return;
  if (is_time(value) || is_uuid(value) || is_random(value)) return found.push_back(at);
  if (value.is_object()) {
    for (const auto& [name, member] : value.members()) {
      find_made(member, fmt::format("{}/{}", at, name), found);
    }
  } else if (value.is_array()) {
    for (std::size_t i = 0; i < value.size(); ++i) {
      find_made(value.items()[i], fmt::format("{}/{}", at, i), found);
    }
  }
}

// What the code did, without the line that the worker adds; null: nothing.
Value found_view(const Value& found) {
  if (!found.is_object()) return {};
  std::vector<Member> members;
  for (const auto& [name, value] : found.members()) {
    if (name != "where") members.emplace_back(name, value);
  }
  return members.empty() ? Value() : Value::object(std::move(members));
}

std::string likely_cause(const Divergence& detail, const Value& recorded,
                         const std::vector<std::string>& made) {
  const Value& found = detail.found;
  if (found["exception"].is_object()) {
    return fmt::format("the code ended with an exception before it made this request: {}",
                       found["exception"].text("message"));
  }
  if (detail.finding == field::arguments) {
    if (found.text(field::kind) != recorded.text(field::kind) ||
        found.text("tool") != recorded.text("tool")) {
      return "the code makes another request at this position: a request was renamed, inserted, "
             "removed or moved";
    }
    if (!made.empty()) {
      return "an argument is a time, an id or a random number that the code makes itself: take it "
             "from now(), uuid() or random() of the context";
    }
    return "the code computes the arguments in another way now; guard the change with patched(ID) "
           "of the context, or run the version that made the request";
  }
  if (detail.finding == "ended") {
    return "the code returned before it made this request: a condition has another result now, or "
           "the request was removed";
  }
  return "the request was renamed or removed, or a condition in the code depends on a value that "
         "is not recorded, such as a time or a random number";
}

}  // namespace

namespace {

bool has_exception(const State& state) {
  return state.status == JobStatus::parked && state.parked_reason == "routine_failed";
}

bool has_divergence(const State& state) {
  return state.status == JobStatus::parked &&
         state.parked_reason == code_name(Code::non_determinism) && state.awaits_code();
}

// Steps of code that have ended leave the state, and the error of a job names those that took
// effect.
bool has_dropped_effects(const State& state) {
  if (state.status != JobStatus::failed && state.status != JobStatus::cancelled) return false;
  return state.plan && std::ranges::any_of(state.plan->nodes,
                                           [](const Node& node) { return node.code != nullptr; });
}

}  // namespace

bool needs_events(const State& state) {
  return has_exception(state) || has_divergence(state) || has_dropped_effects(state);
}

Value exception_view(const State& state, std::span<const Event> events) {
  if (!has_exception(state)) return {};
  const Event* const event = last_of<RoutineFailed>(events);
  if (event == nullptr) return {};
  const auto& failed = *as<RoutineFailed>(*event);
  const Value& error = failed.error.value;  // erased: not an object
  const std::string where = where_of(error.text("stack"));
  return Value::object({{"message", error["message"]},
                        {"name", error["name"]},
                        {field::node_id, failed.node_id},
                        {"seq", std::uint64_t{event->seq}},
                        {"stack", error["stack"]},
                        {field::version, failed.version ? Value(*failed.version) : Value()},
                        {"where", where.empty() ? Value() : Value(where)}});
}

Value divergence_view(const State& state, std::span<const Event> events) {
  if (!has_divergence(state)) return {};
  const Event* const event = last_of<RoutineDiverged>(events);
  if (event == nullptr) return {};
  return divergence_view(state, events, *as<RoutineDiverged>(*event))
      .with("seq", std::uint64_t{event->seq});
}

Value divergence_view(const State& state, std::span<const Event> events,
                      const RoutineDiverged& diverged) {
  const Step* const code = state.find_step(diverged.step_id);
  const Divergence detail = diverged.detail.read_leniently();
  const Value recorded =
      code == nullptr ? Value() : recorded_view(state, *code, detail.position, events);
  std::vector<std::string> made;
  if (detail.finding == field::arguments) find_made(recorded[field::arguments], "", made);
  return Value::object({{field::delivered, detail.delivered},
                        {"finding", detail.finding},
                        {"found", found_view(detail.found)},
                        {"likely", likely_cause(detail, recorded, made)},
                        {field::node_id, diverged.node_id},
                        {"pointers", Value::array(std::vector<Value>(made.begin(), made.end()))},
                        {field::position, detail.position},
                        {"recorded", recorded},
                        {"seq", Value()},
                        {field::version, diverged.version ? Value(*diverged.version) : Value()},
                        {"where", detail.found["where"]}});
}

Value end_divergence_view(const State& state, const Step& code, const NodeFinished& recorded,
                          std::uint64_t seq, std::string_view version, Value found) {
  const Value failure =
      recorded.error ? Value::object({{field::code, recorded.error->code}}) : Value();
  return Value::object(
      {{field::delivered, std::uint64_t{code.code->outcomes.size()}},
       {"finding", field::result},
       {"found", std::move(found)},
       {"likely",
        "the result depends on a value that is not recorded, or the code after its last recorded "
        "request has changed"},
       {field::node_id, state.node_of(code).id},
       {"pointers", Value::array({})},
       {field::position, Value()},
       {"recorded", Value::object({{"failure", failure},
                                   {field::result, recorded.result.value},
                                   {"seq", std::uint64_t{seq}}})},
       {"seq", Value()},
       {field::version, version.empty() ? Value() : Value(version)},
       {"where", Value()}});
}

Value end_view(const RoutineEnd& end) {
  if (end.exception) return Value::object({{"exception", *end.exception}});
  if (end.failure) {
    return Value::object({{"failure", Value::object({{field::code, end.failure->code},
                                                     {"message", end.failure->message}})}});
  }
  return Value::object({{field::result, end.result}});
}

Value request_view(const NewRequest& request) {
  return Value::object({{field::kind, to_text(request.kind)}, {field::position, request.position}});
}

}  // namespace ae::engine
