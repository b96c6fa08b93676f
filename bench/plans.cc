#include "plans.h"

#include <fmt/core.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "json/json.h"

namespace ae::bench {
namespace {

std::shared_ptr<const engine::Plan> compiled(std::vector<Value> nodes, std::string_view output) {
  const Value tool = *parse_json(
      R"({"dedupe_window":"24h","effect":"idempotent",)"
      R"("grace":"30s","on_in_doubt":"resend","retry":{"initial_backoff":"200ms","max_attempts":1,)"
      R"("max_backoff":"10s","multiplier":2,"retry_on":["connect"]},"timeout":"30s",)"
      R"("version":"0123456789abcdef"})");
  auto plan = engine::Plan::compile(Value::object({{"nodes", Value::array(std::move(nodes))},
                                                   {"output", output},
                                                   {"schema", 1},
                                                   {"tools", Value::object({{"work", tool}})}}));
  if (!plan) {
    std::fprintf(stderr, "%s\n", plan.error().message.c_str());
    std::abort();
  }
  return *plan;
}

}  // namespace

std::shared_ptr<const engine::Plan> chain_plan(int steps) {
  std::vector<Value> nodes;
  for (int i = 0; i < steps; ++i) {
    std::vector<Member> node{{"id", fmt::format("s{}", i)},
                             {"kind", "tool"},
                             {"tool", "work"},
                             {"args", Value::object({{"bytes", 200}, {"n", i}})}};
    if (i > 0) node.emplace_back("needs", Value::array({Value(fmt::format("s{}", i - 1))}));
    nodes.push_back(Value::object(std::move(node)));
  }
  return compiled(std::move(nodes), "${ .steps.s0 | length }");
}

std::shared_ptr<const engine::Plan> map_plan(int items) {
  const Value node = Value::object(
      {{"id", "each"},
       {"kind", "map"},
       {"over", "${ [range(" + std::to_string(items) + ")] }"},
       {"max_parallel", 1},
       {"do", Value::object({{"tool", "work"}, {"args", Value::object({{"bytes", 20}})}})}});
  return compiled({node}, "${ .steps.each | length }");
}

std::shared_ptr<const engine::Plan> signal_plan() {
  const Value wait = Value::object({{"id", "wait"},
                                    {"kind", "wait"},
                                    {"wait", Value::object({{"type", "signal"}, {"key", "go"}})}});
  const Value step = Value::object({{"id", "s0"},
                                    {"kind", "tool"},
                                    {"tool", "work"},
                                    {"needs", Value::array({Value("wait")})},
                                    {"args", Value::object({{"bytes", 20}})}});
  return compiled({wait, step}, "${ .steps.s0 | length }");
}

}  // namespace ae::bench
