// The expression language: tables of expression, input and value; rejected sources with positions;
// hostile input. expr_oracle_test.cc compares with Debian's jq.
#include "expr/expr.h"

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "base/utf8.h"
#include "expr/expr_functions.h"
#include "json/json.h"
#include "testing/test.h"

namespace ae {
namespace {

Value json(std::string_view text) {
  auto value = parse_json(text, {.depth_max = 100});
  EXPECT_TRUE(value) << text << ": " << value.error().message;
  return value ? *value : Value();
}

// A scope whose roots are the members of one object.
class ObjectScope final : public ExprScope {
 public:
  explicit ObjectScope(Value roots) : roots_(std::move(roots)) {}
  const Value* root(std::string_view name) const override { return roots_.find(name); }
  const Value* step(std::string_view node_id) const override {
    ++step_lookups;
    return roots_["steps"].find(node_id);
  }
  Value steps() const override {
    ++all_steps_lookups;
    return roots_["steps"];
  }
  mutable int step_lookups = 0;
  mutable int all_steps_lookups = 0;

 private:
  Value roots_;
};

ObjectScope input_of(Value value) {
  return ObjectScope(Value::object({{"input", std::move(value)}}));
}

std::string shown(const Result<Value>& value) {
  return value ? canonical(*value)
               : std::string(code_name(value.error().code)) + ": " + value.error().message;
}

Result<Value> eval(std::string_view source, const ExprScope& scope, const ExprLimits& limits = {}) {
  AE_ASSIGN(const Expr expr, Expr::parse(source, limits));
  return expr.eval(scope, limits);
}

std::string at_top(std::string_view source, std::string_view roots = R"({"input":{}})") {
  return shown(eval(source, ObjectScope(json(roots))));
}

std::string refusal(std::string_view source) {
  const auto expr = Expr::parse(source);
  if (expr) return "taken";
  EXPECT_EQ(expr.error().code, Code::plan_invalid);
  return expr.error().message;
}

// Each line is `expression <- input => value`; the input is piped into the expression. The value
// may be `error: ` and a part of the message.
void check_table(std::string_view table) {
  std::istringstream lines{std::string(table)};
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) continue;
    const std::size_t arrow = line.find(" <- ");
    const std::size_t result = line.rfind(" => ");
    ASSERT_TRUE(arrow != line.npos && result != line.npos) << line;
    const std::string source = line.substr(0, arrow);
    const Value input = json(line.substr(arrow + 4, result - arrow - 4));
    const std::string expected = line.substr(result + 4);
    const std::string got = shown(eval(".input | (" + source + ")", input_of(input)));
    if (expected.starts_with("error: ")) {
      EXPECT_TRUE(got.starts_with("expression_failed: line 1, column "))
          << line << "\n  got " << got;
      EXPECT_NE(got.find(expected.substr(7)), got.npos) << line << "\n  got " << got;
    } else {
      EXPECT_EQ(got, canonical(json(expected))) << line;
    }
  }
}

AE_TEST("expr/expr/paths go into objects and arrays") {
  check_table(R"t(
. <- {"a":1} => {"a":1}
.a <- {"a":1} => 1
.a.b.c <- {"a":{"b":{"c":"x"}}} => "x"
.["a"] <- {"a":1} => 1
."a b" <- {"a b":1} => 1
.a["b"]."c"[0] <- {"a":{"b":{"c":[7]}}} => 7
.a.["b"] <- {"a":{"b":2}} => 2
.missing <- {"a":1} => null
.a.b.c <- null => null
.a.b <- {"a":null} => null
.[0] <- [1,2,3] => 1
.[-1] <- [1,2,3] => 3
.[-4] <- [1,2,3] => null
.[5] <- [1,2,3] => null
.[0] <- null => null
.[.i] <- {"i":"x","x":3} => 3
.list[.i] <- {"list":[4,5,6],"i":1} => 5
.if <- {"if":1} => 1
.a <- [1] => error: cannot look up `a` in an array
.[0] <- {"a":1} => error: cannot look up a number in an object
.a.b <- {"a":"text"} => error: cannot look up `b` in a string
.[true] <- [1] => error: cannot look up a boolean in an array
)t");
}

AE_TEST("expr/expr/slices take a stretch of an array or string") {
  check_table(R"t(
.[1:3] <- [0,1,2,3] => [1,2]
.[1:] <- [0,1,2,3] => [1,2,3]
.[:-1] <- [0,1,2,3] => [0,1,2]
.[-2:] <- [0,1,2,3] => [2,3]
.[2:1] <- [0,1,2,3] => []
.[10:] <- [0,1,2,3] => []
.[null:2] <- [0,1,2,3] => [0,1]
.[1.2:2.5] <- [0,1,2,3] => [1,2]
.[1:3] <- "aé😀b" => "é😀"
.[:1] <- null => null
.[1:] <- 5 => error: cannot take a slice of a number
.["a":] <- [1] => error: a slice goes from number to number
)t");
}

AE_TEST("expr/expr/a question mark turns a failed look-up into no value") {
  check_table(R"t(
[.a?] <- 1 => []
[.a?] <- {"a":1} => [1]
.a? // "none" <- [1] => "none"
[.[]?] <- 1 => []
[.[] | .a?] <- [{"a":1},2,{"a":3}] => [1,3]
[(1, error("x"), 3)?] <- null => [1]
[(.a.b)?] <- 5 => []
[.a.b?] <- 5 => error: cannot look up `a` in a number
.a? <- 5 => error: gives no value
.a? <- {"a":5} => 5
[1 | (.?) | error("later")] <- null => error: later
)t");
}

AE_TEST("expr/expr/many values are collected") {
  check_table(R"t(
[.[]] <- [1,2] => [1,2]
[.[]] <- {"b":1,"a":2} => [2,1]
[.[].a] <- [{"a":1},{"a":2}] => [1,2]
[.a[], .b] <- {"a":[1,2],"b":3} => [1,2,3]
[1, 2, 3] <- null => [1,2,3]
[] <- null => []
[(1,2) + (10,20)] <- null => [11,12,21,22]
[(1,2), (3,4) | . * 2] <- null => [2,4,6,8]
[{a:(1,2), b:(3,4)}] <- null => [{"a":1,"b":3},{"a":1,"b":4},{"a":2,"b":3},{"a":2,"b":4}]
["\(1,2) \(3,4)"] <- null => ["1 3","2 3","1 4","2 4"]
[.[(0,1):(2,3)]] <- [1,2,3,4] => [[1,2],[1,2,3],[2],[2,3]]
[([1,2],[3,4])[0,1]] <- null => [1,3,2,4]
[range(0,1;3,4)] <- null => [0,1,2,0,1,2,3,1,2,1,2,3]
[.[] | select(. > 1)] <- [1,2,3] => [2,3]
[empty] <- null => []
[1, empty, 2] <- null => [1,2]
map(.a) <- [{"a":1},{"a":2}] => [1,2]
map(., .) <- [1,2] => [1,1,2,2]
map(select(type == "number")) <- [1,"a",2] => [1,2]
[.[] as $x | $x * $x] <- [1,2,3] => [1,4,9]
[if (true,false) then 1 else 2 end] <- null => [1,2]
[(true,false) and (true,false)] <- null => [true,false,false]
[(true,false) or (true,false)] <- null => [true,true,false]
[(false,1,null,2) // 9] <- null => [1,2]
[(false,null) // (8,9)] <- null => [8,9]
[-(1,2)] <- null => [-1,-2]
[.[]] <- 1 => error: cannot go through the items of a number
)t");
}

AE_TEST("expr/expr/literals and constructions") {
  check_table(R"t(
1.5e2 <- null => 150
.5 <- null => 0.5
-3 <- null => -3
"a\tb\u00e9\ud83d\ude00\"\\\/" <- null => "a\tbé😀\"\\/"
true <- null => true
null <- 1 => null
{} <- null => {}
{a: 1, "b c": 2, ("d"+"e"): 3} <- null => {"a":1,"b c":2,"de":3}
{a, "b"} <- {"a":1,"b":2,"c":3} => {"a":1,"b":2}
{a: 1 + 2, b: .x | length, c: 1 // 2} <- {"x":[1,2]} => {"a":3,"b":2,"c":1}
{a: -1} <- null => {"a":-1}
1 as $x | {$x, y: $x} <- null => {"x":1,"y":1}
{if: 1, then: 2} <- null => {"if":1,"then":2}
{a: 1, a: 2} <- null => {"a":2}
{"k\(1)": 2} <- null => {"k1":2}
{@base64 "\("a")": 1} <- null => {"YQ==":1}
{(1): 2} <- null => error: a key is a string, not a number
"\(1) and \("two") and \([3]) and \(null)" <- null => "1 and two and [3] and null"
"a\("b\("c")")" <- null => "abc"
{b:1,a:2} | tojson <- null => "{\"a\":2,\"b\":1}"
)t");
  EXPECT_EQ(at_top("1 # a comment\n + 1"), "2");
}

AE_TEST("expr/expr/arithmetic follows the kinds of its operands") {
  check_table(R"t(
1 + 2 * 3 - 4 / 2 <- null => 5
(1 + 2) * 3 <- null => 9
1 - -1 <- null => 2
-.[0] <- [3] => -3
0.1 + 0.2 <- null => 0.30000000000000004
null + 1 <- null => 1
{} + null <- null => {}
"a" + "b" <- null => "ab"
[1] + [2] <- null => [1,2]
{"a":1,"b":1} + {"b":2} <- null => {"a":1,"b":2}
[1,2,2,3] - [2] <- null => [1,3]
"ab" * 3 <- null => "ababab"
3 * "ab" <- null => "ababab"
"ab" * 0 <- null => null
"ab" * 0.5 <- null => "ab"
{"a":{"x":1}} * {"a":{"y":2}} <- null => {"a":{"x":1,"y":2}}
"a,b" / "," <- null => ["a","b"]
5 % 3 <- null => 2
5 % -3 <- null => 2
-5 % 3 <- null => -2
5.9 % 2.9 <- null => 1
1e300 * 10 <- null => 1e301
-0 <- null => 0
1 / 0 <- null => error: cannot divide by zero
5 % 0 <- null => error: remainder by zero
5 % 0.5 <- null => error: remainder by zero
1 + "a" <- null => error: cannot add a number and a string
[1] - 1 <- null => error: cannot subtract an array and a number
{} * 1 <- null => error: cannot multiply an object and a number
-"a" <- null => error: cannot negate a string
1e308 * 10 <- null => error: not a finite number
9007199254740991 + 1 <- null => error: integer beyond 2^53-1
9007199254740991 * 1e9 <- null => 9.007199254740991e24
)t");
}

AE_TEST("expr/expr/comparisons order all values") {
  check_table(R"t(
[null,false,true,0,"","a",[],[0],{},{"a":1}] | . == sort <- null => true
1 == 1.0 <- null => true
1 == "1" <- null => false
[1,{"a":2}] == [1,{"a":2}] <- null => true
{"a":2} < {"a":3} <- null => true
{"a":3} < {"b":1} <- null => true
[1,2] < [1,2,0] <- null => true
"a" < "b" <- null => true
"\uffff" < "😀" <- null => true
1 != 2 <- null => true
3 >= 3 <- null => true
null < false <- null => true
)t");
}

AE_TEST("expr/expr/logic, choice and alternatives") {
  check_table(R"t(
true and false or true <- null => true
false and error("never") <- null => false
true or error("never") <- null => true
null | not <- null => true
0 and "" <- null => true
.a // "default" <- {} => "default"
.a // "default" <- {"a":false} => "default"
.a // .b // 3 <- {"b":2} => 2
1 // error("never") <- null => 1
first(.[] | select(. > 5)) // "none" <- [1,2] => "none"
(.[0] | select(. > 5)) // "none" <- [9] => 9
empty // 1 <- null => 1
if . > 1 then "many" elif . == 1 then "one" else "none" end <- 1 => "one"
if null then 1 else 2 end <- null => 2
if . then "yes" end <- false => false
1 // 2 == 3 <- null => 1
)t");
}

AE_TEST("expr/expr/bindings and reduce") {
  check_table(R"t(
.a as $x | .b as $y | $x + $y <- {"a":1,"b":2} => 3
1 as $x | 2 as $x | $x <- null => 2
. as $x | 1 + 1 as $y | $y * 2 <- null => 3
(1 as $x | $x) + 1 <- null => 2
reduce .[] as $x (0; . + $x) <- [1,2,3] => 6
reduce .[] as $x ({}; . + {($x): ($x | length)}) <- ["a","bb"] => {"a":1,"bb":2}
reduce empty as $x (7; 8) <- null => 7
reduce range(5) as $i ([]; . + [$i * 2]) <- null => [0,2,4,6,8]
[.[] as $x | .[] as $y | $x * 10 + $y] <- [1,2] => [11,12,21,22]
[1,2] | map(. as $x | [3,4] | map($x * .)) <- null => [[3,4],[6,8]]
)t");
}

AE_TEST("expr/expr/functions of any value and of numbers") {
  check_table(R"t(
map(length) <- [null,-3,"é😀",[1,2],{"a":1}] => [0,3,2,2,1]
true | length <- null => error: a boolean has no length
map(type) <- [null,true,1,"a",[],{}] => ["null","boolean","number","string","array","object"]
map(floor) <- [1.5,-1.5] => [1,-2]
map(ceil) <- [1.5,-1.5] => [2,-1]
map(round) <- [1.5,2.4,-1.5] => [2,2,-2]
map(trunc) <- [1.5,-1.5] => [1,-1]
map(abs) <- [1.5,-1.5] => [1.5,1.5]
sqrt <- 16 => 4
sqrt <- -1 => error: no square root
floor <- "1" => error: floor needs a number, not a string
[range(3)] <- null => [0,1,2]
[range(2;4)] <- null => [2,3]
[range(5;0;-2)] <- null => [5,3,1]
[range(0;1;0)] <- null => []
[range("a")] <- null => error: range goes from number to number
tostring <- [1,"a",{"b":null}] => "[1,\"a\",{\"b\":null}]"
map(tostring) <- ["a",1,null] => ["a","1","null"]
map(tonumber) <- [1,"2","-3.5e1"," 4 "] => [1,2,-35,4]
tonumber <- "0x10" => error: not a number
tonumber <- "nan" => error: not a number
tojson <- {"b":1,"a":[true]} => "{\"a\":[true],\"b\":1}"
fromjson <- "{\"a\":[1]}" => {"a":[1]}
fromjson <- "{" => error: invalid JSON
error("no such order") <- null => error: no such order
"no" | error <- null => error: no
error({a:1}) <- null => error: {"a":1}
map(not) <- [null,false,0,""] => [true,true,false,false]
[.[] | numbers] <- [1,"a",null,[2]] => [1]
[.[] | scalars] <- [1,"a",null,[2]] => [1,"a",null]
[.[] | values] <- [1,null] => [1]
[.[] | (nulls, booleans, strings, arrays, objects, iterables)] <- [{}] => [{},{}]
. | IN(1, 2) <- 2 => true
. | IN([3][]) <- 2 => false
)t");
}

AE_TEST("expr/expr/functions of arrays") {
  check_table(R"t(
add <- [1,2,3] => 6
add <- ["a","b"] => "ab"
add <- [[1],[2]] => [1,2]
add <- [{"a":1},{"b":2}] => {"a":1,"b":2}
add <- [] => null
add <- {"a":1,"b":2} => 3
add(.[].n) <- [{"n":1},{"n":2}] => 3
[any, all] <- [true,false] => [true,false]
[any, all] <- [] => [false,true]
any(. > 2) <- [1,3] => true
all(. > 2) <- [1,3] => false
any(.a[]; . == 1) <- {"a":[1]} => true
all(.a[]; . == 1) <- {"a":[1,2]} => false
flatten <- [[1,[2]],3,[[[4]]]] => [1,2,3,4]
flatten(1) <- [[1,[2]],3] => [1,[2],3]
flatten(-1) <- [1] => error: flatten counts
sort <- [3,1,2] => [1,2,3]
sort_by(.a) <- [{"a":2,"b":1},{"a":1,"b":2},{"a":1,"b":1}] => [{"a":1,"b":2},{"a":1,"b":1},{"a":2,"b":1}]
sort_by(.a, .b) <- [{"a":1,"b":2},{"a":1,"b":1}] => [{"a":1,"b":1},{"a":1,"b":2}]
sort_by(-.a) <- [{"a":1},{"a":2}] => [{"a":2},{"a":1}]
group_by(.a) <- [{"a":2},{"a":1,"b":1},{"a":1}] => [[{"a":1,"b":1},{"a":1}],[{"a":2}]]
unique <- [3,1,3,2,1] => [1,2,3]
unique_by(length) <- ["b","a","cc"] => ["b","cc"]
[min, max] <- [2,1,3] => [1,3]
[min, max] <- [] => [null,null]
[min_by(.a), max_by(.a)] <- [{"a":1,"b":1},{"a":1,"b":2}] => [{"a":1,"b":1},{"a":1,"b":2}]
sort <- {"a":1} => error: sort needs an array, not an object
sort_by(.a) <- 1 => error: sort_by needs an array, not a number
reverse <- [1,2,3] => [3,2,1]
reverse <- "aé😀" => "😀éa"
[first, last, nth(1)] <- [1,2,3] => [1,3,2]
[first, last] <- [] => [null,null]
[first(.[]), last(.[]), nth(1; .[])] <- [1,2,3] => [1,3,2]
[first(empty), last(empty), nth(5; 1,2)] <- null => []
first(1, error("never")) <- null => 1
[limit(2; 1, 2, error("never"))] <- null => [1,2]
[limit(0; error("never"))] <- null => []
[limit(-1; 1)] <- null => error: limit counts
isempty(empty) <- null => true
isempty(1, error("never")) <- null => false
transpose <- [[1,2],[3]] => [[1,3],[2,null]]
toarray <- 1 => [1]
indices(1) <- [1,2,1] => [0,2]
indices([1,2]) <- [1,2,1,2] => [0,2]
[index(2), rindex(2), index(9)] <- [2,1,2] => [0,2,null]
contains([1]) <- [1,2] => true
contains(["a"]) <- ["bar"] => true
map(has(0)) <- [[],[1]] => [false,true]
)t");
}

AE_TEST("expr/expr/functions of objects") {
  check_table(R"t(
keys <- {"b":1,"a":2} => ["a","b"]
keys <- ["x","y"] => [0,1]
keys == (keys | sort) <- {"\uffff":1,"😀":2} => true
[has("a"), has("b")] <- {"a":null} => [true,false]
has(0) <- {"a":1} => error: cannot ask
"a" | in({"a":1}) <- null => true
to_entries <- {"a":1} => [{"key":"a","value":1}]
from_entries <- [{"key":"a","value":1},{"k":"b","v":2},{"name":"c"},{"key":4,"value":false}] => {"4":false,"a":1,"b":2,"c":null}
from_entries <- [{"value":1}] => error: the key of an entry is a string
with_entries(select(.value > 1)) <- {"a":1,"b":2} => {"b":2}
with_entries({key: ("x" + .key), value}) <- {"a":1} => {"xa":1}
map_values(. + 1) <- {"a":1} => {"a":2}
map_values(. + 1) <- [1,2] => [2,3]
map_values(empty) <- {"a":1} => {}
map(. + 1) <- {"a":1} => [2]
contains({a: {b: ["x"]}}) <- {"a":{"b":["xy"],"c":1}} => true
{a: 1} | inside({"a":1,"b":2}) <- null => true
getpath(["a","b",0]) <- {"a":{"b":[5]}} => 5
getpath(["a","b"]) <- null => null
1 | contains("a") <- null => error: cannot contain
)t");
}

AE_TEST("expr/expr/functions of strings") {
  check_table(R"t(
[ascii_downcase, ascii_upcase] <- "aÉB" => ["aÉb","AÉB"]
explode <- "a😀" => [97,128512]
explode | implode <- "aé😀" => "aé😀"
[55296] | implode <- null => error: no surrogates
ascii <- 65 => "A"
[startswith("a"), endswith("a")] <- "ab" => [true,false]
startswith(1) <- "a" => error: startswith takes a string
startswith("a") <- 1 => error: startswith needs a string, not a number
[ltrimstr("a"), rtrimstr("a"), ltrimstr(1)] <- "aba" => ["ba","ab","aba"]
[trim, ltrim, rtrim] <- " a " => ["a","a "," a"]
split(", ") <- "a, b" => ["a","b"]
split("") <- "aé" => ["a","é"]
split(",") <- "" => []
split(",") <- "a,," => ["a","",""]
join("-") <- ["a",1,null,true] => "a-1--true"
join(",") <- [] => ""
join(",") <- [[1]] => error: join cannot join an array
contains("bar") <- "foobar" => true
"bar" | inside("foobar") <- null => true
indices(",") <- "a,b,c" => [1,3]
indices("aa") <- "aaa" => [0,1]
indices("") <- "abc" => []
[index("b"), rindex("b"), index("z")] <- "éb b" => [1,3,null]
utf8bytelength <- "é" => 2
)t");
}

AE_TEST("expr/expr/formats") {
  check_table(R"t(
@json <- ["a"] => "[\"a\"]"
@text <- [1] => "[1]"
@uri <- "a b/é~" => "a%20b%2F%C3%A9~"
@uri "x?q=\(.q)&r=1" <- {"q":"a&b"} => "x?q=a%26b&r=1"
@html <- "<a href='x'>&\"" => "&lt;a href=&#39;x&#39;&gt;&amp;&quot;"
@base64 <- "abcd" => "YWJjZA=="
@base64d <- "YWJjZA==" => "abcd"
@base64d <- "YWJjZA" => "abcd"
@base64d <- "/w==" => error: not text
@base64d <- "a" => error: not base64
@base64d <- "*" => error: not base64
@csv <- [1,"a\"b",null,true] => "1,\"a\"\"b\",,true"
@tsv <- ["a\tb","c\\",1] => "a\\tb\tc\\\\\t1"
@csv <- [[1]] => error: a cell
@json "v=\(.)" <- {"a":1} => "v={\"a\":1}"
)t");
}

constexpr std::string_view kRoots =
    R"({"input":{"id":"o-1","n":2,"items":[{"p":2},{"p":3}]},
        "steps":{"order":{"total":120},"x-y":{"a":1},"skip":null},
        "job":{"id":"j1"},"item":{"sku":"s"},"index":4})";

AE_TEST("expr/expr/at the top the dot is the scope") {
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

AE_TEST("expr/expr/what is not in the scope is a failure that names it") {
  EXPECT_EQ(at_top("1 + .nothing"),
            "expression_failed: line 1, column 5: there is no `.nothing` here");
  EXPECT_EQ(at_top(".steps.nothing", kRoots),
            "expression_failed: line 1, column 1: there is no step `nothing`");
  EXPECT_EQ(at_top(".nothing? // 1"), "1");
}

AE_TEST("expr/expr/a step is asked for by itself, all steps only when all are named") {
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

AE_TEST("expr/expr/what an expression mentions is known without evaluating it") {
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

AE_TEST("expr/expr/refusals name line and column") {
  EXPECT_EQ(refusal(""), "line 1, column 1: the expression is empty");
  EXPECT_EQ(refusal("1 +"), "line 1, column 4: expected a value but found the end");
  EXPECT_EQ(refusal("1 +\n  )"), "line 2, column 3: expected a value but found `)`");
  EXPECT_EQ(refusal("\"é\" + é"), "line 1, column 7: unexpected character");
  EXPECT_EQ(refusal("(1"), "line 1, column 3: expected `)` but found the end");
  EXPECT_EQ(refusal("[1, 2"), "line 1, column 6: expected `]` but found the end");
  EXPECT_EQ(refusal("1 2"), "line 1, column 3: expected the end of the expression but found `2`");
  EXPECT_EQ(refusal("\"abc"), "line 1, column 5: the string is not closed: a \" is missing");
  EXPECT_TRUE(refusal(R"t("a\x")t").starts_with("line 1, column 3: not an escape"));
  EXPECT_TRUE(refusal(R"t("\ud800")t").starts_with("line 1, column 2: half of a surrogate pair"));
  EXPECT_TRUE(refusal("if .a then 1").starts_with("line 1, column 13: expected `end`"));
  EXPECT_TRUE(refusal("'a'").starts_with("line 1, column 1: strings need double quotes"));
  EXPECT_TRUE(refusal("1 == 2 == 3").starts_with("line 1, column 8: comparisons do not chain"));
  EXPECT_TRUE(refusal("$x").starts_with("line 1, column 1: `$x` is not bound here"));
  EXPECT_TRUE(refusal("(1 as $x | 2) + $x").starts_with("line 1, column 17: `$x` is not bound"));
  EXPECT_TRUE(
      refusal(".input.a = 1").starts_with("line 1, column 10: `=` changes a value in place"));
  EXPECT_TRUE(refusal(".input.a |= 1").starts_with("line 1, column 10: `|=` changes a value"));
  EXPECT_TRUE(refusal("{a:1} += {}").starts_with("line 1, column 7: `+=` changes a value"));
  EXPECT_TRUE(refusal("9007199254740993").starts_with("line 1, column 1: this number"));
  EXPECT_TRUE(refusal("1e400").starts_with("line 1, column 1: this number"));
  EXPECT_TRUE(refusal("1 as [$a] | $a").starts_with("line 1, column 6: a variable such as `$x`"));
  EXPECT_TRUE(
      refusal("\"\xff\"").starts_with("line 1, column 1: the expression is not valid UTF-8"));
}

AE_TEST("expr/expr/unknown functions come with a suggestion") {
  EXPECT_EQ(refusal(".input | lenght"),
            "line 1, column 10: there is no function `lenght`; did you mean `length`?");
  EXPECT_EQ(refusal(".input | split(\"a\"; \"b\"; \"c\")"),
            "line 1, column 10: `split` takes 1 arguments (separated by `;`), not 3");
  EXPECT_TRUE(
      refusal(".steps.my-node").ends_with("a name with `-` in it is quoted: `.[\"my-name\"]`"));
  EXPECT_TRUE(refusal("@nope \"a\"").starts_with("line 1, column 1: `@nope` is not a format"));
}

AE_TEST("expr/expr/what would make a replay differ or never end is refused, and says why") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"now", "no clock"},
      {"env", "cannot read the environment"},
      {"$ENV", "cannot read the environment"},
      {"$ENV.PATH", "cannot read the environment"},
      {"input", "reads only its roots"},
      {"inputs", "reads only its roots"},
      {"input_line_number", "reads only its roots"},
      {"$__loc__", "reads only its roots"},
      {"random", "no random values"},
      {"1 | pow(2; 3)", "last bits differ"},
      {"..", "recursion"},
      {"[.input | ..]", "recursion"},
      {"[.input | recurse]", "no recursion"},
      {"def f: 1; f", "no definitions"},
      {"[.input | until(. > 1; . + 1)]", "no unbounded loops"},
      {"[foreach .input[] as $x (0; . + $x)]", "no unbounded loops"},
      {"label $out | 1", "no unbounded loops"},
      {"try error(\"x\") catch .", "cannot be caught"},
      {".input | del(.a)", "in place"},
      {".input | test(\"a\")", "no regular expressions"},
      {".input | gsub(\"a\"; \"b\")", "no regular expressions"},
      {"infinite", "finite"},
      {"@sh \"a\"", "shell"},
      {"1 | todate", "dates"},
  };
  for (const auto& [source, why] : cases) {
    EXPECT_NE(refusal(source).find(why), std::string::npos) << source << ": " << refusal(source);
  }
}

AE_TEST("expr/expr/many values, or perhaps none, are refused where one is needed") {
  const std::string many = "this can give many values where one is needed; collect them: `[ … ]`";
  EXPECT_EQ(refusal(".input.a[]"), "line 1, column 9: " + many);
  EXPECT_EQ(refusal("1, 2"), "line 1, column 2: " + many);
  EXPECT_EQ(refusal("1 + .input.a[].b"), "line 1, column 13: " + many);
  EXPECT_EQ(refusal("range(3)"), "line 1, column 1: " + many);
  EXPECT_EQ(refusal("{a: .input[]}"), "line 1, column 11: " + many);
  EXPECT_EQ(refusal("reduce .input[] as $x (0; 1, 2)"), "line 1, column 28: " + many);
  EXPECT_TRUE(refusal("empty").starts_with("line 1, column 1: this can give no value"));
  EXPECT_TRUE(
      refusal(".input | select(.a)").starts_with("line 1, column 10: this can give no value"));
  EXPECT_EQ(refusal("[.input[]] | first(.[])"), "taken");
  EXPECT_EQ(refusal("(.input | select(.a)) // 1"), "taken");
  EXPECT_EQ(refusal("isempty(.input[])"), "taken");
}

AE_TEST("expr/expr/a bare dot at the top is refused") {
  EXPECT_TRUE(refusal(".").starts_with("line 1, column 1: a bare `.` is not valid at the top"));
  EXPECT_TRUE(refusal("1 + .").starts_with("line 1, column 5: a bare `.`"));
  EXPECT_TRUE(refusal("[.[]]").starts_with("line 1, column 2: the first `.` needs"));
  EXPECT_TRUE(refusal(".[0]").starts_with("line 1, column 1: the first `.` needs"));
  EXPECT_TRUE(refusal(".[.input.x]").starts_with("line 1, column 1: the first `.`"));
  EXPECT_TRUE(
      refusal("length").starts_with("line 1, column 1: `length` needs a value piped into it"));
  EXPECT_TRUE(
      refusal("map(.x)").starts_with("line 1, column 1: `map` needs a value piped into it"));
  EXPECT_TRUE(
      refusal("@json").starts_with("line 1, column 1: a format needs a value piped into it"));
  EXPECT_TRUE(refusal("if .input then 1 end").starts_with("line 1, column 18: at the top an `if`"));
  EXPECT_EQ(refusal(".input | ."), "taken");
}

AE_TEST("expr/expr/failures name line and column") {
  EXPECT_EQ(at_top(".input\n| 1 + \"a\""),
            "expression_failed: line 2, column 5: cannot add a number and a string");
  EXPECT_EQ(at_top(".input | .a | error(\"gone\")"), "expression_failed: line 1, column 15: gone");
}

AE_TEST("expr/expr/the size and nesting of the source are limited") {
  const std::string big = "\"" + std::string(70'000, 'a') + "\"";
  EXPECT_NE(refusal(big).find("70002 bytes; at most 65536"), std::string::npos);
  const auto nested = [](std::size_t n, const std::string& open, const std::string& close) {
    std::string text;
    for (std::size_t i = 0; i < n; ++i) text += open;
    text += "1";
    for (std::size_t i = 0; i < n; ++i) text += close;
    return refusal(text);
  };
  EXPECT_EQ(nested(60, "(", ")"), "taken");
  EXPECT_NE(nested(70, "(", ")").find("nested deeper than 64 levels"), std::string::npos);
  EXPECT_NE(nested(20'000, "[", "]").find("nested deeper"), std::string::npos);
  EXPECT_NE(nested(5'000, "{a:", "}").find("nested deeper"), std::string::npos);
  EXPECT_NE(nested(10'000, "\"\\(", ")\"").find("nested deeper"), std::string::npos);
  EXPECT_NE(nested(30'000, "-", "").find("too many operators"), std::string::npos);
  EXPECT_NE(nested(20'000, "1+", "").find("too many operators"), std::string::npos);
  EXPECT_NE(nested(20'000, "1//", "").find("too many operators"), std::string::npos);
  std::string elifs;
  for (int i = 0; i < 4'000; ++i) elifs += "elif 1 then 1 ";
  EXPECT_NE(nested(1, "if 1 then 1 " + elifs, "").find("too many operators"), std::string::npos);
  EXPECT_NE(nested(5'000, "1 as $x|", "").find("nested deeper"), std::string::npos);
  EXPECT_NE(nested(3'000, "[.input[]|", "]").find("nested deeper"), std::string::npos);
  EXPECT_EQ(nested(20'000, "1|", ""), "taken");
  EXPECT_NE(nested(1, ".input" + std::string(20'000, '?') + "//", "").find("too many operators"),
            std::string::npos);
  std::string many_items = "[";
  for (int i = 0; i < 5'000; ++i) many_items += "1,";
  EXPECT_EQ(refusal(many_items + "1]"), "taken");
  std::string iterations = "[.input";
  for (int i = 0; i < 20'000; ++i) iterations += "[]";
  EXPECT_NE(refusal(iterations + "]").find("too many operators"), std::string::npos);
}

// A fraction of the default fuel, so that all cases together are fast.
constexpr ExprLimits kLittleFuel{.fuel = 50'000};

// Expects a fast failure because of the fuel.
void expect_stopped(const std::string& source, const ExprLimits& limits = kLittleFuel) {
  const auto start = std::chrono::steady_clock::now();
  const std::string got = shown(eval(source, input_of(Value()), limits));
  const auto took = std::chrono::steady_clock::now() - start;
  EXPECT_TRUE(got.starts_with("expression_failed: line 1, column "))
      << source << ": " << got.substr(0, 200);
  EXPECT_NE(got.find("steps an evaluation may take"), got.npos)
      << source << ": " << got.substr(0, 200);
  EXPECT_LT(took, std::chrono::seconds(5)) << source;
}

std::vector<std::string> hostile() {
  return {
      "[range(1e9)]",
      "[range(1e15)] | length",
      "reduce range(1e9) as $x (0; 1)",
      "last(range(1e9))",
      "isempty(range(1e9) | empty)",
      "first(range(1e9) | select(. < 0)) // 1",
      "\"a\" * 1e9",
      "\"a\" * 9e15",
      "\"a\" * 1e300",
      "\"\" * 1e6 | . * 1e6 | 1 as $x | [range(1e9)]",
      "reduce range(100) as $x (\"a\"; . + .)",
      "reduce range(100) as $x (\"a\"; \"\\(.)\\(.)\")",
      "reduce range(100) as $x ([1]; . + .)",
      "reduce range(100) as $x ([1]; [.[], .[]])",
      "reduce range(100) as $x ([\"a\"]; [join(\"\"), join(\"\")])",
      "reduce range(100) as $x (\"ab\"; @json \"\\(.)\")",
      "reduce range(100) as $x (\"&\"; @html \"\\(.)\\(.)\")",
      "reduce range(100) as $x (\"a\"; @uri \"\\(.)é\\(.)\")",
      "reduce range(1e6) as $x ({}; . + {($x|tostring): 1})",
      "[range(1000)] as $a | [$a[] + $a[]]",
      "[range(1000)] as $a | [$a[] as $x | $a[] as $y | $a[] as $z | 1] | length",
      "[range(1000)] as $a | [range(1000)] | map(select($a == $a)) | length",
      "[range(1000) | [range(300)]] | sort | length",
      "[range(3000)] - [range(3000; 6000)]",
      "[range(3000)] | contains([range(2999; 0; -1)])",
      "(\"a\" * 500000) as $t | [range(1e6)] | map($t | index(\"b\"))",
      "(\"a\" * 200000) | indices(\"a\" * 100000)",
      "(\"a\" * 2000000) | explode",
      "(\"a\" * 2000000) | split(\"\")",
      "(\"[\" + (\"1,\" * 2000000) + \"1]\") | fromjson",
      "any(range(1e9); false)",
      "-1 | IN(range(1e9))",
  };
}

AE_TEST("expr/expr/hostile expressions stop by fuel, not by memory or time") {
  for (const std::string& source : hostile()) expect_stopped(source);
}

AE_TEST_SLOW("expr/expr/hostile expressions stop with the usual fuel, too") {
  for (const std::string& source : hostile()) expect_stopped(source, {});
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

AE_TEST(
    "expr/expr/where null fails, what is looked up must be there, or it is said what else will "
    "do") {
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
  EXPECT_EQ(at_top(".input.m > 500"), "false") << "elsewhere null is a value";
}

AE_TEST(
    "expr/expr/where a root has fixed members, what it does not have fails, whatever else is "
    "said") {
  const StrictScope scope(json(R"({"args":{},"job":{"id":"j","labels":{"a":"x"}}})"));
  for (const char* fails : {".job.label.tier == \"x\"", "(.job.label.tier // \"none\") == \"x\"",
                            ".job.label == null", ".job[\"label\"]", ".job[\"la\" + \"bel\"]",
                            "any(.job.label[]?; . == 1)", ".job.label?.a // 1"}) {
    EXPECT_NE(shown(eval(fails, scope)).find("there is no `label` in .job"), std::string::npos)
        << fails << " gives " << shown(eval(fails, scope));
  }
  EXPECT_EQ(shown(eval(".job.labels.tier == \"x\"", scope)), "false") << "labels are anybody's";
  EXPECT_EQ(shown(eval(".job.id == \"j\"", scope)), "true");
  EXPECT_EQ(at_top(".input.m"), "null") << "elsewhere it is null";
}

AE_TEST("expr/expr/where mixed types fail, a comparison of them tells nothing") {
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
  EXPECT_EQ(at_top("\"5\" < 10"), "false") << "elsewhere any two values have an order";
  EXPECT_EQ(at_top("\"5\" == 5"), "false");
}

AE_TEST("expr/expr/a name in the words of a failure is cut between characters") {
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

AE_TEST("expr/expr/the members that are read of a root are known, however they are written") {
  const auto read = [](std::string_view source) {
    std::string text;
    const auto compiled = Template::compile(Value(source));
    if (!compiled) return compiled.error().message;
    for (const auto& [root, names] : compiled->roots().members) {
      for (const std::string& name : names) text.append(root).append(".").append(name) += ' ';
    }
    return text;
  };
  EXPECT_EQ(read("${ .job.label.tier == .input.a.b } ${ .job[\"id\"] }"),
            "input.a job.id job.label ");
  EXPECT_EQ(read("${ [.job.labels[]] | .agent }"), "job.labels ");
  EXPECT_EQ(read("${ any(.input.l[]; .x) and (.input as $i | $i.y) }"), "input.l ");
  EXPECT_EQ(read("${ .job }"), "");
}

AE_TEST("expr/expr/what is looked up in the arguments is known, and whether it must be there") {
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

AE_TEST("expr/expr/what nests too deep is no result") {
  EXPECT_NE(at_top("reduce range(1000) as $x (1; [.])").find("nests deeper than 64 levels"),
            std::string::npos);
  EXPECT_NE(at_top("reduce range(20000) as $x (1; {a: .})").find("nests deeper than 64 levels"),
            std::string::npos);
  EXPECT_NE(at_top("reduce range(20000) as $x (1; [.]) | tojson").find("nests too deep"),
            std::string::npos);
  EXPECT_NE(at_top("reduce range(20000) as $x (1; [.]) | . == .").find("expression_failed"),
            std::string::npos);
  EXPECT_NE(at_top("reduce range(20000) as $x ({}; {a: .}) | . * .").find("too deep"),
            std::string::npos);
  EXPECT_NE(at_top("reduce range(20000) as $x (1; [.]) | contains(.)").find("expression_failed"),
            std::string::npos);
  EXPECT_NE(at_top("reduce range(20000) as $x (1; [.]) | flatten").find("too deep"),
            std::string::npos);
  EXPECT_EQ(at_top("reduce range(20000) as $x (1; [.]) | length"), "1");
  EXPECT_EQ(at_top("reduce range(60) as $x (1; [.]) | tojson | length"), "121");
}

AE_TEST("expr/expr/fuel that is spent is not given back by a question mark") {
  EXPECT_NE(at_top("[(range(1e9) | empty)?, 1]").find("steps an evaluation may take"),
            std::string::npos);
}

// The fenced blocks of docs/expressions.md of the kind `kind`.
std::string blocks(const std::string& page, const std::string& kind) {
  const std::string fence = "```" + kind + "\n";
  std::string text;
  for (std::size_t at = page.find(fence); at != page.npos; at = page.find(fence, at)) {
    at += fence.size();
    text += page.substr(at, page.find("```", at) - at);
  }
  return text;
}

AE_TEST("expr/expr/the page for users tells the truth, and of every function") {
  const char* root = std::getenv("AETHERIS_ROOT");
  if (root == nullptr) GTEST_SKIP() << "set AETHERIS_ROOT to the source tree";
  std::ostringstream page;
  page << std::ifstream(std::string(root) + "/docs/expressions.md", std::ios::binary).rdbuf();
  const ObjectScope scope(json(blocks(page.str(), "roots")));
  const std::string examples = blocks(page.str(), "expressions");
  std::istringstream lines(examples);
  int count = 0;
  const std::string arrow = " → ";
  for (std::string line; std::getline(lines, line); ++count) {
    const std::size_t at = line.rfind(arrow);
    ASSERT_NE(at, line.npos) << line;
    const std::string expected = line.substr(at + arrow.size());
    const std::string got = shown(eval(line.substr(0, at), scope));
    if (expected.starts_with("error: ")) {
      EXPECT_NE(got.find(expected.substr(7)), got.npos) << line << "\n  got " << got;
    } else {
      EXPECT_EQ(got, expected) << line;
    }
  }
  EXPECT_GT(count, 100);
  for (const auto table : {expr::operations(), expr::value_functions(), expr::text_functions()}) {
    for (const expr::Function& function : table) {
      EXPECT_NE(examples.find(function.name), examples.npos) << function.name;
    }
  }
}

AE_TEST("expr/expr/damaged sources are refused or evaluated, never more") {
  const std::vector<std::string> seeds = {
      R"t(.input.a[1:2] | map(select(.b > 1) | {a, "b": (.c // 1), ("d"): "x\(.y)z"}) | add)t",
      R"t(reduce .input[] as $x ({}; . + {($x.k): [$x.v, if $x.w then 1 elif 2 then 3 else 4 end]}))t",
      R"t([.input[]? | @base64 "a\(.)" , (1,2)*3 - -4 % 5] | sort_by(.a, -.b) | limit(3; .[]) // null)t",
      R"t(.steps["a"].b as $x | .input | to_entries | group_by(.key)[0] # end)t"};
  std::mt19937 random(7);
  const ObjectScope scope(json(kRoots));
  const std::string_view letters = ".[](){}|,:;?\"\\$@#+-*/%<>=!a1 \n\xc3";
  for (int i = 0; i < 4'000; ++i) {
    std::string source = seeds[random() % seeds.size()];
    for (unsigned k = random() % 4 + 1; k > 0; --k) {
      const std::size_t at = random() % source.size();
      if (random() % 2 == 0) {
        source.erase(at, random() % 5 + 1);
      } else {
        source.insert(at, 1, letters[random() % letters.size()]);
      }
      if (source.empty()) source = "1";
    }
    const auto got = eval(source, scope, {.fuel = 10'000});
    if (!got) {
      EXPECT_TRUE(got.error().message.starts_with("line ")) << source;
    }
  }
}

}  // namespace
}  // namespace ae
