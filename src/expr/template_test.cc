// Templates: the values of strings with `${ … }`, and their error messages.
#include <fmt/core.h>

#include "expr/expr.h"
#include "json/json.h"
#include "testing/test.h"

namespace ae {
namespace {

Value template_json(std::string_view text) {
  auto value = parse_json(text);
  EXPECT_TRUE(value) << text;
  return value ? *value : Value();
}

class Scope final : public ExprScope {
 public:
  const Value* root(std::string_view name) const override { return roots_.find(name); }
  const Value* step(std::string_view node_id) const override {
    return roots_["steps"].find(node_id);
  }
  Value steps() const override { return roots_["steps"]; }

 private:
  Value roots_ = template_json(
      R"({"input":{"id":7,"name":"Ann","none":null,"list":[1,{"b":2,"a":1}]},"steps":{"a":{"x":1}}})");
};

std::string filled(const Value& source, const ExprLimits& limits = {}) {
  const auto compiled = Template::compile(source, limits);
  if (!compiled) return compiled.error().message;
  const auto value = compiled->eval(Scope(), limits);
  if (value) return canonical(*value);
  return fmt::format("{}: {}", code_name(value.error().code), value.error().message);
}

AE_TEST("expr/template/a string that is one expression keeps the type of its value") {
  EXPECT_EQ(filled("${ .input.id }"), "7");
  EXPECT_EQ(filled("${.input.list}"), R"([1,{"a":1,"b":2}])");
  EXPECT_EQ(filled("${ .input.none }"), "null");
  EXPECT_EQ(filled("${ {a: {b: .input.id}} }"), R"({"a":{"b":7}})");
}

AE_TEST("expr/template/interpolated strings are inserted as they are, other values as JSON") {
  EXPECT_EQ(filled("id=${ .input.id }"), R"("id=7")");
  EXPECT_EQ(filled("${ .input.name }!"), R"("Ann!")");
  EXPECT_EQ(filled(" ${ .input.id }"), R"(" 7")");
  EXPECT_EQ(filled("a ${ .input.name } b ${ .input.list } c"),
            R"("a Ann b [1,{\"a\":1,\"b\":2}] c")");
  EXPECT_EQ(filled("${ .input.id }${ .input.id }"), R"("77")");
  EXPECT_EQ(filled("x ${ .input.id > 3 }"), R"("x true")");
}

AE_TEST("expr/template/an interpolated null fails") {
  const std::string got = filled("x ${ .input.none }");
  EXPECT_TRUE(got.starts_with("expression_failed: an expression inside a longer string is null"))
      << got;
}

AE_TEST("expr/template/failure() reports the path of the string and the expression") {
  const auto failed = [](const Value& source) {
    const auto compiled = Template::compile(source);
    EXPECT_TRUE(compiled);
    const auto failure = compiled->failure(Scope());
    EXPECT_TRUE(failure);
    EXPECT_EQ(failure->error.message, compiled->eval(Scope()).error().message) << "as eval fails";
    return failure->text("args");
  };
  EXPECT_EQ(failed(template_json(R"({"a":["x",{"b":"n ${ .input.none }"}]})")),
            "args.a[1].b: .input.none is null");
  EXPECT_EQ(failed("${ .input.id.x }"),
            "args: .input.id.x: line 1, column 11: cannot look up `x` in a number");
  EXPECT_EQ(
      failed(template_json(R"({"a":{"b":"${ .input.id + .input.name }"}})")),
      "args.a.b: .input.id + .input.name: line 1, column 12: cannot add a number and a string");
  EXPECT_FALSE(Template::compile("${ .input.id }")->failure(Scope()));
}

AE_TEST("expr/template/two dollar signs escape the opening of an expression") {
  EXPECT_EQ(filled("$${ .input.id }"), R"("${ .input.id }")");
  EXPECT_EQ(filled("a $${b} ${ .input.id } $$$ $"), R"("a ${b} 7 $$$ $")");
  EXPECT_EQ(filled("$$${ .input.id }"), R"("$${ .input.id }")");
  EXPECT_EQ(filled("$100 {} }"), R"("$100 {} }")");
}

AE_TEST("expr/template/the end of an expression is found after braces, strings and comments") {
  EXPECT_EQ(filled(R"(${ {a: "}"} })"), R"({"a":"}"})");
  EXPECT_EQ(filled(R"t(<${ "}{\("a}" + "\("}")")" }>)t"), R"("<}{a}}>")");
  EXPECT_EQ(filled("${ 1 # }\n + 1 }"), "2");
  EXPECT_EQ(filled(R"(${ "\"}" })"), R"("\"}")");
  EXPECT_EQ(filled(R"(${ {a: {b: {}}} | .a }x)"), R"("{\"b\":{}}x")");
}

AE_TEST("expr/template/expressions in nested values are evaluated, keys are literal") {
  EXPECT_EQ(
      filled(template_json(R"({"a":["${ .input.id }",1,{"b":"n: ${ .input.name }"}],"c":null})")),
      R"({"a":[7,1,{"b":"n: Ann"}],"c":null})");
  EXPECT_EQ(filled(template_json(R"({"$${a}":1})")), R"({"${a}":1})");
}

AE_TEST("expr/template/all errors are reported with their positions") {
  Template out;
  const auto errors = Template::compile(
      template_json(
          R"({"a":["ok","x ${ 1 + } ${ .input.id } ${ ) }"],"b/c":{"d":"${ 1"},"e ${ 1 }":2})"),
      out);
  ASSERT_EQ(errors.size(), 4u);
  EXPECT_EQ(errors[0].pointer, "/a/1");
  EXPECT_EQ(errors[0].offset, 2u);
  EXPECT_EQ(errors[0].error.code, Code::plan_invalid);
  EXPECT_EQ(errors[0].error.message, "line 1, column 6: expected a value but found the end");
  EXPECT_EQ(errors[1].pointer, "/a/1");
  EXPECT_EQ(errors[1].offset, 26u);
  EXPECT_EQ(errors[2].pointer, "/b~1c/d");
  EXPECT_NE(errors[2].error.message.find("not closed"), std::string::npos);
  EXPECT_EQ(errors[3].pointer, "/e ${ 1 }");
  EXPECT_NE(errors[3].error.message.find("a key must be literal"), std::string::npos);
}

AE_TEST("expr/template/an unclosed expression is an error") {
  EXPECT_TRUE(filled("${").find("the `${` is not closed") != std::string::npos);
  EXPECT_TRUE(filled("a ${ \"}\" ").find("the `${` is not closed") != std::string::npos);
  EXPECT_TRUE(filled("${ ( }").find("expected") != std::string::npos);
}

AE_TEST("expr/template/an evaluation error reports the path of the string") {
  EXPECT_EQ(filled(template_json(R"({"a":[0,"${ .nope }"]})")),
            "expression_failed: at /a/1: line 1, column 2: there is no `.nope` here");
}

AE_TEST("expr/template/roots() lists roots and steps, is_constant() reports constant templates") {
  const auto compiled =
      Template::compile(template_json(R"(["${ .input.a }","x${ .steps.a.x }${ .steps[\"b\"] }"])"));
  ASSERT_TRUE(compiled);
  EXPECT_EQ(compiled->roots().roots, (std::set<std::string, std::less<>>{"input", "steps"}));
  EXPECT_EQ(compiled->roots().steps, (std::set<std::string, std::less<>>{"a", "b"}));
  EXPECT_FALSE(compiled->is_constant());
  EXPECT_TRUE(Template::compile(template_json(R"({"a":["$${x}",1]})"))->is_constant());
  EXPECT_FALSE(Template::compile(Value("${ 1 }"))->is_constant());
}

AE_TEST("expr/template/all expressions share one fuel budget, and depth counts the whole value") {
  EXPECT_NE(filled(template_json(R"(["${ [range(60)] }","${ [range(60)] }"])"), {.fuel = 100})
                .find("steps"),
            std::string::npos);
  EXPECT_EQ(filled(template_json(R"([[["${ [[1]] }"]]])"), {.depth_max = 5}), "[[[[[1]]]]]");
  EXPECT_NE(filled(template_json(R"([[["${ [[[1]]] }"]]])"), {.depth_max = 5})
                .find("nests deeper than 5"),
            std::string::npos);
  std::string deep;
  for (int i = 0; i < 64; ++i) deep += '[';
  EXPECT_NE(filled(template_json(deep + std::string(64, ']')), {.depth_max = 10})
                .find("nested deeper than 10"),
            std::string::npos);
}

AE_TEST("expr/template/parts() splits a string into literals and expressions") {
  const auto parts = Template::parts("http://h/${ .input.id }?q=${ .input.name }");
  ASSERT_TRUE(parts);
  ASSERT_EQ(parts->size(), 4u);
  EXPECT_EQ(std::get<std::string>((*parts)[0]), "http://h/");
  EXPECT_EQ(canonical(*std::get<Expr>((*parts)[1]).eval(Scope())), "7");
  EXPECT_EQ(std::get<std::string>((*parts)[2]), "?q=");
  EXPECT_TRUE(std::holds_alternative<Expr>((*parts)[3]));
  EXPECT_TRUE(Template::parts("")->empty());
  const auto wrong = Template::parts("abc${ ) }");
  ASSERT_FALSE(wrong);
  EXPECT_TRUE(wrong.error().message.starts_with("expression at byte 3: line 1, column 2"));
}

}  // namespace
}  // namespace ae
