// Finds the failed node in the state, and its field by re-evaluating the node's expressions.
#include "inspect/failure_location.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "engine/heart/evaluate.h"
#include "engine/heart/request.h"
#include "engine/state/view_values.h"
#include "inspect/view_parts.h"
#include "log/field_names.h"
#include "log/redacted.h"

namespace ae::engine {
namespace {

constexpr std::size_t kExpressionShown = 80;  // bytes

struct FailureLocation {
  const Step* step = nullptr;  // the failed part, else the node's step; nullptr: no node
  std::optional<FailedField> field;
};

// The item, turn, call or request whose failure became that of its map, loop or code.
const Step& failed_part(const State& state, const Step& container) {
  const Step* found = &container;
  for (const Step& step : state.steps) {
    const bool same = step.is_part() && step.role == Role::node && step.node == container.node &&
                      step.failure && container.failure &&
                      step.failure->code == container.failure->code &&
                      step.failure->message == container.failure->message;
    if (!same) continue;
    found = &step;
    if (step.item != kNoItem) break;
  }
  return *found;
}

// After a redaction an expression could fail in a different way.
bool may_evaluate(const State& state) {
  return !is_redacted(state.input) &&
         std::ranges::none_of(state.steps, [](const Step& step) { return step.erased; });
}

bool is_of_evaluation(std::string_view code) {
  return code == code_name(Code::expression_failed) || code == code_name(Code::input_invalid) ||
         code == code_name(Code::correlation_key_reused);
}

std::optional<FailedField> field_of(const State& state, const Step& step, std::string_view code) {
  if (!is_of_evaluation(code) || !may_evaluate(state)) return std::nullopt;
  return failed_field_of(state, step, code);
}

FailureLocation locate_failure(const State& state) {
  if (!state.plan) return {};
  if (!state.ending || state.ending->node_id.empty()) {
    const bool output = state.nodes_left == 0 && state.error->message.starts_with("output: ");
    if (!output || !may_evaluate(state)) return {};
    return {.field = failed_output_of(state)};
  }
  const auto node = state.plan->by_id.find(state.ending->node_id);
  if (node == state.plan->by_id.end()) return {};
  const Step& step = failed_part(state, state.steps[node->second]);
  return {.step = &step, .field = field_of(state, step, state.error->code)};
}

// Does the step itself call its tool? A map does not.
bool has_own_tool(const State& state, const Step& step) {
  return state.has_tool(step) && (step.is_part() || state.node_of(step).kind != NodeKind::map);
}

std::string model_of(const ToolPolicy& tool) {
  return tool.is_model() ? tool.name.substr(kModelToolPrefix.size()) : std::string();
}

// The message without the location prefix: "node ask, turn 1, model main: ", "at /id: ", "output:
// ".
std::string_view strip_location(std::string_view message, const FailureLocation& location,
                                const std::string& model) {
  if (!model.empty() && message.starts_with("node ")) {
    const std::string mark = fmt::format(", model {}: ", model);
    if (const std::size_t at = message.find(mark); at != message.npos) {
      message.remove_prefix(at + mark.size());
    }
  }
  if (!location.field) return message;
  if (location.step == nullptr && message.starts_with("output: ")) message.remove_prefix(8);
  if (message.starts_with('/')) {  // from a schema: "/n must be an integer"
    if (const std::size_t end = message.find(' '); end != message.npos) {
      message.remove_prefix(end + 1);
    }
  }
  if (message.starts_with("at /")) {
    if (const std::size_t end = message.find(": "); end != message.npos) {
      message.remove_prefix(end + 2);
    }
  }
  return message;
}

// "args.id: .input.id is null", "map: .input.rows: the value of `map` must be an array"
std::string reason(const FailedField& failed, std::string_view message) {
  std::string_view expression = failed.expression;
  if (expression.size() > kExpressionShown || expression.contains('\n')) expression = {};
  if (failed.gives_null)
    return fmt::format("{}: {} is null", failed.field,
                       expression.empty() ? "the expression" : expression);
  if (expression.empty()) return fmt::format("{}: {}", failed.field, message);
  return fmt::format("{}: {}: {}", failed.field, expression, message);
}

// The argument that prevented a call from being sent: `http.url: .args.id is null`.
struct NullArgument {
  std::string name, expression;
};

NullArgument null_argument(const State& state, const Step& step) {
  if (state.error->code != "request_invalid") return {};
  const Value& node = state.plan->task_graph["nodes"].items()[step.node];
  const Value& args = step.item == kNoItem ? node["args"] : node["do"]["args"];
  if (!args.is_object()) return {};
  for (const auto& [name, value] : args.members()) {
    if (state.error->message.ends_with(fmt::format(": .args.{} is null", name))) {
      return {name, sole_expression(value)};
    }
  }
  return {};
}

// What an expression reads that can be corrected outside of its node.
struct Reads {
  Value input;  // names; null: does not read the input
  std::vector<Value> imported;
};

Reads reads_of(const State& state, const FailureLocation& location) {
  Reads reads;
  std::string expression = location.field ? location.field->expression : "";
  if (location.step != nullptr && !location.field) {
    expression = null_argument(state, *location.step).expression;
  }
  const auto parsed = Expr::parse(expression);
  if (!parsed) return reads;
  const ExprRoots& roots = parsed->roots();
  if (roots.roots.contains(field::input)) {
    const auto members = roots.members.find(field::input);
    std::vector<Value> names;
    if (members != roots.members.end())
      names.assign(members->second.begin(), members->second.end());
    reads.input = Value::array(std::move(names));
  }
  for (const std::string& id : roots.steps) {
    const auto node = state.plan->by_id.find(id);
    if (node == state.plan->by_id.end()) continue;
    const Step& step = state.steps[node->second];
    const bool has_run = !step.skipped && state.node_of(step).kind != NodeKind::wait;
    if (step.imported && has_run) reads.imported.emplace_back(id);
  }
  return reads;
}

std::string summary_of(const State& state, const FailureLocation& location, const std::string& tool,
                       const std::string& model) {
  const std::string_view message = strip_location(state.error->message, location, model);
  std::string text;
  if (location.step != nullptr) {
    text = fmt::format("node {}", state.node_of(*location.step).id);
    if (location.step->item != kNoItem) text += fmt::format(", item {}", location.step->item);
    if (location.step->turn != kNoTurn) text += fmt::format(", turn {}", location.step->turn + 1);
    if (location.step->request) {
      text += fmt::format(", request {}", location.step->request->position);
    }
    if (!tool.empty()) text += fmt::format(" (tool {})", tool);
    if (!model.empty()) text += fmt::format(" (model {})", model);
    text += ": ";
  }
  if (location.field) return text + reason(*location.field, message);
  text += message;
  if (location.step == nullptr) return text;
  // The source of the null: the expression of the node's argument.
  const NullArgument argument = null_argument(state, *location.step);
  const std::string& expression = argument.expression;
  if (expression.empty() || expression.size() > kExpressionShown || expression.contains('\n'))
    return text;
  return fmt::format("{} (args.{} is {})", text, argument.name, expression);
}

}  // namespace

namespace {

// Ids of the nodes with a matching step, in plan order.
Value nodes_with(const State& state, const std::function<bool(const Step&)>& matches) {
  std::vector<bool> found(state.plan ? state.plan->nodes.size() : 0);
  for (const Step& step : state.steps) {
    if (step.role == Role::node && step.node < found.size() && matches(step))
      found[step.node] = true;
  }
  std::vector<Value> ids;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i]) ids.emplace_back(state.plan->nodes[i].id);
  }
  return Value::array(std::move(ids));
}

}  // namespace

Value committed_nodes(const State& state) {
  return nodes_with(state, [&](const Step& step) {
    if (!step.committed || step.result_type == ResultType::compensated) return false;
    if (!has_own_tool(state, step)) return false;
    const ToolPolicy& tool = state.tool_of(step);
    return tool.makes_call() && !tool.is_model() && tool.effect != EffectClass::read;
  });
}

Value imported_nodes(const State& state) {
  return nodes_with(state, [](const Step& step) { return step.imported != nullptr; });
}

Value job_error_view(const State& state) {
  if (!state.error) return {};
  const FailureLocation location = locate_failure(state);
  std::string tool, model;
  Value node_id, item, turn, position, refused_key, tries;
  if (location.step != nullptr) {
    const Step& step = *location.step;
    if (has_own_tool(state, step)) {
      const ToolPolicy& called = state.tool_of(step);
      (called.is_model() ? model : tool) = called.is_model() ? model_of(called) : called.name;
    }
    node_id = state.node_of(step).id;
    if (step.call && !tool.empty()) tries = number(step.call->try_no);
    if (step.item != kNoItem) item = number(step.item);
    if (step.turn != kNoTurn) turn = number(step.turn);
    position = position_of(step);
    if (is_result_refused(state, step)) {
      const UnknownCall call = state.call_of(step);
      if (!state.noted.contains(call.invocation.text)) refused_key = call.key.text;
    }
  }
  Reads reads = reads_of(state, location);
  return Value::object({{field::code, state.error->code},
                        {"committed", committed_nodes(state)},
                        {"expression", or_null(location.field ? location.field->expression : "")},
                        {"field", or_null(location.field ? location.field->field : "")},
                        {field::idempotency_key, refused_key},
                        {"item", item},
                        {"message", state.error->message},
                        {"model", or_null(model)},
                        {field::node_id, node_id},
                        {field::position, position},
                        {"reads_input", std::move(reads.input)},
                        {"reads_kept", Value::array(std::move(reads.imported))},
                        {"summary", summary_of(state, location, tool, model)},
                        {"tool", or_null(tool)},
                        {"tries", tries},
                        {"turn", turn}});
}

Value step_error_view(const State& state, const Step& step, const Value& error, std::size_t& left) {
  if (!error.is_object()) return error;
  std::optional<FailedField> field;
  const std::string_view code = error.text(field::code);
  if (step.failure && step.role == Role::node && left > 0 && is_of_evaluation(code)) {
    left--;
    field = field_of(state, step, code);
  }
  return error.with("field", or_null(field ? field->field : ""))
      .with("expression", or_null(field ? field->expression : ""));
}

}  // namespace ae::engine
