// Parser: a term with its path: `.name`, `[ … ]`, `?`, and the roots of the scope.
#include <utility>

#include "expr/expr_parser.h"

namespace ae::expr {
namespace {

void set_key(Suffix& out, NodePtr key) {
  if (is_text_literal(*key)) {
    out.kind = Suffix::Kind::field;
    out.name = key->value.as_string();
  } else {
    out.kind = Suffix::Kind::index;
    out.from = std::move(key);
  }
}

}  // namespace

// A term, its path, `?`, and `as $x | …`.
NodePtr Parser::postfix() {
  const std::size_t at = token_.at;
  bool indexed = token_.kind == Tok::field || token_.kind == Tok::dot;
  NodePtr term = primary();
  for (;;) {
    Suffix suffix;
    if (accept("?")) {
      if (indexed && term->op == Op::path && !term->suffixes.back().optional) {
        term->suffixes.back().optional = true;
        raise_count(*term, Count::maybe, narrow(at));
      } else {
        term = make_attempt(at, std::move(term));
      }
    } else if (read_suffix(suffix)) {
      term = append_suffix(std::move(term), std::move(suffix));
      indexed = true;
    } else {
      break;
    }
  }
  if (term->op == Op::path && term->count != Count::one) {
    grow(*term, term->height + narrow(term->suffixes.size()));
  }
  return as_binds_ && is_name("as") ? bind(at, std::move(term)) : std::move(term);
}

// `.name`, `."name"`, `[ … ]`; the last two also after a dot. False if there is none of them.
bool Parser::read_suffix(Suffix& out) {
  out.at = narrow(token_.at);
  if (token_.kind == Tok::field) {
    out.name = token_.text;
    advance();
    return true;
  }
  if (token_.kind == Tok::dot) {
    advance();
    if (token_.kind == Tok::quote) {
      set_key(out, text(Format::text));
    } else if (is("[")) {
      read_bracket(out);
    } else {
      unexpected("a name after the `.`");
    }
    return true;
  }
  if (!is("[")) return false;
  read_bracket(out);
  return true;
}

void Parser::read_bracket(Suffix& out) {
  expect("[");
  const ScopedValue comma(comma_allowed_, true);
  if (accept("]")) {
    out.kind = Suffix::Kind::iterate;
    return;
  }
  NodePtr from;
  if (!is(":")) from = pipe();
  if (accept(":")) {
    out.kind = Suffix::Kind::slice;
    if (!is("]")) {
      out.to = pipe();
    } else if (from == nullptr) {
      unexpected("where the slice begins or ends, as in `[1:]`");
    }
    out.from = std::move(from);
  } else {
    set_key(out, std::move(from));
  }
  expect("]");
}

NodePtr Parser::path_from_dot() {
  const std::size_t at = token_.at;
  NodePtr dot = make_node(Op::identity, at);
  Suffix suffix;
  if (token_.kind == Tok::dot) {
    Lexer ahead = lexer_;
    const Token next = ahead.next();
    if (next.kind != Tok::quote && !(next.kind == Tok::sign && next.text == "[")) {
      advance();
      return dot;
    }
  }
  read_suffix(suffix);
  return append_suffix(std::move(dot), std::move(suffix));
}

// A root of the scope after the `.` at the top. It is always named literally.
NodePtr Parser::root() {
  const std::size_t at = token_.at;
  if (token_.kind == Tok::dot) {
    Lexer ahead = lexer_;
    const Token next = ahead.next();
    if (next.kind != Tok::quote && !(next.kind == Tok::sign && next.text == "[")) {
      error_at(at, "a bare `.` is not valid at the top; name a root, as in `.input`");
    }
  }
  Suffix suffix;
  read_suffix(suffix);
  if (suffix.kind != Suffix::Kind::field) {
    error_at(at, "the first `.` needs a literal name, as in `.input`");
  }
  return make_root(at, std::move(suffix.name));
}

NodePtr Parser::make_root(std::size_t at, std::string name) {
  roots_.roots.insert(name);
  NodePtr node = make_node(Op::root, at);
  node->name = std::move(name);
  if (node->name != "steps") return node;
  node->op = Op::all_steps;
  Suffix suffix;
  if (!read_suffix(suffix)) {
    roots_.all_steps = true;
    return node;
  }
  if (suffix.kind == Suffix::Kind::field) {
    roots_.steps.insert(suffix.name);
    node->op = Op::step;
    node->name = std::move(suffix.name);
    return node;
  }
  roots_.all_steps = true;
  if (suffix.kind != Suffix::Kind::index) return append_suffix(std::move(node), std::move(suffix));
  node->op = Op::step_by;
  adopt(*node, std::move(suffix.from));
  return node;
}

}  // namespace ae::expr
