// Debian's jq as the oracle: the same expression on the same input must give the same values, or
// fail in both. Handwritten expressions, and generated ones from a seed.
//
//   AETHERIS_SEED=7 AETHERIS_CASES=100000 build/dev/tests/expr_test --gtest_filter='*jq agrees on gen*'
//
// The intended differences from jq 1.6 are listed in docs/expressions.md; the generator avoids
// them.
#include <fmt/core.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "expr/expr.h"
#include "json/json.h"
#include "testing/test.h"

namespace ae {
namespace {

struct Query {
  std::string expression;
  std::string input;  // canonical JSON
};

class InputScope final : public ExprScope {
 public:
  explicit InputScope(Value input) : input_(std::move(input)) {}
  const Value* root(std::string_view) const override { return &input_; }
  const Value* step(std::string_view) const override { return nullptr; }
  Value steps() const override { return {}; }

 private:
  Value input_;
};

constexpr std::string_view kFailed = "fails";

// All values as one array, or "fails", or the reason why the expression is rejected.
std::string evaluate(const Query& q) {
  const auto expr = Expr::parse(fmt::format(".input | [{}]", q.expression));
  if (!expr) return fmt::format("rejected: {}", expr.error().message);
  const auto value = expr->eval(InputScope(*parse_json(q.input)));
  return value ? canonical(*value) : std::string(kFailed);
}

bool is_jq_available() { return std::system("command -v jq >/dev/null 2>&1") == 0; }

// Runs one program; returns the lines that it prints, or nullopt if it does not compile.
std::optional<std::vector<std::string>> run_jq(const std::string& program) {
  const auto file =
      std::filesystem::temp_directory_path() / fmt::format("aetheris-oracle-{}.jq", ::getpid());
  std::ofstream(file, std::ios::binary) << program;
  const std::string command = fmt::format("jq -n -c -f '{}' 2>/dev/null", file.string());
  std::FILE* pipe = ::popen(command.c_str(), "r");
  std::string text;
  char buffer[4096];
  for (std::size_t n = 0; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) {
    text.append(buffer, n);
  }
  const bool ok = ::pclose(pipe) == 0;
  std::filesystem::remove(file);
  if (!ok) return std::nullopt;
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

std::string jq_term(const Query& q) {
  // The input is passed as a JSON string, which is a valid jq string literal: `\(` does not occur
  // in JSON.
  std::string text;
  write_canonical_string(q.input, text);
  return fmt::format("({} | fromjson | try [{}] catch {{failed: true}})\n", text, q.expression);
}

// jq's result as canonical JSON. Numbers that a Value cannot represent count as "fails".
std::string normalized_jq_result(const std::string& line) {
  const auto value = parse_json(line, {.depth_max = 200});
  return value && value->is_array() ? canonical(*value) : std::string(kFailed);
}

std::vector<std::string> jq_results(const std::vector<Query>& queries) {
  std::string program;
  for (const Query& q : queries) program += (program.empty() ? "" : ",") + jq_term(q);
  const auto lines = run_jq(program);
  std::vector<std::string> results;
  if (lines && lines->size() == queries.size()) {
    for (const std::string& line : *lines) results.push_back(normalized_jq_result(line));
    return results;
  }
  // One of them does not compile or kills the process: run each separately.
  for (const Query& q : queries) {
    const auto line = run_jq(jq_term(q));
    results.push_back(line && line->size() == 1 ? normalized_jq_result(line->front())
                                                : "jq rejects it");
  }
  return results;
}

// Reports every difference.
void check(const std::vector<Query>& queries, const std::string& repeat) {
  constexpr std::size_t kBatch = 40;
  for (std::size_t at = 0; at < queries.size(); at += kBatch) {
    const std::size_t end = std::min(at + kBatch, queries.size());
    const std::vector<Query> batch(queries.begin() + static_cast<std::ptrdiff_t>(at),
                                   queries.begin() + static_cast<std::ptrdiff_t>(end));
    const auto results = jq_results(batch);
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const std::string our_result = evaluate(batch[i]);
      // jq evaluates constant parts at compile time, and rejects those that fail.
      const bool same =
          our_result == results[i] || (results[i] == "jq rejects it" && our_result == kFailed);
      if (!same) {
        ADD_FAILURE() << batch[i].expression << "\n  of   " << batch[i].input << "\n  ours "
                      << our_result << "\n  jq   " << results[i] << "\n"
                      << repeat;
      }
    }
  }
}

constexpr std::string_view kExpressions[] = {
    ".",
    ".a",
    ".a.b",
    ".a?",
    ".a.b?",
    ".a[0]?",
    ".[\"a\"]",
    ".\"a\"",
    ".[0]",
    ".[-1]",
    ".[1:]",
    ".[:-1]",
    ".[1:2]",
    ".[-2:]",
    ".[]",
    ".[]?",
    ".[].a?",
    ".[] | .a?",
    ".a, .b?",
    "[.[]?]",
    "{a}",
    "{a: .a?}?",
    "{\"x\": 1, y: [2]}",
    "{(\"a\",\"b\"): 1}",
    "{a: (1,2), b: (3,4)}",
    "{\"a b\": 1}.\"a b\"",
    "[1,2,3][1]",
    "\"abc\"[1:]",
    "\"\\(1 + 2) x\"",
    "\"\\(.)\"",
    "\"\\(1,2) \\(3,4)\"",
    "@base64 \"x\\(\"a\",\"b\")\"",
    "1 + 2 * 3",
    "(1 + 2) * 3",
    "10 / 4",
    "10 - 3 - 2",
    "2 * 3 % 4",
    "-5 % 3",
    "5 % -3",
    "5.5 % 2.5",
    "-(3)",
    "-.a?",
    "1 - -1",
    "7 % -3 % 2",
    "-2 * 3",
    "2 * -3 * 4",
    "1 / 3",
    "0 as $z | 1 / $z",
    "0.5 as $z | 1 % $z",
    ". + .",
    ". + null",
    "null + .",
    ". - .",
    ". * 2",
    ". * 0",
    ". / .",
    ". * .",
    "\"x\" * 2",
    "\"a,b,c\" / \",\"",
    "[1,2,3,1] - [1]",
    "{a:{b:1}} * {a:{c:2}}",
    "{a:1} + {a:2,b:3}",
    ". == .",
    ". < 1",
    ". >= \"a\"",
    ". == null",
    "[., 1, \"a\", null, {}] | sort",
    "{a:1,b:2} < {a:1,c:0}",
    "[1,2] < [1,2,3]",
    "true and false",
    ". and true",
    ". or false",
    "(true,false) and (true,false)",
    "(true,false) or (false,true)",
    "not",
    ".a? // 1",
    ".[]? // 2",
    "(false,null,1) // 3",
    "empty // 4",
    "1 // 2 // 3",
    "null // null // 3",
    "(1,null,2) // 3",
    "if . then 1 else 2 end",
    "if .a? then 1 elif 1 then 2 else 3 end",
    "if (true,false) then 1 else 2 end",
    "if empty then 1 else 2 end",
    ". as $x | [$x, $x]",
    "1 as $x | 2 as $y | $x + $y",
    "[.[]? as $x | $x]",
    "(1,2) as $x | $x * 2",
    ". as $x | 1 + 1 as $y | $y * 2",
    "reduce .[]? as $x (0; . + 1)",
    "reduce (1,2,3) as $x (0; . + $x)",
    "reduce range(5) as $i ([]; . + [$i])",
    "reduce empty as $x (3; 4)",
    "length",
    "utf8bytelength",
    "keys",
    "keys_unsorted",
    "has(\"a\")",
    "has(0)",
    "\"a\" | in({\"a\": 1})",
    "map(.)",
    "map(. + 1)",
    "map_values(.)",
    "objects | map_values(empty)",
    "map(select(. != null))",
    "select(. != null)",
    "empty",
    "values | error",
    "error(\"x\")",
    "add",
    "any",
    "all",
    "any(. == 1)",
    "all(. != null)",
    "any(.[]?; . == 1)",
    "all(1,2; . > 1)",
    "flatten",
    "flatten(1)",
    "flatten(0)",
    "flatten(-1)",
    "range(3)",
    "range(1;3)",
    "range(0;10;3)",
    "range(5;0;-2)",
    "range(0,1;3,4)",
    "floor",
    "ceil",
    "round",
    "numbers | select(. >= 0) | sqrt",
    "tostring",
    "tonumber",
    "type",
    "sort",
    "sort_by(.)",
    "sort_by(.a?)",
    "group_by(.)",
    "group_by(.a?)",
    "unique",
    "unique_by(type)",
    "unique_by(length)",
    "min",
    "max",
    "min_by(.a?)",
    "max_by(.a?)",
    "min_by(type)",
    "max_by(type)",
    "arrays | reverse",
    "contains(\"a\")",
    "contains([1])",
    "contains({})",
    "inside([1,2,3])",
    "\"a\" | inside(\"abc\")",
    "startswith(\"a\")",
    "endswith(\"a\")",
    "ltrimstr(\"a\")",
    "rtrimstr(\"a\")",
    "split(\",\")",
    "split(\"\")",
    "join(\",\")",
    "join(\"\")",
    "ascii_downcase",
    "ascii_upcase",
    "explode",
    "explode | implode",
    "[65, 233] | implode",
    "to_entries",
    "objects | with_entries(.)",
    "objects | with_entries(select(.value != null))",
    "tojson",
    "fromjson",
    "tojson | fromjson",
    "\"[1,{\\\"a\\\":2}]\" | fromjson",
    "strings | index(\",\")",
    "strings | rindex(\",\")",
    "(strings, arrays) | indices(\",\")",
    "indices(1)",
    "values | indices([1,2])",
    "index(1)",
    "first",
    "last",
    "nth(1)",
    "first(.[]?)",
    "first(range(5))",
    "last(range(5))",
    "nth(2; range(5))",
    "limit(2; range(5))",
    "limit(3; 1,2)",
    "isempty(empty)",
    "isempty(1)",
    "getpath([\"a\"])",
    "getpath([\"a\",\"b\"])",
    "getpath([0])",
    "transpose?",
    "@text",
    "@json",
    "@html",
    "@base64",
    "@base64 | @base64d",
    "@csv",
    "@tsv",
    "[1,\"a\\\"b\",null,true] | @csv, @tsv",
    "\"a b/?&é\" | @uri",
    "ascii_downcase?",
    "numbers",
    "strings",
    "nulls",
    "booleans",
    "arrays",
    "objects",
    "iterables",
    "scalars",
    "values",
    ". | IN(1, null)",
    "[.[]? | numbers]",
    "[.[]? | (.a?, .b?)]",
    "([1,2],[3,4])[0,1]",
    "[1,2,3,4][(0,1):(2,3)]",
    "[[1,2],[3,4]] | .[0][1]",
    "[[1,2],[3,4]] | .[][0]",
    "{a:[{b:1},{b:2}]} | .a[].b",
    "{a:[{b:1},{b:2}]} | [.a[] | select(.b > 1)]",
    "{if: 1}.if",
    "{\"a\":1}.a",
    "[(1,2)?]",
    "[.a?, 1]",
    "(.a | .b)?",
    "([1] | .a?) // 2",
    "[range(3)] | map(. * 2) | add",
    "[3,1,2] | sort | first",
    "[{a:1,b:2},{a:1,b:1}] | sort_by(.a, .b)",
    "[{a:3},{a:1}] | sort_by(-.a)",
    "{a:1,b:null} | to_entries | map(select(.value)) | from_entries",
    "\"x\" as $k | {($k): 1}",
    "1 as $x | {$x}",
    "\"a\" | {(.): 1}",
    "[1,[2]] | tojson",
    "[1.5, 1e3, 0.1] | tojson",
    "\"\\u00e9\\ud83d\\ude00\" | length, utf8bytelength, explode",
    "\"a\\tb\" | tojson",
    "[.[]?] | length",
    "tojson | length",
    "[limit(3; .[]?)]",
    "1 == 1.0",
    "[true, false | not]",
    "[1,null,2] | map(values)",
    "[[],{}] | map(length)",
    "0 | not",
    "[1,2] | .[1.7]",
    "[1,2,3] | .[1.2:2.5]",
    "null | .[1:2]",
    "[0,1] | .[null:1]",
    "\"a\" < \"b\"",
};

constexpr std::string_view kInputs[] = {
    "null",
    "true",
    "3",
    "-1.5",
    "\"a,b\"",
    "\"\"",
    "[]",
    "[3,1,2,1]",
    "[null,\"a\",1,{\"a\":1}]",
    "{}",
    "{\"a\":1,\"b\":null}",
    "{\"a\":{\"b\":[1,2]},\"c\":\"x\"}",
    "[{\"a\":2,\"b\":\"y\"},{\"a\":1},{\"b\":\"x\"}]",
    "[[1,2],[3],[]]",
    "\"aé😀\"",
};

// Generates expressions whose types mostly match, so that most of them give values.
class Generator {
 public:
  explicit Generator(std::uint64_t seed) : random_(seed) {}

  Query query() { return {.expression = any(4), .input = canonical(input(3))}; }

 private:
  unsigned pick(unsigned n) { return static_cast<unsigned>(random_() % n); }
  bool chance(unsigned percent) { return pick(100) < percent; }
  std::string one_of(std::initializer_list<std::string_view> texts) {
    return std::string(texts.begin()[pick(static_cast<unsigned>(texts.size()))]);
  }

  Value input(unsigned depth) {
    switch (depth == 0 ? pick(5) : pick(9)) {
      case 0:
        return {};
      case 1:
        return Value(pick(2) == 0);
      case 2:
        return Value(static_cast<int>(pick(20)) - 5);
      case 3:
        return Value(static_cast<double>(pick(100)) / 8);
      case 4:
        return Value(one_of({"", "a", "b,c", "é", "12", "x y", "😀", "null"}));
      case 5:
      case 6: {
        std::vector<Value> items;
        for (unsigned n = pick(4); n > 0; --n) items.push_back(input(depth - 1));
        return Value::array(std::move(items));
      }
      default: {
        Value object = Value::object({});
        for (unsigned n = pick(4); n > 0; --n) {
          object = object.with(one_of({"a", "b", "c", "d e"}), input(depth - 1));
        }
        return object;
      }
    }
  }

  std::string path() {
    std::string text = one_of({".", ".a", ".b", ".c", ".[\"a\"]", ".\"d e\"", ".[0]", ".[-1]"});
    for (unsigned n = pick(3); n > 0; --n) {
      const bool bare = text == ".";
      text += one_of({"[0]", "[1]", "[-1]", "[1:]", "[:2]", "[\"b\"]"});
      if (!bare && chance(30)) text += one_of({".a", ".b"});
      if (chance(60)) text += "?";
    }
    return text;
  }

  // Sometimes a wrong type: both must fail, or both must give the same.
  std::string any(unsigned d) {
    if (d == 0) return one_of({".", "null", "true", "1", "\"a\"", ".a?", "[1,2]", "{a:1}"});
    switch (pick(9)) {
      case 0:
        return number(d);
      case 1:
        return text(d);
      case 2:
        return array(d);
      case 3:
        return object(d);
      case 4:
        return truth(d);
      case 5:
        return path();
      case 6:
        // In parentheses: jq 1.6 does not accept `[]` after `end`.
        return fmt::format("(if {} then {} else {} end)", truth(d - 1), any(d - 1), any(d - 1));
      case 7:
        return fmt::format("(({}) // ({}))", any(d - 1), any(d - 1));
      default:
        return fmt::format("(({}) as ${} | {})", any(d - 1), one_of({"x", "y"}), any(d - 1));
    }
  }

  std::string number(unsigned d) {
    if (d == 0 || chance(15)) return one_of({"0", "1", "2", "-3", "1.5", "0.25", "100", "1e3"});
    if (chance(5)) return any(d - 1);
    switch (pick(8)) {
      case 0:
      case 1:
        if (chance(70))
          return fmt::format("({} {} {})", number(d - 1), one_of({"+", "-", "*"}), number(d - 1));
        return fmt::format("({} {})", number(d - 1),
                           one_of({"/ 4", "/ -0.5", "% 3", "% -2", "% 2.5"}));
      case 2:
        return fmt::format("(({}) | length)", any(d - 1));
      case 3:
        return fmt::format("({} | {})", array(d - 1),
                           one_of({"add", "min", "max", "first", "last", "length"}));
      case 4:
        return fmt::format("({} | {})", number(d - 1),
                           one_of({"floor", "-.", "tostring | tonumber", ". * 2"}));
      case 5:
        return fmt::format("(reduce ({})[] as $x (0; . + ($x | length)))", array(d - 1));
      case 6:
        return fmt::format("({} | {})", text(d - 1), one_of({"length", "utf8bytelength"}));
      default:
        return fmt::format("(-{})", number(d - 1));
    }
  }

  std::string text(unsigned d) {
    if (d == 0 || chance(15)) return one_of({"\"\"", "\"a\"", "\"b,c\"", "\"é😀\"", "\"A\\nz\""});
    if (chance(5)) return any(d - 1);
    switch (pick(8)) {
      case 0:
        return fmt::format("({} + {})", text(d - 1), text(d - 1));
      case 1:
        return fmt::format("\"<\\({} + 0)>\\({})\"", number(d - 1), text(d - 1));
      case 2:
        return fmt::format(
            "({} | {})", text(d - 1),
            one_of({"ascii_upcase", "ascii_downcase", "@html", "@base64", "ltrimstr(\"a\")",
                    "rtrimstr(\"c\")", "tojson", "explode | implode", ".[1:]", ".[:-1]"}));
      case 3:
        return fmt::format("({} | map(type) | join(\"-\"))", array(d - 1));
      case 4:
        return fmt::format("(({}) | type)", any(d - 1));
      case 5:
        return fmt::format("({} | split(\",\") | join(\";\"))", text(d - 1));
      case 6:
        return fmt::format("({} | not | tostring)", truth(d - 1));
      default:
        return fmt::format("@json \"\\({} + 0)\"", number(d - 1));
    }
  }

  std::string truth(unsigned d) {
    if (d == 0 || chance(15)) return one_of({"true", "false", "null"});
    if (chance(5)) return any(d - 1);
    switch (pick(7)) {
      case 0:
        return fmt::format("(({}) {} ({}))", any(d - 1), one_of({"==", "!=", "<", "<=", ">", ">="}),
                           any(d - 1));
      case 1:
        return fmt::format("({} {} {})", truth(d - 1), one_of({"and", "or"}), truth(d - 1));
      case 2:
        return fmt::format("({} | not)", truth(d - 1));
      case 3:
        return fmt::format("({} | {})", array(d - 1),
                           one_of({"any", "all", "any(. == 1)", "all(. != null)"}));
      case 4:
        return fmt::format("({} | {})", text(d - 1),
                           one_of({"startswith(\"a\")", "endswith(\"c\")", "contains(\",\")"}));
      case 5:
        return fmt::format("({} | has(\"a\"))", object(d - 1));
      default:
        return fmt::format("({} < {})", number(d - 1), number(d - 1));
    }
  }

  std::string array(unsigned d) {
    if (d == 0 || chance(15)) return one_of({"[]", "[1,2,3]", "[\"a\",null]", "[.]", "[[1],[2]]"});
    if (chance(5)) return any(d - 1);
    switch (pick(9)) {
      case 0:
        return fmt::format("[{}, {}]", any(d - 1), any(d - 1));
      case 1:
        return fmt::format("({} + {})", array(d - 1), array(d - 1));
      case 2:
        return fmt::format("({} - {})", array(d - 1), array(d - 1));
      case 3:
        return fmt::format("({} | map({}))", array(d - 1), any(d - 1));
      case 4:
        return fmt::format(
            "({} | {})", array(d - 1),
            one_of({"sort", "unique", "[.[]] | reverse",  // jq 1.6 cannot reverse a text
                    "flatten", "sort_by(type)", ".[1:]", ".[:-1]", "group_by(type)",
                    "unique_by(type)", "map(select(. != null))"}));
      case 5:
        return fmt::format("[{}[] | {}]", array(d - 1), any(d - 1));
      case 6:
        return fmt::format("[range({})]", one_of({"0", "3", "1;4", "0;9;4"}));
      case 7:
        return fmt::format("({} | keys)", object(d - 1));
      default:
        return "([.[]?])";
    }
  }

  // Keys in order: jq keeps the order in which an object was built, a Value does not.
  std::string object(unsigned d) {
    if (d == 0 || chance(15)) return one_of({"{}", "{a:1}", "{\"a\":null,\"d e\":2}"});
    switch (pick(4)) {
      case 0:
        return fmt::format("{{a: ({})}}", any(d - 1));
      case 1:
        return fmt::format("{{a: ({}), b: ({})}}", any(d - 1), any(d - 1));
      case 2:
        return fmt::format("({{a: ({})}} + {{b: ({})}})", any(d - 1), any(d - 1));
      default:
        return fmt::format("({{a: ({})}} | with_entries(select(.value != null)))", any(d - 1));
    }
  }

  std::mt19937_64 random_;
};

std::uint64_t number_from(const char* name, std::uint64_t fallback) {
  const char* text = std::getenv(name);
  return text == nullptr ? fallback : std::strtoull(text, nullptr, 10);
}

// Each expression with `count` inputs; across the expressions, all inputs are used.
std::vector<Query> handwritten_queries(std::size_t count) {
  std::vector<Query> queries;
  std::size_t next = 0;
  for (const std::string_view expression : kExpressions) {
    for (std::size_t i = 0; i < count; ++i) {
      queries.push_back(
          {std::string(expression), std::string(kInputs[next++ % std::size(kInputs)])});
    }
  }
  return queries;
}

void check_generated(std::uint64_t cases) {
  const std::uint64_t seed = number_from("AETHERIS_SEED", 1);
  cases = number_from("AETHERIS_CASES", cases);
  std::cout << "SEED " << seed << ", " << cases << " expressions\n";
  Generator generator(seed);
  std::vector<Query> queries;
  queries.reserve(cases);
  for (std::uint64_t i = 0; i < cases; ++i) queries.push_back(generator.query());
  check(
      queries,
      fmt::format("repeat: AETHERIS_SEED={} AETHERIS_CASES={} ./dev test 'jq agrees on generated'",
                  seed, cases));
}

AE_TEST("expr/expr/jq agrees on handwritten expressions") {
  if (!is_jq_available()) GTEST_SKIP() << "jq is not installed";
  check(handwritten_queries(2), "");
}

AE_TEST_SLOW("expr/expr/jq agrees on handwritten expressions with every input") {
  if (!is_jq_available()) GTEST_SKIP() << "jq is not installed";
  check(handwritten_queries(std::size(kInputs)), "");
}

AE_TEST("expr/expr/jq agrees on generated expressions") {
  if (!is_jq_available()) GTEST_SKIP() << "jq is not installed";
  check_generated(200);
}

AE_TEST_SLOW("expr/expr/jq agrees on many generated expressions") {
  if (!is_jq_available()) GTEST_SKIP() << "jq is not installed";
  check_generated(20'000);
}

}  // namespace
}  // namespace ae
