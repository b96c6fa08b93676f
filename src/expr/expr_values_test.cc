// Values of expressions: tables of expression, input and value, and the examples of
// docs/expressions.md. expr_oracle_test.cc compares with Debian's jq.
#include <fmt/core.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "expr/expr_fixture_test.h"
#include "expr/expr_functions.h"

namespace ae::expr_test {
namespace {

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
    const std::string got = shown(eval(fmt::format(".input | ({})", source), input_of(input)));
    if (expected.starts_with("error: ")) {
      EXPECT_TRUE(got.starts_with("expression_failed: line 1, column "))
          << line << "\n  got " << got;
      EXPECT_NE(got.find(expected.substr(7)), got.npos) << line << "\n  got " << got;
    } else {
      EXPECT_EQ(got, canonical(json(expected))) << line;
    }
  }
}

AE_TEST("expr/expr/paths select in objects and arrays") {
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

AE_TEST("expr/expr/slices select a range of an array or string") {
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

AE_TEST("expr/expr/the ? operator turns a failed lookup into no value") {
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

AE_TEST("expr/expr/an array construction collects many values") {
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

AE_TEST("expr/expr/arithmetic depends on the types of its operands") {
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

AE_TEST("expr/expr/comparisons define a total order") {
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

AE_TEST("expr/expr/logic, conditionals and alternatives") {
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

// The fenced blocks of docs/expressions.md of the kind `kind`.
std::string blocks(const std::string& page, const std::string& kind) {
  const std::string fence = fmt::format("```{}\n", kind);
  std::string text;
  for (std::size_t at = page.find(fence); at != page.npos; at = page.find(fence, at)) {
    at += fence.size();
    text += page.substr(at, page.find("```", at) - at);
  }
  return text;
}

AE_TEST("expr/expr/examples in docs/expressions.md are correct and cover every function") {
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

}  // namespace
}  // namespace ae::expr_test
