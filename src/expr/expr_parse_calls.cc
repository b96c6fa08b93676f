// Parser: names: constants, `if`, `reduce`, the functions, and the words that are rejected.
#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "expr/expr_parser.h"

namespace ae::expr {
namespace {

constexpr std::string_view kKeywords[] = {"if",     "then",    "elif",    "else",  "end",    "as",
                                          "reduce", "foreach", "def",     "try",   "catch",  "and",
                                          "or",     "import",  "include", "label", "__loc__"};

bool is_keyword(std::string_view name) {
  return std::ranges::find(kKeywords, name) != std::end(kKeywords);
}

// The number of values that an operation with filters gives, independent of its filters.
void settle_count(Node& node, std::size_t at) {
  const auto set = [&](Count count) {
    node.count = count;
    node.count_source = narrow(at);
  };
  switch (node.op) {
    case Op::any:
    case Op::all:
    case Op::is_in:
    case Op::is_empty:
    case Op::map_values:
    case Op::by_key:
      return set(Count::one);
    case Op::first:
    case Op::last:
      return set(Count::maybe);
    case Op::nth:
      return set(node.children[0]->count == Count::one ? Count::maybe : Count::many);
    case Op::limit:
    case Op::range:
      return set(Count::many);
    default:
      return;
  }
}

NodePtr make_call(std::size_t at, std::string_view name) {
  NodePtr node = make_node(Op::call, at);
  node->function = find_function(name, 0);
  return node;
}

// Functions that abbreviate other expressions.
NodePtr desugar(const Token& name, std::vector<NodePtr> args) {
  const std::size_t at = name.at;
  if (name.text == "add") {  // [ f ] | add
    return make_node(Op::pipe, at, make_collect(at, std::move(args[0])), make_call(at, "add"));
  }
  if (name.text == "map") {  // [ .[] | f ]
    return make_collect(at, make_node(Op::pipe, at, make_each_item(at), std::move(args[0])));
  }
  // with_entries(f): to_entries | [ .[] | f ] | from_entries
  NodePtr mapped =
      make_collect(at, make_node(Op::pipe, at, make_each_item(at), std::move(args[0])));
  return make_node(Op::pipe, at, make_call(at, "to_entries"), std::move(mapped),
                   make_call(at, "from_entries"));
}

}  // namespace

// Names: constants, if, reduce, functions, and rejected words.
NodePtr Parser::word() {
  const Token token = token_;
  if (is_name("if")) return conditional();
  if (is_name("reduce")) return reduce();
  if (is_name("true") || is_name("false") || is_name("null")) {
    advance();
    return make_literal(token.at, token.text == "null" ? Value() : Value(token.text == "true"));
  }
  if (const std::string_view why = unsupported_reason(token.text); !why.empty()) {
    error_at(token.at, std::string(why));
  }
  if (is_keyword(token.text)) unexpected("a value");
  advance();
  std::vector<NodePtr> args;
  if (accept("(")) {
    const ScopedValue comma(comma_allowed_, true);
    do {
      // The condition of any and all is evaluated on one item, not on the input of the call.
      const bool item = args.size() == 1 && (token.text == "any" || token.text == "all");
      const ScopedValue scope(at_scope_, at_scope_ && !item);
      args.push_back(pipe());
    } while (accept(";"));
    expect(")");
  }
  const Function* function = find_function(token.text, args.size());
  if (function == nullptr) {
    std::string message = unknown_function_message(token.text, args.size());
    if (token.at > 0 && lexer_.source()[token.at - 1] == '-') {
      message += "; a name with `-` in it is quoted: `.[\"my-name\"]`";
    }
    error_at(token.at, std::move(message));
  }
  if (function->reads_input) need_input(token.at, quoted(token.text));
  return call(token, *function, std::move(args));
}

void Parser::need_input(std::size_t at, std::string_view what) const {
  if (!at_scope_) return;
  error_at(at, fmt::format("{} needs a value piped into it, as in `.input.items | length`", what));
}

NodePtr Parser::conditional() {
  const std::size_t at = token_.at;
  const ScopedValue comma(comma_allowed_, true);
  advance();
  NodePtr condition = pipe();
  expect_name("then");
  NodePtr yes = pipe();
  NodePtr no;
  if (is_name("elif")) {
    const Deeper deeper(*this, false);
    no = conditional();
    return make_node(Op::conditional, at, std::move(condition), std::move(yes), std::move(no));
  }
  if (is_name("else")) {
    advance();
    no = pipe();
  } else if (is_name("end")) {
    if (at_scope_) error_at(token_.at, "at the top an `if` needs an `else`");
    no = make_node(Op::identity, token_.at);
  }
  expect_name("end");
  return make_node(Op::conditional, at, std::move(condition), std::move(yes), std::move(no));
}

// reduce SOURCE as $x (INIT; UPDATE)
NodePtr Parser::reduce() {
  const std::size_t at = token_.at;
  const ScopedValue comma(comma_allowed_, true);
  const Deeper deeper(*this, false);
  advance();
  NodePtr source = source_of_reduce();
  expect_name("as");
  const std::uint32_t slot = variable_declared();
  expect("(");
  // $x is visible in the update only, as in jq.
  auto hidden = std::move(variables_.back());
  variables_.pop_back();
  NodePtr init = pipe();
  expect(";");
  variables_.push_back(std::move(hidden));
  NodePtr update;
  {
    const ScopedValue scope(at_scope_, false);
    update = pipe();
  }
  variables_.pop_back();
  expect(")");
  require_one_value(*init);
  require_one_value(*update);
  NodePtr node = make_collect(at, std::move(source));
  node->op = Op::reduce;
  node->slot = slot;
  adopt(*node, std::move(init));
  adopt(*node, std::move(update));
  node->count = Count::one;
  return node;
}

// A term with its path, but without `as`.
NodePtr Parser::source_of_reduce() {
  const ScopedValue as(as_binds_, false);
  return postfix();
}

NodePtr Parser::call(const Token& name, const Function& function, std::vector<NodePtr> args) {
  const std::size_t at = name.at;
  NodePtr node = make_node(function.op, at);
  node->function = &function;
  node->kinds = function.kinds;
  switch (function.op) {
    case Op::pipe:
      return desugar(name, std::move(args));
    case Op::empty:
    case Op::only:
      node->count = Count::filtered;
      return node;
    case Op::select:
      adopt(*node, std::move(args[0]));
      raise_count(*node, Count::filtered, narrow(at));
      return node;
    case Op::any:
    case Op::all: {
      if (args.empty()) args.push_back(make_node(Op::identity, at));
      if (args.size() == 1) args.insert(args.begin(), make_each_item(at));
      break;
    }
    case Op::range:
      if (args.size() == 1) args.insert(args.begin(), make_literal(at, Value(0)));
      if (args.size() == 2) args.push_back(make_literal(at, Value(1)));
      break;
    default:
      break;
  }
  for (NodePtr& arg : args) adopt(*node, std::move(arg));
  settle_count(*node, at);
  return node;
}

}  // namespace ae::expr
