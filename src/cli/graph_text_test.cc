// Tests of graph_text: the plan of an agent as a tree.
#include "cli/graph_text.h"

#include "json/json.h"
#include "testing/test.h"

namespace ae::cli {
namespace {

AE_TEST("cli/a node is drawn below the deepest of its needs") {
  const auto graph = parse_json(R"({"schema":1,"tools":{"t":{"effect":"read"}},"nodes":[
    {"id":"a","kind":"tool","tool":"t"},
    {"id":"b","kind":"tool","tool":"t","needs":["a"],"when":"${ .input.b }"},
    {"id":"c","kind":"tool","tool":"t"},
    {"id":"d","kind":"map","over":"${ .input.l }","do":{"tool":"t"},"needs":["c","b","a"]},
    {"id":"e","kind":"wait","wait":{"type":"signal","key":"k"},"on_error":"continue"}]})");
  ASSERT_TRUE(graph);
  EXPECT_EQ(graph_text("x", *graph, Paint(false)),
            "x\n"
            "├─ a  tool t (read)\n"
            "│  └─ b  tool t (read)  when ${ .input.b }\n"
            "│     └─ d  for each of ${ .input.l }: tool t (read)  also after c, a\n"
            "├─ c  tool t (read)\n"
            "└─ e  wait for signal k  continues after errors\n");
  EXPECT_EQ(graph_text("x", *graph, Paint(false), 30),
            "x\n"
            "├─ a  tool t (read)\n"
            "│  └─ b  tool t (read)  when …\n"
            "│     └─ d  for each of ${ .i…\n"
            "├─ c  tool t (read)\n"
            "└─ e  wait for signal k  cont…\n");
}

AE_TEST("cli/a planner is drawn with its model and the tools of its plan") {
  const auto graph =
      parse_json(R"({"schema":1,"tools":{"model:main":{"provider":"openai"}},"nodes":[
    {"id":"planner","kind":"planner","planner":{"tool":"model:main","tools":["look","pay"]}}]})");
  ASSERT_TRUE(graph);
  EXPECT_EQ(graph_text("x", *graph, Paint(false)),
            "x\n"
            "└─ planner  model main makes a plan, tools: look, pay\n");
}

AE_TEST("cli/code is drawn with its language, its version and its tools") {
  const auto graph = parse_json(R"({"schema":1,"nodes":[{"id":"code","kind":"code","code":
    {"agent":"x","language":"python","version":"1.4","tools":["fetch:read","model:main","pay","run:read"]}}]})");
  ASSERT_TRUE(graph);
  EXPECT_EQ(graph_text("x", *graph, Paint(false)),
            "x\n"
            "└─ code  python code 1.4, tools: model:main, pay\n");
}

}  // namespace
}  // namespace ae::cli
