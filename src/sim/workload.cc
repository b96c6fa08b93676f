// Workload: plans made from a number or written by hand.
#include "sim/workload.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <set>

#include "engine/planner/planner.h"
#include "engine/state/state.h"
#include "json/json.h"
#include "log/field_names.h"
#include "sim/external_world.h"

namespace ae::sim {

using namespace std::chrono_literals;

namespace {

// Tools that make no call, and what they record.
struct Recorded {
  std::string_view tool, what;
};
constexpr Recorded kRecorded[] = {{"clock", "time"}, {"dice", "random"}, {"ids", "uuid"}};

std::string_view recorded_by(std::string_view tool) {
  const auto known = std::ranges::find(kRecorded, tool, &Recorded::tool);
  return known == std::end(kRecorded) ? std::string_view() : known->what;
}

Value policy_of(const std::string& tool) {
  const std::string_view records = recorded_by(tool);
  return records.empty() ? tool_policy(*tool_kind(tool))
                         : tool_policy(*tool_kind("look")).with("records", records);
}

// Adds the tools that the graph's nodes name, and the tools that those name, with their policies.
Value with_tools(Value graph) {
  std::set<std::string> names;
  const std::function<void(std::string_view)> add = [&](std::string_view name) {
    if (name.empty() || !names.emplace(name).second || !recorded_by(name).empty()) return;
    add(tool_kind(name)->probe);
    add(tool_kind(name)->undo);
  };
  for (const Value& node : graph["nodes"].items()) {
    add(node.text("tool"));
    add(node["do"].text("tool"));
    for (const char* leads : {"loop", "planner"}) {
      add(node[leads].text("tool"));
      for (std::size_t i = 0; i < node[leads]["tools"].size(); ++i) {
        add(node[leads]["tools"].items()[i].as_string());
      }
    }
  }
  std::vector<Member> tools;
  tools.reserve(names.size());
  for (const std::string& name : names) tools.emplace_back(name, policy_of(name));
  return graph.with("tools", Value::object(std::move(tools)));
}

std::shared_ptr<const engine::Plan> compile(const Value& graph) {
  auto plan = engine::Plan::compile(with_tools(graph));
  AE_CHECK(plan.has_value(), plan ? "" : plan.error().message + " in " + canonical(graph));
  return *plan;
}

struct Draft {  // what the maker of a node may use
  SimRandom& random;
  std::string id;
  Value read;  // an expression
  std::vector<SimPlan::Wait>& waits;
};

constexpr bool is_for_nodes(const ToolKind& kind) { return !kind.side && kind.provider.empty(); }

Value any_tool(SimRandom& random) {
  constexpr auto kNodes = static_cast<std::uint64_t>(std::ranges::count_if(kTools, is_for_nodes));
  std::uint64_t draw = random.below(kNodes);
  for (const ToolKind& kind : kTools) {
    if (is_for_nodes(kind) && draw-- == 0) return kind.name;
  }
  return kTools[0].name;
}

void maybe_expires(const Draft& draft, std::vector<Member>& wait) {
  if (!draft.random.one_in(2)) return;
  wait.emplace_back("expires", std::to_string(3 + draft.random.below(25)) + "s");
  if (draft.random.one_in(2)) wait.emplace_back("on_expire", "continue");
}

std::vector<Member> wait_node(std::vector<Member> wait) {
  return {{field::kind, "wait"}, {"wait", Value::object(std::move(wait))}};
}

// Each node has its own resource, or uses a shared one.
void add_resource_arg(const Draft& draft, const Value& tool, std::vector<Member>& args,
                      std::string own) {
  if (tool_kind(tool.as_string())->changes.empty()) return;
  if (draft.random.one_in(3)) own = "shared";
  args.emplace_back("thing", "${ .job.id }/" + own);
}

std::vector<Member> tool_node(const Draft& draft) {
  const Value tool = any_tool(draft.random);
  std::vector<Member> args{{"n", draft.id}, {"r", draft.read}};
  add_resource_arg(draft, tool, args, draft.id);
  return {{field::kind, "tool"}, {"tool", tool}, {"args", Value::object(std::move(args))}};
}

constexpr std::string_view kModel = "model:echo";
Value question(std::string_view content) {
  return Value::object(
      {{"model", "echo"},
       {"messages", Value::array({Value::object({{"role", "user"}, {"content", content}})})}});
}

std::vector<Member> llm_node(const Draft& draft) {
  return {{field::kind, "llm"},
          {"tool", kModel},
          {"args", question(draft.id + " ${ .input.x } " + draft.read.as_string())}};
}

// Tools for a model, each at most once; some have approvals, unknown outcomes or compensations.
std::vector<Value> some_tools(SimRandom& random) {
  std::vector<Value> tools;
  for (std::uint64_t left = 1 + random.below(3); left > 0; --left) {
    Value tool = any_tool(random);
    const bool changes = !tool_kind(tool.as_string())->changes.empty();
    if (!changes && std::ranges::find(tools, tool) == tools.end()) tools.push_back(std::move(tool));
  }
  if (tools.empty()) tools.emplace_back("put");
  return tools;
}

// A loop: in each turn the model requests some calls, sometimes one that is not granted.
std::vector<Member> loop_node(const Draft& draft) {
  SimRandom& random = draft.random;
  const std::vector<Value> tools = some_tools(random);
  std::vector<Value> script;
  std::uint64_t nth = 0;
  for (std::uint64_t turns = random.below(4); turns > 0; --turns) {
    std::vector<Value> calls;
    for (std::uint64_t left = 1 + random.below(2); left > 0; --left) {
      const Value name = random.one_in(12) ? Value("unknown") : tools[random.below(tools.size())];
      calls.push_back(Value::object(
          {{field::arguments, Value::object({{"n", draft.id}, {"nth", ++nth}})}, {"name", name}}));
    }
    script.push_back(Value::array(std::move(calls)));
  }
  std::vector<Member> loop{{"tool", kModel},
                           {"model", "echo"},
                           {"prompt", canonical(Value::array(std::move(script)))},
                           {"tools", Value::array(tools)},
                           {"max_turns", 2 + random.below(3)},
                           {"parallel_tools", 1 + random.below(2)}};
  if (random.one_in(3)) loop.emplace_back("on_reject", "fail");
  return {{field::kind, "loop"}, {"loop", Value::object(std::move(loop))}};
}

// A model's answers, turn by turn; the first may be useless.
std::string model_script(SimRandom& random, std::string_view answer) {
  std::vector<Value> texts;
  if (random.one_in(2)) texts.emplace_back("let me see");
  texts.emplace_back(random.one_in(8) ? std::string_view("nothing at all") : answer);
  return canonical(Value::object({{"says", Value::array(std::move(texts))}}));
}

// An answer with a schema, repaired once if it breaks it.
std::vector<Member> repaired_node(const Draft& draft) {
  const Value schema = Value::object({{"required", Value::array({"n"})}, {"type", "object"}});
  const Value messages = Value::array(
      {Value::object({{"content", model_script(draft.random, R"({"n": 1})")}, {"role", "system"}}),
       Value::object({{"content", draft.id + " " + draft.read.as_string()}, {"role", "user"}})});
  return {{field::kind, "llm"},
          {"tool", kModel},
          {"repair", 1},
          {"args", Value::object({{"messages", messages}, {"model", "echo"}, {"schema", schema}})}};
}

std::vector<Member> map_node(const Draft& draft) {
  std::vector<Member> call;
  if (draft.random.one_in(6)) {
    call = {{"tool", kModel}, {"args", question("${ .index }")}};
  } else {
    const Value tool = any_tool(draft.random);
    std::vector<Member> args{{"i", "${ .index }"}, {"v", "${ .item }"}};
    add_resource_arg(draft, tool, args, draft.id + "-${ .index }");
    call = {{"tool", tool}, {"args", Value::object(std::move(args))}};
  }
  return {{field::kind, "map"},
          {"over", "${ .input.list }"},
          {"max_parallel", 1 + draft.random.below(3)},
          {"on_item_error", draft.random.one_in(2) ? "collect" : "fail"},
          {"do", Value::object(std::move(call))}};
}

std::vector<Member> signal_node(const Draft& draft) {
  const std::string key = "key-" + draft.id;
  const std::string type = draft.random.one_in(3) ? "webhook" : "signal";
  draft.waits.push_back({type, key});
  std::vector<Member> wait{{"key", key}, {"type", type}};
  maybe_expires(draft, wait);
  return wait_node(std::move(wait));
}

std::vector<Member> human_node(const Draft& draft) {
  const std::string key = "ask-" + draft.id;
  draft.waits.push_back({"human", key});
  std::vector<Member> wait{{"key", key}, {"type", "human"}};
  maybe_expires(draft, wait);
  if (draft.random.one_in(2)) wait.emplace_back("on_reject", "continue");
  if (draft.random.one_in(4)) wait.emplace_back("answer", "data");
  return wait_node(std::move(wait));
}

std::vector<Member> message_node(const Draft& draft) {
  const std::string channel = draft.random.one_in(3) ? "other" : "news";
  draft.waits.push_back({"message", channel});
  std::vector<Member> wait{{field::channel, channel}, {"type", "message"}};
  maybe_expires(draft, wait);
  return wait_node(std::move(wait));
}

std::vector<Member> timer_node(const Draft& draft) {
  const std::string span = std::to_string(draft.random.below(15)) + "s";
  return wait_node({{"for", span}, {"type", "timer"}});
}

// The kinds of nodes and their weights.
constexpr struct {
  std::uint64_t weight;
  std::vector<Member> (*make)(const Draft&);
} kKinds[] = {{10, tool_node},  {3, map_node},   {2, llm_node},
              {2, signal_node}, {2, human_node}, {2, message_node},
              {1, timer_node},  {3, loop_node},  {2, repaired_node}};

// Most of these are too low for the job.
Value random_budget(SimRandom& random) {
  std::vector<Member> limits;
  if (random.one_in(2)) limits.emplace_back("model_calls", random.below(3));
  if (random.one_in(3)) limits.emplace_back("tokens", 500 + random.below(4'000));
  if (random.one_in(4)) limits.emplace_back("wall", std::to_string(2 + random.below(40)) + "s");
  if (limits.empty() || random.one_in(2)) limits.emplace_back("tool_calls", random.below(5));
  return Value::object(std::move(limits));
}

// A job whose model plans it: one or more calls, in sequence or parallel, perhaps with a timer
// between them.
Value planner_graph(SimRandom& random) {
  const std::vector<Value> tools = some_tools(random);
  std::vector<Value> nodes;
  for (std::uint64_t i = 0, count = 1 + random.below(3); i < count; ++i) {
    const std::string id = "p" + std::to_string(i);
    const std::string args = canonical(Value::object({{"n", id}}));
    std::vector<Member> node{{"id", id}};
    if (random.one_in(5)) {
      node.emplace_back("wait_for", std::to_string(1 + random.below(5)) + "s");
    } else {
      node.emplace_back("tool", tools[random.below(tools.size())]);
      node.emplace_back("args", args);
      if (random.one_in(2)) node.emplace_back("on_error", "continue");
    }
    if (i > 0 && random.one_in(2)) {
      node.emplace_back("needs", Value::array({Value("p" + std::to_string(i - 1))}));
    }
    nodes.push_back(Value::object(std::move(node)));
  }
  const std::string plan = canonical(Value::object({{"nodes", Value::array(std::move(nodes))}}));
  const Value planner = Value::object({{"tool", kModel},
                                       {"model", "echo"},
                                       {"told", model_script(random, plan)},
                                       {"prompt", "x is ${ .input.x }"},
                                       {"tools", Value::array(tools)},
                                       {"max_nodes", 3},
                                       {"repair", 1},
                                       {"schema", engine::planner_schema()}});
  const Value node =
      Value::object({{"id", "planner"}, {field::kind, "planner"}, {"planner", planner}});
  return Value::object({{"nodes", Value::array({node})}, {"schema", 1}});
}

// A recorded value, and a call that sends it. They draw nothing, so all other plans stay the same.
void add_recorded(std::uint64_t number, std::vector<Value>& nodes) {
  const std::string_view tool = kRecorded[number % std::size(kRecorded)].tool;
  const Value args =
      tool == "dice" ? Value::object({{"max", 1'000'000}, {"min", 1}}) : Value::object({});
  nodes.push_back(Value::object({{"args", args},
                                 {"id", "v"},
                                 {field::kind, "tool"},
                                 {"on_error", "continue"},
                                 {"tool", tool}}));
  nodes.push_back(Value::object({{"args", Value::object({{"n", "w"}, {"v", "${ .steps.v }"}})},
                                 {"id", "w"},
                                 {field::kind, "tool"},
                                 {"needs", Value::array({"v"})},
                                 {"tool", "put"}}));
}

SimPlan random_plan(std::uint64_t number) {
  SimRandom random(number * 7919 + 17);
  SimPlan made;
  if (random.one_in(15)) {
    Value graph = planner_graph(random);
    if (random.one_in(4)) graph = graph.with(field::budget, random_budget(random));
    made.plan = compile(graph);
    made.planner = true;
    return made;
  }
  const std::uint64_t count = 1 + random.below(5);
  std::uint64_t weights = 0;
  for (const auto& kind : kKinds) weights += kind.weight;
  std::vector<Value> nodes;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::string id = "n" + std::to_string(i);
    std::vector<Value> needs;
    Value read = "${ .input.x }";
    for (std::uint64_t j = 0; j < i; ++j) {
      if (!random.one_in(3)) continue;
      needs.emplace_back("n" + std::to_string(j));
      read = "${ .steps.n" + std::to_string(j) + " }";
    }
    std::uint64_t draw = random.below(weights);
    std::vector<Member> node;
    for (const auto& kind : kKinds) {
      if (draw < kind.weight) {
        node = kind.make({random, id, read, made.waits});
        break;
      }
      draw -= kind.weight;
    }
    node.emplace_back("id", id);
    if (!needs.empty()) node.emplace_back("needs", Value::array(std::move(needs)));
    if (random.one_in(6)) {
      node.emplace_back("when", "${ .input.x > " + std::to_string(random.below(6)) + " }");
    }
    if (random.one_in(2)) node.emplace_back("on_error", "continue");
    nodes.push_back(Value::object(std::move(node)));
  }
  constexpr std::uint64_t kRecordedOneIn = 7;
  if (number % kRecordedOneIn == 0) add_recorded(number, nodes);
  std::vector<Member> graph{{"nodes", Value::array(std::move(nodes))}, {"schema", 1}};
  if (random.one_in(2)) graph.emplace_back("output", "${ .steps }");
  if (random.one_in(8)) {
    graph.emplace_back(field::deadline, std::to_string(5 + random.below(60)) + "s");
  }
  if (random.one_in(4)) graph.emplace_back(field::max_attempts, 2 + random.below(4));
  if (random.one_in(4)) graph.emplace_back(field::budget, random_budget(random));
  made.plan = compile(Value::object(std::move(graph)));
  return made;
}

}  // namespace

const SimPlan& PlanBook::plan_by_number(std::uint64_t number) {
  if (auto it = plans_.find(number); it != plans_.end()) return it->second;
  SimPlan made = random_plan(number);
  cache_.insert(made.plan);
  return plans_.emplace(number, std::move(made)).first->second;
}

std::shared_ptr<const engine::Plan> PlanBook::small(const SmallJob& job) {
  std::shared_ptr<const engine::Plan>& plan = small_[job.name];
  if (!plan) {
    auto graph = parse_json(job.nodes);
    AE_CHECK(graph.has_value(), std::string(job.name));
    plan = compile(*graph);
    cache_.insert(plan);
  }
  return plan;
}

Value random_input(SimRandom& random) {
  std::vector<Value> list(random.below(4));
  for (Value& item : list) item = Value(random.below(100));
  return Value::object({{"list", Value::array(std::move(list))}, {"x", random.below(7)}});
}

Variation vary(const Value& task_graph, SimRandom& random) {
  std::vector<Value> nodes(task_graph["nodes"].items().begin(), task_graph["nodes"].items().end());
  Variation made;
  const bool drops_explicitly = !random.one_in(3);
  const std::string nth = std::to_string(random.next() % 1000);
  const auto other = [&](Value& node) {  // changes the arguments, if it calls something
    if (drops_explicitly) made.drop.push_back(node["id"]);
    if (node["args"].is_null()) return;
    const bool model = node.text("tool") == kModel;
    node = node.with(
        "args", node["args"].with(model ? "max_tokens" : "again", Value(1 + random.below(1000))));
  };
  switch (random.below(6)) {
    case 0:
    case 1: {
      const Value tool = any_tool(random);
      std::vector<Member> args{{"n", "x" + nth}};
      if (!tool_kind(tool.as_string())->changes.empty()) {
        args.emplace_back("thing", "${ .job.id }/x" + nth);
      }
      std::vector<Member> node{{"id", "x" + nth},
                               {field::kind, "tool"},
                               {"tool", tool},
                               {"args", Value::object(std::move(args))}};
      if (random.one_in(2)) node.emplace_back("needs", Value::array({nodes.back()["id"]}));
      nodes.push_back(Value::object(std::move(node)));
      break;
    }
    case 2:
    case 3:
      other(nodes[random.below(nodes.size())]);
      break;
    case 4:
      if (nodes.size() == 1) break;
      if (drops_explicitly) made.drop.push_back(nodes.back()["id"]);
      nodes.pop_back();
      break;
    default:
      if (random.one_in(2)) break;
      for (Value& node : nodes) other(node);
      break;
  }
  made.task_graph = with_tools(task_graph.with("nodes", Value::array(std::move(nodes))));
  return made;
}

namespace {

engine::ControlRequest signal(std::string key, Value payload = Value::object({{"go", true}})) {
  return {.id = "signal-" + key,
          .by = "someone",
          .body = engine::SignalRequest{.correlation_key = std::move(key),
                                        .payload = std::move(payload)}};
}
engine::ControlRequest buffered_signal(std::string key) {
  engine::ControlRequest request = signal(std::move(key));
  std::get<engine::SignalRequest>(request.body).buffer = true;
  return request;
}
engine::ControlRequest decision_signal(std::string key, std::string_view decision) {
  return signal(std::move(key), Value::object({{"decision", decision}}));
}
engine::ControlRequest message(std::string id) {
  return {.id = id,
          .by = "someone",
          .body = engine::MessageRequest{.channel = "news",
                                         .payload = Value::object({{"message", id}})}};
}
engine::ControlRequest cancel(std::optional<bool> compensate = std::nullopt) {
  return {.id = "cancel", .by = "someone", .body = engine::CancelRequest{.compensate = compensate}};
}
engine::ControlRequest pause(std::string id) {
  return {.id = id, .by = id, .body = engine::PauseRequest{.reason = id}};
}
engine::ControlRequest resume(std::string id) {
  return {.id = id, .by = id, .body = engine::ResumeRequest{}};
}

// Raises the budget; limits as they are stored.
engine::ControlRequest raise(std::string_view limits) {
  const auto stored = parse_json(limits);
  AE_CHECK(stored.has_value(), std::string(limits));
  const auto read = engine::limits_of(*stored);
  AE_CHECK(read.has_value(), std::string(limits));
  return {.id = "raise", .by = "raise", .body = engine::BudgetRequest{.limits = *read}};
}

// A re-plan that abandons some nodes.
engine::ControlRequest plan(std::string_view nodes, std::vector<Value> drop = {}) {
  auto graph = parse_json(nodes);
  AE_CHECK(graph.has_value(), std::string(nodes));
  return {.id = "plan",
          .by = "plan",
          .body = engine::PlanRequest{.task_graph = with_tools(*graph),
                                      .drop = Value::array(std::move(drop))}};
}
constexpr std::string_view kWaiting = "waiting", kParked = "parked";
Action mutate() { return {.after = 100ms, .when = kWaiting, .kind = Action::Kind::mutate}; }
// Continues the job once no worker holds its lease: the next lease holder has to verify the
// changes.
Action signal_go() { return {.after = 100ms, .request = signal("go"), .when = kWaiting}; }

// A planner whose model answers first with text and then with a plan of two calls.
constexpr std::string_view kPlanner = R"({"schema":1,"nodes":[
         {"id":"planner","kind":"planner","planner":{"tool":"model:echo","model":"echo",
          "prompt":"go on","tools":["put","once","look"],"max_nodes":3,"repair":1,
          "told":"{\"says\":[\"let me see\",\"{\\\"nodes\\\":[{\\\"id\\\":\\\"a\\\",\\\"tool\\\":\\\"put\\\",\\\"args\\\":\\\"{}\\\"},{\\\"id\\\":\\\"b\\\",\\\"tool\\\":\\\"once\\\",\\\"needs\\\":[\\\"a\\\"]}]}\"]}",
          "schema":{"type":"object","required":["nodes"]}}}]})";

}  // namespace

// Together they cover every kind of node, every outcome of a call and every policy.
const std::vector<SmallJob>& small_jobs() {
  static const std::vector<SmallJob> jobs = {
      {.name = "chain: read, idempotent, at_most_once, output", .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"look","args":{"x":"${ .input.x }"}},
         {"id":"b","kind":"tool","tool":"put","needs":["a"],"args":{"x":"${ .steps.a.args.x }"}},
         {"id":"c","kind":"tool","tool":"once","needs":["b"],"args":{"x":"${ .steps.b.tool }"}}],
         "output":{"c":"${ .steps.c.args }"}})"},
      {.name = "recorded time, random numbers and ids: each generated once and sent",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"t","kind":"tool","tool":"clock"},
         {"id":"r","kind":"tool","tool":"dice","needs":["t"],"args":{"min":4,"max":4}},
         {"id":"u","kind":"map","over":"${ [1, 2, 3] }","max_parallel":2,"do":{"tool":"ids"}},
         {"id":"a","kind":"tool","tool":"put","needs":["r"],"args":{"r":"${ .steps.r }"}},
         {"id":"b","kind":"tool","tool":"once","needs":["a","t","u"],
          "args":{"t":"${ .steps.t.ms > 0 }","u":"${ .steps.u[0] != .steps.u[2] }"}}],
         "output":{"r":"${ .steps.r }","b":"${ .steps.b.args }"}})"},
      {.name = "parallel branches, a join, a skipped node", .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"put","args":{"n":1}},
         {"id":"b","kind":"tool","tool":"once","args":{"n":2}},
         {"id":"no","kind":"tool","tool":"once","when":"${ .input.x > 100 }","args":{"n":3}},
         {"id":"c","kind":"tool","tool":"put","needs":["a","b","no"],
          "args":{"a":"${ .steps.a.args.n }","no":"${ .steps.no }"}}]})"},
      {.name = "map: one item fails definitely, errors are collected",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"m","kind":"map","over":"${ [[\"ok\"],[\"denied\"],[\"ok\"]] }","max_parallel":2,
          "on_item_error":"collect",
          "do":{"tool":"put","args":{"fate":"${ .item }","i":"${ .index }"}}},
         {"id":"z","kind":"tool","tool":"look","needs":["m"],"args":{}}]})"},
      {.name = "retries: no connection, then 503, then success", .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"put","args":{"fate":["refused","down_after","ok"]}},
         {"id":"b","kind":"tool","tool":"once","needs":["a"],"args":{"fate":["refused","ok"]}}]})"},
      {.name = "a definite failure ends the job", .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"put","args":{"n":1}},
         {"id":"b","kind":"tool","tool":"once","needs":["a"],"args":{"fate":["denied"]}},
         {"id":"c","kind":"tool","tool":"once","needs":["b"],"args":{}}]})"},
      {.name = "a definite failure that the job survives", .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"once","on_error":"continue","args":{"fate":["denied"]}},
         {"id":"b","kind":"tool","tool":"put","needs":["a"],"args":{"a":"${ .steps.a }"}}]})"},
      {.name = "an at_most_once call without an answer: a user resolves it",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"once","args":{"fate":["silent"]}},
         {"id":"b","kind":"tool","tool":"put","needs":["a"],"args":{"n":2}}]})"},
      {.name = "a lost at_most_once call: resolved as not_happened and retried",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"once","args":{"fate":["lost","ok"]}}]})"},
      {.name = "an at_most_once call that arrives after its timeout, a probe, and a slow call",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"wire","args":{"fate":["late"]}},
         {"id":"b","kind":"tool","tool":"wire","args":{"fate":["slow"]}}]})"},
      {.name = "at_most_once calls that arrive late: a user resolves them as early as possible",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"once","args":{"fate":["late"]}},
         {"id":"b","kind":"tool","tool":"once","args":{"fate":["slow"]}}]})"},
      {.name = "a complete 500 after the effect: probed at once, resolved at once",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"wire","args":{"fate":["fault"]}},
         {"id":"b","kind":"tool","tool":"once","args":{"fate":["fault"]}}]})"},
      {.name = "on_in_doubt: fail",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"pay","args":{"n":1}},
         {"id":"b","kind":"tool","tool":"put","needs":["a"],"args":{}}]})",
       .may_end = {"failed:invocation_in_doubt"}},
      {.name = "on_in_doubt: park of an idempotent tool; an invalid output",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"mail","args":{"n":1}},
         {"id":"b","kind":"tool","tool":"put","needs":["a"],"on_error":"continue",
          "args":{"fate":["broken"]}}]})"},
      {.name = "an idempotent call whose tries or dedupe window run out",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"stow","args":{"fate":["silent","silent","silent"]}},
         {"id":"b","kind":"tool","tool":"put","needs":["a"],"args":{}}]})"},
      {.name = "a job ends after its maximum of lost attempts",
       .nodes = R"({"schema":1,"max_attempts":2,"nodes":[
         {"id":"a","kind":"tool","tool":"put","args":{"n":1}},
         {"id":"b","kind":"tool","tool":"once","needs":["a"],"args":{}}]})",
       .may_end = {"failed:max_attempts"}},
      {.name = "a timer, then a signal",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"t","kind":"wait","wait":{"type":"timer","for":"2s"}},
         {"id":"s","kind":"wait","wait":{"type":"signal","key":"go","expires":"2h"},"needs":["t"]},
         {"id":"a","kind":"tool","tool":"put","needs":["s"],"args":{"s":"${ .steps.s }"}}]})",
       .actions = {{1s, signal("go")}}},
      {.name = "a signal while another branch works",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"s","kind":"wait","wait":{"type":"webhook","key":"go"}},
         {"id":"a","kind":"tool","tool":"put","args":{"fate":["late"]}},
         {"id":"b","kind":"tool","tool":"once","needs":["s","a"],"args":{}}]})",
       .actions = {{500ms, signal("go")}}},
      {.name = "waits that expire: one continues, one fails the job",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"s","kind":"wait","wait":{"type":"signal","key":"k1","expires":"2s",
          "on_expire":"continue"}},
         {"id":"a","kind":"tool","tool":"put","needs":["s"],"args":{}},
         {"id":"u","kind":"wait","wait":{"type":"signal","key":"k2","expires":"1s"},
          "needs":["a"]}]})"},
      {.name = "cancelled while a call is in flight",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"once","args":{"fate":["late"]}},
         {"id":"b","kind":"tool","tool":"put","needs":["a"],"args":{}}]})",
       .actions = {{1s, cancel()}},
       .may_end = {"completed"}},  // a crash delays the cancel
      {.name = "cancelled while it waits",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"put","args":{}},
         {"id":"s","kind":"wait","wait":{"type":"signal","key":"k"},"needs":["a"]}]})",
       .actions = {{3s, cancel()}}},
      {.name = "a deadline while it waits", .nodes = R"({"schema":1,"deadline":"4s","nodes":[
         {"id":"a","kind":"tool","tool":"put","args":{}},
         {"id":"s","kind":"wait","wait":{"type":"signal","key":"k"},"needs":["a"]}]})"},
      {.name = "a call that a user approves, and one that needs no approval",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"m","kind":"map","over":"${ [1,2] }","max_parallel":2,
          "do":{"tool":"vote","args":{"i":"${ .index }"}}}]})",
       .answer = "approve"},
      {.name = "a call that a user rejects, and the job continues",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"gift","on_error":"continue","args":{"n":1}},
         {"id":"b","kind":"tool","tool":"put","needs":["a"],"args":{"a":"${ .steps.a }"}}]})",
       .answer = "reject"},
      {.name = "an approval that expires", .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"vote","on_error":"continue","args":{"n":1}},
         {"id":"b","kind":"tool","tool":"put","needs":["a"],"args":{"a":"${ .steps.a }"}}]})"},
      {.name = "an approved call is retried under its approval",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"gift","args":{"fate":["refused","silent","ok"]}}]})",
       .answer = "approve"},
      {.name = "users approve, reject, and do not answer",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"y","kind":"wait","wait":{"type":"human","key":"y"}},
         {"id":"n","kind":"wait","wait":{"type":"human","key":"n","on_reject":"continue"}},
         {"id":"x","kind":"wait","wait":{"type":"human","key":"x","expires":"2s",
          "on_expire":"continue"}},
         {"id":"a","kind":"tool","tool":"put","needs":["y","n","x"],
          "args":{"y":"${ .steps.y.decision }","n":"${ .steps.n.decision }"}},
         {"id":"z","kind":"wait","wait":{"type":"human","key":"z"},"needs":["a"]}]})",
       .actions = {{200ms, decision_signal("y", "approve")},
                   {100ms, decision_signal("n", "reject")},
                   {3s, decision_signal("z", "reject")}}},
      {.name = "messages before and after their waits, one of them twice",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"t","kind":"wait","wait":{"type":"timer","for":"1s"}},
         {"id":"p","kind":"wait","wait":{"type":"message","channel":"news"},"needs":["t"]},
         {"id":"q","kind":"wait","wait":{"type":"message","channel":"news"},"needs":["p"]}],
         "output":["${ .steps.p.message }","${ .steps.q.message }"]})",
       .actions = {{100ms, message("m1")}, {100ms, message("m1")}, {1500ms, message("m2")}}},
      {.name = "a signal that comes before its wait",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"t","kind":"wait","wait":{"type":"timer","for":"2s"}},
         {"id":"s","kind":"wait","wait":{"type":"signal","key":"go"},"needs":["t"]},
         {"id":"a","kind":"tool","tool":"put","needs":["s"],"args":{"s":"${ .steps.s }"}}]})",
       .actions = {{100ms, buffered_signal("go")}}},
      {.name = "paused while a call is in flight",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"once","args":{"fate":["refused","ok"]}}]})",
       .actions = {{10ms, pause("p")}, {2s, resume("r")}}},
      {.name = "paused while it waits",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"t","kind":"wait","wait":{"type":"timer","for":"2s"}},
         {"id":"a","kind":"tool","tool":"put","needs":["t"],"args":{}}]})",
       .actions = {{1s, pause("p")}, {3s, resume("r")}}},
      {.name = "a probe finds the call", .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"wire","args":{"fate":["silent"]}}]})"},
      {.name = "a probe finds no call, and it is retried", .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"wire","args":{"fate":["lost","ok"]}}]})"},
      {.name = "committed steps are compensated, newest first", .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"book","args":{"n":1}},
         {"id":"b","kind":"tool","tool":"grab","needs":["a"],"args":{"n":2}},
         {"id":"c","kind":"tool","tool":"once","needs":["b"],"args":{"fate":["denied"]}}]})"},
      {.name = "committed steps are compensated after a cancel",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"book","args":{"n":1}},
         {"id":"s","kind":"wait","wait":{"type":"signal","key":"k"},"needs":["a"]}]})",
       .actions = {{2s, cancel()}}},
      {.name = "a cancelled job with one unknown call: a user resolves it",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"grab","args":{"fate":["silent"]}}]})",
       .actions = {{2s, cancel()}},
       .may_end = {"completed"}},  // a crash delays the cancel
      {.name = "a cancelled job with one unknown call: it is retried and compensated",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"book","args":{"fate":["silent","ok"]}}]})",
       .actions = {{2s, cancel()}},
       .may_end = {"completed"}},  // a crash delays the cancel
      {.name = "a cancelled job with one unknown call: its probe resolves it",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"hire","args":{"fate":["silent"]}}]})",
       .actions = {{2s, cancel()}},
       .may_end = {"completed"}},  // a crash delays the cancel
      {.name = "a cancelled job with one late call: a user resolves it as early as possible",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"grab","args":{"fate":["late"]}}]})",
       .actions = {{2s, cancel()}},
       .may_end = {"completed"}},  // a crash delays the cancel
      {.name = "a cancelled job with one late call: probed as early as possible",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"hire","args":{"fate":["late"]}}]})",
       .actions = {{2s, cancel()}},
       .may_end = {"completed"}},  // a crash delays the cancel
      {.name = "a cancelled job with two late map items: a user resolves them",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"m","kind":"map","over":"${ [[\"late\"],[\"late\"]] }","max_parallel":2,
          "do":{"tool":"grab","args":{"fate":"${ .item }","i":"${ .index }"}}}]})",
       .actions = {{2s, cancel()}},
       .may_end = {"completed"}},  // a crash delays the cancel
      {.name = "a cancelled job with two late calls of a loop: a user and a probe resolve them",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"chat","kind":"loop","loop":{"tool":"model:echo","model":"echo","max_turns":3,
          "parallel_tools":2,"tools":["grab","hire"],"prompt":
          "[[{\"name\":\"grab\",\"arguments\":{\"fate\":[\"late\"]}},{\"name\":\"hire\",\"arguments\":{\"fate\":[\"late\"]}}]]"}}]})",
       .actions = {{2s, cancel()}},
       .may_end = {"completed"}},  // a crash delays the cancel
      {.name = "a cancel without compensation",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"book","args":{"n":1}},
         {"id":"s","kind":"wait","wait":{"type":"signal","key":"k"},"needs":["a"]}]})",
       .actions = {{2s, cancel(false)}}},
      {.name = "an unknown compensation: a user resolves it", .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"grab","args":{"undo_fate":["silent"]}},
         {"id":"b","kind":"tool","tool":"put","needs":["a"],"args":{"fate":["denied"]}}]})"},
      {.name = "an unknown compensation: its probe resolves it", .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"hire","args":{"undo_fate":["lost","ok"]}},
         {"id":"b","kind":"tool","tool":"put","needs":["a"],"args":{"fate":["denied"]}}]})"},
      {.name = "a compensation that fails and is retried", .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"book","args":{"undo_fate":["denied","ok"]}},
         {"id":"b","kind":"tool","tool":"put","needs":["a"],"args":{"fate":["denied"]}}]})"},
      {.name = "a compensation that cannot be called", .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"book","args":{"fate":["broken"]}}]})"},
      {.name = "an unknown call, then a compensation", .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"book","args":{}},
         {"id":"b","kind":"tool","tool":"once","args":{"fate":["silent"]}},
         {"id":"c","kind":"tool","tool":"put","needs":["a"],"args":{"fate":["denied"]}}]})"},
      {.name = "a model answers, and its answer is used", .nodes = R"({"schema":1,"nodes":[
         {"id":"m","kind":"llm","tool":"model:echo","args":{"model":"echo","messages":[
          {"role":"user","content":"x is ${ .input.x }"}]}},
         {"id":"a","kind":"tool","tool":"once","needs":["m"],"args":{"m":"${ .steps.m.text }"}}],
         "output":{"m":"${ .steps.m.text }","a":"${ .steps.a.args }"}})"},
      {.name = "a model that is busy, then does not answer, then answers",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"m","kind":"llm","tool":"model:echo","args":{"model":"echo","messages":[
          {"role":"system","content":"[\"busy\",\"silent\",\"ok\"]"},
          {"role":"user","content":"well?"}]}},
         {"id":"a","kind":"tool","tool":"put","needs":["m"],"args":{"m":"${ .steps.m.text }"}}],
         "output":"${ .steps.a.args }"})"},
      {.name = "strict: a mismatch fails the job",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"alter","args":{"thing":"${ .job.id }/t"}},
         {"id":"s","kind":"wait","wait":{"type":"signal","key":"go"},"needs":["a"]},
         {"id":"b","kind":"tool","tool":"put","needs":["s"],"args":{}}]})",
       .actions = {mutate(), signal_go()}},
      {.name = "strict: a match",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"alter","args":{"thing":"${ .job.id }/t"}},
         {"id":"s","kind":"wait","wait":{"type":"signal","key":"go"},"needs":["a"]},
         {"id":"b","kind":"tool","tool":"alter","needs":["s"],"args":{"thing":"${ .job.id }/t"}}],
         "output":"${ .steps.b.version }"})",
       .actions = {signal_go()}},
      {.name = "warn: the job continues after a mismatch",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"amend","args":{"thing":"${ .job.id }/t"}},
         {"id":"s","kind":"wait","wait":{"type":"signal","key":"go"},"needs":["a"]},
         {"id":"b","kind":"tool","tool":"put","needs":["s"],"args":{}}]})",
       .actions = {mutate(), signal_go()}},
      {.name = "human: a user accepts a mismatch",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"edit","args":{"thing":"${ .job.id }/t"}},
         {"id":"s","kind":"wait","wait":{"type":"signal","key":"go"},"needs":["a"]},
         {"id":"b","kind":"tool","tool":"put","needs":["s"],"args":{}}]})",
       .actions = {mutate(), signal_go()}},
      {.name = "human: a user does not accept a mismatch, and steps are compensated",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"z","kind":"tool","tool":"book","args":{}},
         {"id":"a","kind":"tool","tool":"edit","args":{"thing":"${ .job.id }/t"}},
         {"id":"s","kind":"wait","wait":{"type":"signal","key":"go"},"needs":["a","z"]},
         {"id":"b","kind":"tool","tool":"put","needs":["s"],"args":{}}]})",
       .actions = {mutate(), signal_go()},
       .confirm = "fail"},
      {.name = "an unreachable verifier, then a user has it check again",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"amend","args":{"thing":"${ .job.id }/t"}},
         {"id":"s","kind":"wait","wait":{"type":"signal","key":"go"},"needs":["a"]},
         {"id":"b","kind":"tool","tool":"put","needs":["s"],"args":{}}]})",
       .actions = {{.after = 100ms, .when = kWaiting, .kind = Action::Kind::verifiers_unreachable},
                   signal_go(),
                   {.after = 9s, .kind = Action::Kind::verifiers_reachable},
                   {.after = 100ms, .request = resume("look-again")}}},
      {.name = "a fork from the middle of an ended job",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"put","args":{"x":"${ .input.x }"}},
         {"id":"b","kind":"tool","tool":"once","needs":["a"],"args":{"a":"${ .steps.a.tool }"}},
         {"id":"c","kind":"tool","tool":"book","needs":["b"],"args":{}}],
         "output":"${ .steps.a.args }"})",
       .actions =
           {{.after = 100ms, .when = "completed", .kind = Action::Kind::fork, .at_node = "a"}}},
      {.name = "a retry of a failed job with another input",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"put","args":{}},
         {"id":"b","kind":"tool","tool":"once","needs":["a"],"args":{"fate":"${ .input.fate }"}}]})",
       .actions = {{.after = 100ms,
                    .when = "failed",
                    .kind = Action::Kind::fork,
                    .input = Value::object({{"fate", Value::array({"ok"})}, {"x", 5}})}}},
      {.name = "a retry of a loop that used up its turns continues before the last one",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"chat","kind":"loop","loop":{"tool":"model:echo","model":"echo","max_turns":2,
          "parallel_tools":2,"tools":["put","once"],"prompt":
          "[[{\"name\":\"put\",\"arguments\":{\"n\":1}},{\"name\":\"once\",\"arguments\":{\"n\":2}}],[{\"name\":\"put\",\"arguments\":{\"n\":3}}]]"}}]})",
       .actions = {{.after = 100ms, .when = "failed", .kind = Action::Kind::fork}}},
      {.name = "a fork of a waiting job, and both continue",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"m","kind":"map","over":"${ [1,2] }","max_parallel":2,
          "do":{"tool":"put","args":{"i":"${ .index }"}}},
         {"id":"s","kind":"wait","wait":{"type":"signal","key":"go"},"needs":["m"]},
         {"id":"b","kind":"tool","tool":"once","needs":["s"],"args":{"s":"${ .steps.s }"}}]})",
       .actions = {{.after = 100ms, .when = kWaiting, .kind = Action::Kind::fork, .at_node = "m"},
                   signal_go(),
                   {.after = 100ms, .request = signal("go"), .when = kWaiting, .of_fork = true}}},
      {.name = "a re-plan of a waiting job that carries everything",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"once","args":{"n":1}},
         {"id":"s","kind":"wait","wait":{"type":"signal","key":"go"},"needs":["a"]}]})",
       .actions = {{.after = 100ms,
                    .request = plan(R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"once","args":{"n":1}},
         {"id":"s","kind":"wait","wait":{"type":"signal","key":"go"},"needs":["a"]},
         {"id":"b","kind":"tool","tool":"once","needs":["s"],"args":{"n":2}}]})"),
                    .when = kWaiting},
                   signal_go()}},
      {.name = "a re-plan drops a call and makes it differently",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"book","args":{"n":1}},
         {"id":"m","kind":"llm","tool":"model:echo","args":{"model":"echo","messages":[
          {"role":"user","content":"well?"}]}},
         {"id":"s","kind":"wait","wait":{"type":"signal","key":"go"},"needs":["a","m"]}]})",
       .actions = {{.after = 100ms,
                    .request = plan(R"({"schema":1,"nodes":[
         {"id":"m","kind":"llm","tool":"model:echo","args":{"model":"echo","messages":[
          {"role":"user","content":"well?"}]}},
         {"id":"a","kind":"tool","tool":"book","args":{"n":2}},
         {"id":"s","kind":"wait","wait":{"type":"signal","key":"go"},"needs":["a"]}],
         "output":"${ .steps.m.text }"})",
                                    {"a"}),
                    .when = kWaiting},
                   {.after = 100ms, .request = signal("go#1"), .when = kWaiting}}},
      {.name = "a re-plan during a call: refused, then requested again",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"put","args":{"fate":["late"]}},
         {"id":"b","kind":"tool","tool":"once","needs":["a"],"args":{}}]})",
       .actions = {{.after = 100ms, .request = plan(R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"put","args":{"fate":["late"]}},
         {"id":"b","kind":"tool","tool":"once","needs":["a"],"args":{}},
         {"id":"c","kind":"tool","tool":"once","needs":["b"],"args":{}}]})")}},
       .races = true},
      {.name = "a loop of three turns: one that changes, one that is not granted, one equal to the "
               "first",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"chat","kind":"loop","loop":{"tool":"model:echo","model":"echo","max_turns":5,
          "parallel_tools":2,"tools":["put","look"],"prompt":
          "[[{\"name\":\"put\",\"arguments\":{\"n\":1}}],[{\"name\":\"once\",\"arguments\":{}},{\"name\":\"look\",\"arguments\":{\"n\":2}}],[{\"name\":\"put\",\"arguments\":{\"n\":1}}]]"}},
         {"id":"z","kind":"tool","tool":"once","needs":["chat"],
          "args":{"t":"${ .steps.chat.text }"}}],
         "output":"${ .steps.chat }"})"},
      {.name = "a loop of five turns, with parallel calls and two repeated ones",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"chat","kind":"loop","loop":{"tool":"model:echo","model":"echo","max_turns":5,
          "parallel_tools":3,"tools":["put","once","look"],"prompt":
          "[[{\"name\":\"put\",\"arguments\":{\"n\":1}},{\"name\":\"once\",\"arguments\":{\"n\":2}}],[{\"name\":\"look\",\"arguments\":{}}],[{\"name\":\"once\",\"arguments\":{\"n\":2}},{\"name\":\"put\",\"arguments\":{\"n\":1}}],[{\"name\":\"put\",\"arguments\":{\"n\":3}},{\"name\":\"once\",\"arguments\":{\"n\":4}}]]"}}],
         "output":"${ .steps.chat }"})"},
      {.name = "a loop with parallel calls: one unknown, one failed, one compensated",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"chat","kind":"loop","loop":{"tool":"model:echo","model":"echo","max_turns":5,
          "parallel_tools":3,"tools":["put","once","book"],"prompt":
          "[[{\"name\":\"put\",\"arguments\":{\"fate\":[\"denied\"]}},{\"name\":\"book\",\"arguments\":{\"n\":1}},{\"name\":\"once\",\"arguments\":{\"n\":2}},{\"name\":\"put\",\"arguments\":{\"n\":3}}]]"}},
         {"id":"b","kind":"tool","tool":"put","needs":["chat"],"args":{"fate":["denied"]}}]})"},
      {.name = "a loop whose budget is used up after a turn, and raised",
       .nodes = R"({"schema":1,"budget":{"model_calls":1,"tool_calls":1},"nodes":[
         {"id":"chat","kind":"loop","loop":{"tool":"model:echo","model":"echo","max_turns":5,
          "parallel_tools":2,"tools":["put","look"],"prompt":
          "[[{\"name\":\"put\",\"arguments\":{\"n\":1}}],[{\"name\":\"look\",\"arguments\":{\"n\":2}}]]"}},
         {"id":"z","kind":"tool","tool":"put","needs":["chat"],
          "args":{"t":"${ .steps.chat.text }"}}]})",
       .actions = {{.after = 100ms,
                    .request = raise(R"({"model_calls":100,"tool_calls":100})"),
                    .when = kParked}}},
      {.name = "a loop whose model gets a budget notice, then exceeds the budget",
       .nodes = R"({"schema":1,"budget":{"tool_calls":2,"soft":50},"nodes":[
         {"id":"chat","kind":"loop","loop":{"tool":"model:echo","model":"echo","max_turns":5,
          "parallel_tools":2,"tools":["put","once"],"prompt":
          "[[{\"name\":\"put\",\"arguments\":{\"n\":1}}],[{\"name\":\"put\",\"arguments\":{\"n\":2}},{\"name\":\"once\",\"arguments\":{\"n\":3}}]]"}}],
         "output":{"t":"${ .steps.chat.text }"}})",
       .actions = {{.after = 100ms, .request = raise(R"({"tool_calls":3})"), .when = kParked}}},
      {.name = "a model's invalid answer is repaired", .nodes = R"({"schema":1,"nodes":[
         {"id":"m","kind":"llm","tool":"model:echo","repair":1,"args":{"model":"echo","messages":[
          {"role":"system","content":"{\"says\":[\"let me see\",\"{\\\"n\\\":1}\"]}"},
          {"role":"user","content":"how many?"}],"schema":{"type":"object","required":["n"]}}},
         {"id":"a","kind":"tool","tool":"once","needs":["m"],"args":{"n":"${ .steps.m.json.n }"}}],
         "output":"${ .steps.a.args }"})"},
      {.name = "a model's answer is invalid twice, and the job continues without it",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"m","kind":"llm","tool":"model:echo","repair":1,"on_error":"continue",
          "args":{"model":"echo","messages":[
          {"role":"system","content":"{\"says\":[\"let me see\"]}"},
          {"role":"user","content":"how many?"}],"schema":{"type":"object","required":["n"]}}},
         {"id":"a","kind":"tool","tool":"put","needs":["m"],
          "args":{"c":"${ .steps.m.error.code }"}}]})"},
      {.name = "a model plans the job, at the second attempt", .nodes = kPlanner},
      {.name = "a tool asks a user and continues with the answer",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"quiz","args":{"n":1}},
         {"id":"b","kind":"tool","tool":"poll","needs":["a"],"args":{"a":"${ .steps.a.said }"}}],
         "output":{"a":"${ .steps.a.said }","b":"${ .steps.b.said }"}})",
       .answer = "approve"},
      {.name = "a tool asks a user who declines, and another one is retried",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"poll","on_error":"continue","args":{"fate":["refused","ok"]}},
         {"id":"b","kind":"tool","tool":"quiz","needs":["a"],"on_error":"continue","args":{}}]})",
       .answer = "reject"},
  };
  return jobs;
}

}  // namespace ae::sim
