#include "engine/state/retained_value.h"

#include <cstdint>
#include <utility>
#include <vector>

namespace ae::engine {
namespace {

Value only(const Value& payload, std::initializer_list<std::string_view> names) {
  std::vector<Member> kept;
  for (const std::string_view name : names) {
    if (const Value* value = payload.find(name)) kept.emplace_back(name, *value);
  }
  return Value::object(std::move(kept));
}

// Of a call the name of the tool; of a refused one only the error code, since a
// model may choose any name.
Value retained_choice(const Value& choice) {
  std::vector<Value> calls;
  if (choice["calls"].is_array()) {
    for (const Value& call : choice["calls"].items()) {
      const Value* refused = call.find("refused");
      calls.push_back(refused != nullptr ? Value::object({{"refused", only(*refused, {"code"})}})
                                         : only(call, {"name"}));
    }
  }
  Value left = only(choice, {"of", "turn"}).with("calls", Value::array(std::move(calls)));
  return choice["repair"].is_string() ? left.with("repair", "") : left;
}

// The decision whose value this field is; nullptr: another event or field.
const DecisionRecorded* decided(const Event& event, std::string_view field) {
  return field == "payload" ? as<DecisionRecorded>(event) : nullptr;
}

}  // namespace

std::string_view retention_reason(const Event& event, std::string_view field) {
  const DecisionRecorded* decision = decided(event, field);
  if (decision == nullptr) return {};
  return decision->kind == "branch" && decision->payload.value.is_bool()
             ? "it is true or false, and records which branch the job took"
             : "";
}

Value retained_value(const Event& event, std::string_view field, bool blinded) {
  const DecisionRecorded* decision = decided(event, field);
  if (decision == nullptr) return {};
  const std::string_view kind = decision->kind;
  const Value& payload = decision->payload.value;
  if (kind == "branch" && payload.is_array()) {
    return Value::object({{"items", std::uint64_t{payload.size()}}});
  }
  if (kind == "tool_choice") return retained_choice(payload);
  if (kind == "end") return only(payload, {"code"});
  if (kind == "approval") {
    Value left = only(payload, {"approval_id", "command_id", "expires_at", "schema_digest", "tool",
                                "tool_version"});
    for (const std::string_view hash : {"arguments_hash", "edited_from"}) {
      if (const Value* value = payload.find(hash); value != nullptr && blinded) {
        left = left.with(hash, *value);
      }
    }
    return left;
  }
  return {};
}

}  // namespace ae::engine
