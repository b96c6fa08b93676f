#include "agents/code_functions.h"

#include <algorithm>
#include <string>
#include <utility>

#include "agents/used_tools.h"
#include "base/hash.h"
#include "json/json.h"
#include "log/field_names.h"

namespace ae::agents {
namespace {

using engine::EffectClass;

EffectClass effect_of_function(std::string_view name) {
  const std::string_view effect = name.substr(name.find(':') + 1);
  return effect == "read"         ? EffectClass::read
         : effect == "idempotent" ? EffectClass::idempotent
                                  : EffectClass::at_most_once;
}

CheckedTool code_function(std::string_view name) {
  CheckedTool checked;
  engine::ToolPolicy& policy = checked.tool.policy;
  checked.tool.name = name;
  checked.tool.kind = "worker";
  checked.tool.definition = Value::object({{"function", name}});
  policy.name = name;
  policy.function = true;
  policy.effect = effect_of_function(name);
  if (policy.effect != EffectClass::at_most_once) policy.on_in_doubt = engine::OnInDoubt::resend;
  if (policy.effect == EffectClass::read) policy.retry = default_read_retry();
  // Without the policy, so that other defaults do not change the version.
  const Value definition =
      Value::object({{field::kind, checked.tool.kind}, {"definition", checked.tool.definition}});
  policy.version = to_hex(sha256(canonical(definition))).substr(0, 16);
  checked.policy = generated_policy(policy, {{"function", true}});
  checked.is_valid = true;
  return checked;
}

}  // namespace

bool is_code_function(std::string_view name) {
  return std::ranges::find(kCodeFunctions, name) != kCodeFunctions.end();
}

bool is_code_function_pattern(std::string_view name) {
  return name == "run:*" || name == "fetch:*";
}

CheckedTools code_functions() {
  CheckedTools functions;
  for (const std::string_view name : kCodeFunctions) {
    functions.emplace(std::string(name), code_function(name));
  }
  return functions;
}

}  // namespace ae::agents
