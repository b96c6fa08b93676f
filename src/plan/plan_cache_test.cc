// Tests of PlanCache: hits, compilations, evictions.
#include "plan/plan_cache.h"

#include <string>

#include "json/json.h"
#include "testing/test.h"

namespace ae::engine {
namespace {

Value graph_of(std::string_view node) {
  return parse_json(
             R"({"nodes":[{"id":")" + std::string(node) +
             R"(","kind":"wait","wait":{"for":"1s","type":"timer"}}],"schema":1,"tools":{}})")
      .value();
}

std::string hash_of(const Value& graph) { return to_hex(plan_hash(graph)); }

AE_TEST("plan_cache/a task graph is compiled once and then found by its hash") {
  PlanCache cache;
  const Value graph = graph_of("a");
  EXPECT_EQ(cache.lookup()(plan_hash(graph)), nullptr);
  const auto first = cache.source()(graph, hash_of(graph));
  ASSERT_TRUE(first) << first.error().message;
  const auto again = cache.source()(graph_of("a"), hash_of(graph));
  ASSERT_TRUE(again);
  EXPECT_EQ(*again, *first);
  const Value* known = cache.lookup()(plan_hash(graph));
  ASSERT_NE(known, nullptr);
  EXPECT_EQ(*known, graph);
}

AE_TEST("plan_cache/a different task graph under a cached hash gets its own hash") {
  PlanCache cache;
  const Value graph = graph_of("a"), other = graph_of("b");
  ASSERT_TRUE(cache.source()(graph, hash_of(graph)));
  const auto compiled = cache.source()(other, hash_of(graph));
  ASSERT_TRUE(compiled);
  EXPECT_EQ((*compiled)->hash, plan_hash(other));
  EXPECT_EQ(*cache.lookup()(plan_hash(graph)), graph);
  const auto unreadable = cache.source()(graph, "no hash");
  ASSERT_TRUE(unreadable);
  EXPECT_EQ((*unreadable)->hash, plan_hash(graph));
}

AE_TEST("plan_cache/a graph that does not compile is rejected each time and never cached") {
  PlanCache cache;
  const Value graph = Value::object({{"schema", 1}});
  for (int i = 0; i < 2; ++i) {
    const auto plan = cache.source()(graph, hash_of(graph));
    ASSERT_FALSE(plan);
    EXPECT_EQ(plan.error().code, Code::plan_invalid);
  }
  EXPECT_EQ(cache.lookup()(plan_hash(graph)), nullptr);
}

AE_TEST("plan_cache/the cache is bounded, and evicted plans stay valid while in use") {
  std::shared_ptr<const Plan> held;
  {
    PlanCache cache(2);
    held = cache.source()(graph_of("a"), hash_of(graph_of("a"))).value();
    ASSERT_TRUE(cache.source()(graph_of("b"), hash_of(graph_of("b"))));
    EXPECT_NE(cache.lookup()(held->hash), nullptr);
    ASSERT_TRUE(cache.source()(graph_of("c"), hash_of(graph_of("c"))));
    EXPECT_EQ(cache.lookup()(held->hash), nullptr);
    EXPECT_NE(cache.lookup()(plan_hash(graph_of("c"))), nullptr);
    cache.insert(held);
    EXPECT_EQ(cache.source()(graph_of("a"), hash_of(graph_of("a"))).value(), held);
  }
  EXPECT_EQ(held->nodes.size(), 1u);
}

}  // namespace
}  // namespace ae::engine
