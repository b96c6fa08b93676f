// Reads nodes of kind loop and planner, and `repair`: the model, its prompt, its tools.
#include "base/hash.h"
#include "json/json.h"
#include "plan/plan_read.h"

namespace ae::engine {
namespace {

constexpr std::uint32_t kTurnsMax = 1'000;
constexpr std::uint32_t kParallelToolsMax = 64;
constexpr std::size_t kLoopToolsMax = 256;
constexpr std::uint32_t kTokensMax = 10'000'000;
constexpr std::uint32_t kRepairsMax = 1;
constexpr std::uint32_t kContextMax = 100'000'000;  // tokens
constexpr std::uint32_t kPlannedNodesMax = 1'000;   // nodes of a plan that a model makes

std::string digest_of(const Value& value) { return to_hex(sha256(canonical(value))); }

// The tool definition that is sent to a model.
Value tool_definition(const ToolPolicy& tool, const Value& policy) {
  Value parameters = policy["args_schema"];
  if (!parameters.is_object()) parameters = Value::object({{"type", "object"}});
  std::vector<Member> members{{"name", tool.name}, {"parameters", parameters}};
  if (const Value* text = policy.find("description")) members.emplace_back("description", *text);
  return Value::object(std::move(members));
}

Status read_tools(const Value& names, const Plan& plan, const ToolsByName& tool_by_name,
                  LoopSpec& loop) {
  if (!names.is_array()) return fail(Code::plan_invalid, "`tools` must be a list");
  if (names.size() > kLoopToolsMax) {
    return fail(Code::plan_invalid, "a loop may call at most 256 tools");
  }
  std::vector<Value> tool_definitions;
  for (const Value& name : names.items()) {
    const auto found = tool_by_name.find(name.is_string() ? name.as_string() : "");
    if (found == tool_by_name.end()) {
      return fail(Code::plan_invalid, "`tools` names a tool that there is not");
    }
    const ToolPolicy& tool = plan.tools[found->second];
    if (tool.is_model()) return fail(Code::plan_invalid, "a loop calls tools, not models");
    if (std::ranges::find(loop.tools, found->second) != loop.tools.end()) {
      return fail(Code::plan_invalid, "`tools` names `{}` twice", tool.name);
    }
    loop.tools.push_back(found->second);
    tool_definitions.push_back(tool_definition(tool, plan.task_graph["tools"][tool.name]));
  }
  loop.tool_definitions = Value::array(std::move(tool_definitions));
  if (!loop.tools.empty()) loop.tools_digest = digest_of(loop.tool_definitions);
  return {};
}

Result<Value> read_settings(const Value& value) {
  AE_ASSIGN(const std::string model, text_at(value, "model"));
  std::vector<Member> settings{{"model", model}};
  if (const Value* temperature = value.find("temperature")) {
    if (!temperature->is_number()) {
      return fail(Code::plan_invalid, "`temperature` must be a number");
    }
    settings.emplace_back("temperature", *temperature);
  }
  if (value.find("max_tokens") != nullptr) {
    AE_TRY(count_at(value, "max_tokens", kTokensMax));
    settings.emplace_back("max_tokens", value["max_tokens"]);
  }
  return Value::object(std::move(settings));
}

Status read_schema(const Value* schema, LoopSpec& loop) {
  if (schema == nullptr) return {};
  auto compiled = Schema::compile(*schema);
  if (!compiled) return std::unexpected(std::move(compiled).error().with_context("`schema`"));
  loop.schema = *std::move(compiled);
  loop.schema_source = *schema;
  loop.schema_digest = digest_of(*schema);
  return {};
}

Status read_repair(const Value& value, LoopSpec& loop) {
  if (value.find("repair") == nullptr) return {};
  AE_ASSIGN(loop.repairs, count_at(value, "repair", kRepairsMax));
  if (!loop.schema) return fail(Code::plan_invalid, "`repair` is for an answer with a `schema`");
  return {};
}

Result<std::optional<ContextPolicy>> read_context(const Value* value, const Plan& plan,
                                                  const ToolsByName& tool_by_name) {
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) return fail(Code::plan_invalid, "`context` must be an object");
  AE_TRY(only_keys(*value, {"limit", "policy", "tool", "model", "temperature", "max_tokens"}));
  ContextPolicy context;
  AE_ASSIGN(context.limit, count_at(*value, "limit", kContextMax));
  AE_ASSIGN(const std::size_t policy,
            required_word_at(*value, "policy", {"truncate", "summarize"}));
  context.summarizes = policy == 1;
  if (!context.summarizes) return context;
  AE_ASSIGN(context.summary_tool, find_tool(*value, tool_by_name));
  if (!plan.tools[context.summary_tool].is_model()) {
    return fail(Code::plan_invalid, "`context` must name a model");
  }
  AE_ASSIGN(context.summary_settings, read_settings(*value));
  return context;
}

}  // namespace

Result<std::shared_ptr<const LoopSpec>> read_loop(const Value& value, const Plan& plan,
                                                  const ToolsByName& tool_by_name) {
  AE_TRY(only_keys(
      value, {"tool", "model", "system", "prompt", "tools", "max_turns", "parallel_tools",
              "temperature", "max_tokens", "schema", "repair", "on_reject", "thread", "context"}));
  auto loop = std::make_shared<LoopSpec>();
  AE_ASSIGN(loop->settings, read_settings(value));
  AE_ASSIGN(loop->system, template_at(value, "system"));
  if (value.find("prompt") == nullptr) return fail(Code::plan_invalid, "without `prompt`");
  AE_ASSIGN(loop->prompt, template_of(value["prompt"], "prompt"));
  AE_TRY(read_tools(value["tools"], plan, tool_by_name, *loop));
  AE_ASSIGN(loop->max_turns, count_at(value, "max_turns", kTurnsMax));
  AE_ASSIGN(loop->parallel_tools, count_at(value, "parallel_tools", kParallelToolsMax));
  AE_ASSIGN(const std::size_t on_reject, word_at(value, "on_reject", {"continue", "fail"}));
  loop->fail_on_reject = on_reject == 1;
  AE_TRY(read_schema(value.find("schema"), *loop));
  AE_TRY(read_repair(value, *loop));
  if (const Value* thread = value.find("thread")) {
    if (!thread->is_bool()) return fail(Code::plan_invalid, "`thread` must be true or false");
    loop->thread = thread->as_bool();
  }
  AE_ASSIGN(loop->context, read_context(value.find("context"), plan, tool_by_name));
  return std::shared_ptr<const LoopSpec>(std::move(loop));
}

Result<std::shared_ptr<const LoopSpec>> read_planner(const Value& value, const Plan& plan,
                                                     const ToolsByName& tool_by_name) {
  AE_TRY(only_keys(value, {"tool", "model", "told", "system", "prompt", "tools", "max_nodes",
                           "temperature", "max_tokens", "schema", "repair"}));
  auto loop = std::make_shared<LoopSpec>();
  AE_ASSIGN(loop->settings, read_settings(value));
  AE_ASSIGN(loop->instructions, text_at(value, "told"));
  AE_ASSIGN(loop->system, template_at(value, "system"));
  if (value.find("prompt") == nullptr) return fail(Code::plan_invalid, "without `prompt`");
  AE_ASSIGN(loop->prompt, template_of(value["prompt"], "prompt"));
  LoopSpec granted;
  AE_TRY(read_tools(value["tools"], plan, tool_by_name, granted));
  loop->planner_tools = std::move(granted.tools);
  AE_ASSIGN(loop->nodes_max, count_at(value, "max_nodes", kPlannedNodesMax));
  AE_TRY(read_schema(value.find("schema"), *loop));
  AE_TRY(read_repair(value, *loop));
  if (!loop->schema) return fail(Code::plan_invalid, "without `schema`");
  loop->max_turns = loop->parallel_tools = 1;
  return std::shared_ptr<const LoopSpec>(std::move(loop));
}

Result<std::shared_ptr<const LoopSpec>> read_repair_loop(const Value& node) {
  const Value& args = node["args"];
  auto loop = std::make_shared<LoopSpec>();
  AE_ASSIGN(loop->settings, read_settings(args));
  AE_TRY(read_schema(args.find("schema"), *loop));
  AE_TRY(read_repair(node, *loop));
  AE_ASSIGN(loop->prompt,
            template_of(Value(""), "prompt"));  // the messages are in the node's arguments
  loop->max_turns = loop->parallel_tools = 1;
  return std::shared_ptr<const LoopSpec>(std::move(loop));
}

}  // namespace ae::engine
