// The nodes of the tree that the parser builds: each has the count of values that it can give and a
// bounded height.
//
// Only the parser uses them. Errors are thrown as SyntaxError, which `parse` catches. Threads: pure
// functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "expr/expr_program.h"

namespace ae::expr {

struct SyntaxError {
  std::size_t at;
  std::string message;
};

[[noreturn]] void error_at(std::size_t at, std::string message);
// A text of the source in a message: `text`, shortened.
std::string quoted(std::string_view text);

inline std::uint32_t narrow(std::size_t offset) { return static_cast<std::uint32_t>(offset); }

NodePtr make_node(Op op, std::size_t at);
void raise_count(Node& node, Count count, std::uint32_t count_source);
// Fails if the tree becomes too high.
void grow(Node& node, std::uint32_t height);
void count_child(Node& node, const Node& child);
void adopt(Node& node, NodePtr child);
template <class... Kids>
NodePtr make_node(Op op, std::size_t at, Kids... children) {
  NodePtr node = make_node(op, at);
  (adopt(*node, std::move(children)), ...);
  return node;
}

NodePtr make_literal(std::size_t at, Value value);
bool is_text_literal(const Node& node);
// [ inner ]
NodePtr make_collect(std::size_t at, NodePtr inner);
// child ?
NodePtr make_attempt(std::size_t at, NodePtr child);
// .[]
NodePtr make_each_item(std::size_t at);
// A // B: B is used if A gives no value, so A matters only if it may give many.
NodePtr make_alternative(std::size_t at, NodePtr left, NodePtr right);
// The path of `term`, with one more suffix.
NodePtr append_suffix(NodePtr term, Suffix suffix);
// Fails if the node can give no value, or many.
void require_one_value(const Node& node);

}  // namespace ae::expr
