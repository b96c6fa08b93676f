// Limits on the source, the fuel and the nesting; positions of evaluation errors.
// expr_bounds_test.cc has the limits on the size of values.
#include <fmt/core.h>

#include <chrono>
#include <string>
#include <vector>

#include "expr/expr_fixture_test.h"

namespace ae::expr_test {
namespace {

AE_TEST("expr/expr/evaluation errors report line and column") {
  EXPECT_EQ(at_top(".input\n| 1 + \"a\""),
            "expression_failed: line 2, column 5: cannot add a number and a string");
  EXPECT_EQ(at_top(".input | .a | error(\"gone\")"), "expression_failed: line 1, column 15: gone");
}

AE_TEST("expr/expr/the size and nesting of the source are limited") {
  const std::string big = fmt::format("\"{}\"", std::string(70'000, 'a'));
  EXPECT_NE(rejection(big).find("70002 bytes; at most 65536"), std::string::npos);
  const auto nested = [](std::size_t n, const std::string& open, const std::string& close) {
    std::string text;
    for (std::size_t i = 0; i < n; ++i) text += open;
    text += "1";
    for (std::size_t i = 0; i < n; ++i) text += close;
    return rejection(text);
  };
  EXPECT_EQ(nested(60, "(", ")"), "accepted");
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
  EXPECT_EQ(nested(20'000, "1|", ""), "accepted");
  EXPECT_NE(
      nested(1, fmt::format(".input{}//", std::string(20'000, '?')), "").find("too many operators"),
      std::string::npos);
  std::string many_items = "[";
  for (int i = 0; i < 5'000; ++i) many_items += "1,";
  EXPECT_EQ(rejection(many_items + "1]"), "accepted");
  std::string iterations = "[.input";
  for (int i = 0; i < 20'000; ++i) iterations += "[]";
  EXPECT_NE(rejection(iterations + "]").find("too many operators"), std::string::npos);
}

// A fraction of the default fuel, so that all cases together are fast.
constexpr ExprLimits kLittleFuel{.fuel = 50'000};

// Expects a fast failure because of the fuel.
void expect_limit(const std::string& source, const ExprLimits& limits = kLittleFuel) {
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

AE_TEST("expr/expr/hostile expressions are stopped by fuel, in bounded memory and time") {
  for (const std::string& source : hostile()) expect_limit(source);
}

AE_TEST_SLOW("expr/expr/hostile expressions are stopped with the default fuel") {
  for (const std::string& source : hostile()) expect_limit(source, {});
}

AE_TEST("expr/expr/a result that nests too deep fails") {
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

AE_TEST("expr/expr/the ? operator does not restore spent fuel") {
  EXPECT_NE(at_top("[(range(1e9) | empty)?, 1]").find("steps an evaluation may take"),
            std::string::npos);
}

}  // namespace
}  // namespace ae::expr_test
