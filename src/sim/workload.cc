// Plans, made from a number or written by hand.
#include "sim/workload.h"

#include <set>

#include "core/json.h"
#include "engine/state.h"
#include "sim/outside.h"

namespace ae::sim {

using namespace std::chrono_literals;

namespace {

// The tools that a graph's nodes name, with their policies.
Value with_tools(Value graph) {
  std::set<std::string> names;
  for (const Value& node : graph["nodes"].items()) {
    if (node["tool"].is_string()) names.insert(node["tool"].as_string());
    if (node["do"]["tool"].is_string()) names.insert(node["do"]["tool"].as_string());
  }
  std::vector<Member> tools;
  tools.reserve(names.size());
  for (const std::string& name : names) tools.emplace_back(name, tool_policy(*tool_kind(name)));
  return graph.with("tools", Value::object(std::move(tools)));
}

std::shared_ptr<const engine::Plan> compile(const Value& graph) {
  auto plan = engine::Plan::compile(with_tools(graph));
  AE_CHECK(plan.has_value(), plan ? "" : plan.error().message + " in " + canonical(graph));
  return *plan;
}

struct Draft {  // what a node's kind may look at
  SimChance& chance;
  std::string id;
  Value read;  // an expression
  std::vector<std::string>& signal_keys;
};

Value any_tool(SimChance& chance) { return kTools[chance.below(std::size(kTools))].name; }

std::vector<Member> tool_node(const Draft& draft) {
  return {{"kind", "tool"},
          {"tool", any_tool(draft.chance)},
          {"args", Value::object({{"n", draft.id}, {"r", draft.read}})}};
}

std::vector<Member> map_node(const Draft& draft) {
  return {{"kind", "map"},
          {"over", "${ .input.list }"},
          {"max_parallel", 1 + draft.chance.below(3)},
          {"on_item_error", draft.chance.one_in(2) ? "collect" : "fail"},
          {"do",
           Value::object({{"tool", any_tool(draft.chance)},
                          {"args", Value::object({{"i", "${ .index }"}, {"v", "${ .item }"}})}})}};
}

std::vector<Member> signal_node(const Draft& draft) {
  const std::string key = "key-" + draft.id;
  draft.signal_keys.push_back(key);
  std::vector<Member> wait{{"key", key}, {"type", draft.chance.one_in(3) ? "webhook" : "signal"}};
  if (draft.chance.one_in(2)) {
    wait.emplace_back("expires", std::to_string(3 + draft.chance.below(25)) + "s");
    if (draft.chance.one_in(2)) wait.emplace_back("on_expire", "continue");
  }
  return {{"kind", "wait"}, {"wait", Value::object(std::move(wait))}};
}

std::vector<Member> timer_node(const Draft& draft) {
  const std::string span = std::to_string(draft.chance.below(15)) + "s";
  return {{"kind", "wait"}, {"wait", Value::object({{"for", span}, {"type", "timer"}})}};
}

// The kinds of nodes and how often they are drawn.
constexpr struct {
  std::uint64_t weight;
  std::vector<Member> (*make)(const Draft&);
} kKinds[] = {{6, tool_node}, {2, map_node}, {2, signal_node}, {1, timer_node}};

SimPlan random_plan(std::uint64_t number) {
  SimChance chance(number * 7919 + 17);
  SimPlan made;
  const std::uint64_t count = 1 + chance.below(5);
  std::uint64_t weights = 0;
  for (const auto& kind : kKinds) weights += kind.weight;
  std::vector<Value> nodes;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::string id = "n" + std::to_string(i);
    std::vector<Value> needs;
    Value read = "${ .input.x }";
    for (std::uint64_t j = 0; j < i; ++j) {
      if (!chance.one_in(3)) continue;
      needs.emplace_back("n" + std::to_string(j));
      read = "${ .steps.n" + std::to_string(j) + " }";
    }
    std::uint64_t draw = chance.below(weights);
    std::vector<Member> node;
    for (const auto& kind : kKinds) {
      if (draw < kind.weight) {
        node = kind.make({chance, id, read, made.signal_keys});
        break;
      }
      draw -= kind.weight;
    }
    node.emplace_back("id", id);
    if (!needs.empty()) node.emplace_back("needs", Value::array(std::move(needs)));
    if (chance.one_in(6)) {
      node.emplace_back("when", "${ .input.x > " + std::to_string(chance.below(6)) + " }");
    }
    if (chance.one_in(2)) node.emplace_back("on_error", "continue");
    nodes.push_back(Value::object(std::move(node)));
  }
  std::vector<Member> graph{{"nodes", Value::array(std::move(nodes))}, {"schema", 1}};
  if (chance.one_in(2)) graph.emplace_back("output", "${ .steps }");
  if (chance.one_in(8)) {
    graph.emplace_back("deadline", std::to_string(5 + chance.below(60)) + "s");
  }
  if (chance.one_in(4)) graph.emplace_back("max_attempts", 2 + chance.below(4));
  made.plan = compile(Value::object(std::move(graph)));
  return made;
}

}  // namespace

const SimPlan& PlanBook::random(std::uint64_t number) {
  if (auto it = plans_.find(number); it != plans_.end()) return it->second;
  SimPlan made = random_plan(number);
  by_hash_.emplace(to_hex(made.plan->hash), made.plan);
  return plans_.emplace(number, std::move(made)).first->second;
}

std::shared_ptr<const engine::Plan> PlanBook::small(const SmallJob& job) {
  std::shared_ptr<const engine::Plan>& plan = small_[job.name];
  if (!plan) {
    auto graph = parse_json(job.nodes);
    AE_CHECK(graph.has_value(), std::string(job.name));
    plan = compile(*graph);
    by_hash_.emplace(to_hex(plan->hash), plan);
  }
  return plan;
}

engine::PlanSource PlanBook::source() {
  return [this](const Value& graph,
                std::string_view hash) -> Result<std::shared_ptr<const engine::Plan>> {
    if (auto it = by_hash_.find(hash); it != by_hash_.end()) return it->second;
    AE_ASSIGN(auto plan, engine::Plan::compile(graph));
    by_hash_.emplace(to_hex(plan->hash), plan);
    return plan;
  };
}

Value random_input(SimChance& chance) {
  std::vector<Value> list(chance.below(4));
  for (Value& item : list) item = Value(chance.below(100));
  return Value::object({{"list", Value::array(std::move(list))}, {"x", chance.below(7)}});
}

// Together they cover every kind of node, every outcome of a call and every policy.
const std::vector<SmallJob>& small_jobs() {
  static const std::vector<SmallJob> jobs = {
      {.name = "chain: read, idempotent, at_most_once, output", .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"look","args":{"x":"${ .input.x }"}},
         {"id":"b","kind":"tool","tool":"put","needs":["a"],"args":{"x":"${ .steps.a.args.x }"}},
         {"id":"c","kind":"tool","tool":"once","needs":["b"],"args":{"x":"${ .steps.b.tool }"}}],
         "output":{"c":"${ .steps.c.args }"}})"},
      {.name = "parallel branches, a join, a node left out", .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"put","args":{"n":1}},
         {"id":"b","kind":"tool","tool":"once","args":{"n":2}},
         {"id":"no","kind":"tool","tool":"once","when":"${ .input.x > 100 }","args":{"n":3}},
         {"id":"c","kind":"tool","tool":"put","needs":["a","b","no"],
          "args":{"a":"${ .steps.a.args.n }","no":"${ .steps.no }"}}]})"},
      {.name = "map, one item refused for good, errors collected", .nodes = R"({"schema":1,"nodes":[
         {"id":"m","kind":"map","over":"${ [[\"ok\"],[\"denied\"],[\"ok\"]] }","max_parallel":2,
          "on_item_error":"collect",
          "do":{"tool":"put","args":{"fate":"${ .item }","i":"${ .index }"}}},
         {"id":"z","kind":"tool","tool":"look","needs":["m"],"args":{}}]})"},
      {.name = "retries: no connection, then 503, then fine", .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"put","args":{"fate":["refused","down_after","ok"]}},
         {"id":"b","kind":"tool","tool":"once","needs":["a"],"args":{"fate":["refused","ok"]}}]})"},
      {.name = "a definite failure ends the job", .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"put","args":{"n":1}},
         {"id":"b","kind":"tool","tool":"once","needs":["a"],"args":{"fate":["denied"]}},
         {"id":"c","kind":"tool","tool":"once","needs":["b"],"args":{}}]})"},
      {.name = "a definite failure that the job survives", .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"once","on_error":"continue","args":{"fate":["denied"]}},
         {"id":"b","kind":"tool","tool":"put","needs":["a"],"args":{"a":"${ .steps.a }"}}]})"},
      {.name = "a silent at_most_once call: a person says what happened",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"once","args":{"fate":["silent"]}},
         {"id":"b","kind":"tool","tool":"put","needs":["a"],"args":{"n":2}}]})"},
      {.name = "a lost at_most_once call: it did not happen, and is made again",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"once","args":{"fate":["lost","ok"]}}]})"},
      {.name = "on_in_doubt: fail",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"pay","args":{"n":1}},
         {"id":"b","kind":"tool","tool":"put","needs":["a"],"args":{}}]})",
       .may_end = {"failed:invocation_in_doubt"}},
      {.name = "on_in_doubt: park of an idempotent tool; an output that breaks a rule",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"mail","args":{"n":1}},
         {"id":"b","kind":"tool","tool":"put","needs":["a"],"on_error":"continue",
          "args":{"fate":["broken"]}}]})"},
      {.name = "a timer, then a signal",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"t","kind":"wait","wait":{"type":"timer","for":"2s"}},
         {"id":"s","kind":"wait","wait":{"type":"signal","key":"go","expires":"2h"},"needs":["t"]},
         {"id":"a","kind":"tool","tool":"put","needs":["s"],"args":{"s":"${ .steps.s }"}}]})",
       .signal_key = "go",
       .signal_at = 1s},
      {.name = "a signal while another branch works",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"s","kind":"wait","wait":{"type":"webhook","key":"go"}},
         {"id":"a","kind":"tool","tool":"put","args":{"fate":["late"]}},
         {"id":"b","kind":"tool","tool":"once","needs":["s","a"],"args":{}}]})",
       .signal_key = "go",
       .signal_at = 500ms},
      {.name = "waits that expire: one goes on, one ends the job", .nodes = R"({"schema":1,"nodes":[
         {"id":"s","kind":"wait","wait":{"type":"signal","key":"k1","expires":"2s",
          "on_expire":"continue"}},
         {"id":"a","kind":"tool","tool":"put","needs":["s"],"args":{}},
         {"id":"u","kind":"wait","wait":{"type":"signal","key":"k2","expires":"1s"},
          "needs":["a"]}]})"},
      {.name = "cancelled while a call is in flight",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"once","args":{"fate":["late"]}},
         {"id":"b","kind":"tool","tool":"put","needs":["a"],"args":{}}]})",
       .cancel_at = 1s,
       .may_end = {"completed"}},  // a crash delays whoever cancels
      {.name = "cancelled while it waits",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"put","args":{}},
         {"id":"s","kind":"wait","wait":{"type":"signal","key":"k"},"needs":["a"]}]})",
       .cancel_at = 3s},
      {.name = "a deadline while it waits", .nodes = R"({"schema":1,"deadline":"4s","nodes":[
         {"id":"a","kind":"tool","tool":"put","args":{}},
         {"id":"s","kind":"wait","wait":{"type":"signal","key":"k"},"needs":["a"]}]})"},
  };
  return jobs;
}

}  // namespace ae::sim
