// Parser: parses the text of an expression to its tree: precedence climbing over the tokens of
// expr_lex.h.
//
// The parser tracks what `.` refers to. At the top it is the scope, whose roots are named and
// collected; after a pipe it is the piped value. It also tracks how many values each part can give,
// and rejects a part that could give several where one is required. Its parts: expr_parse.cc
// (operators and terms), expr_parse_paths.cc, expr_parse_literals.cc and expr_parse_calls.cc
// (functions). Errors are thrown as SyntaxError, which `parse` catches. Only `parse` uses it.
// Threads: short-lived, one owner.
#pragma once

#include <fmt/core.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "expr/expr.h"
#include "expr/expr_functions.h"
#include "expr/expr_lex.h"
#include "expr/expr_program.h"
#include "expr/expr_tree.h"

namespace ae::expr {

// Sets a member until the end of a block.
template <class T>
class ScopedValue {
 public:
  ScopedValue(T& where, T value) : where_(where), before_(std::exchange(where, value)) {}
  ~ScopedValue() { where_ = before_; }
  ScopedValue(const ScopedValue&) = delete;
  ScopedValue& operator=(const ScopedValue&) = delete;

 private:
  T& where_;
  T before_;
};

class Parser {
 public:
  Parser(std::string_view source, const ExprLimits& limits)
      : source_(source), lexer_(source), limits_(limits) {}

  ParsedSource parse();

 private:
  class Deeper {
   public:
    Deeper(Parser& parser, bool nesting) : parser_(parser), nesting_(nesting) {
      if (nesting && ++parser.nesting_ > parser.limits_.depth_max) {
        error_at(parser.token_.at,
                 fmt::format("nested deeper than {} levels", parser.limits_.depth_max));
      }
      if (++parser.frames_ > kHeightMax) {
        error_at(parser.token_.at,
                 "too many operators in a row or nested; name parts with `… as $x | …`");
      }
    }
    ~Deeper() {
      if (nesting_) --parser_.nesting_;
      --parser_.frames_;
    }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;

   private:
    Parser& parser_;
    bool nesting_;
  };

  // Tokens, and what is wrong with one.
  [[noreturn]] void unexpected(std::string_view expected) const;
  void advance();
  bool is(std::string_view sign) const { return token_.kind == Tok::sign && token_.text == sign; }
  bool is_name(std::string_view name) const {
    return token_.kind == Tok::name && token_.text == name;
  }
  bool accept(std::string_view sign);
  void expect(std::string_view sign);
  void expect_name(std::string_view name);

  // Operators.
  NodePtr pipe();
  NodePtr list();
  NodePtr infix(int least);
  NodePtr negated(std::size_t at);

  // Terms.
  NodePtr bind(std::size_t at, NodePtr source);
  std::uint32_t variable_declared();
  NodePtr primary();
  NodePtr pipe_until(std::string_view sign);

  // Paths.
  NodePtr postfix();
  bool read_suffix(Suffix& out);
  void read_bracket(Suffix& out);
  NodePtr path_from_dot();
  NodePtr root();
  NodePtr make_root(std::size_t at, std::string name);

  // Literals and variables.
  NodePtr number();
  NodePtr text(Format format);
  NodePtr format();
  NodePtr variable();
  NodePtr object();
  void read_member(Node& object);

  // Names: constants, if, reduce, functions.
  NodePtr word();
  void need_input(std::size_t at, std::string_view what) const;
  NodePtr conditional();
  NodePtr reduce();
  NodePtr source_of_reduce();
  NodePtr call(const Token& name, const Function& function, std::vector<NodePtr> args);

  std::string_view source_;
  Lexer lexer_;
  const ExprLimits& limits_;
  Token token_;
  bool at_scope_ = true;
  bool comma_allowed_ = true;
  bool as_binds_ = true;
  std::size_t nesting_ = 0;
  std::size_t frames_ = 0;
  std::size_t slots_ = 0;
  std::vector<std::pair<std::string, std::uint32_t>> variables_;
  ExprRoots roots_;
};

}  // namespace ae::expr
