#include "agents/child_check.h"

#include <fmt/core.h>

#include <utility>
#include <vector>

#include "agents/settings_check.h"
#include "agents/used_tools.h"
#include "base/hash.h"
#include "json/json.h"
#include "log/field_names.h"
#include "plan/job_tools.h"

namespace ae::agents {
namespace {

constexpr std::int64_t kPriorityMax = 1000;
constexpr const char* kDetached = "detached";

// Those of an agent of this file. A schema with errors is reported where it is.
void add_schemas(CheckContext& check, std::string_view agent, CheckedChild& child) {
  const auto source_node = check.find_agent(agent);
  if (!source_node || !(*source_node)->is_mapping()) return;
  const auto schema_of = [&](std::string_view key) -> std::optional<Value> {
    const auto schema = source_node->find(key);
    if (!schema || !Schema::compile((*schema)->value())) return std::nullopt;
    return (*schema)->value();
  };
  child.args_schema = schema_of("input_schema");
  child.result_schema = schema_of("output_schema");
}

}  // namespace

CheckedChild check_child(CheckContext& check, const SourceNode& source_node) {
  CheckedChild child;
  std::vector<Member> members;
  const SourceNode named = *source_node.find(field::agent);
  if (const auto name = check.text(named);
      name && check.name("an agent", *name, named.at(), named.path)) {
    members.emplace_back("name", *name);
    add_schemas(check, *name, child);
    if (!check.find_agent(*name)) {
      check.add_note(named.path, fmt::format("{} is not in this file: jobs need it in another file "
                                             "of the server, or registered",
                                             quote(*name)));
    }
  }
  if (const auto detached = source_node.find(kDetached)) {
    if (check.boolean(*detached).value_or(false)) members.emplace_back(kDetached, true);
  }
  if (const auto labels = source_node.find(field::labels)) {
    std::vector<Member> texts;
    for (auto& [name, text] : check_labels(check, *labels)) texts.emplace_back(name, text);
    members.emplace_back(field::labels, Value::object(std::move(texts)));
  }
  if (const auto priority = source_node.find(field::priority)) {
    const Value& number = (*priority)->scalar;
    if (!number.is_integer() || number.as_int() < -kPriorityMax || number.as_int() > kPriorityMax) {
      check.report(*priority, "must be a whole number from -1000 to 1000");
    } else {
      members.emplace_back(field::priority, number);
    }
  }
  if (const auto queue = source_node.find(field::queue)) {
    const auto text = check.text(*queue);
    if (text && !is_capability(*text)) {
      check.report(*queue, "a queue name must have 1 to 64 of the characters A-Z a-z 0-9 . _ -");
    } else if (text) {
      members.emplace_back(field::queue, *text);
    }
  }
  if (const auto deadline = source_node.find(field::deadline)) {
    if (const auto span = check.duration(*deadline, kDurationMin)) {
      members.emplace_back(field::deadline, to_text(*span));
    }
  }
  if (const auto budget = source_node.find(field::budget)) {
    const engine::Limits limits = check_budget(check, *budget);
    if (limits.any()) members.emplace_back(field::budget, engine::to_json(limits));
  }
  child.agent = Value::object(std::move(members));
  return child;
}

CheckedTool child_tool(CheckContext& check, std::string_view agent, bool detached) {
  CheckedChild child;
  add_schemas(check, agent, child);
  child.agent = Value::object({{"name", agent}});
  if (detached) child.agent = child.agent.with(kDetached, true);
  CheckedTool checked;
  engine::ToolPolicy& policy = checked.tool.policy;
  checked.tool.name = policy.name = engine::child_tool_name(agent, detached);
  checked.tool.kind = field::agent;
  checked.tool.definition = child.agent;
  policy.effect = engine::EffectClass::idempotent;
  policy.on_in_doubt = engine::OnInDoubt::resend;
  policy.dedupe_window = std::nullopt;
  policy.child = engine::ChildPolicy{.agent = std::string(agent), .detached = detached};
  policy.version = to_hex(sha256(canonical(child.agent))).substr(0, 16);
  checked.policy = generated_policy(policy, {{"child", child.agent}});
  if (child.args_schema) {
    checked.tool.args_schema = *child.args_schema;
    checked.policy = checked.policy.with("args_schema", *child.args_schema);
  }
  if (child.result_schema) {
    checked.policy = checked.policy.with("result_schema", *child.result_schema);
  }
  checked.is_valid = true;
  return checked;
}

}  // namespace ae::agents
