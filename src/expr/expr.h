// Expressions `${ … }`: a total, deterministic subset of jq's syntax (docs/expressions.md).
//
// Total: no recursion, no definitions; limits of fuel, size and depth; each evaluation gives
// exactly one value or expression_failed.
// Threads: compiled expressions are immutable values; evaluation is a pure function.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/error.h"
#include "json/value.h"

namespace ae {

namespace expr {
struct Program;
}

// Provides the roots of an expression: `.input`, `.job`, `.item`, `.args`, …
class ExprScope {
 public:
  virtual ~ExprScope() = default;
  // The value of root `name`; nullptr if there is none (expression_failed). Borrowed until the next
  // call.
  virtual const Value* root(std::string_view name) const = 0;
  // `.steps.NAME`; nullptr if there is no such node.
  virtual const Value* step(std::string_view node_id) const = 0;
  // Bare `.steps`: the object of all nodes' results.
  virtual Value steps() const = 0;
  // True if looking up a missing member or null below this root ("": below anything else) fails.
  // Null stays allowed before `//` and in comparisons with null. For conditions that guard calls.
  virtual bool fails_on_null(std::string_view) const { return false; }
  // True if looking up a member that this root does not have fails, even before `//`. For roots
  // with a fixed set of members.
  virtual bool is_closed(std::string_view) const { return false; }
  // True if comparing values of different types fails: `< <= > >=` of any two values, `== != IN` of
  // two scalars that are not null.
  virtual bool fails_on_mixed_types() const { return false; }
  // Called after an evaluation on this scope with its cost: its steps, and the cost of walking its
  // value.
  virtual void charge(std::size_t) const {}
};

struct ExprLimits {
  std::size_t source_max = 64u << 10;  // bytes
  std::size_t depth_max = 64;          // nesting of the source and of the values it makes
  std::size_t fuel =
      1'000'000;  // evaluation steps; each array item or object member made and 64 bytes of text cost 1
  // The size of every value that an evaluation makes, including intermediate ones, counting shared
  // parts at each occurrence (Value::Extent). Values that are only read are not limited. A job's
  // result may have half of the bytes (kValueMax), so that two values can be combined and one of
  // them extracted again.
  std::size_t values_max = 4'000'000;
  std::size_t bytes_max = 32u << 20;
};

namespace expr {
// True if a value that was made is within the limits. O(1).
bool is_within_limits(const Value& v, const ExprLimits& limits);
// The error message if it is not.
std::string too_large(const ExprLimits& limits);
}  // namespace expr

// What an expression refers to, for the checks at plan time.
struct ExprRoots {
  std::set<std::string, std::less<>> roots;  // "input", "steps", "item", …
  std::set<std::string, std::less<>> steps;  // X of every `.steps.X` / `.steps["X"]`
  bool all_steps = false;                    // bare `.steps`, or `.steps[expression]`
  // Every `.args.a.b`, as {a, b}; true if null is not allowed in one of its places
  // (ExprScope::fails_on_null).
  std::map<std::vector<std::string>, bool> args;
  std::map<std::string, std::set<std::string>, std::less<>> members;  // every X of `.ROOT.X`
};

// `args` and the pointer /rows/0/id: args.rows[0].id
std::string field_at(std::string field, std::string_view pointer);

class Expr {
 public:
  // `source` without the `${ }`. Fails with plan_invalid; the message contains line and column
  // within the source ("line 1, column 7: …").
  static Result<Expr> parse(std::string_view source, const ExprLimits& limits = {});
  Result<Value> eval(const ExprScope& scope, const ExprLimits& limits = {}) const;
  const ExprRoots& roots() const;
  std::string text() const;  // the source, without surrounding blanks

 private:
  friend class Template;  // gives all its expressions one budget of fuel
  std::shared_ptr<const expr::Program> program_;
};

// A JSON value whose strings may contain `${ … }`. A string that is exactly one `${ }` keeps the
// JSON type of its value. In a longer string, strings are inserted as they are and other values as
// canonical JSON; null is an error. `$${` writes `${`.
class Template {
 public:
  // A part of a string template: literal text or an expression.
  using Part = std::variant<std::string, Expr>;

  // An error inside a template: the string (JSON pointer), and the byte offset of the expression in
  // it.
  struct Diagnostic {
    std::string pointer;
    std::size_t offset = 0;
    Error error;
  };
  // All errors at once; empty = compiled into `out`.
  static std::vector<Diagnostic> compile(const Value& source, Template& out,
                                         const ExprLimits& limits = {});
  static Result<Template> compile(const Value& source,
                                  const ExprLimits& limits = {});  // the first error only

  Result<Value> eval(const ExprScope& scope, const ExprLimits& limits = {}) const;
  const ExprRoots& roots() const;
  bool is_constant() const;

  // The place where an evaluation fails: the string (JSON pointer) and the expression in it; "" =
  // not in one expression.
  struct Failure {
    std::string pointer, expression;
    bool gives_null = false;  // the expression is null inside a longer string
    Error error;              // as returned by eval
    // "args.id: .input.id is null" for a template that is the value of `field`.
    std::string text(const std::string& field) const;
  };
  std::optional<Failure> failure(const ExprScope& scope, const ExprLimits& limits = {}) const;

  // The parts of one string template (for URLs, headers and argv, where each value is encoded
  // separately).
  static Result<std::vector<Part>> parts(std::string_view text, const ExprLimits& limits = {});

 private:
  struct Node;
  class Compiler;
  class Filler;
  std::shared_ptr<const Node> root_;
  std::shared_ptr<const ExprRoots> roots_;
};

}  // namespace ae
