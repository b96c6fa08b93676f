// Tests of Plan::compile: the meaning of a task graph, and everything that is rejected.
#include "plan/plan.h"

#include <fmt/core.h>

#include <string>

#include "json/json.h"
#include "testing/test.h"

namespace ae::engine {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::string_view kTools = R"("tools":{"pay":{"dedupe_window":"unlimited",
  "effect":"idempotent","grace":"30s","on_in_doubt":"resend","retry":{"initial_backoff":"200ms",
  "max_attempts":4,"max_backoff":"10s","multiplier":2,"retry_on":["timeout","5xx"]},
  "timeout":"10s","version":"0123456789abcdef"}})";

Result<std::shared_ptr<const Plan>> compile_nodes(const std::string& nodes,
                                                  const std::string& rest = {}) {
  const std::string text =
      "{\"schema\":1,\"nodes\":[" + nodes + "]," + std::string(kTools) + rest + "}";
  auto graph = parse_json(text);
  EXPECT_TRUE(graph) << text;
  return Plan::compile(graph ? *graph : Value());
}

std::string refusal_of_nodes(const std::string& nodes, const std::string& rest = {}) {
  const auto plan = compile_nodes(nodes, rest);
  if (plan) return "accepted";
  EXPECT_EQ(plan.error().code, Code::plan_invalid);
  return plan.error().message;
}

AE_TEST("plan/a task graph compiles to nodes with edges in both directions") {
  const auto compiled = compile_nodes(
      R"({"id":"a","kind":"tool","tool":"pay","args":{"x":"${ .input.x }"}},
         {"id":"b","kind":"wait","wait":{"type":"timer","for":"30s"},"needs":["a"]},
         {"id":"c","kind":"map","over":"${ .steps.a }","as":"line","max_parallel":3,
          "on_item_error":"collect","do":{"tool":"pay","args":{"y":"${ .line + .index }"}},
          "needs":["b","a"],"when":"${ .steps.a != null }","on_error":"continue"},
         {"id":"d","kind":"wait","wait":{"type":"signal","key":"k-${ .job.id }","expires":"1h",
          "on_expire":"continue"},"needs":["c"]})",
      R"(,"output":"${ .steps }","deadline":"1d","max_attempts":7)");
  ASSERT_TRUE(compiled) << compiled.error().message;
  const Plan& plan = **compiled;
  EXPECT_EQ(plan.nodes.size(), 4u);
  EXPECT_EQ(plan.by_id.at("c"), 2u);
  EXPECT_EQ(plan.nodes[0].dependents, (std::vector<std::uint32_t>{1, 2}));
  EXPECT_EQ(plan.nodes[2].needs, (std::vector<std::uint32_t>{1, 0}));
  EXPECT_EQ(plan.nodes[2].kind, NodeKind::map);
  EXPECT_EQ(plan.nodes[2].as, "line");
  EXPECT_EQ(plan.nodes[2].max_parallel, 3u);
  EXPECT_TRUE(plan.nodes[2].collect_errors);
  EXPECT_TRUE(plan.nodes[2].continue_on_error);
  EXPECT_TRUE(plan.nodes[2].when.has_value());
  EXPECT_TRUE(plan.nodes[1].wait_for.has_value());
  EXPECT_EQ(plan.nodes[3].wait.type, WaitType::signal);
  EXPECT_EQ(plan.nodes[3].wait_expires, std::chrono::hours(1));
  EXPECT_TRUE(plan.nodes[3].wait.continue_on_expire);
  EXPECT_EQ(plan.deadline, std::chrono::hours(24));
  EXPECT_EQ(plan.max_attempts, 7u);
  EXPECT_EQ(plan.tools.at(0).dedupe_window, std::nullopt);
  EXPECT_EQ(plan.tools.at(0).timeout, seconds(10));
  EXPECT_EQ(plan.hash, plan_hash(plan.task_graph));
  EXPECT_EQ(plan.decision, decision_id(plan.hash));
}

AE_TEST("plan/the hash is that of the canonical graph, the decision id its first 16 digits") {
  const Value graph = *parse_json(R"({"nodes": [{"tool": "t", "id": "a"}]})");
  const Hash hash = plan_hash(graph);
  EXPECT_EQ(to_hex(hash), "f6ff765f4cb0680d8ffb2f494032639e3389202d29e3dbe6410a4394d00cdf0c");
  EXPECT_EQ(decision_id(hash).text, "f6ff765f4cb0680d");
}

AE_TEST("plan/paths count plans, nodes and items from zero") {
  EXPECT_EQ(Plan::path(0, 3), "0/3");
  EXPECT_EQ(Plan::path(1, 0, 99'999), "1/0/99999");
}

AE_TEST("plan/unknown, missing and invalid members are rejected") {
  const std::string good = R"({"id":"a","kind":"tool","tool":"pay"})";
  EXPECT_EQ(refusal_of_nodes(good), "accepted");
  EXPECT_EQ(refusal_of_nodes(""), "a plan must have at least one node");
  EXPECT_EQ(refusal_of_nodes(good, R"(,"surprise":1)"), "unknown member `surprise`");
  EXPECT_EQ(refusal_of_nodes(R"({"id":"a","kind":"tool","tool":"pay","approval":"required"})"),
            "node `a`: unknown member `approval`");
  EXPECT_EQ(refusal_of_nodes(R"({"id":"a","kind":"scope"})"), "node `a`: `kind` has no such value");
  EXPECT_EQ(refusal_of_nodes(R"({"id":"a","kind":"code"})"), "node `a`: must be an object");
  EXPECT_EQ(refusal_of_nodes(R"({"id":"a","kind":"loop"})"), "node `a`: without `tool`");
  EXPECT_EQ(refusal_of_nodes(R"({"id":"a","kind":"loop","loop":{"tool":"pay"}})"),
            "node `a`: it is led by a model");
  EXPECT_EQ(refusal_of_nodes(R"({"id":"a b","kind":"tool","tool":"pay"})"),
            "nodes[0]: `id` must match [A-Za-z_][A-Za-z0-9_-]{0,63}");
  EXPECT_EQ(refusal_of_nodes(good + "," + good), "two nodes are called `a`");
  EXPECT_EQ(refusal_of_nodes(R"({"id":"a","kind":"tool","tool":"beg"})"),
            "node `a`: there is no tool `beg`");
  EXPECT_EQ(refusal_of_nodes(R"({"id":"a","kind":"tool","tool":"pay","needs":["b"]})"),
            "node `a` needs a node that does not exist");
  EXPECT_EQ(refusal_of_nodes(R"({"id":"a","kind":"tool","tool":"pay","needs":["a"]})"),
            "dependency cycle that begins at `a`");
  EXPECT_EQ(refusal_of_nodes(R"({"id":"a","kind":"tool","tool":"pay","when":"yes"})"),
            "node `a`: `when` must be one ${ … }, true or false");
  EXPECT_EQ(refusal_of_nodes(R"({"id":"a","kind":"tool","tool":"pay","args":[]})"),
            "node `a`: `args` must be an object, or one ${ … } that gives one");
  EXPECT_EQ(refusal_of_nodes(R"({"id":"a","kind":"wait","wait":{"type":"email"}})"),
            "node `a`: `type` has no such value");
  EXPECT_EQ(refusal_of_nodes(R"({"id":"a","kind":"wait","wait":{"type":"timer","for":"soon"}})"),
            "node `a`: `for` must be a duration of at least 0s, not `soon`");
  EXPECT_EQ(refusal_of_nodes(R"({"id":"a","kind":"wait","wait":{"type":"timer","until":"soon"}})"),
            "node `a`: `until` must be a time such as 2030-01-31T08:00:00Z");
  EXPECT_EQ(refusal_of_nodes(R"({"id":"a","kind":"map","over":"${ .input }","do":{"tool":"pay"}})"),
            "node `a`: `max_parallel` must be a whole number from 1 to 1024");
  EXPECT_EQ(refusal_of_nodes(good, R"(,"deadline":"0s")"),
            "`deadline` must be a duration of at least 1ms, not `0s`");
}

AE_TEST("plan/an expression may read only the nodes that its node needs") {
  const auto two = [](const std::string& b) {
    return R"({"id":"a","kind":"tool","tool":"pay"},{"id":"b","kind":"tool","tool":"pay",)" + b +
           "}";
  };
  EXPECT_EQ(refusal_of_nodes(two(R"("args":{"x":"${ .steps.a }"},"needs":["a"])")), "accepted");
  EXPECT_EQ(refusal_of_nodes(two(R"("args":{"x":"${ .steps.a }"})")),
            "node `b` reads `.steps.a` without needing `a`");
  EXPECT_EQ(refusal_of_nodes(two(R"("args":{"x":"${ .steps.zz }"})")),
            "node `b` reads `.steps.zz` without needing `zz`");
  EXPECT_EQ(refusal_of_nodes(two(R"("args":{"x":"${ .steps }"},"needs":["a"])")),
            "node `b` reads all of `.steps`; only `output` may");
  EXPECT_EQ(refusal_of_nodes(two(R"("args":{"x":"${ .args }"})")),
            "node `b` reads `.args`, which is not available here");
  EXPECT_EQ(refusal_of_nodes(two(R"("args":{"x":"${ .item }"})")),
            "node `b` reads `.item`, which is not available here");
  EXPECT_EQ(refusal_of_nodes(two(R"("args":{})"), R"(,"output":"${ .steps.c }")"),
            "`output` reads `.steps.c`: no such node");
}

AE_TEST("plan/an incomplete or unsafe tool policy is rejected") {
  auto graph = parse_json(R"({"schema":1,"nodes":[{"id":"a","kind":"tool","tool":"pay"}],)" +
                          std::string(kTools) + "}");
  ASSERT_TRUE(graph);
  const Value tool = (*graph)["tools"]["pay"];
  for (const Member& member : tool.members()) {
    std::vector<Member> less;
    for (const Member& other : tool.members()) {
      if (other.first != member.first) less.push_back(other);
    }
    const Value tools = Value::object({{"pay", Value::object(std::move(less))}});
    EXPECT_FALSE(Plan::compile(graph->with("tools", tools))) << member.first;
  }
  const Value unsafe = tool.with("effect", "at_most_once").with("on_in_doubt", "resend");
  const auto plan = Plan::compile(graph->with("tools", Value::object({{"pay", unsafe}})));
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().message, "tool `pay`: a tool that is at_most_once is never sent again");
  EXPECT_FALSE(Plan::compile(graph->with("schema", 2)));
  EXPECT_FALSE(Plan::compile(Value()));
}

AE_TEST("plan/a plan above the node limit is rejected") {
  const auto plan_of = [](std::size_t nodes) {
    std::vector<Value> list;
    for (std::size_t i = 0; i < nodes; ++i) {
      list.push_back(Value::object(
          {{"id", fmt::format("n{}", i)},
           {"kind", "wait"},
           {"wait", Value::object({{"type", "signal"}})},
           {"needs", Value::array(i == 0 ? std::vector<Value>{}
                                         : std::vector<Value>{fmt::format("n{}", i - 1)})}}));
    }
    return Value::object({{"schema", 1}, {"nodes", Value::array(std::move(list))}});
  };
  EXPECT_TRUE(Plan::compile(plan_of(10'000)));
  EXPECT_FALSE(Plan::compile(plan_of(10'001)));
  EXPECT_FALSE(Plan::compile(plan_of(5), {.nodes_max = 4}));
}

AE_TEST("plan/a map list is bounded, and maps do not nest") {
  const auto refusal_of = [](std::string_view over, std::string_view each) {
    const auto graph = parse_json(
        R"({"schema":1,"nodes":[{"id":"m","kind":"map","max_parallel":1,"over":)" +
        std::string(over) + R"(,"do":)" + std::string(each) + "}]," + std::string(kTools) + "}");
    EXPECT_TRUE(graph);
    const auto plan = Plan::compile(graph ? *graph : Value(), {.map_items_max = 2});
    return plan ? std::string("accepted") : plan.error().message;
  };
  constexpr std::string_view kCall = R"({"tool":"pay","args":{}})";
  EXPECT_EQ(refusal_of("[1,2]", kCall), "accepted");
  EXPECT_NE(refusal_of("[1,2,3]", kCall).find("at most 2 items"), std::string::npos);
  EXPECT_NE(refusal_of("[1]", R"({"map":[1],"do":{"tool":"pay","args":{}}})"), "accepted");
}

AE_TEST("retry/an error code matches a retry_on entry, its status or its status class") {
  RetryPolicy retry;
  EXPECT_TRUE(retry.covers("connect"));
  EXPECT_FALSE(retry.covers("timeout"));
  retry.retry_on = {"timeout", "429", "5xx", "exit_75", "http_402"};
  for (const std::string_view code :
       {"timeout", "http_429", "http_500", "http_599", "exit_75", "http_402"}) {
    EXPECT_TRUE(retry.covers(code)) << code;
  }
  for (const std::string_view code : {"connect", "http_430", "http_400", "exit_7", "http_5000",
                                      "http_", "", "5xx_", "timeouts"}) {
    EXPECT_FALSE(retry.covers(code)) << code;
  }
}

AE_TEST("retry/the backoff grows to its limit, with jitter between half and all of it") {
  const RetryPolicy retry;
  constexpr std::uint64_t kMost = ~std::uint64_t{0};
  EXPECT_EQ(retry.backoff(2, 0, {}), milliseconds(100));
  EXPECT_EQ(retry.backoff(2, kMost, {}), milliseconds(200));
  EXPECT_EQ(retry.backoff(3, 0, {}), milliseconds(200));
  EXPECT_EQ(retry.backoff(4, 0, {}), milliseconds(400));
  EXPECT_EQ(retry.backoff(1'000'000, 0, {}), seconds(5));
  EXPECT_EQ(retry.backoff(4'000'000'000u, kMost, {}), seconds(10));
}

AE_TEST("retry/a delay requested by the downstream raises the backoff up to its limit") {
  const RetryPolicy retry;
  EXPECT_EQ(retry.backoff(2, 0, seconds(3)), seconds(3));
  EXPECT_EQ(retry.backoff(2, 0, seconds(3'000)), seconds(10));
  EXPECT_EQ(retry.backoff(9, 0, milliseconds(1)), seconds(5));
}

AE_TEST("retry/no policy overflows the backoff") {
  RetryPolicy retry;
  retry.multiplier = 1'000;
  retry.max_backoff = std::chrono::hours(24) * 36'500;
  EXPECT_EQ(retry.backoff(1'000, 0, {}), retry.max_backoff / 2);
  retry.initial_backoff = Duration(0);
  EXPECT_EQ(retry.backoff(1'000, 0, {}), Duration(0));
  retry.max_backoff = Duration(0);
  retry.initial_backoff = seconds(1);
  EXPECT_EQ(retry.backoff(2, 0, seconds(1)), Duration(0));
}

AE_TEST("plan/topological order and reachability match a naive graph walk") {
  // 0 ← 1 ← 2 ← 3, 0 ← 4; 5 is separate
  const Needs needs = {{}, {0}, {1}, {2, 0}, {0}, {}};
  const TopologicalOrder order = topological_order(needs);
  EXPECT_TRUE(order.cycles.empty());
  ASSERT_EQ(order.order.size(), needs.size());
  const Reachability reach(needs, order.order);
  const auto walk = [&](auto&& self, std::uint32_t node, std::uint32_t other) -> bool {
    for (const std::uint32_t need : needs[node]) {
      if (need == other || self(self, need, other)) return true;
    }
    return false;
  };
  for (std::uint32_t node = 0; node < needs.size(); ++node) {
    for (std::uint32_t other = 0; other < needs.size(); ++other) {
      EXPECT_EQ(reach.reaches(node, other), walk(walk, node, other)) << node << " " << other;
    }
  }
  const TopologicalOrder circles = topological_order({{1}, {2}, {0}, {3}, {5}, {4}, {0}});
  ASSERT_EQ(circles.cycles.size(), 3u);
  EXPECT_EQ(circles.cycles[0], (std::vector<std::uint32_t>{0, 1, 2}));
  EXPECT_EQ(circles.cycles[1], (std::vector<std::uint32_t>{3}));
}

}  // namespace
}  // namespace ae::engine
