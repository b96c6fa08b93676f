#include "sim/tool_kinds.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "json/json.h"
#include "log/field_names.h"

namespace ae::sim {

namespace {

Value child_policy(const ToolKind& kind) {
  Value child = Value::object({{"name", "sim"}});
  if (kind.detached) child = child.with("detached", true);
  if (!kind.child_budget.empty()) {
    const auto budget = parse_json(kind.child_budget);
    AE_CHECK(budget.has_value(), std::string(kind.name));
    child = child.with(field::budget, *budget);
  }
  return child;
}

}  // namespace

const ToolKind* tool_kind(std::string_view name) {
  for (const ToolKind& kind : kTools) {
    if (kind.name == name) return &kind;
  }
  for (const ToolKind& kind : kChildTools) {
    if (kind.name == name) return &kind;
  }
  for (const ToolKind& kind : kFunctions) {
    if (kind.name == name) return &kind;
  }
  return nullptr;
}

bool needs_approval(const ToolKind& kind, const Value& args) {
  return kind.approval == "required" || (!kind.approval.empty() && args["i"] != Value(0));
}

Value question() {
  const Value number =
      Value::object({{"default", 3}, {"maximum", 9}, {"minimum", 1}, {"type", "integer"}});
  return Value::object({{"message", "How many?"},
                        {"mode", "form"},
                        {"schema", Value::object({{"properties", Value::object({{"n", number}})},
                                                  {"required", Value::array({"n"})},
                                                  {"type", "object"}})}});
}

Value tool_policy(const ToolKind& kind) {
  static constexpr std::string_view kEffects[] = {"read", "idempotent", "at_most_once"};
  std::vector<Value> retry_on{"connect"};
  if (kind.effect_class != EffectClass::at_most_once) {
    retry_on.emplace_back("timeout");
    retry_on.emplace_back("5xx");
  }
  if (!kind.provider.empty()) retry_on.emplace_back("429");
  std::vector<Member> policy{
      {"dedupe_window", kind.dedupe_window},
      {"effect", kEffects[static_cast<int>(kind.effect_class)]},
      {"grace", to_text(kToolGrace)},
      {"on_in_doubt", kind.in_doubt},
      {"retry", Value::object({{"initial_backoff", "200ms"},
                               {field::max_attempts, 3},
                               {"max_backoff", "8s"},
                               {"multiplier", 6},
                               {"retry_on", Value::array(std::move(retry_on))}})},
      {"timeout", to_text(kToolTimeout)},
      {field::version, kToolVersion}};
  if (!kind.probe.empty()) {
    policy.emplace_back("probe",
                        Value::object({{"args", Value::object({{"key", "${ .call.key }"}})},
                                       {"happened", "${ .result.found }"},
                                       {"tool", kind.probe}}));
  }
  if (!kind.undo.empty()) {
    // A result that broke a rule has no `tool`: then a user undoes it.
    policy.emplace_back(
        field::compensate,
        Value::object({{"args", Value::object({{"fate", "${ .args.undo_fate }"},
                                               {field::of, "${ .call.key }"},
                                               {"was", "${ .result.tool | ascii_upcase }"}})},
                       {"tool", kind.undo}}));
  }
  if (!kind.provider.empty()) policy.emplace_back("provider", kind.provider);
  if (kind.function) policy.emplace_back("function", true);
  if (kind.child) policy.emplace_back("child", child_policy(kind));
  if (!kind.changes.empty()) {
    policy.emplace_back("changes",
                        Value::array({Value::object({{"id", "${ .args.thing }"},
                                                     {"op", "update"},
                                                     {"type", "thing"},
                                                     {field::version, "${ .result.version }"}})}));
  }
  if (kind.verified()) {
    policy.emplace_back("verify", Value::object({{field::by, "file"}, {"mode", kind.changes}}));
  }
  if (!kind.approval.empty()) policy.emplace_back("approval", kind.approval);
  if (!kind.approval_expires.empty()) {
    policy.emplace_back("approval_expires", kind.approval_expires);
  }
  return Value::object(std::move(policy));
}

}  // namespace ae::sim
