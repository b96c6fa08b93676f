#include "agents/send_tool.h"

#include <utility>

#include "agents/used_tools.h"
#include "base/hash.h"
#include "json/json.h"
#include "log/field_names.h"
#include "plan/job_tools.h"

namespace ae::agents {
namespace {

Value text_schema(std::int64_t bytes_max) {
  return Value::object({{"type", "string"}, {"minLength", 1}, {"maxLength", bytes_max}});
}

// {"job", "to": {"channel"} or {"key"}, "payload"}
Value args_schema() {
  const Value to = Value::object({{"type", "object"},
                                  {"additionalProperties", false},
                                  {"minProperties", 1},
                                  {"maxProperties", 1},
                                  {"properties", Value::object({{field::channel, text_schema(256)},
                                                                {"key", text_schema(256)}})}});
  return Value::object(
      {{"type", "object"},
       {"required", Value::array({"job", "to", field::payload})},
       {"additionalProperties", false},
       {"properties",
        Value::object({{"job", text_schema(64)}, {"to", to}, {field::payload, true}})}});
}

// The job may be held by a process that has just ended: its inbox is read once another one claims
// it.
engine::RetryPolicy retry_policy() {
  return {.max_attempts = 10,
          .initial_backoff = std::chrono::seconds(1),
          .retry_on = {std::string(code_name(Code::unknown_outcome))}};
}

}  // namespace

CheckedTool send_tool() {
  CheckedTool checked;
  engine::ToolPolicy& policy = checked.tool.policy;
  checked.tool.name = policy.name = engine::kSendTool;
  checked.tool.kind = "native";
  checked.tool.definition = Value::object({{"function", engine::kSendTool}});
  checked.tool.args_schema = args_schema();
  policy.sends = true;
  policy.effect = engine::EffectClass::idempotent;
  policy.on_in_doubt = engine::OnInDoubt::resend;
  policy.dedupe_window = std::nullopt;
  policy.retry = retry_policy();
  policy.version = to_hex(sha256(canonical(checked.tool.definition))).substr(0, 16);
  checked.policy =
      generated_policy(policy, {{"args_schema", checked.tool.args_schema}, {"sends", true}});
  checked.is_valid = true;
  return checked;
}

}  // namespace ae::agents
