// Reads the changes of a call from its result, and displays changes.
#include "engine/confirm/confirm.h"

#include <utility>

#include "engine/heart/evaluate.h"
#include "engine/state/view_values.h"
#include "json/json.h"
#include "log/field_names.h"

namespace ae::engine {
namespace {

constexpr std::size_t kTypeMax = 256, kIdMax = 1024, kTextMax = 4096;  // bytes

// A string, or a number as a string. nullopt: null.
Result<std::optional<std::string>> text_of(const Value& entry, std::string_view key,
                                           std::size_t most) {
  const Value& value = entry[key];
  if (value.is_null()) return std::nullopt;
  if (!value.is_string() && !value.is_number()) {
    return fail(Code::tool_output_invalid, "`{}` is no text and no number", key);
  }
  std::string text = value.is_string() ? value.as_string() : canonical(value);
  if (text.empty()) return std::nullopt;
  if (text.size() > most || text.find('\0') != text.npos) {
    return fail(Code::tool_output_invalid, "`{}` has more than {} bytes, or holds a NUL", key,
                most);
  }
  return text;
}

Result<StateChanged> changed_event(const State& state, const Step& step, const Value& entry) {
  StateChanged event{.node_id = state.node_of(step).id, .step_id = step.id};
  const auto read_text = [&](std::string_view key, std::size_t most, auto& field) -> Status {
    AE_ASSIGN(auto text, text_of(entry, key, most));
    if (text) field = *std::move(text);
    return {};
  };
  const auto require_text = [&](std::string_view key, std::size_t most,
                                std::string& field) -> Status {
    AE_TRY(read_text(key, most, field));
    if (!field.empty()) return {};
    return fail(Code::tool_output_invalid, "`{}` is missing", key);
  };
  AE_TRY(require_text("type", kTypeMax, event.resource_type));
  AE_TRY(require_text("id", kIdMax, event.resource_id));
  AE_TRY(require_text("op", kTypeMax, event.operation));
  AE_TRY(read_text(field::version, kTextMax, event.version));
  AE_TRY(read_text(field::etag, kTextMax, event.etag));
  AE_TRY(read_text("ref", kTextMax, event.external_ref));
  return event;
}

}  // namespace

std::string resource_key(std::string_view type, std::string_view id) {
  std::string key(type);
  key += '\0';
  key += id;
  return key;
}

Value change_value(const Change& change) {
  return Value::object({{field::etag, or_null(change.etag)},
                        {"id", change.resource_id},
                        {"op", change.operation},
                        {"ref", or_null(change.external_ref)},
                        {"type", change.resource_type},
                        {field::version, or_null(change.version)}});
}

const ToolPolicy* verifier_of(const State& state, const Change& change) {
  for (const ToolPolicy& tool : state.plan->tools) {
    if (tool.name == change.tool) return tool.verified_by.empty() ? nullptr : &tool;
  }
  return nullptr;
}

ExtractedChanges changes_of(const State& state, const Step& step, const Value& result, Work* work) {
  ExtractedChanges out;
  const ToolPolicy& tool = state.tool_of(step);
  for (std::size_t i = 0; i < tool.changes.size(); ++i) {
    auto entry = change_of(state, step, i, result, work);
    auto event = entry ? changed_event(state, step, *entry)
                       : Result<StateChanged>(std::unexpected(std::move(entry).error()));
    if (event) {
      out.events.push_back(*std::move(event));
    } else if (out.status) {
      out.status =
          fail(Code::tool_output_invalid, "the call succeeded, but changes[{}] cannot be read: {}",
               i, event.error().message);
    }
  }
  return out;
}

std::vector<Value> changes_view(const State& state) {
  std::vector<Value> views;
  views.reserve(state.changes.size());
  for (const auto& [key, change] : state.changes) {
    const Step& step = state.steps[change.step];
    const ToolPolicy* verifier = state.plan ? verifier_of(state, change) : nullptr;
    const auto verdict = [](const std::optional<Deviation>& deviation) -> Value {
      if (!deviation) return {};
      return Value::object(
          {{"observed", or_null(deviation->observed)}, {field::verdict, deviation->verdict}});
    };
    views.push_back(Value::object({{"accepted", verdict(change.accepted)},
                                   {field::etag, or_null(change.etag)},
                                   {field::external_ref, or_null(change.external_ref)},
                                   {"mode", verifier ? Value(to_text(verifier->confirm)) : Value()},
                                   {field::node_id, state.node_of(step).id},
                                   {field::operation, change.operation},
                                   {"raised", verdict(change.escalated)},
                                   {field::resource_id, change.resource_id},
                                   {field::resource_type, change.resource_type},
                                   {"seq", change.seq},
                                   {field::step_id, step.id.text},
                                   {"tool", change.tool},
                                   {field::verdict, or_null(change.verdict)},
                                   {"verifier", verifier ? Value(verifier->verified_by) : Value()},
                                   {field::version, or_null(change.version)}}));
  }
  return views;
}

}  // namespace ae::engine
