// Random plans of the simulated jobs, their inputs, and changed plans.
//
// A plan is drawn from its number alone. To add a kind of node, add a line to `kKinds`.
#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/planner/planner.h"
#include "json/json.h"
#include "log/field_names.h"
#include "sim/code_program.h"
#include "sim/random_children.h"
#include "sim/random_loops.h"
#include "sim/sim_random.h"
#include "sim/task_graph.h"
#include "sim/tool_kinds.h"
#include "sim/workload.h"

namespace ae::sim {
namespace {

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
  wait.emplace_back("expires", fmt::format("{}s", 3 + draft.random.below(25)));
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
Value model_request(std::string_view content) {
  return Value::object(
      {{"model", "echo"},
       {"messages", Value::array({Value::object({{"role", "user"}, {"content", content}})})}});
}

std::vector<Member> llm_node(const Draft& draft) {
  return {{field::kind, "llm"},
          {"tool", kModel},
          {"args", model_request(draft.id + " ${ .input.x } " + draft.read.as_string())}};
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

// A small context, so that a few turns exceed it. Its model reports no usage: the bytes count.
void leave_out_messages(SimRandom& random, std::vector<Member>& loop) {
  for (Member& member : loop) {
    if (member.first == "model") member.second = Value("plain");
  }
  std::vector<Member> context{{"limit", 200 + random.below(300)}, {"policy", "truncate"}};
  if (random.one_in(2)) {
    context = {{"limit", 200 + random.below(300)},
               {"policy", "summarize"},
               {"tool", kModel},
               {"model", "plain"}};
  }
  loop.emplace_back("context", Value::object(std::move(context)));
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
  if (random.one_in(3)) leave_out_messages(random, loop);
  return {{field::kind, "loop"}, {"loop", Value::object(std::move(loop))}};
}

// A model's answers, turn by turn; the first may be useless.
std::string model_script(SimRandom& random, std::string_view answer) {
  std::vector<Value> texts;
  if (random.one_in(2)) texts.emplace_back("let me see");
  texts.emplace_back(random.one_in(8) ? std::string_view("nothing at all") : answer);
  return canonical(Value::object({{"texts", Value::array(std::move(texts))}}));
}

// An answer with a schema, repaired once if it breaks it.
std::vector<Member> repaired_node(const Draft& draft) {
  const Value schema = Value::object({{"required", Value::array({"n"})}, {"type", "object"}});
  const Value messages = Value::array(
      {Value::object({{"content", model_script(draft.random, R"({"n": 1})")}, {"role", "system"}}),
       Value::object({{"content", fmt::format("{} {}", draft.id, draft.read.as_string())},
                      {"role", "user"}})});
  return {{field::kind, "llm"},
          {"tool", kModel},
          {"repair", 1},
          {"args", Value::object({{"messages", messages}, {"model", "echo"}, {"schema", schema}})}};
}

std::vector<Member> map_node(const Draft& draft) {
  std::vector<Member> call;
  if (draft.random.one_in(6)) {
    call = {{"tool", kModel}, {"args", model_request("${ .index }")}};
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
  const std::string span = fmt::format("{}s", draft.random.below(15));
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
  if (random.one_in(4)) limits.emplace_back("wall", fmt::format("{}s", 2 + random.below(40)));
  if (limits.empty() || random.one_in(2)) limits.emplace_back("tool_calls", random.below(5));
  return Value::object(std::move(limits));
}

// A job whose model plans it: one or more calls, in sequence or parallel, perhaps with a timer
// between them; or, of some plans, a child job.
Value planner_graph(std::uint64_t number, SimRandom& random) {
  std::vector<Value> tools = some_tools(random);
  const bool has_children = number > 0 && random.one_in(2);
  if (has_children) tools.emplace_back("delegate");
  std::vector<Value> nodes;
  for (std::uint64_t i = 0, count = 1 + random.below(3); i < count; ++i) {
    const std::string id = fmt::format("p{}", i);
    std::vector<Member> node{{"id", id}};
    if (random.one_in(5)) {
      node.emplace_back("wait_for", fmt::format("{}s", 1 + random.below(5)));
    } else {
      const Value& tool = tools[random.below(tools.size())];
      const bool child = tool_kind(tool.as_string())->child;
      const Value args = child ? child_input(number, random) : Value::object({{"n", id}});
      node.emplace_back("tool", tool);
      node.emplace_back("args", canonical(args));
      if (random.one_in(2)) node.emplace_back("on_error", "continue");
    }
    if (i > 0 && random.one_in(2)) {
      node.emplace_back("needs", Value::array({Value(fmt::format("p{}", i - 1))}));
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

Value tool_node_of(std::vector<Member> node) {
  node.emplace_back(field::kind, "tool");
  return Value::object(std::move(node));
}

// A recorded value, and a call that sends it. They draw nothing, so all other plans stay the same.
void add_recorded(std::uint64_t number, std::vector<Value>& nodes) {
  const std::string_view tool = kRecorded[number % std::size(kRecorded)].tool;
  const Value args =
      tool == "dice" ? Value::object({{"max", 1'000'000}, {"min", 1}}) : Value::object({});
  nodes.push_back(
      tool_node_of({{"args", args}, {"id", "v"}, {"on_error", "continue"}, {"tool", tool}}));
  nodes.push_back(tool_node_of({{"args", Value::object({{"n", "w"}, {"v", "${ .steps.v }"}})},
                                {"id", "w"},
                                {"needs", Value::array({"v"})},
                                {"tool", "put"}}));
}

}  // namespace

// A job of code. Users answer its waits.
SimPlan code_plan(std::uint64_t number) {
  const std::string agent = fmt::format("program-{}", number);
  SimPlan made{.plan = compile_graph(code_graph(agent)), .waits = {}, .code = true};
  for (const CodeGroup& group : code_program(agent).groups) {
    for (const CodeItem& item : group.items) {
      if (item.kind != CodeItem::Kind::wait || item.wait.type == engine::WaitType::timer) continue;
      const bool is_message = item.wait.type == engine::WaitType::message;
      const std::string scope = group.scope.empty() ? "" : group.scope + "/";
      made.waits.push_back({std::string(to_text(item.wait.type)),
                            is_message ? item.wait.channel : "key-" + scope + item.name});
    }
  }
  return made;
}

SimPlan random_plan(std::uint64_t number) {
  constexpr std::uint64_t kCodeOneIn = 11;
  if (number % kCodeOneIn == 3) return code_plan(number);
  SimRandom random(number * 7919 + 17);
  SimPlan made;
  if (random.one_in(15)) {
    Value graph = planner_graph(number, random);
    if (random.one_in(4)) graph = graph.with(field::budget, random_budget(random));
    made.plan = compile_graph(graph);
    made.planner = true;
    return made;
  }
  const std::uint64_t count = 1 + random.below(5);
  std::uint64_t weights = 0;
  for (const auto& kind : kKinds) weights += kind.weight;
  std::vector<Value> nodes;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::string id = fmt::format("n{}", i);
    std::vector<Value> needs;
    Value read = "${ .input.x }";
    for (std::uint64_t j = 0; j < i; ++j) {
      if (!random.one_in(3)) continue;
      needs.emplace_back(fmt::format("n{}", j));
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
  add_children(number, nodes);
  add_summaries(number, nodes);
  std::vector<Member> graph{{"nodes", Value::array(std::move(nodes))}, {"schema", 1}};
  if (random.one_in(2)) graph.emplace_back("output", "${ .steps }");
  if (random.one_in(8)) {
    graph.emplace_back(field::deadline, fmt::format("{}s", 5 + random.below(60)));
  }
  if (random.one_in(4)) graph.emplace_back(field::max_attempts, 2 + random.below(4));
  if (random.one_in(4)) graph.emplace_back(field::budget, random_budget(random));
  made.plan = compile_graph(Value::object(std::move(graph)));
  return made;
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
      std::vector<Member> node{
          {"id", "x" + nth}, {"tool", tool}, {"args", Value::object(std::move(args))}};
      if (random.one_in(2)) node.emplace_back("needs", Value::array({nodes.back()["id"]}));
      nodes.push_back(tool_node_of(std::move(node)));
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

}  // namespace ae::sim
