// The roots of expressions, and the limits of their values.
#include "engine/heart/evaluate.h"

#include <fmt/core.h>

#include <algorithm>
#include <span>
#include <utility>

#include "engine/heart/features.h"
#include "log/field_names.h"
#include "plan/model_calls.h"

namespace ae::engine {
namespace {

constexpr std::size_t kKeyBytesMax = 256;

// The roots at one step: `.input`, `.job`, transitive needs, and in a map
// `.item`, `.index` and its name.
class PlanScope : public ExprScope {
 public:
  PlanScope(const State& state, Work* work) : state_(state), work_(work) {}
  PlanScope(const State& state, const Node& map, std::uint32_t index, Work* work)
      : state_(state),
        work_(work),
        as_(map.as),
        item_(&state.steps[map.index].map->over.items()[index]),
        index_(static_cast<std::int64_t>(index)) {}

  // Of an item of a completed map.
  PlanScope(const State& state, const Node& map, const Value* item, std::uint32_t index)
      : state_(state),
        work_(nullptr),
        as_(map.as),
        item_(item),
        index_(static_cast<std::int64_t>(index)) {}

  const Value* root(std::string_view name) const override {
    if (name == field::input) return &state_.input;
    if (name == "job") return &state_.job_root;
    if (item_ && (name == "item" || (!as_.empty() && name == as_))) return item_;
    if (item_ && name == "index") return &index_;
    return nullptr;
  }
  const Value* step(std::string_view node_id) const override {
    auto it = state_.plan->by_id.find(std::string(node_id));
    if (it == state_.plan->by_id.end()) return nullptr;
    const Step& step = state_.steps[it->second];
    if (!step.failure) return &step.result;
    seen_ = state_.result_for_dependents(step);
    return &seen_;
  }
  Value steps() const override {
    std::vector<Member> members;
    members.reserve(state_.plan->nodes.size());
    for (const Node& node : state_.plan->nodes) {
      members.emplace_back(node.id, state_.result_for_dependents(state_.steps[node.index]));
    }
    return Value::object(std::move(members));
  }
  void charge(std::size_t steps) const override {
    if (work_ != nullptr) *work_ += steps;
  }

 private:
  const State& state_;
  Work* work_;
  std::string_view as_;
  const Value* item_ = nullptr;
  Value index_;
  mutable Value seen_;
};

// The roots of a probe or compensation: the call that it belongs to.
class CallScope : public ExprScope {
 public:
  CallScope(const Invocation& call, const Value& result, Work* work)
      : work_(work),
        args_(call.arguments),
        call_(Value::object({{field::external_key, call.external_key.text},
                             {field::invocation_id, call.id.text},
                             {"key", call.key.text},
                             {field::try_, static_cast<std::uint64_t>(call.try_no)}})),
        result_(result) {}
  const Value* root(std::string_view name) const override {
    if (name == "args") return &args_;
    if (name == "call") return &call_;
    return name == field::result ? &result_ : nullptr;
  }
  const Value* step(std::string_view) const override { return nullptr; }
  Value steps() const override { return {}; }
  void charge(std::size_t steps) const override {
    if (work_ != nullptr) *work_ += steps;
  }

 private:
  Work* work_;
  const Value& args_;
  Value call_;
  const Value& result_;
};

Result<std::string> check_key_text(const Value& value, std::string_view what) {
  if (!value.is_string() || value.as_string().empty() || value.as_string().size() > kKeyBytesMax) {
    return fail(Code::expression_failed, "{} must be a text of 1 to 256 bytes", what);
  }
  return value.as_string();
}

}  // namespace

bool is_met(const Value& value) {
  return !value.is_null() && !(value.is_bool() && !value.as_bool());
}

Result<Value> side_arguments_of(const State& state, const Step& about, Role role, Work* work) {
  const ToolPolicy& tool = state.tool_of(about);
  const SideCall& side = role == Role::probe ? *tool.probe : *tool.compensate;
  Value args = Value::object({});
  if (side.has_args) {
    AE_ASSIGN(args, side.args.eval(CallScope(*about.call, about.result, work)));
  }
  const auto& schema = state.plan->tools[side.tool].args_schema;
  if (schema) AE_TRY(schema->check(args, work));
  return args;
}

Result<Value> probe_result_of(const State& state, const Step& about, const Value& answer,
                              Work* work) {
  return state.tool_of(about).probe->happened.eval(CallScope(*about.call, answer, work));
}

Result<Value> change_of(const State& state, const Step& step, std::size_t index,
                        const Value& result, Work* work) {
  return state.tool_of(step).changes[index].eval(CallScope(*step.call, result, work));
}

Result<bool> when_of(const State& state, const Node& node, Work* work) {
  AE_ASSIGN(const Value value, node.when->eval(PlanScope(state, work)));
  return is_met(value);
}

Result<Value> over_of(const State& state, const Node& node, Work* work) {
  AE_ASSIGN(Value over, node.over.eval(PlanScope(state, work)));
  if (!over.is_array()) {
    return fail(Code::expression_failed, "the value of `map` must be an array");
  }
  if (over.size() > PlanLimits{}.map_items_max) {
    return fail(Code::expression_failed, "the value of `map` has {} items; at most {} are allowed",
                over.size(), PlanLimits{}.map_items_max);
  }
  return over;
}

Result<Value> arguments_of(const State& state, const Node& node, std::uint32_t item, Work* work) {
  Value args;
  if (node.has_args) {
    AE_ASSIGN(args, item == kNoItem ? node.args.eval(PlanScope(state, work))
                                    : node.args.eval(PlanScope(state, node, item, work)));
  } else {
    args = Value::object({});
  }
  const ToolPolicy& tool = state.plan->tools[node.tool];
  if (tool.is_model()) {
    const Value& written = state.plan->task_graph["nodes"].items()[node.index];
    return build_model_request(node.kind == NodeKind::map ? written["do"]["args"] : written["args"],
                               std::move(args));
  }
  if (tool.args_schema) AE_TRY(tool.args_schema->check(args, work));
  AE_TRY(check_recorded_args(tool.records, args));
  return args;
}

Result<Value> opening_messages_of(const State& state, const Node& node, Work* work) {
  if (node.kind == NodeKind::llm) {
    AE_ASSIGN(const Value request, arguments_of(state, node, kNoItem, work));
    return request["messages"];
  }
  const LoopSpec& loop = *node.loop;
  std::vector<Value> messages;
  const auto add_message = [&](const char* role, const Template& source) -> Status {
    AE_ASSIGN(Value content, source.eval(PlanScope(state, work)));
    messages.push_back(Value::object({{"content", std::move(content)}, {"role", role}}));
    return {};
  };
  if (!loop.instructions.empty()) {
    messages.push_back(Value::object({{"content", loop.instructions}, {"role", "system"}}));
  }
  if (loop.system) AE_TRY(add_message("system", *loop.system));
  AE_TRY(add_message("user", loop.prompt));
  AE_ASSIGN(
      const Value request,
      build_model_request({}, Value::object({{"messages", Value::array(std::move(messages))}})));
  return request["messages"];
}

Result<Value> arguments_of(const State& state, const Step& step, Work* work) {
  if (step.role != Role::node) {
    return side_arguments_of(state, state.steps[step.of], step.role, work);
  }
  if (step.request) return fail(Code::expression_failed, "code states the arguments of its calls");
  if (step.turn == kNoTurn) return arguments_of(state, state.node_of(step), step.item, work);
  const Step& loop = state.steps[step.node];
  if (step.is_loop_call()) return requested_arguments_of(state, loop, step.turn, step.nth);
  AE_ASSIGN(const NextTurn next, next_turn_of(state, loop, step.turn, work));
  if (step.is_summary()) {
    if (next.summarize == 0) {
      return fail(Code::rejected, "the call was not made: the next turn leaves nothing out");
    }
    return summary_arguments_of(state, loop, step.turn, next.summarize);
  }
  return turn_arguments_of(state, loop, step.turn, next.extras, work);
}

Result<std::string> wait_key_of(const State& state, const Node& node, Work* work) {
  AE_ASSIGN(const Value key, node.wait_key->eval(PlanScope(state, work)));
  return check_key_text(key, "a wait's key");
}

Result<std::string> channel_of(const State& state, const Node& node, Work* work) {
  AE_ASSIGN(const Value channel, node.wait_channel->eval(PlanScope(state, work)));
  return check_key_text(channel, "a channel");
}

Result<Instant> due_of(const State& state, const Node& node, Instant now, Work* work) {
  const Template& source = node.wait_for ? *node.wait_for : *node.wait_until;
  AE_ASSIGN(const Value text, source.eval(PlanScope(state, work)));
  if (!text.is_string()) {
    return fail(Code::expression_failed, node.wait_for
                                             ? "a timer's `for` must be a text such as \"90s\""
                                             : "a timer's `until` must be a time in UTC");
  }
  if (node.wait_until) return instant_from_text(text.as_string());
  AE_ASSIGN(const Duration span, duration_from_text(text.as_string()));
  return now + span;
}

Result<Value> output_of(const State& state, Work* work) {
  if (state.plan->output) return state.plan->output->eval(PlanScope(state, work));
  std::vector<Member> members;  // the results of the nodes that nothing depends on
  for (const Node& node : state.plan->nodes) {
    if (node.dependents.empty()) {
      members.emplace_back(node.id, state.result_for_dependents(state.steps[node.index]));
    }
  }
  return Value::object(std::move(members));
}

// ---------------------------------------------------------------- failed fields

std::string sole_expression(const Value& source) {
  if (!source.is_string()) return {};
  const auto parts = Template::parts(source.as_string());
  if (!parts || parts->size() != 1) return {};
  const auto* expression = std::get_if<Expr>(&parts->front());
  return expression == nullptr ? std::string() : expression->text();
}

namespace {

FailedField failed_field(std::string field, std::string expression, bool gives_null = false) {
  return {.field = std::move(field), .expression = std::move(expression), .gives_null = gives_null};
}

std::optional<FailedField> find_failed_field(const Template& source, const std::string& field,
                                             const ExprScope& scope) {
  auto failure = source.failure(scope);
  if (!failure) return std::nullopt;
  return failed_field(field_at(field, failure->pointer), failure->expression, failure->gives_null);
}

const Value& at_pointer(const Value& value, std::string_view pointer) {
  const Value* at = &value;
  static const Value kNone{};
  while (!pointer.empty()) {
    pointer.remove_prefix(1);
    const std::size_t end = std::min(pointer.find('/'), pointer.size());
    const std::string token(pointer.substr(0, end));
    if (at->is_object()) {
      at = &(*at)[token];
    } else if (at->is_array() && !token.empty() && token.size() < 7 &&
               token.find_first_not_of("0123456789") == token.npos &&
               std::stoul(token) < at->size()) {
      at = &at->items()[std::stoul(token)];
    } else {
      return kNone;
    }
    pointer.remove_prefix(end);
  }
  return *at;
}

// The messages of a model node are written as `system` and `prompt`, or as a list.
FailedField use_written_names(FailedField found, const Value& messages) {
  const std::span<const Value> items =
      messages.is_array() ? messages.items() : std::span<const Value>();
  const bool short_form = !items.empty() && items.size() <= 2 &&
                          items.back().text("role") == "user" &&
                          (items.size() == 1 || items.front().text("role") == "system");
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::string head = fmt::format("args.messages[{}].content", i);
    if (!found.field.starts_with(head)) continue;
    found.field.replace(0, short_form ? head.size() : std::string_view("args.").size(),
                        !short_form             ? ""
                        : i + 1 == items.size() ? "prompt"
                                                : "system");
    return found;
  }
  if (found.field.starts_with("args.")) found.field.erase(0, std::string_view("args.").size());
  return found;
}

std::optional<FailedField> failed_arguments(const State& state, const Node& node,
                                            const Value& written, const ExprScope& scope) {
  if (!node.has_args) return std::nullopt;
  const ToolPolicy& tool = state.plan->tools[node.tool];
  if (auto found = find_failed_field(node.args, "args", scope)) {
    return tool.is_model() ? use_written_names(*std::move(found), written["messages"]) : found;
  }
  if (tool.is_model() || !tool.args_schema) return std::nullopt;
  const auto args = node.args.eval(scope);
  if (!args) return std::nullopt;
  const auto faults = tool.args_schema->validate(*args);
  if (faults.empty()) return std::nullopt;
  const std::string& pointer = faults.front().instance_path;
  return failed_field(field_at("args", pointer), sole_expression(at_pointer(written, pointer)));
}

std::optional<FailedField> failed_wait(const State& state, const Node& node, const Value& written,
                                       std::string_view code) {
  const PlanScope scope(state, nullptr);
  const auto check_field = [&](const std::optional<Template>& source, const char* name,
                               bool fits) -> std::optional<FailedField> {
    if (!source) return std::nullopt;
    const std::string field = fmt::format("wait.{}", name);
    if (auto found = find_failed_field(*source, field, scope)) return found;
    if (fits) return std::nullopt;
    return failed_field(field, sole_expression(written["wait"][name]));
  };
  const bool reused = code == code_name(Code::correlation_key_reused);
  const bool has_due = node.wait_for || node.wait_until;
  if (auto found =
          check_field(node.wait_key, "key", !reused && node.wait_key && wait_key_of(state, node)))
    return found;
  if (auto found = check_field(node.wait_channel, field::channel,
                               node.wait_channel && channel_of(state, node))) {
    return found;
  }
  const bool due = has_due && due_of(state, node, state.updated_at);
  if (auto found = check_field(node.wait_for, "for", due)) return found;
  return check_field(node.wait_until, field::until, due);
}

}  // namespace

std::optional<FailedField> failed_field_of(const State& state, const Step& step,
                                           std::string_view code) {
  const Node& node = state.node_of(step);
  if (step.role != Role::node || step.turn != kNoTurn || step.request) return std::nullopt;
  const Value& written = state.plan->task_graph["nodes"].items()[node.index];
  if (step.item != kNoItem) {
    const auto over = over_of(state, node);
    if (!over || step.item >= over->size()) return std::nullopt;
    const PlanScope scope(state, node, &over->items()[step.item], step.item);
    return failed_arguments(state, node, written["do"]["args"], scope);
  }
  const PlanScope scope(state, nullptr);
  if (node.when && !step.branch) return find_failed_field(*node.when, "when", scope);
  switch (node.kind) {
    case NodeKind::wait:
      return failed_wait(state, node, written, code);
    case NodeKind::map: {
      if (auto found = find_failed_field(node.over, "map", scope)) return found;
      if (over_of(state, node)) return std::nullopt;
      return failed_field("map", sole_expression(written["over"]));
    }
    case NodeKind::loop:
    case NodeKind::planner:
      if (node.loop->system) {
        if (auto found = find_failed_field(*node.loop->system, "system", scope)) return found;
      }
      return find_failed_field(node.loop->prompt, "prompt", scope);
    case NodeKind::tool:
    case NodeKind::llm:
      return failed_arguments(state, node, written["args"], scope);
    case NodeKind::code:
    case NodeKind::scope:
    case NodeKind::turn:
      break;
  }
  return std::nullopt;
}

std::optional<FailedField> failed_output_of(const State& state) {
  if (!state.plan->output) return std::nullopt;
  return find_failed_field(*state.plan->output, "output", PlanScope(state, nullptr));
}

}  // namespace ae::engine
