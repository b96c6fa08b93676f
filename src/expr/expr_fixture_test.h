// Fixture for expressions: a scope made from JSON, and evaluation to text.
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>
#include <utility>

#include "expr/expr.h"
#include "json/json.h"
#include "testing/test.h"

namespace ae::expr_test {

inline Value json(std::string_view text) {
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

inline ObjectScope input_of(Value value) {
  return ObjectScope(Value::object({{"input", std::move(value)}}));
}

inline std::string shown(const Result<Value>& value) {
  return value ? canonical(*value)
               : fmt::format("{}: {}", code_name(value.error().code), value.error().message);
}

inline Result<Value> eval(std::string_view source, const ExprScope& scope,
                          const ExprLimits& limits = {}) {
  AE_ASSIGN(const Expr expr, Expr::parse(source, limits));
  return expr.eval(scope, limits);
}

inline std::string at_top(std::string_view source, std::string_view roots = R"({"input":{}})") {
  return shown(eval(source, ObjectScope(json(roots))));
}

inline std::string rejection(std::string_view source) {
  const auto expr = Expr::parse(source);
  if (expr) return "accepted";
  EXPECT_EQ(expr.error().code, Code::plan_invalid);
  return expr.error().message;
}

inline constexpr std::string_view kRoots =
    R"({"input":{"id":"o-1","n":2,"items":[{"p":2},{"p":3}]},
        "steps":{"order":{"total":120},"x-y":{"a":1},"skip":null},
        "job":{"id":"j1"},"item":{"sku":"s"},"index":4})";

}  // namespace ae::expr_test
