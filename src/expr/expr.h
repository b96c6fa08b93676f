// Expressions `${ … }`: a total subset of jq's syntax (docs/expressions.md). Part of the deterministic heart.
//
// Total: no recursion, no definitions; fuel, size and depth limits; each evaluation gives exactly one value or
// expression_failed. Threads: compiled expressions are immutable values; evaluation is a pure function.
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

// Where the roots of an expression come from: `.input`, `.job`, `.item`, `.args`, …
class ExprScope {
 public:
  virtual ~ExprScope() = default;
  // The value of root `name`; nullptr when there is none here (expression_failed). Borrowed until the next call.
  virtual const Value* root(std::string_view name) const = 0;
  // `.steps.NAME`; nullptr when there is no such node.
  virtual const Value* step(std::string_view node_id) const = 0;
  // Bare `.steps`: the object of all nodes' results.
  virtual Value steps() const = 0;
  // Does it fail to look up what is not there, or null, below this root ("": below anything else)? Not where null will do:
  // before `//`, and compared with null. For conditions that hold something back.
  virtual bool fails_on_null(std::string_view) const { return false; }
  // Does it fail to look up a member that this root does not have, whatever `//` says? Of roots whose members are fixed.
  virtual bool is_closed(std::string_view) const { return false; }
  // Does it fail to compare values of different types, which tells nothing? `< <= > >=` of any two, `== != IN` of two scalars
  // that are not null.
  virtual bool fails_on_mixed_types() const { return false; }
  // What an evaluation on this scope has cost: its steps, and what it takes to walk its value.
  virtual void charge(std::size_t) const {}
};

struct ExprLimits {
  std::size_t source_max = 64u << 10;  // bytes
  std::size_t depth_max = 64;          // nesting of the source and of what it builds
  std::size_t fuel =
      1'000'000;  // evaluation steps; each produced array or object member and 64 bytes of text cost one
  // The size of every value that an evaluation makes, on the way to its result too, with each shared part counted
  // wherever it occurs (Value::Extent). What is only read is not measured. The result that a job keeps may have half of
  // the bytes (kValueMax), so that two values can be put together and one of them taken out again.
  std::size_t values_max = 4'000'000;
  std::size_t bytes_max = 32u << 20;
};

namespace expr {
// Is a value that was made within the limits? O(1).
bool is_within_limits(const Value& v, const ExprLimits& limits);
// The message of the failure when it is not.
std::string too_large(const ExprLimits& limits);
}  // namespace expr

// What an expression mentions, for the checks at plan time.
struct ExprRoots {
  std::set<std::string, std::less<>> roots;  // "input", "steps", "item", …
  std::set<std::string, std::less<>> steps;  // X of every `.steps.X` / `.steps["X"]`
  bool all_steps = false;                    // bare `.steps`, or `.steps[expression]`
  // Every `.args.a.b`, as {a, b}; and whether one of them stands where null will not do (ExprScope::fails_on_null).
  std::map<std::vector<std::string>, bool> args;
  std::map<std::string, std::set<std::string>, std::less<>> members;  // every X of `.ROOT.X`
};

// `args` and the pointer /rows/0/id: args.rows[0].id
std::string field_at(std::string field, std::string_view pointer);

class Expr {
 public:
  // `source` without the `${ }`. Fails with plan_invalid; the message names line and column within the source
  // ("line 1, column 7: …").
  static Result<Expr> parse(std::string_view source, const ExprLimits& limits = {});
  Result<Value> eval(const ExprScope& scope, const ExprLimits& limits = {}) const;
  const ExprRoots& roots() const;
  std::string text() const;  // its source, without blanks around it

 private:
  friend class Template;  // gives all its expressions one budget
  std::shared_ptr<const expr::Program> program_;
};

// A JSON value whose strings may hold `${ … }`. A string that is exactly one `${ }` keeps the JSON type of its value;
// in a longer string, strings go in as they are, other values as canonical JSON, null is an error; `$${` writes `${`.
class Template {
 public:
  // A stretch of literal text, or an expression. What a string template is made of.
  using Part = std::variant<std::string, Expr>;

  // A fault inside a template: which string (JSON pointer), and where in it (byte offset of the expression).
  struct Diagnostic {
    std::string pointer;
    std::size_t offset = 0;
    Error error;
  };
  // All faults at once; empty = compiled into `out`.
  static std::vector<Diagnostic> compile(const Value& source, Template& out,
                                         const ExprLimits& limits = {});
  static Result<Template> compile(const Value& source,
                                  const ExprLimits& limits = {});  // the first fault

  Result<Value> eval(const ExprScope& scope, const ExprLimits& limits = {}) const;
  const ExprRoots& roots() const;
  bool is_constant() const;

  // Where an evaluation fails: the string (JSON pointer) and the expression in it; "" = not in one expression.
  struct Failure {
    std::string pointer, expression;
    bool gives_null = false;  // the expression gives null inside a longer string
    Error error;              // as eval returns it
    // "args.id: .input.id is null" of a template that is the value of `field`.
    std::string text(const std::string& field) const;
  };
  std::optional<Failure> failure(const ExprScope& scope, const ExprLimits& limits = {}) const;

  // The parts of one string template (for URLs, headers and argv, where each value is encoded on its own).
  static Result<std::vector<Part>> parts(std::string_view text, const ExprLimits& limits = {});

 private:
  struct Node;
  class Compiler;
  class Filler;
  std::shared_ptr<const Node> root_;
  std::shared_ptr<const ExprRoots> roots_;
};

}  // namespace ae
