// Tests of code nodes in a plan: which function runs, and which tools it may call.
#include <fmt/core.h>

#include <string>

#include "json/json.h"
#include "plan/plan.h"
#include "testing/test.h"

namespace ae::engine {
namespace {

constexpr std::string_view kTool = R"({"dedupe_window":"1d","effect":"idempotent","grace":"30s",
  "on_in_doubt":"resend","retry":{"initial_backoff":"200ms","max_attempts":4,"max_backoff":"10s",
  "multiplier":2,"retry_on":["timeout"]},"timeout":"10s","version":"0123456789abcdef")";

// A plan of one code node; `more`: further members of the code, `tool`: of the tool run:idempotent.
Result<std::shared_ptr<const Plan>> compile(const std::string& more, const std::string& tool = "") {
  const std::string text =
      fmt::format(R"({{"schema":1,"nodes":[{{"id":"a","kind":"code","code":{{"agent":"refund",)"
                  R"("language":"typescript","parallel":8,"tools":["run:idempotent","pay"]{}}}}}],)"
                  R"("tools":{{"pay":{}}},"run:idempotent":{},"function":true{}}}}}}})",
                  more, kTool, kTool, tool);
  auto graph = parse_json(text);
  EXPECT_TRUE(graph) << text;
  return Plan::compile(graph ? *graph : Value());
}

std::string refusal(const std::string& more, const std::string& tool = "") {
  const auto plan = compile(more, tool);
  if (plan) return "accepted";
  EXPECT_EQ(plan.error().code, Code::plan_invalid);
  return plan.error().message;
}

AE_TEST("plan/a code node names the function of a worker and the tools that it may call") {
  const std::string digest(64, 'a');
  const auto compiled = compile(fmt::format(
      R"(,"version":"2026.11.3","digest":"{}","on_exception":"fail","output_schema":{{"type":"object"}})",
      digest));
  ASSERT_TRUE(compiled) << compiled.error().message;
  const Plan& plan = **compiled;
  EXPECT_TRUE(has_code(plan));
  const Node& node = plan.nodes[0];
  EXPECT_EQ(node.kind, NodeKind::code);
  EXPECT_EQ(to_text(node.kind), "code");
  ASSERT_TRUE(node.code);
  EXPECT_EQ(node.code->agent, "refund");
  EXPECT_EQ(node.code->version, "2026.11.3");
  EXPECT_EQ(node.code->digest, digest);
  EXPECT_EQ(node.code->language, "typescript");
  EXPECT_EQ(node.code->parallel, 8u);
  EXPECT_TRUE(node.code->fail_on_exception);
  EXPECT_TRUE(node.code->output_schema);
  EXPECT_EQ(node.code->tools, (std::vector<std::uint32_t>{0, 1}));
  EXPECT_FALSE(plan.tools[0].function);
  EXPECT_TRUE(plan.tools[1].function);
}

AE_TEST("plan/an exception of code parks its job, unless the plan has on_exception fail") {
  const auto compiled = compile(R"(,"on_exception":"park")");
  ASSERT_TRUE(compiled);
  EXPECT_FALSE((*compiled)->nodes[0].code->fail_on_exception);
}

AE_TEST("plan/missing and invalid members of code are rejected") {
  EXPECT_EQ(refusal(""), "accepted");
  EXPECT_EQ(refusal(R"(,"surprise":1)"), "node `a`: unknown member `surprise`");
  EXPECT_EQ(refusal(R"(,"version":"")"), "node `a`: `version` must not be empty");
  EXPECT_EQ(refusal(fmt::format(R"(,"version":"{}")", std::string(129, 'v'))),
            "node `a`: `version` has at most 128 bytes");
  EXPECT_EQ(refusal(R"(,"digest":"abc")"), "node `a`: `digest` must be 64 hex digits");
  EXPECT_EQ(refusal(R"(,"digest":"")"), "node `a`: `digest` must not be empty");
  EXPECT_EQ(refusal(R"(,"on_exception":"retry")"), "node `a`: `on_exception` has no such value");
  EXPECT_EQ(refusal("", R"(,"local":true)"),
            "tool `run:idempotent`: `function` is true, and is not `local`");
}

AE_TEST("plan/a tool that sends to other jobs is idempotent, and makes a call of the runtime") {
  const auto tool = [](std::string_view more) {
    std::string text =
        fmt::format(R"({{"schema":1,"nodes":[{{"id":"a","kind":"tool","tool":"job:send"}}],)"
                    R"("tools":{{"job:send":{}{}}}}}}})",
                    kTool, more);
    return Plan::compile(parse_json(text).value_or(Value()));
  };
  const auto sends = tool(R"(,"sends":true)");
  ASSERT_TRUE(sends) << sends.error().message;
  EXPECT_TRUE((*sends)->tools[0].sends);
  EXPECT_TRUE((*sends)->tools[0].needs_no_transport());
  for (const std::string_view more :
       {R"(,"sends":false)", R"(,"sends":true,"function":true)", R"(,"sends":true,"local":true)",
        R"(,"sends":true,"child":{"name":"a"})"}) {
    const auto refused = tool(more);
    ASSERT_FALSE(refused) << more;
    EXPECT_EQ(refused.error().code, Code::plan_invalid);
    EXPECT_NE(refused.error().message.find("`sends`"), std::string::npos)
        << refused.error().message;
  }
}

}  // namespace
}  // namespace ae::engine
