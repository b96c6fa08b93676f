// The limits on the size of values that expressions make, counting shared parts at each occurrence:
// no value that is small in memory reaches code that would walk it for minutes.
#include <fmt/core.h>

#include <algorithm>
#include <ctime>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "expr/expr.h"
#include "expr/expr_functions.h"
#include "json/json.h"
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
  Value steps() const override {  // many nodes with the same result
    std::vector<Member> results;
    for (int i = 0; i < 1'000; ++i) results.emplace_back(fmt::format("n{}", i), input_);
    return Value::object(std::move(results));
  }
  void charge(std::size_t steps) const override { charged += steps; }
  mutable std::size_t charged = 0;

 private:
  Value input_;
};

Result<Value> eval_bounded(std::string_view source, const Value& input = {}) {
  AE_ASSIGN(const Expr expr, Expr::parse(source));
  return expr.eval(OneInput(input));
}

Result<Value> fill(const Value& source, const Value& input = {}) {
  AE_ASSIGN(const Template filled, Template::compile(source));
  return filled.eval(OneInput(input));
}

// Processor time: an optimised build needs about 0.1 s for the worst case; this is for the slowest
// build (sanitizers).
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
  const std::string why = failure_of(source, [&] { return eval_bounded(source, input); });
  EXPECT_NE(why.find("counting each part wherever it occurs"), why.npos) << source << ": " << why;
}

// Expects a failure, by the size or by the fuel.
void expect_stopped(const std::string& source, const Value& input = {}) {
  failure_of(source, [&] { return eval_bounded(source, input); });
}

const std::string kTower = "reduce range(60) as $i (1; [., .])";

std::string tower(int height, const std::string& update = "[., .]") {
  return fmt::format("reduce range({}) as $i (1; {})", height, update);
}

AE_TEST("expr/value/an extent counts a shared part at each occurrence") {
  const Value leaf = Value::array({1, "ab", nullptr});  // [1,"ab",null]
  EXPECT_EQ(leaf.extent(), (Value::Extent{.values = 4, .bytes = 13, .depth = 1}));
  const Value twice = Value::array({leaf, leaf});
  EXPECT_EQ(twice.extent(), (Value::Extent{.values = 9, .bytes = 29, .depth = 2}));
  const Value named = Value::object({{"a", leaf}, {"bc", leaf}});
  EXPECT_EQ(named.extent(), (Value::Extent{.values = 9, .bytes = 38, .depth = 2}));
  EXPECT_EQ(Value::array({}).extent(), (Value::Extent{.values = 1, .bytes = 2, .depth = 1}));
  EXPECT_EQ(named.with("d", leaf).extent().values, 13U);
}

AE_TEST("expr/value/an extent is never longer than the canonical text") {
  for (const std::string_view text :
       {"null", "true", "false", "0", "-1.5", "\"\"", "\"a\\n\"", "[]", "{}", "[[],{}]",
        R"({"a":[1,2,{"b":"c"}],"é":"\u0001"})"}) {
    const Value v = *parse_json(text);
    EXPECT_LE(v.extent().bytes, canonical(v).size()) << text;
  }
}

AE_TEST("expr/value/an extent saturates") {
  Value v = 1;
  for (int i = 0; i < 100; ++i) v = Value::array({v, v});
  EXPECT_EQ(v.extent().values, Value::kExtentMax);
  EXPECT_EQ(v.extent().bytes, Value::kExtentMax);
  EXPECT_EQ(v.extent().depth, 100U);
  EXPECT_TRUE(canonical_exceeds(v, 1u << 30));
  EXPECT_DEATH((void)canonical(v), "too large to be written");
  EXPECT_DEATH((void)pretty(v), "too large to be written");
}

AE_TEST("expr/value/values with different extents compare unequal without a traversal") {
  Value a = 1;
  Value b = 1;
  for (int i = 0; i < 60; ++i) {
    a = Value::array({a, a});
    b = i < 20 ? Value::array({b}) : Value::array({b, b});
  }
  EXPECT_FALSE(a == b);
}

AE_TEST("expr/expr/the size limit counts shared parts at each occurrence") {
  for (const int height : {21, 28, 30, 60, 2'000}) expect_too_large(tower(height));
  for (const int height : {14, 28, 30, 60}) {
    expect_too_large(tower(height, "{a: ., b: ., c: .}"));
    expect_too_large(tower(height, "{a: [., .], b: {c: .}}"));
  }
  EXPECT_EQ(eval_bounded(tower(20) + " | length")->as_int(), 2);
  EXPECT_EQ(canonical(*eval_bounded(tower(3))), "[[[1,1],[1,1]],[[1,1],[1,1]]]");
}

AE_TEST("expr/expr/every construction of a large value from shared parts is stopped") {
  // Each makes a nested value that would not fit in memory when written.
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
    // Some of them are not in this language and fail to parse.
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
    bindings += fmt::format("[$a{0}, $a{0}] as $a{1} | ", i, i + 1);
  }
  expect_too_large(bindings + "$a40");
}

AE_TEST_SLOW("expr/expr/the size limit is checked before memory is allocated for a string") {
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

AE_TEST_SLOW("expr/expr/traversals of a shared value are charged for each of its leaves") {
  const std::string shared = tower(20) + " as $v | ";  // 2 million values, within the limits
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

AE_TEST("expr/expr/the ? operator does not catch the size limit") {
  expect_too_large(fmt::format("[({})?, 1]", kTower));
  expect_too_large(fmt::format("({})? // 1", kTower));
  expect_too_large(fmt::format("first(({})?, 1)", kTower));
}

AE_TEST("expr/expr/the size limit does not apply to values that are only read") {
  Value large = 1;
  for (int i = 0; i < 23; ++i) large = Value::array({large, large});
  EXPECT_TRUE(eval_bounded(".input", large).has_value());
  EXPECT_TRUE(eval_bounded(".input[0][1]", large).has_value());
  EXPECT_TRUE(eval_bounded(".input | length", large).has_value());
  expect_too_large("[.input]", large);
  expect_too_large(".steps", large);
  expect_too_large("{a: .input}", large);
}

AE_TEST_SLOW("expr/template/the size limit applies to the parts of a template together") {
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

AE_TEST_SLOW("expr/expr/comparing and copying long keys is charged by length") {
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
    expect_stopped(fmt::format(".input.key as $k | .input.other as $j | .input.object as $o | "
                               "reduce range(200000) as $i (0; ({}) as $x | 1)",
                               body),
                   input);
  }
}

// The minimum cost of an operation on the large values of `cost_input`.
struct Cost {
  std::string_view name;  // of the function, or ""
  std::string expression;
  std::size_t steps = 0;
};

constexpr std::size_t kBytes = 1u << 20;  // of each text
constexpr std::size_t kCount = 10'000;    // items or members of each container
constexpr std::size_t kCopied = kBytes / 64;
constexpr std::size_t kScanned = kBytes / 16;
constexpr std::size_t kSearched = kBytes / 8;

Value cost_input() {
  std::vector<Value> numbers;
  std::vector<Value> texts;
  std::vector<Value> entries;
  std::vector<Member> members;
  std::vector<Member> backwards;  // must be sorted by code points
  for (std::size_t i = 0; i < kCount; ++i) {
    const std::string name = fmt::format("n{}", i * 7'919 % kCount);
    numbers.emplace_back(std::uint64_t{i * 7'919 % kCount});
    texts.emplace_back(name);
    entries.push_back(Value::object({{"key", name}, {"value", 1}}));
    members.emplace_back(name, 1);
    backwards.emplace_back((i % 2 == 0 ? "\xEE\x80\x80" : "\xF0\x90\x80\x80") + name, 1);
  }
  std::string base64;
  while (base64.size() < kBytes) base64 += "QUJD";
  const std::string same(kBytes, 'a');
  return Value::object({
      {"text", same},
      {"text_", same + "b"},
      {"_text", "b" + same},
      {"blank", std::string(kBytes, ' ')},
      {"control", std::string(kBytes, '\x01')},
      {"base64", base64},
      {"json", fmt::format("[{}]", std::string(kBytes, ' '))},
      {"digits", fmt::format("0.{}1234567", std::string(390, '0'))},
      {"numbers", Value::array(numbers)},
      {"texts", Value::array(texts)},
      {"entries", Value::array(entries)},
      {"pages", Value::array(std::vector<Value>(16, Value(std::string(kBytes / 16, 'a'))))},
      {"rows", Value::array(std::vector<Value>(kCount, Value::array({})))},
      {"object", Value::object(members)},
      {"backwards", Value::object(backwards)},
  });
}

// Texts that are copied, compared or counted.
std::vector<Cost> text_costs() {
  return {
      {"", "$i.text + $i.text", 2 * kCopied},
      {"", "$i.text * 2", 2 * kCopied},
      {"", "\"\\($i.text)\\($i.text)\"", 2 * kCopied},
      {"", "\"\\([$i.text, $i.text])\"", 2 * kCopied},
      {"", "$i.text == $i.text_", kCopied},
      {"", "$i.text < $i.text_", kCopied},
      {"", "$i.text[1:2]", kScanned},
      {"", "$i.text / \"b\"", kSearched},
      {"", "$i.object[$i.text]", 10 * kCopied},
      {"", "$i.object | .[$i.text]", 10 * kCopied},
      {"length", "$i.text | length", kCopied},
      {"ascii_downcase", "$i.text | ascii_downcase", kCopied},
      {"ascii_upcase", "$i.text | ascii_upcase", kCopied},
      {"startswith", "$i.text_ | startswith($i.text)", kCopied},
      {"endswith", "$i._text | endswith($i.text)", kCopied},
      {"ltrimstr", "$i.text_ | ltrimstr($i.text)", kCopied},
      {"rtrimstr", "$i._text | rtrimstr($i.text)", kCopied},
      {"trim", "$i.blank | trim", kCopied},
      {"ltrim", "$i.blank | ltrim", kCopied},
      {"rtrim", "$i.blank | rtrim", kCopied},
      {"error", "first(($i.text | error)?, 1)", kCopied},
      {"error", "first(error($i.text)?, 1)", kCopied},
      {"tostring", "[$i.text] | tostring", kCopied},
      {"tojson", "$i.text | tojson", kCopied},
      {"tojson", "$i.control | tojson", kSearched},
      {"tojson", "{($i.control): 1} | tojson", kSearched},
      {"tonumber", "[range(100) | $i.digits | tonumber]", 5'000},
      {"fromjson", "$i.json | fromjson", kScanned},
      {"fromjson", "$i.numbers | tojson | fromjson", 5 * kCount},
      {"fromjson", "$i.object | tojson | fromjson", 9 * kCount},
      {"explode", "$i.text[0:100000] | explode", 100'000},
      {"implode", "[range(50000) | 97] | implode", 50'000},
      {"split", "$i.text | split(\"b\")", kSearched},
      {"split", "$i.text[0:100000] | split(\"\")", 200'000},
      {"join", "$i.pages | join(\"\")", kCopied},
      {"join", "[range(100) | 1] | join($i.pages[0])", 100 * kCopied / 16},
      {"index", "$i.text | index(\"ab\")", kSearched},
      {"rindex", "$i.text | rindex(\"ab\")", kSearched},
      {"indices", "$i.text | indices(\"ab\")", kSearched},
      // Each occurrence prepares the search for the next one.
      {"indices", "$i.text[0:70000] | indices($i.pages[0])", 4'000 * kBytes / 16 / 8},
      {"contains", "$i.text | contains(\"ab\")", kSearched},
      {"inside", "\"ab\" | inside($i.text)", kSearched},
      {"reverse", "$i.text | reverse", kScanned},
      {"utf8bytelength", "$i.text | utf8bytelength", 1},
      {"", "@json \"\\($i.control)\"", kSearched},
      {"", "@uri \"\\($i.text)\"", kScanned},
      {"", "@base64 \"\\($i.text)\"", kScanned},
      {"", "@base64d \"\\($i.base64)\"", kScanned},
      {"", "@html \"\\($i.text)\"", kScanned},
      {"", "@csv \"\\([$i.text])\"", kSearched},
      {"", "@tsv \"\\([$i.text])\"", kSearched},
  };
}

// Containers that are walked or made.
std::vector<Cost> container_costs() {
  return {
      {"", "$i.numbers + $i.numbers", 2 * kCount},
      {"", "$i.numbers - []", kCount},
      {"", "$i.numbers - [-1, -2]", 2 * kCount},
      {"", "$i.object + {a: 1}", kCount},
      {"", "$i.object * {a: 1}", kCount},
      {"", "$i.numbers == $i.numbers", kCount},
      {"", "$i.object == $i.object", 2 * kCount},
      {"", "$i.numbers[0:9999]", 9'999},
      {"", "[$i.numbers[]]", 2 * kCount},
      {"", "[$i.object[]]", 2 * kCount},
      {"", "[range(100) | 1e308 % 3]", 100 * 8},
      {"", "{a: $i.text, b: 1} | .a", 2},
      {"map", "$i.numbers | map(.)", 2 * kCount},
      {"map_values", "$i.numbers | map_values(.)", 2 * kCount},
      {"map_values", "$i.object | map_values(.)", 2 * kCount},
      {"with_entries", "$i.object | with_entries(.)", 7 * kCount},
      {"to_entries", "$i.object | to_entries", 4 * kCount},
      {"to_entries", "$i.numbers | to_entries", 3 * kCount},
      {"from_entries", "$i.entries | from_entries", 5 * kCount},
      {"from_entries", "($i.object + {key: \"a\"}) as $o | [range(100) | $o] | from_entries",
       kCount + 10'000},
      {"keys", "$i.object | keys", kCount},
      {"keys", "$i.backwards | keys", 3 * kCount},
      {"keys", "$i.numbers | keys", kCount},
      {"keys_unsorted", "$i.object | keys_unsorted", kCount},
      {"has", "$i.object | has($i.text)", 10 * kCopied},
      {"in", "$i.text | in($i.object)", 10 * kCopied},
      {"getpath", "$i | getpath([\"object\", $i.text])", 10 * kCopied},
      {"contains", "$i.object | contains({($i.text): 1})", 10 * kCopied},
      {"contains", "$i.numbers | contains([-1])", kCount},
      {"inside", "[-1] | inside($i.numbers)", kCount},
      {"add", "$i.numbers | add", kCount},
      {"add", "$i.pages | add", kCopied},
      {"add", "$i.rows | add", kCount},
      {"add", "$i.entries | add", 2 * kCount},
      {"add", "add($i.numbers[])", 2 * kCount},
      {"flatten", "$i.numbers | flatten", kCount},
      {"flatten", "$i.rows | flatten(1)", kCount},
      {"reverse", "$i.numbers | reverse", kCount},
      {"sort", "$i.numbers | sort", 5 * kCount},
      {"sort", "$i.texts | sort", 5 * kCount},
      {"sort_by", "$i.entries | sort_by(.key)", 5 * kCount},
      {"group_by", "$i.entries | group_by(.key)", 5 * kCount},
      {"unique", "$i.numbers | unique", 5 * kCount},
      {"unique_by", "$i.entries | unique_by(.key)", 5 * kCount},
      {"min", "$i.numbers | min", kCount},
      {"max", "$i.numbers | max", kCount},
      {"min_by", "$i.entries | min_by(.key)", 2 * kCount},
      {"max_by", "$i.entries | max_by(.key)", 2 * kCount},
      {"transpose", "$i.rows | transpose", kCount},
      {"transpose", "[$i.numbers] | transpose", kCount},
      {"index", "$i.numbers | index(-1)", kCount},
      {"rindex", "$i.numbers | rindex(-1)", kCount},
      {"indices", "$i.numbers | indices([-1])", kCount},
      {"any", "$i.numbers | any(. < 0)", 2 * kCount},
      {"any", "any($i.numbers[]; . < 0)", 2 * kCount},
      {"all", "$i.numbers | all(. >= 0)", 2 * kCount},
      {"IN", "[-1 | IN($i.numbers[])]", 2 * kCount},
      {"select", "[$i.numbers[] | select(. > 5)]", 2 * kCount},
      {"first", "first(($i.numbers[] | select(. < 0)), 1)", 2 * kCount},
      {"last", "last($i.numbers[])", kCount},
      {"limit", "[limit(9999; $i.numbers[])]", 9'999},
      {"nth", "nth(9999; $i.numbers[])", 9'999},
      {"isempty", "isempty($i.numbers[] | select(. < 0))", 2 * kCount},
      {"range", "[range(10000)]", 2 * kCount},
      {"tojson", "$i.numbers | tojson", 2 * kCount},
      {"tostring", "$i.object | tostring", 2 * kCount},
  };
}

// Functions that examine one value only, whatever its size.
std::vector<Cost> single_value_costs() {
  std::vector<Cost> all;
  for (const std::string_view name :
       {"type",    "not",     "toarray", "floor",   "ceil",      "round",   "trunc",
        "abs",     "fabs",    "sqrt",    "ascii",   "empty",     "nulls",   "booleans",
        "numbers", "strings", "arrays",  "objects", "iterables", "scalars", "values"}) {
    all.push_back({name, fmt::format("[9 | {}]", name), 3});
  }
  return all;
}

std::vector<Cost> costs() {
  std::vector<Cost> all = text_costs();
  for (const auto& more : {container_costs(), single_value_costs()}) {
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

AE_TEST_SLOW("expr/expr/each function and operator is charged for what it reads and creates") {
  const OneInput scope(cost_input());
  std::set<std::string_view> covered;
  for (const Cost& cost : costs()) {
    covered.insert(cost.name);
    // Measures the evaluation only, not the walk of its result.
    const auto parsed = Expr::parse(fmt::format(".input as $i | ({}) as $x | 1", cost.expression));
    if (!parsed) {
      ADD_FAILURE() << cost.expression << ": " << parsed.error().message;
      continue;
    }
    scope.charged = 0;
    const auto value = parsed->eval(scope);
    if (!value && value.error().message.find("steps an evaluation may take") == std::string::npos) {
      ADD_FAILURE() << cost.expression << ": " << value.error().message;
    }
    EXPECT_GE(scope.charged, std::min(cost.steps, ExprLimits{}.fuel)) << cost.expression;
  }
  for (const auto table : {expr::operations(), expr::value_functions(), expr::text_functions()}) {
    for (const expr::Function& function : table) {
      EXPECT_TRUE(covered.contains(function.name)) << function.name << " has no row here";
    }
  }
}

AE_TEST("expr/expr/a member lookup costs more in a larger object") {
  std::vector<Member> members;
  for (int i = 0; i < 100'000; ++i) members.emplace_back(fmt::format("n{}", i), 1);
  const OneInput many(Value::object(members));
  const OneInput few(Value::object({{"n7", 1}}));
  const auto expr = Expr::parse(".input.n7");
  ASSERT_TRUE(expr);
  ASSERT_TRUE(expr->eval(many));
  ASSERT_TRUE(expr->eval(few));
  EXPECT_GE(many.charged, few.charged + 10);
}

AE_TEST("expr/template/a value interpolated into a string is charged by its written size") {
  const OneInput scope(cost_input());
  const auto cost_of = [&](std::string_view text) {
    scope.charged = 0;
    EXPECT_TRUE(Template::compile(Value(text))->eval(scope)) << text;
    return scope.charged;
  };
  EXPECT_GE(cost_of("so: ${ .input.text }"), kCopied);
  EXPECT_GE(cost_of("so: ${ .input.numbers }"), 2 * kCount);
  EXPECT_GE(cost_of("so: ${ [.input.control] }"), 5 * kBytes / 16);
}

AE_TEST("expr/expr/an evaluation charges its cost to its scope") {
  const OneInput scope(Value::array(std::vector<Value>(1'000, Value(std::string(64, 'a')))));
  const auto expr = Expr::parse("[.input[] | .]");
  ASSERT_TRUE(expr);
  ASSERT_TRUE(expr->eval(scope));
  EXPECT_GT(scope.charged, 3'000U);  // its steps, and the 66 KB
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
