// Parser: numbers, quoted texts, formats, variables and objects.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "expr/expr_parser.h"

namespace ae::expr {

NodePtr Parser::number() {
  const std::string_view digits = token_.text;
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  const bool written_out = digits.find_first_of(".eE") == digits.npos;
  const bool rounded = written_out && std::fabs(value) > 9007199254740991.0;
  if (error != std::errc() || end != digits.data() + digits.size() || !is_valid_number(value) ||
      rounded) {
    error_at(token_.at,
             "this number has no exact value here: integers go up to 2^53-1, and infinity is not "
             "allowed");
  }
  NodePtr node = make_literal(token_.at, Value(value));
  advance();
  return node;
}

// REQUIRES: the current token is a quote.
NodePtr Parser::text(Format format) {
  NodePtr node = make_node(Op::text, token_.at);
  node->format = format;
  const ScopedValue comma(comma_allowed_, true);
  for (;;) {
    std::string stretch;
    Lexer::LexError fault;
    const Lexer::TextEnd text_end = lexer_.read_text(stretch, fault);
    if (text_end == Lexer::TextEnd::bad) error_at(fault.at, std::string(fault.what));
    node->texts.push_back(std::move(stretch));
    if (text_end == Lexer::TextEnd::closed) break;
    advance();
    adopt(*node, pipe());
    if (!is(")")) unexpected("`)`");  // the lexer must be right after it, inside of the text
  }
  advance();
  if (node->children.empty()) return make_literal(node->at, Value(std::move(node->texts[0])));
  if (node->count != Count::one) grow(*node, node->height + narrow(node->children.size()));
  return node;
}

NodePtr Parser::format() {
  const std::size_t at = token_.at;
  Format format{};
  if (!find_format(token_.text, format)) {
    const std::string name = fmt::format("@{}", token_.text);
    const std::string_view why = unsupported_reason(name);
    error_at(at, why.empty() ? fmt::format("{} is not a format; use one of: @text @json @uri @html "
                                           "@csv @tsv @base64 @base64d",
                                           quoted(name))
                             : std::string(why));
  }
  advance();
  if (token_.kind == Tok::quote) return text(format);
  need_input(at, "a format");
  NodePtr node = make_node(Op::text, at, make_node(Op::identity, at));
  node->texts.resize(2);
  node->format = format;
  return node;
}

NodePtr Parser::variable() {
  const std::size_t at = token_.at;
  const auto found = std::find_if(variables_.rbegin(), variables_.rend(),
                                  [&](const auto& v) { return v.first == token_.text; });
  if (found == variables_.rend()) {
    const std::string name = fmt::format("${}", token_.text);
    const std::string_view why = unsupported_reason(name);
    error_at(at, why.empty() ? fmt::format("{} is not bound here; bind it with `… as {} | …`",
                                           quoted(name), name)
                             : std::string(why));
  }
  NodePtr node = make_node(Op::variable, at);
  node->slot = found->second;
  advance();
  return node;
}

NodePtr Parser::object() {
  NodePtr node = make_node(Op::object, token_.at);
  expect("{");
  const ScopedValue comma(comma_allowed_, false);
  std::uint32_t several = 0;
  if (!is("}")) {
    do {
      read_member(*node);
      if (node->count != Count::one) ++several;
    } while (accept(","));
  }
  expect("}");
  grow(*node, node->height + several);
  return node;
}

void Parser::read_member(Node& object) {
  const std::size_t at = token_.at;
  NodePtr key;
  NodePtr value;
  if (token_.kind == Tok::variable) {
    key = make_literal(at, Value(token_.text));
    value = variable();
  } else if (token_.kind == Tok::name) {
    key = make_literal(at, Value(token_.text));
    advance();
  } else if (token_.kind == Tok::quote) {
    key = text(Format::text);
  } else if (token_.kind == Tok::format) {
    key = format();
  } else if (accept("(")) {
    const ScopedValue comma(comma_allowed_, true);
    key = pipe_until(")");
  } else {
    unexpected("a key: name, \"text\", $variable or (expression)");
  }
  if (value == nullptr && accept(":")) {
    value = pipe();
  } else if (value == nullptr) {
    if (!is_text_literal(*key)) unexpected("`:` and a value");
    const std::string& name = key->value.as_string();
    if (at_scope_) {
      value = make_root(at, name);
    } else {
      Suffix suffix;
      suffix.at = narrow(at);
      suffix.name = name;
      value = append_suffix(make_node(Op::identity, at), std::move(suffix));
    }
  }
  adopt(object, std::move(key));
  adopt(object, std::move(value));
}

}  // namespace ae::expr
