// The size of what expressions make, with each shared part counted wherever it occurs: no value, however small in
// memory, reaches code that would walk it for minutes.
#include <ctime>
#include <string>
#include <vector>

#include "core/expr.h"
#include "core/json.h"
#include "testing/test.h"

namespace ae {
namespace {

class OneInput final : public ExprScope {
 public:
  explicit OneInput(Value input) : input_(std::move(input)) {}
  const Value* root(std::string_view name) const override {
    return name == "input" ? &input_ : nullptr;
  }
  const Value* step(std::string_view) const override { return &input_; }
  Value steps() const override {  // many nodes with one result
    std::vector<Member> results;
    for (int i = 0; i < 1'000; ++i) results.emplace_back("n" + std::to_string(i), input_);
    return Value::object(std::move(results));
  }
  void charge(std::size_t steps) const override { charged += steps; }
  mutable std::size_t charged = 0;

 private:
  Value input_;
};

Result<Value> eval(std::string_view source, const Value& input = {}) {
  AE_ASSIGN(const Expr expr, Expr::parse(source));
  return expr.eval(OneInput(input));
}

Result<Value> fill(const Value& source, const Value& input = {}) {
  AE_ASSIGN(const Template filled, Template::compile(source));
  return filled.eval(OneInput(input));
}

// Of processor time: an optimised build takes about 0.1 s for the worst of them, the slowest build (sanitizers) this.
constexpr double kSecondsMax = 10;

template <class Evaluate>
std::string failure_of(const std::string& what, const Evaluate& evaluate) {
  const std::clock_t start = std::clock();
  const Result<Value> got = evaluate();
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, kSecondsMax) << what;
  EXPECT_FALSE(got.has_value()) << what;
  if (got) return "";
  EXPECT_EQ(got.error().code, Code::expression_failed) << what << ": " << got.error().message;
  return got.error().message;
}

void expect_too_large(const std::string& source, const Value& input = {}) {
  const std::string why = failure_of(source, [&] { return eval(source, input); });
  EXPECT_NE(why.find("counting each part wherever it occurs"), why.npos) << source << ": " << why;
}

// Fails, whether the size or the fuel is what stops it.
void expect_stopped(const std::string& source, const Value& input = {}) {
  failure_of(source, [&] { return eval(source, input); });
}

const std::string kTower = "reduce range(60) as $i (1; [., .])";

std::string tower(int height, const std::string& update = "[., .]") {
  return "reduce range(" + std::to_string(height) + ") as $i (1; " + update + ")";
}

AE_TEST("core/value/an extent counts a shared part wherever it occurs") {
  const Value leaf = Value::array({1, "ab", nullptr});  // [1,"ab",null]
  EXPECT_EQ(leaf.extent(), (Value::Extent{.values = 4, .bytes = 13, .depth = 1}));
  const Value twice = Value::array({leaf, leaf});
  EXPECT_EQ(twice.extent(), (Value::Extent{.values = 9, .bytes = 29, .depth = 2}));
  const Value named = Value::object({{"a", leaf}, {"bc", leaf}});
  EXPECT_EQ(named.extent(), (Value::Extent{.values = 9, .bytes = 38, .depth = 2}));
  EXPECT_EQ(Value::array({}).extent(), (Value::Extent{.values = 1, .bytes = 2, .depth = 1}));
  EXPECT_EQ(named.with("d", leaf).extent().values, 13U);
}

AE_TEST("core/value/an extent is never longer than the canonical text") {
  for (const std::string_view text :
       {"null", "true", "false", "0", "-1.5", "\"\"", "\"a\\n\"", "[]", "{}", "[[],{}]",
        R"({"a":[1,2,{"b":"c"}],"é":"\u0001"})"}) {
    const Value v = *parse_json(text);
    EXPECT_LE(v.extent().bytes, canonical(v).size()) << text;
  }
}

AE_TEST("core/value/an extent saturates") {
  Value v = 1;
  for (int i = 0; i < 100; ++i) v = Value::array({v, v});
  EXPECT_EQ(v.extent().values, Value::kExtentMax);
  EXPECT_EQ(v.extent().bytes, Value::kExtentMax);
  EXPECT_EQ(v.extent().depth, 100U);
  EXPECT_TRUE(canonical_exceeds(v, 1u << 30));
  EXPECT_DEATH((void)canonical(v), "too large to be written");
  EXPECT_DEATH((void)pretty(v), "too large to be written");
}

AE_TEST("core/value/values of different extents are known to differ without a walk") {
  Value a = 1;
  Value b = 1;
  for (int i = 0; i < 60; ++i) {
    a = Value::array({a, a});
    b = i < 20 ? Value::array({b}) : Value::array({b, b});
  }
  EXPECT_FALSE(a == b);
}

AE_TEST("core/expr/a shared value is measured by what it is when written out") {
  for (const int height : {21, 28, 30, 60, 2'000}) expect_too_large(tower(height));
  for (const int height : {14, 28, 30, 60}) {
    expect_too_large(tower(height, "{a: ., b: ., c: .}"));
    expect_too_large(tower(height, "{a: [., .], b: {c: .}}"));
  }
  EXPECT_EQ(eval(tower(20) + " | length")->as_int(), 2);
  EXPECT_EQ(canonical(*eval(tower(3))), "[[[1,1],[1,1]],[[1,1],[1,1]]]");
}

AE_TEST("core/expr/every way to make a large value out of shared parts stops") {
  // Each makes a tower of a height that no memory holds when it is written out.
  const std::vector<std::string> updates = {
      "[., .]",
      "[.] + [.]",
      "[[.], [.]] | add",
      "[[.], [.]] | flatten(1) | [.]| [.[], .[]]",
      "{a: .} + {b: .}",
      "{a: .} * {b: {c: ., d: .}}",
      "[{a: .}, {b: .}] | add",
      ". as $v | {a: 1, b: 2} | map_values($v)",
      ". as $v | {a: 1, b: 2} | with_entries(.value = $v)?, [$v, $v]",
      ". as $v | [{key: \"a\", value: $v}, {key: \"b\", value: $v}] | from_entries",
      ". as $v | [1, 2] | map($v)",
      ". as $v | [range(2)] | [.[] | $v]",
      ". as $v | [1, 2] | map_values($v)",
      ". as $v | [[1, $v], [2, $v]] | transpose",
      ". as $v | [[$v], [$v]] | map(to_entries)",
      ". as $v | [limit(2; range(9) | $v)]",
      ". as $v | [1, 2] | group_by(.) | map([$v])",
      ". as $v | [first($v, 1), last(1, $v), nth(1; 1, $v)]",
      "[., .] | reverse",
      "[., .][0:2]",
      "[., .] | toarray",
      "[[., .]] | flatten(1)",
      "[(., .) | select(true)]",
      "[getpath([]), .]",
      "if true then [., .] else . end",
      "[(. // 1), (1 | empty // .)] | [.[0], .[0]]",
  };
  for (const std::string& update : updates) {
    // Some of them are no expressions of this language; they are refused when they are parsed.
    if (!Expr::parse(tower(60, update))) continue;
    expect_stopped(tower(60, update));
  }
  const std::string pipe = [] {
    std::string text = "1";
    for (int i = 0; i < 60; ++i) text += " | [., .]";
    return text;
  }();
  expect_too_large(pipe);
  std::string bindings = "1 as $a0 | ";
  for (int i = 0; i < 40; ++i) {
    const std::string from = std::to_string(i);
    bindings += "[$a" + from + ", $a" + from + "] as $a" + std::to_string(i + 1) + " | ";
  }
  expect_too_large(bindings + "$a40");
}

AE_TEST_SLOW("core/expr/texts are measured before they take memory") {
  expect_stopped("reduce range(60) as $i (\"a\"; . + .)");
  expect_stopped("reduce range(60) as $i (\"a\"; \"\\(.)\\(.)\")");
  expect_stopped("reduce range(60) as $i (\"a\"; [., .] | join(\"\"))");
  expect_stopped("reduce range(60) as $i (\"a\"; [., .] | add)");
  expect_stopped("reduce range(60) as $i (\"a\"; [., .] | tostring)");
  expect_stopped("reduce range(60) as $i (\"a\"; [., .] | tojson)");
  expect_stopped("reduce range(60) as $i (\"a\"; @base64 \"\\(.)\\(.)\")");
  expect_stopped("reduce range(60) as $i (\"a\"; . * 2)");
  expect_too_large("\"a\" * 40000000");
  expect_stopped("\"a\" * (1e15 * 1e15)");
}

AE_TEST_SLOW("core/expr/whatever walks a shared value pays for each of its leaves") {
  const std::string shared = tower(20) + " as $v | ";  // 2 million values, which may be made
  for (const std::string walk : {"$v == $v",
                                 "$v | tostring",
                                 "$v | tojson",
                                 "\"\\($v)\"",
                                 "$v | @json",
                                 "[$v, $v] | sort",
                                 "[$v, $v] | unique",
                                 "[$v, $v] | group_by(.)",
                                 "[$v, $v] | min",
                                 "[$v] - [$v]",
                                 "$v | contains($v)",
                                 "[$v] | index([$v])",
                                 "[$v] | IN([$v])",
                                 "$v | flatten",
                                 "[$v, $v] | sort_by(.)",
                                 "$v | [.. ]?",
                                 "{a: $v} * {a: $v} | . == {a: $v}",
                                 "[$v] | join(\",\")",
                                 "[$v] | @csv",
                                 "[$v] | @tsv",
                                 "$v | @html",
                                 "$v | @uri"}) {
    const auto parsed = Expr::parse(shared + walk);
    if (parsed) expect_stopped(shared + walk);
  }
}

AE_TEST("core/expr/a question mark does not catch what is too large") {
  expect_too_large("[(" + kTower + ")?, 1]");
  expect_too_large("(" + kTower + ")? // 1");
  expect_too_large("first((" + kTower + ")?, 1)");
}

AE_TEST("core/expr/what is only read is not measured") {
  Value large = 1;
  for (int i = 0; i < 23; ++i) large = Value::array({large, large});
  EXPECT_TRUE(eval(".input", large).has_value());
  EXPECT_TRUE(eval(".input[0][1]", large).has_value());
  EXPECT_TRUE(eval(".input | length", large).has_value());
  expect_too_large("[.input]", large);
  expect_too_large(".steps", large);
  expect_too_large("{a: .input}", large);
}

AE_TEST_SLOW("core/template/the parts of a template are measured together") {
  Value part = 1;
  for (int i = 0; i < 16; ++i) part = Value::array({part, part});
  std::vector<Value> many(200, Value("${.input}"));
  const std::string of_items = failure_of("items", [&] { return fill(Value::array(many), part); });
  EXPECT_NE(of_items.find("counting each part wherever it occurs"), of_items.npos) << of_items;
  const std::string nested = failure_of("nested", [&] {
    return fill(Value::object({{"a", Value::object({{"b", Value::array(many)}})}}), part);
  });
  EXPECT_NE(nested.find("counting each part wherever it occurs"), nested.npos) << nested;
  std::string text;
  for (int i = 0; i < 200; ++i) text += "x${.input}";
  failure_of("text", [&] { return fill(Value(text), part); });
  failure_of("tower", [&] { return fill(Value("${" + kTower + "}")); });
  failure_of("tower in a text", [&] { return fill(Value("x ${" + kTower + "}")); });
  failure_of("tower in an object",
             [&] { return fill(Value::object({{"v", "${" + kTower + "}"}})); });
}

AE_TEST_SLOW("core/expr/long keys are paid for wherever they are compared or copied") {
  const Value key(std::string(1u << 20, 'k'));
  const Value other(std::string((1u << 20) - 1, 'k') + "j");
  std::vector<Member> members;
  for (int i = 0; i < 16; ++i) {
    members.emplace_back(std::string(1u << 20, 'k') + std::to_string(10 + i), 1);
  }
  const Value input =
      Value::object({{"key", key}, {"other", other}, {"object", Value::object(members)}});
  for (const std::string body :
       {"$o | has($k)", "$k | in($o)", "$o[$k]", "$o | getpath([$k])", "$o + {a: 1}", "$o * {a: 1}",
        "$o | map_values(1)", "$o == {a: 1}", "$k | ltrimstr($j)", "$k | rtrimstr($j)",
        "$k | startswith($j)", "$k == $j", "$o | contains({($k): 1})", "$o | keys",
        "$o | to_entries", ".steps[$k]", "{($k): 1}"}) {
    expect_stopped(
        ".input.key as $k | .input.other as $j | .input.object as $o | "
        "reduce range(200000) as $i (0; (" +
            body + ") as $x | 1)",
        input);
  }
}

AE_TEST("core/expr/an evaluation tells its scope what it cost") {
  const OneInput scope(Value::array(std::vector<Value>(1'000, Value(std::string(64, 'a')))));
  const auto expr = Expr::parse("[.input[] | .]");
  ASSERT_TRUE(expr);
  ASSERT_TRUE(expr->eval(scope));
  EXPECT_GT(scope.charged, 3'000U);  // its steps, and its 66 KB
  EXPECT_LT(scope.charged, 10'000U);
  scope.charged = 0;
  ASSERT_TRUE(Template::compile(Value("${.input}"))->eval(scope));
  EXPECT_GT(scope.charged, 1'000U);
  scope.charged = 0;
  EXPECT_FALSE(Template::compile(Value("${[range(1e9)]}"))->eval(scope));
  EXPECT_EQ(scope.charged, ExprLimits{}.fuel);
}

}  // namespace
}  // namespace ae
