// Reads the `probe` and `compensate` of a tool, and checks the tools that they call.
#include <algorithm>
#include <utility>

#include "log/field_names.h"
#include "plan/plan_read.h"

namespace ae::engine {
namespace {

// Reads a probe or a compensation, without its tool.
Result<SideCall> read_side_call(const Value& value, Keys keys, Keys args_read) {
  AE_TRY(only_keys(value, keys));
  SideCall side;
  const auto reads_only = [](const Template& part, Keys roots) -> Status {
    if (part.is_constant()) return {};
    for (const std::string& root : part.roots().roots) {
      if (std::find(roots.begin(), roots.end(), root) == roots.end()) {
        return fail(Code::plan_invalid, "reads `.{}`, which is not available here", root);
      }
    }
    return {};
  };
  if (const Value* args = value.find("args")) {
    if (!args->is_object() && !is_one_expression(*args)) {
      return fail(Code::plan_invalid, "`args` must be an object, or one ${ … } that gives one");
    }
    AE_ASSIGN(side.args, template_of(*args, "args"));
    AE_TRY(reads_only(side.args, args_read));
    side.has_args = true;
  }
  if (std::find(keys.begin(), keys.end(), "happened") != keys.end()) {
    if (!is_one_expression(value["happened"])) {
      return fail(Code::plan_invalid, "`happened` must be one ${ … }");
    }
    AE_ASSIGN(side.happened, template_of(value["happened"], "happened"));
    AE_TRY(reads_only(side.happened, {"args", "call", field::result}));
  }
  return side;
}

Result<std::uint32_t> find_side_tool(const Value& value, const Plan& plan,
                                     const ToolsByName& tool_by_name) {
  AE_ASSIGN(const std::uint32_t tool, find_tool(value, tool_by_name));
  if (plan.tools[tool].may_require_approval()) {
    return fail(Code::plan_invalid,
                "the tool of a `probe` or `compensate` cannot require approval");
  }
  if (plan.tools[tool].is_model() || plan.tools[tool].child) {
    return fail(Code::plan_invalid,
                "the tool of a `probe` or `compensate` cannot be a model, nor create a child job");
  }
  return tool;
}

}  // namespace

Status read_side_calls(const Value& value, const Plan& plan, const ToolsByName& tool_by_name,
                       ToolPolicy& tool) {
  const Value* probe = value.find("probe");
  const Value* compensate = value.find(field::compensate);
  if ((tool.on_in_doubt == OnInDoubt::probe) != (probe != nullptr)) {
    return fail(Code::plan_invalid, "`probe` and `on_in_doubt: probe` go together");
  }
  if ((probe || compensate) && tool.effect == EffectClass::read) {
    return fail(Code::plan_invalid, "a tool that only reads has no `probe` and no `compensate`");
  }
  if (probe) {
    auto side = read_side_call(*probe, {"tool", "args", "happened"}, {"args", "call"});
    if (!side) return std::unexpected(std::move(side).error().with_context("`probe`"));
    tool.probe = *std::move(side);
    AE_ASSIGN(tool.probe->tool, find_side_tool(*probe, plan, tool_by_name));
    if (plan.tools[tool.probe->tool].effect != EffectClass::read) {
      return fail(Code::plan_invalid, "a probe must be a tool that only reads");
    }
    if (!plan.tools[tool.probe->tool].makes_call()) {
      return fail(Code::plan_invalid, "a probe must be a tool that makes a call");
    }
  }
  if (compensate) {
    auto side = read_side_call(*compensate, {"tool", "args"}, {"args", "call", field::result});
    if (!side) return std::unexpected(std::move(side).error().with_context("`compensate`"));
    tool.compensate = *std::move(side);
    AE_ASSIGN(tool.compensate->tool, find_side_tool(*compensate, plan, tool_by_name));
    if (plan.tools[tool.compensate->tool].effect == EffectClass::read) {
      return fail(Code::plan_invalid, "a tool that only reads undoes nothing");
    }
  }
  return {};
}

}  // namespace ae::engine
