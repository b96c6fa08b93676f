// Roots and steps: what an expression reads of its scope, and scopes with stricter rules.
#include <fmt/core.h>

#include <string>
#include <utility>

#include "base/utf8.h"
#include "expr/expr_fixture_test.h"

namespace ae::expr_test {
namespace {

AE_TEST("expr/expr/at the top level the dot is the scope") {
  EXPECT_EQ(at_top(".input.id", kRoots), "\"o-1\"");
  EXPECT_EQ(at_top("\"approve-\" + .input.id", kRoots), "\"approve-o-1\"");
  EXPECT_EQ(at_top(".steps.order.total > 100", kRoots), "true");
  EXPECT_EQ(at_top(".steps[\"x-y\"].a + .[\"index\"] + .\"input\".n", kRoots), "7");
  EXPECT_EQ(at_top(".steps[\"or\" + \"der\"].total", kRoots), "120");
  EXPECT_EQ(at_top(".steps | keys", kRoots), R"(["order","skip","x-y"])");
  EXPECT_EQ(at_top("[.steps[]]", kRoots), R"([{"total":120},null,{"a":1}])");
  EXPECT_EQ(
      at_top("{ charge: .steps.order, note: .job.id, input }", kRoots),
      R"({"charge":{"total":120},"input":{"id":"o-1","items":[{"p":2},{"p":3}],"n":2},"note":"j1"})");
  EXPECT_EQ(at_top("[.input.items[].p] | add", kRoots), "5");
  EXPECT_EQ(at_top(".input.n as $n | .input.items | map(.p * $n)", kRoots), "[4,6]");
  EXPECT_EQ(at_top("reduce .input.items[] as $i (.index; . + $i.p)", kRoots), "9");
  EXPECT_EQ(at_top("any(.input.items[]; .p > 2)", kRoots), "true");
  EXPECT_EQ(at_top("if .steps.skip == null then .item.sku else .index end", kRoots), "\"s\"");
  EXPECT_EQ(at_top("first(.input.items[]).p", kRoots), "2");
  EXPECT_EQ(at_top("[range(.input.n)]", kRoots), "[0,1]");
  EXPECT_EQ(at_top("\"\\(.input.id)/\\(.index)\"", kRoots), "\"o-1/4\"");
  EXPECT_EQ(at_top(".steps.skip.deep.er", kRoots), "null");
}

AE_TEST("expr/expr/a missing root or step fails with its name") {
  EXPECT_EQ(at_top("1 + .nothing"),
            "expression_failed: line 1, column 5: there is no `.nothing` here");
  EXPECT_EQ(at_top(".steps.nothing", kRoots),
            "expression_failed: line 1, column 1: there is no step `nothing`");
  EXPECT_EQ(at_top(".nothing? // 1"), "1");
}

AE_TEST("expr/expr/only the named step is loaded, all steps only if the expression needs all") {
  const ObjectScope scope(json(kRoots));
  EXPECT_EQ(shown(eval(".steps.order.total + .steps[\"x-y\"].a", scope)), "121");
  EXPECT_EQ(scope.step_lookups, 2);
  EXPECT_EQ(scope.all_steps_lookups, 0);
  EXPECT_EQ(shown(eval(".steps | length", scope)), "3");
  EXPECT_EQ(scope.all_steps_lookups, 1);
}

std::string roots_of(std::string_view source) {
  const auto expr = Expr::parse(source);
  if (!expr) return expr.error().message;
  std::string text;
  for (const std::string& root : expr->roots().roots) text += root + " ";
  text += "|";
  for (const std::string& step : expr->roots().steps) text += " " + step;
  return text + (expr->roots().all_steps ? " all" : "");
}

AE_TEST("expr/expr/roots() lists the roots and steps of an expression without evaluation") {
  EXPECT_EQ(roots_of("1"), "|");
  EXPECT_EQ(roots_of(".input.a + .job.id"), "input job |");
  EXPECT_EQ(roots_of(".steps.a.b + .steps[\"c d\"] + .steps.\"e\""), "steps | a c d e");
  EXPECT_EQ(roots_of("if .input.x then .steps.a else .steps.b end"), "input steps | a b");
  EXPECT_EQ(roots_of("\"\\(.steps.a)\" | .steps.b"), "steps | a");
  EXPECT_EQ(roots_of(".steps"), "steps | all");
  EXPECT_EQ(roots_of(".steps | keys"), "steps | all");
  EXPECT_EQ(roots_of("[.steps[]]"), "steps | all");
  EXPECT_EQ(roots_of(".steps[.input.name]"), "input steps | all");
  EXPECT_EQ(roots_of("{steps}"), "steps | all");
  EXPECT_EQ(roots_of("{input, item: .item}"), "input item |");
  EXPECT_EQ(roots_of("[.steps.a[] | .steps.b]"), "steps | a");
  EXPECT_EQ(roots_of("any(.steps.a[]; .steps)"), "steps | a");
  EXPECT_EQ(roots_of("reduce .steps.a[] as $x (.steps.b; .steps.c)"), "steps | a b");
}

// As in conditions of policies: members looked up in `.args` must exist.
class StrictScope final : public ExprScope {
 public:
  explicit StrictScope(Value roots) : roots_(std::move(roots)) {}
  const Value* root(std::string_view name) const override { return roots_.find(name); }
  const Value* step(std::string_view) const override { return nullptr; }
  Value steps() const override { return {}; }
  bool fails_on_null(std::string_view root) const override { return root != "job"; }
  bool is_closed(std::string_view root) const override { return root == "job"; }
  bool fails_on_mixed_types() const override { return true; }

 private:
  Value roots_;
};

AE_TEST("expr/expr/with fails_on_null, a missing value fails unless the expression handles null") {
  const StrictScope scope(json(R"({"args":{"n":5,"no":null,"f":false,"l":[{"n":1},{}],"o":{}},)"
                               R"("job":{"labels":{}}})"));
  for (const char* fails : {".args.m > 500",
                            ".args.no > 1",
                            ".args.m",
                            "500 < .args.m",
                            ".args.m == 5",
                            ".args.m != 5",
                            ".args.m + 1 > 0",
                            ".args.o.m > 1",
                            ".args[\"m\"] > 1",
                            ".args[.args.m] > 1",
                            ".args | .m > 1",
                            ".args as $a | $a.m > 1",
                            ".args.m | length > 3",
                            ".args.m | IN(1, 2)",
                            "(.args.m > 5) // false",
                            "any(.args.l[]; .n > 5)",
                            ".args.l[7] == {}",
                            ".args.m and true",
                            ".args.m | not",
                            "(.args.f // .args.m) > 1",
                            "(.args.m == null) and .args.m > 1",
                            "if .args.n == 5 then .args.m > 1 else false end",
                            "[.args.m // 1, .args.m] | length > 1",
                            "(.args.m // 1) as $x | .args.m > $x"}) {
    EXPECT_NE(shown(eval(fails, scope)).find("is null or missing"), std::string::npos)
        << fails << " gives " << shown(eval(fails, scope));
  }
  const std::pair<const char*, const char*> kResults[] = {
      {".args.n > 4", "true"},
      {"(.args.m // 0) > 4", "false"},
      {"(.args.m? // 9) > 4", "true"},
      {"(.args.o.m.x // 9) > 4", "true"},
      {".args.m == null", "true"},
      {"null != .args.m", "false"},
      {".args.f", "false"},
      {".args | has(\"m\")", "false"},
      {"(.args | has(\"m\")) and .args.m > 4", "false"},
      {"if .args.n > 9 then .args.m > 1 else false end", "false"},
      {".job.labels.tier == \"free\"", "false"},
      {"any(.args.l[]; (.n // 0) > 5)", "false"}};
  for (const auto& [source, value] : kResults)
    EXPECT_EQ(shown(eval(source, scope)), value) << source;
  EXPECT_EQ(at_top(".input.m > 500"), "false") << "in other scopes null is a value";
}

AE_TEST("expr/expr/an unknown member of a closed root fails, also with an alternative") {
  const StrictScope scope(json(R"({"args":{},"job":{"id":"j","labels":{"a":"x"}}})"));
  for (const char* fails : {".job.label.tier == \"x\"", "(.job.label.tier // \"none\") == \"x\"",
                            ".job.label == null", ".job[\"label\"]", ".job[\"la\" + \"bel\"]",
                            "any(.job.label[]?; . == 1)", ".job.label?.a // 1"}) {
    EXPECT_NE(shown(eval(fails, scope)).find("there is no `label` in .job"), std::string::npos)
        << fails << " gives " << shown(eval(fails, scope));
  }
  EXPECT_EQ(shown(eval(".job.labels.tier == \"x\"", scope)), "false") << "any label may be read";
  EXPECT_EQ(shown(eval(".job.id == \"j\"", scope)), "true");
  EXPECT_EQ(at_top(".input.m"), "null") << "in other scopes it is null";
}

AE_TEST("expr/expr/with fails_on_mixed_types, a comparison of different types fails") {
  const StrictScope scope(
      json(R"({"args":{"text":"5","yes":true,"n":5,"list":["x",5],"o":{}},"job":{"labels":{}}})"));
  for (const char* fails :
       {".args.text < 10", ".args.yes > 1000", "10 >= .args.text", ".args.list <= 5", ".args.o > 1",
        ".job.labels.tier < \"c\"", ".args.text == 5", "5 != .args.text", ".args.yes == \"true\"",
        ".args.yes == 1", ".args.text | IN(1, 5)", "any(.args.list[]; . == 5)",
        "[(.args.n, .args.text) < 9] | length > 1", "(.args.none // \"\") > 5"}) {
    EXPECT_NE(shown(eval(fails, scope)).find("convert one of them"), std::string::npos)
        << fails << " gives " << shown(eval(fails, scope));
  }
  const std::pair<const char*, const char*> kResults[] = {
      {".args.n < 10", "true"},
      {".args.text < \"6\"", "true"},
      {"(.args.text | tonumber) < 10", "true"},
      {"(.args.text < 10)? // true", "true"},
      {"(.args.text | type) == \"number\" and .args.text < 10", "false"},
      {".args.list == \"x\"", "false"},
      {".args.o != \"x\"", "true"},
      {".args.list | IN(\"x\", [\"x\", 5])", "true"},
      {".job.labels.tier == \"free\"", "false"},
      {".args.text == null", "false"},
      {"[1, \"a\", true] | sort == [true, 1, \"a\"]", "true"}};
  for (const auto& [source, value] : kResults)
    EXPECT_EQ(shown(eval(source, scope)), value) << source;
  EXPECT_EQ(at_top("\"5\" < 10"), "false") << "in other scopes any two values can be compared";
  EXPECT_EQ(at_top("\"5\" == 5"), "false");
}

AE_TEST("expr/expr/a long name in an error message is truncated between characters") {
  std::string name = "a";
  while (name.size() < 300) name += "\xC3\xA9";
  const std::string text = "\"" + name + "\"";
  const StrictScope scope(json("{\"args\":{\"k\":" + text + ",\"o\":{}},\"job\":{}}"));
  for (const char* source : {".args.o[.args.k]", ".args.k[.args.k]", ".job[.args.k]"}) {
    const auto value = eval(source, scope);
    ASSERT_FALSE(value);
    EXPECT_TRUE(is_utf8(value.error().message)) << source;
    EXPECT_LT(value.error().message.size(), 200u);
  }
}

AE_TEST("expr/expr/roots() lists the members read of each root, in every notation") {
  const auto read = [](std::string_view source) {
    std::string text;
    const auto compiled = Template::compile(Value(source));
    if (!compiled) return compiled.error().message;
    for (const auto& [root, names] : compiled->roots().members) {
      for (const std::string& name : names) text += fmt::format("{}.{} ", root, name);
    }
    return text;
  };
  EXPECT_EQ(read("${ .job.label.tier == .input.a.b } ${ .job[\"id\"] }"),
            "input.a job.id job.label ");
  EXPECT_EQ(read("${ [.job.labels[]] | .agent }"), "job.labels ");
  EXPECT_EQ(read("${ any(.input.l[]; .x) and (.input as $i | $i.y) }"), "input.l ");
  EXPECT_EQ(read("${ .job }"), "");
}

AE_TEST("expr/expr/roots() lists the paths read of .args and whether each is required") {
  const auto read = [](std::string_view source) {
    std::string text;
    const auto expr = Expr::parse(source);
    if (!expr) return expr.error().message;
    for (const auto& [names, needed] : expr->roots().args) {
      for (const std::string& name : names) text += "." + name;
      text += needed ? "! " : " ";
    }
    return text;
  };
  EXPECT_EQ(read(".args.a > 1 and .args.b.c == \"x\""), ".a! .b.c! ");
  EXPECT_EQ(read("(.args.a // 1) > 2"), ".a ");
  EXPECT_EQ(read("(.args.a // 1) > .args.a"), ".a! ");
  EXPECT_EQ(read("(.args.a > 1) // false"), ".a! ");
  EXPECT_EQ(read(".args.a == null or .args[\"b c\"][0] > 1"), ".a .b c! ");
  EXPECT_EQ(read("any(.args.l[]; .n > 1) and (.args | length > 2)"), ".l! ");
  EXPECT_EQ(read(".input.a > 1"), "");
}

}  // namespace
}  // namespace ae::expr_test
