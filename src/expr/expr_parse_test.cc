// Rejected sources: messages with line and column, and mutated sources.
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "expr/expr_fixture_test.h"

namespace ae::expr_test {
namespace {

AE_TEST("expr/expr/parse errors report line and column") {
  EXPECT_EQ(rejection(""), "line 1, column 1: the expression is empty");
  EXPECT_EQ(rejection("1 +"), "line 1, column 4: expected a value but found the end");
  EXPECT_EQ(rejection("1 +\n  )"), "line 2, column 3: expected a value but found `)`");
  EXPECT_EQ(rejection("\"é\" + é"), "line 1, column 7: unexpected character");
  EXPECT_EQ(rejection("(1"), "line 1, column 3: expected `)` but found the end");
  EXPECT_EQ(rejection("[1, 2"), "line 1, column 6: expected `]` but found the end");
  EXPECT_EQ(rejection("1 2"), "line 1, column 3: expected the end of the expression but found `2`");
  EXPECT_EQ(rejection("\"abc"), "line 1, column 5: the string is not closed: a \" is missing");
  EXPECT_TRUE(rejection(R"t("a\x")t").starts_with("line 1, column 3: not an escape"));
  EXPECT_TRUE(rejection(R"t("\ud800")t").starts_with("line 1, column 2: half of a surrogate pair"));
  EXPECT_TRUE(rejection("if .a then 1").starts_with("line 1, column 13: expected `end`"));
  EXPECT_TRUE(rejection("'a'").starts_with("line 1, column 1: strings need double quotes"));
  EXPECT_TRUE(rejection("1 == 2 == 3").starts_with("line 1, column 8: comparisons do not chain"));
  EXPECT_TRUE(rejection("$x").starts_with("line 1, column 1: `$x` is not bound here"));
  EXPECT_TRUE(rejection("(1 as $x | 2) + $x").starts_with("line 1, column 17: `$x` is not bound"));
  EXPECT_TRUE(
      rejection(".input.a = 1").starts_with("line 1, column 10: `=` changes a value in place"));
  EXPECT_TRUE(rejection(".input.a |= 1").starts_with("line 1, column 10: `|=` changes a value"));
  EXPECT_TRUE(rejection("{a:1} += {}").starts_with("line 1, column 7: `+=` changes a value"));
  EXPECT_TRUE(rejection("9007199254740993").starts_with("line 1, column 1: this number"));
  EXPECT_TRUE(rejection("1e400").starts_with("line 1, column 1: this number"));
  EXPECT_TRUE(rejection("1 as [$a] | $a").starts_with("line 1, column 6: a variable such as `$x`"));
  EXPECT_TRUE(
      rejection("\"\xff\"").starts_with("line 1, column 1: the expression is not valid UTF-8"));
}

AE_TEST("expr/expr/an unknown function is reported with a suggestion") {
  EXPECT_EQ(rejection(".input | lenght"),
            "line 1, column 10: there is no function `lenght`; did you mean `length`?");
  EXPECT_EQ(rejection("args.id"),
            "line 1, column 1: there is no function `args`; did you mean `.args`?");
  EXPECT_EQ(rejection(".input.a === 1"),
            "line 1, column 10: `===` is not an operator; compare with `==`");
  EXPECT_EQ(rejection(".input | split(\"a\"; \"b\"; \"c\")"),
            "line 1, column 10: `split` takes 1 arguments (separated by `;`), not 3");
  EXPECT_TRUE(
      rejection(".steps.my-node").ends_with("a name with `-` in it is quoted: `.[\"my-name\"]`"));
  EXPECT_TRUE(rejection("@nope \"a\"").starts_with("line 1, column 1: `@nope` is not a format"));
}

AE_TEST("expr/expr/nondeterministic and unbounded constructs are rejected with the reason") {
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
    EXPECT_NE(rejection(source).find(why), std::string::npos)
        << source << ": " << rejection(source);
  }
}

AE_TEST("expr/expr/many values, or possibly none, are rejected where one is needed") {
  const std::string many = "this can give many values where one is needed; collect them: `[ … ]`";
  EXPECT_EQ(rejection(".input.a[]"), "line 1, column 9: " + many);
  EXPECT_EQ(rejection("1, 2"), "line 1, column 2: " + many);
  EXPECT_EQ(rejection("1 + .input.a[].b"), "line 1, column 13: " + many);
  EXPECT_EQ(rejection("range(3)"), "line 1, column 1: " + many);
  EXPECT_EQ(rejection("{a: .input[]}"), "line 1, column 11: " + many);
  EXPECT_EQ(rejection("reduce .input[] as $x (0; 1, 2)"), "line 1, column 28: " + many);
  EXPECT_TRUE(rejection("empty").starts_with("line 1, column 1: this can give no value"));
  EXPECT_TRUE(
      rejection(".input | select(.a)").starts_with("line 1, column 10: this can give no value"));
  EXPECT_EQ(rejection("[.input[]] | first(.[])"), "accepted");
  EXPECT_EQ(rejection("(.input | select(.a)) // 1"), "accepted");
  EXPECT_EQ(rejection("isempty(.input[])"), "accepted");
}

AE_TEST("expr/expr/a bare dot at the top level is rejected") {
  EXPECT_TRUE(rejection(".").starts_with("line 1, column 1: a bare `.` is not valid at the top"));
  EXPECT_TRUE(rejection("1 + .").starts_with("line 1, column 5: a bare `.`"));
  EXPECT_TRUE(rejection("[.[]]").starts_with("line 1, column 2: the first `.` needs"));
  EXPECT_TRUE(rejection(".[0]").starts_with("line 1, column 1: the first `.` needs"));
  EXPECT_TRUE(rejection(".[.input.x]").starts_with("line 1, column 1: the first `.`"));
  EXPECT_TRUE(
      rejection("length").starts_with("line 1, column 1: `length` needs a value piped into it"));
  EXPECT_TRUE(
      rejection("map(.x)").starts_with("line 1, column 1: `map` needs a value piped into it"));
  EXPECT_TRUE(
      rejection("@json").starts_with("line 1, column 1: a format needs a value piped into it"));
  EXPECT_TRUE(
      rejection("if .input then 1 end").starts_with("line 1, column 18: at the top an `if`"));
  EXPECT_EQ(rejection(".input | ."), "accepted");
}

AE_TEST("expr/expr/mutated sources are rejected or evaluated without a crash") {
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
}  // namespace ae::expr_test
