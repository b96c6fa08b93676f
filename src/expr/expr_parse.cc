// Parser: tokens, operators, bindings and terms.
#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/utf8.h"
#include "expr/expr_parser.h"

namespace ae::expr {
namespace {

struct Infix {
  std::string_view sign;
  int precedence;
  Op op;
};
constexpr int kAlternative = 1;  // right-associative, the others left-associative
constexpr int kComparison = 4;   // non-associative
constexpr int kProduct = 6;
constexpr Infix kInfixes[] = {
    {"//", kAlternative, Op::alternative},
    {"or", 2, Op::logical_or},
    {"and", 3, Op::logical_and},
    {"==", kComparison, Op::equal},
    {"!=", kComparison, Op::not_equal},
    {"<", kComparison, Op::less},
    {"<=", kComparison, Op::less_equal},
    {">", kComparison, Op::greater},
    {">=", kComparison, Op::greater_equal},
    {"+", 5, Op::add},
    {"-", 5, Op::subtract},
    {"*", kProduct, Op::multiply},
    {"/", kProduct, Op::divide},
    {"%", kProduct, Op::modulo},
};

const Infix* find_infix(const Token& token) {
  if (token.kind != Tok::sign && token.kind != Tok::name) return nullptr;
  const auto* found = std::ranges::find(kInfixes, token.text, &Infix::sign);
  return found == std::end(kInfixes) ? nullptr : found;
}

}  // namespace

ParsedSource Parser::parse() {
  advance();
  if (token_.kind == Tok::end) error_at(token_.at, "the expression is empty");
  NodePtr tree = pipe();
  if (token_.kind != Tok::end) unexpected("the end of the expression");
  require_one_value(*tree);
  return {.tree = std::move(tree), .slots = slots_, .roots = std::move(roots_)};
}

void Parser::unexpected(std::string_view expected) const {
  if (token_.kind == Tok::bad) error_at(token_.at, std::string(token_.text));
  if (is("=") && token_.at >= 2 && source_.substr(token_.at - 2, 2) == "==") {
    error_at(token_.at - 2, "`===` is not an operator; compare with `==`");
  }
  if (is("=") || (token_.kind == Tok::sign && token_.text.size() > 1 && token_.text.back() == '=' &&
                  (token_.text[0] == '|' || token_.text.find_first_of("+-*/%") == 0))) {
    error_at(
        token_.at,
        fmt::format("{} changes a value in place, which expressions cannot; build a new value: "
                    "`. + {{name: value}}`, or compare with `==`",
                    quoted(token_.text)));
  }
  const std::string what = token_.kind == Tok::end ? "the end" : quoted(token_.text);
  error_at(token_.at, fmt::format("expected {} but found {}", expected, what));
}

// Tokens.
void Parser::advance() {
  token_ = lexer_.next();
  if (token_.kind == Tok::bad) error_at(token_.at, std::string(token_.text));
}

bool Parser::accept(std::string_view sign) {
  if (!is(sign)) return false;
  advance();
  return true;
}

void Parser::expect(std::string_view sign) {
  if (!accept(sign)) unexpected(quoted(sign));
}

void Parser::expect_name(std::string_view name) {
  if (!is_name(name)) unexpected(quoted(name));
  advance();
}

// A | B | C
NodePtr Parser::pipe() {
  const Deeper deeper(*this, true);
  const ScopedValue as(as_binds_, true);
  const std::size_t at = token_.at;
  NodePtr first = list();
  if (!is("|")) return first;
  const ScopedValue scope(at_scope_, false);
  NodePtr node = make_node(Op::pipe, at, std::move(first));
  while (accept("|")) adopt(*node, list());
  if (node->count != Count::one) grow(*node, node->height + narrow(node->children.size()));
  return node;
}

// A , B , C
NodePtr Parser::list() {
  NodePtr first = infix(kAlternative);
  if (!comma_allowed_ || !is(",")) return first;
  NodePtr node = make_node(Op::comma, token_.at, std::move(first));
  while (accept(",")) adopt(*node, infix(kAlternative));
  node->count = Count::many;
  node->count_source = node->at;
  return node;
}

// An expression of the infix operators with at least the precedence `least`.
NodePtr Parser::infix(int least) {
  const Deeper deeper(*this, false);
  const std::size_t at = token_.at;
  NodePtr left = accept("-") ? negated(at) : postfix();
  for (;;) {
    const Infix* infix_found = find_infix(token_);
    if (infix_found == nullptr || infix_found->precedence < least) return left;
    const std::size_t sign_at = token_.at;
    advance();
    const int precedence = infix_found->precedence;
    NodePtr right = infix(precedence == kAlternative ? precedence : precedence + 1);
    left = infix_found->op == Op::alternative
               ? make_alternative(sign_at, std::move(left), std::move(right))
               : make_node(infix_found->op, sign_at, std::move(left), std::move(right));
    const Infix* next = find_infix(token_);
    if (precedence == kComparison && next != nullptr && next->precedence == kComparison) {
      error_at(token_.at, "comparisons do not chain; join them with `and`");
    }
  }
}

NodePtr Parser::negated(std::size_t at) {
  NodePtr child = infix(kProduct);
  if (child->op == Op::literal && child->value.is_number()) {
    return make_literal(at, Value(-child->value.as_number()));
  }
  return make_node(Op::negate, at, std::move(child));
}

// X as $name | body
NodePtr Parser::bind(std::size_t at, NodePtr source) {
  expect_name("as");
  const std::uint32_t slot = variable_declared();
  expect("|");
  NodePtr body = pipe();
  variables_.pop_back();
  NodePtr node = make_node(Op::bind, at, std::move(source), std::move(body));
  node->slot = slot;
  return node;
}

std::uint32_t Parser::variable_declared() {
  if (is("[") || is("{")) {
    error_at(token_.at,
             "a variable such as `$x` is needed here; destructuring patterns are not supported");
  }
  if (token_.kind != Tok::variable) unexpected("a variable, as in `… as $x | …`");
  const auto slot = narrow(slots_++);
  variables_.emplace_back(token_.text, slot);
  advance();
  return slot;
}

NodePtr Parser::primary() {
  const std::size_t at = token_.at;
  switch (token_.kind) {
    case Tok::field:
    case Tok::dot:
      return at_scope_ ? root() : path_from_dot();
    case Tok::number:
      return number();
    case Tok::quote:
      return text(Format::text);
    case Tok::format:
      return format();
    case Tok::variable:
      return variable();
    case Tok::name:
      return word();
    case Tok::sign:
      break;
    case Tok::end:
    case Tok::bad:
      unexpected("a value");
  }
  const ScopedValue comma(comma_allowed_, true);
  if (accept("(")) {
    NodePtr inner = pipe();
    expect(")");
    return inner;
  }
  if (accept("[")) {
    if (accept("]")) return make_node(Op::collect, at);
    return make_collect(at, pipe_until("]"));
  }
  if (is("{")) return object();
  if (is("..")) error_at(at, "`..` is recursion, which expressions do not have; name the path");
  unexpected("a value");
}

NodePtr Parser::pipe_until(std::string_view sign) {
  NodePtr inner = pipe();
  expect(sign);
  return inner;
}

Result<ParsedSource> parse(std::string_view source, const ExprLimits& limits) {
  if (source.size() > std::min<std::size_t>(limits.source_max, 1u << 30)) {
    return fail(Code::plan_invalid,
                "line 1, column 1: the expression has {} bytes; at most {} are allowed",
                source.size(), limits.source_max);
  }
  if (!is_utf8(source)) {
    return fail(Code::plan_invalid, "line 1, column 1: the expression is not valid UTF-8");
  }
  try {
    return Parser(source, limits).parse();
  } catch (const SyntaxError& fault) {
    return fail(Code::plan_invalid, "{}: {}", position(source, fault.at), fault.message);
  }
}

}  // namespace ae::expr
