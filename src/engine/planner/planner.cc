#include "engine/planner/planner.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <utility>

#include "engine/heart/features.h"
#include "json/json.h"
#include "log/field_names.h"
#include "schema/answer_json.h"

namespace ae::engine {
namespace {

constexpr std::size_t kTextDepth = 64;

Value text_schema() { return Value::object({{"type", "string"}}); }

std::unexpected<Error> plan_error(const std::string& where, std::string_view what) {
  return fail(Code::plan_invalid, "{} {}", where, what);
}

Result<Value> json_at(const Value& node, std::string_view key, const std::string& where) {
  auto value = parse_json(node.text(key), {.depth_max = kTextDepth});
  if (!value) {
    return plan_error(where,
                      fmt::format("has `{}`, which is no JSON: {}", key, value.error().message));
  }
  return value;
}

class Lowering {
 public:
  explicit Lowering(const Plan& planner) : planner_(planner), node_(planner.nodes.front()) {}

  Result<Value> run(const Value& answer) {
    const Value& nodes = answer["nodes"];
    if (nodes.size() > node_.loop->nodes_max) {
      return plan_error("the plan", fmt::format("has {} nodes; at most {} are allowed",
                                                nodes.size(), node_.loop->nodes_max));
    }
    std::vector<Value> lowered{planner_.task_graph["nodes"].items().front()};
    for (const Value& one : nodes.items()) {
      AE_ASSIGN(Value node, lower_node(one));
      lowered.push_back(std::move(node));
    }
    Value graph = planner_.task_graph.with("nodes", Value::array(std::move(lowered)));
    if (answer.find("output") != nullptr) {
      AE_ASSIGN(const Value output, json_at(answer, "output", "the plan"));
      graph = graph.with("output", output);
    }
    return graph;
  }

 private:
  Result<Value> lower_node(const Value& source) {
    const std::string where = fmt::format("node `{}`", source.text("id"));
    const bool waits = source.find("wait_for") != nullptr;
    if (waits == (source.find("tool") != nullptr)) {
      return plan_error(where, "has either a `tool` or `wait_for`");
    }
    std::vector<Member> node{{"id", source["id"]}, {"needs", lower_needs(source["needs"])}};
    for (const char* same : {"when", "on_error"}) {
      if (const Value* text = source.find(same)) node.emplace_back(same, *text);
    }
    if (node.back().first == "on_error" && node.back().second == Value("fail")) node.pop_back();
    if (waits) {
      for (const char* other : {"args", "map", "as"}) {
        if (source.find(other) != nullptr)
          return plan_error(where, fmt::format("waits, and takes no `{}`", other));
      }
      node.emplace_back(field::kind, "wait");
      node.emplace_back("wait", Value::object({{"for", source["wait_for"]}, {"type", "timer"}}));
      return Value::object(std::move(node));
    }
    AE_ASSIGN(std::vector<Member> call, lower_call(source, where));
    if (source.find("map") == nullptr) {
      if (source.find("as") != nullptr) return plan_error(where, "has `as`, which is for a `map`");
      node.emplace_back(field::kind, "tool");
      for (Member& member : call) node.push_back(std::move(member));
      return Value::object(std::move(node));
    }
    node.emplace_back(field::kind, "map");
    node.emplace_back("over", source["map"]);
    node.emplace_back("max_parallel", 8);
    if (const Value* as = source.find("as")) node.emplace_back("as", *as);
    node.emplace_back("do", Value::object(std::move(call)));
    return Value::object(std::move(node));
  }

  // A node without needs comes after the planner.
  Value lower_needs(const Value& source) const {
    if (source.is_array() && source.size() > 0) return source;
    return Value::array({Value(node_.id)});
  }

  Result<std::vector<Member>> lower_call(const Value& source, const std::string& where) const {
    const std::string_view tool = source.text("tool");
    const auto& granted = node_.loop->planner_tools;
    const auto found = std::ranges::find_if(
        granted, [&](std::uint32_t index) { return planner_.tools[index].name == tool; });
    if (found == granted.end()) {
      std::string names;
      for (const std::uint32_t index : granted) {
        names += (names.empty() ? "" : ", ") + planner_.tools[index].name;
      }
      return plan_error(where, fmt::format("calls `{}`, which may not be called; there are: {}",
                                           tool, names.empty() ? "none" : names));
    }
    std::vector<Member> call{{"tool", tool}};
    if (source.find("args") == nullptr) return call;
    AE_ASSIGN(Value args, json_at(source, "args", where));
    if (!args.is_object()) return plan_error(where, "has `args`, which is no JSON object");
    call.emplace_back("args", std::move(args));
    return call;
  }

  const Plan& planner_;
  const Node& node_;
};

// Constant arguments are checked against the tool's schema before anything runs.
Status check_constant_args(const Plan& plan) {
  for (const Node& node : plan.nodes) {
    const ToolPolicy& tool = plan.tools[node.tool];
    if (node.kind != NodeKind::tool || (!tool.args_schema && tool.makes_call())) continue;
    if (node.has_args && !node.args.is_constant()) continue;
    Value args = Value::object({});
    if (node.has_args) args = plan.task_graph["nodes"].items()[node.index]["args"];
    Status fits = tool.args_schema ? tool.args_schema->check(args) : Status();
    if (fits) fits = check_recorded_args(tool.records, args);
    if (!fits) {
      return plan_error(
          fmt::format("node `{}`", node.id),
          fmt::format("has arguments that its tool does not take: {}", fits.error().message));
    }
  }
  return {};
}

// The turn whose answer is the plan; nullptr: unknown.
const Step* last_turn(const State& state) {
  const Step* last = nullptr;
  for (const Step& one : state.steps) {
    if (one.is_turn() && (last == nullptr || one.turn > last->turn)) last = &one;
  }
  return last;
}

}  // namespace

const Value& planner_schema() {
  static const Value kSchema = [] {
    const Value node = Value::object(
        {{"additionalProperties", false},
         {"properties",
          Value::object({{"args", text_schema()},
                         {"as", text_schema()},
                         {"id", text_schema()},
                         {"map", text_schema()},
                         {"needs", Value::object({{"items", text_schema()}, {"type", "array"}})},
                         {"on_error", Value::object({{"enum", Value::array({"fail", "continue"})},
                                                     {"type", "string"}})},
                         {"tool", text_schema()},
                         {"wait_for", text_schema()},
                         {"when", text_schema()}})},
         {"required", Value::array({"id"})},
         {"type", "object"}});
    return Value::object(
        {{"additionalProperties", false},
         {"properties",
          Value::object(
              {{"nodes", Value::object({{"items", node}, {"minItems", 1}, {"type", "array"}})},
               {"output", text_schema()}})},
         {"required", Value::array({"nodes"})},
         {"type", "object"}});
  }();
  return kSchema;
}

std::string planner_instructions(const std::vector<Value>& tools, std::uint32_t nodes_max) {
  std::string text =
      "You make a plan; somebody else carries it out. Answer with JSON and nothing else:\n"
      "{\"nodes\": [node, ...], \"output\": TEXT}\n"
      "A node is one of\n"
      "- a call: {\"id\": NAME, \"tool\": TOOL, \"args\": TEXT}; TOOL is one of those below, and "
      "TEXT "
      "is a JSON object, written as a text;\n"
      "- a call for each item of a list: a call that also has \"map\": \"${ EXPRESSION }\"; its "
      "args "
      "may read .item and .index;\n"
      "- a pause: {\"id\": NAME, \"wait_for\": \"30s\"}.\n"
      "A node may have \"needs\": [NAME, ...], the nodes that are done before it; \"when\": "
      "\"${ CONDITION }\", without which it is left out; and \"on_error\": \"continue\", if the "
      "plan "
      "goes on when it fails. What needs nothing of each other is done at the same time.\n"
      "Texts may hold ${ EXPRESSION }: .input is the input, .steps.NAME what the node NAME gave, "
      "which "
      "must be among the needs, or the needs of those. A text that is one expression has its "
      "value, of "
      "any type. The \"output\" is JSON, written as a text, in which .steps of all nodes may be "
      "read; "
      "without it the results of the last nodes are given.\n"
      "A NAME has letters, digits, _ and -, and is not planner. At most " +
      std::to_string(nodes_max) + " nodes.\nThe tools:\n";
  for (const Value& tool : tools) text += canonical(tool) + "\n";
  return text;
}

Result<std::shared_ptr<const Plan>> plan_from_answer(const Plan& planner, const Value& answer,
                                                     std::string_view version) {
  if (version != kLoweringVersion) {
    return fail(Code::needs_version,
                "a plan was made of a model's answer in the way "
                "\"{}\", which this Aetheris does not know",
                version);
  }
  const LoopSpec& spec = *planner.nodes.front().loop;
  AE_ASSIGN(const Value json, parse_answer_json(*spec.schema, answer));
  AE_ASSIGN(const Value graph, Lowering(planner).run(json));
  AE_ASSIGN(auto plan, Plan::compile(graph));
  AE_TRY(check_constant_args(*plan));
  return plan;
}

std::string plan_author_of(const State& state) {
  const Step* last = last_turn(state);
  const std::string& model = state.plan->tools[state.plan->nodes.front().tool].name;
  return last != nullptr && last->call ? fmt::format("{}/{}", model, last->call->id.text) : model;
}

Result<PlanGenerated> plan_generated_payload(const State& state) {
  const Step& step = state.steps.front();
  AE_ASSIGN(const auto plan, plan_from_answer(*state.plan, step.result));
  const Step* last = last_turn(state);
  std::optional<Hash> input_hash;
  if (last != nullptr && last->call) {
    input_hash = last->call->arguments_hash;
  } else if (last != nullptr && last->imported) {
    input_hash = hash_from_hex(last->imported->arguments_hash);
  }
  if (!input_hash) input_hash = hash_from_hex(state.hash_of(state.input));
  AE_ASSIGN(const Replan replan, replan_of(state, plan, {}));
  return PlanGenerated{.carried = carried_list(state, replan),
                       .decision_id = plan->decision,
                       .decision_locked = true,
                       .plan_hash = plan->hash,
                       .plan_input_hash = *input_hash,
                       .planned_by = plan_author_of(state),
                       .planner_version = std::string(kLoweringVersion),
                       .schema_version = 1,
                       .task_graph = plan->task_graph};
}

}  // namespace ae::engine
