// Nodes of the tree: see expr_tree.h.
#include "expr/expr_tree.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/utf8.h"

namespace ae::expr {

void error_at(std::size_t at, std::string message) {
  throw SyntaxError{.at = at, .message = std::move(message)};
}

std::string quoted(std::string_view text) { return fmt::format("`{}`", truncate_utf8(text, 40)); }

NodePtr make_node(Op op, std::size_t at) {
  auto node = std::make_unique<Node>();
  node->op = op;
  node->at = node->count_source = narrow(at);
  return node;
}

void raise_count(Node& node, Count count, std::uint32_t count_source) {
  if (count <= node.count) return;
  node.count = count;
  node.count_source = count_source;
}

void grow(Node& node, std::uint32_t height) {
  node.height = std::max(node.height, height);
  if (node.height > kHeightMax) {
    error_at(node.at, "too many operators in a row or nested; name parts with `… as $x | …`");
  }
}

void count_child(Node& node, const Node& child) {
  raise_count(node, child.count, child.count_source);
  grow(node, child.height + 1);
}

void adopt(Node& node, NodePtr child) {
  count_child(node, *child);
  node.children.push_back(std::move(child));
}

NodePtr make_literal(std::size_t at, Value value) {
  NodePtr node = make_node(Op::literal, at);
  node->value = std::move(value);
  return node;
}

bool is_text_literal(const Node& node) { return node.op == Op::literal && node.value.is_string(); }

NodePtr make_collect(std::size_t at, NodePtr inner) {
  NodePtr node = make_node(Op::collect, at);
  grow(*node, inner->height + 1);
  node->children.push_back(std::move(inner));
  return node;
}

NodePtr make_attempt(std::size_t at, NodePtr child) {
  NodePtr node = make_node(Op::attempt, at, std::move(child));
  raise_count(*node, Count::maybe, narrow(at));
  return node;
}

NodePtr make_each_item(std::size_t at) {
  Suffix suffix;
  suffix.at = narrow(at);
  suffix.kind = Suffix::Kind::iterate;
  return append_suffix(make_node(Op::identity, at), std::move(suffix));
}

NodePtr make_alternative(std::size_t at, NodePtr left, NodePtr right) {
  NodePtr node = make_node(Op::alternative, at);
  if (left->count == Count::many) raise_count(*node, left->count, left->count_source);
  grow(*node, left->height + 1);
  node->children.push_back(std::move(left));
  adopt(*node, std::move(right));
  return node;
}

NodePtr append_suffix(NodePtr term, Suffix suffix) {
  if (term->op != Op::path) {
    const std::size_t at = term->at;
    term = make_node(Op::path, at, std::move(term));
  }
  for (const Node* child : {suffix.from.get(), suffix.to.get()}) {
    if (child != nullptr) count_child(*term, *child);
  }
  if (suffix.kind == Suffix::Kind::iterate) raise_count(*term, Count::many, suffix.at);
  term->suffixes.push_back(std::move(suffix));
  return term;
}

void require_one_value(const Node& node) {
  if (node.count == Count::many) {
    error_at(node.count_source,
             "this can give many values where one is needed; collect them: `[ … ]`");
  }
  if (node.count == Count::filtered) {
    error_at(
        node.count_source,
        "this can give no value where one is needed; use it inside `[ … ]` or `map(…)`, or add "
        "a default: `… // other`");
  }
}

}  // namespace ae::expr
