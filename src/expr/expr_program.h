// The tree of a parsed expression. Each node knows how many values it can give.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "expr/expr.h"
#include "json/value.h"

namespace ae::expr {

// How many values a node can give. A combined node has the least certain count of its parts.
enum class Count : std::uint8_t {
  one,       // exactly one
  maybe,     // one or none: `.a?`, `first(…)`
  filtered,  // one or none because of a filter: `select(…)`, `empty`
  many,      // any number: `.[]`, `,`, `range(…)`
};

enum class Op : std::uint8_t {
  identity,   // .
  root,       // .input                 name
  step,       // .steps.X               name
  step_by,    // .steps[child]
  all_steps,  // .steps
  literal,    // 1  "a"  null           value
  variable,   // $x                     slot
  path,       // child suffix suffix …    suffixes
  pipe,       // child | child
  comma,      // child , child , …
  collect,    // [ child ]  or  [ ]
  object,     // { key: value, … }      children: key, value, key, value, …
  text,    // "…\(child)…"             texts, children, format; texts.size() == children.size() + 1
  negate,  // - child
  add,     // child + child, and so on
  subtract,
  multiply,
  divide,
  modulo,
  equal,
  not_equal,
  less,
  less_equal,
  greater,
  greater_equal,
  logical_and,  // child and child
  logical_or,   // child or child
  alternative,  // child // child
  conditional,  // if child then child else child end
  bind,         // child as $slot | child
  reduce,       // reduce child as $slot (child; child)
  attempt,      // child ?
  call,         // function(child; …)       function; one of the plain ones
  // Functions with filters as arguments, implemented by the evaluator:
  select,  // select(child)
  only,    // numbers, strings, …    kinds
  empty,
  any,         // any(child; child)
  all,         // all(child; child)
  is_in,       // IN(child)
  first,       // first(child)
  last,        // last(child)
  limit,       // limit(child; child)
  nth,         // nth(child; child)
  is_empty,    // isempty(child)
  range,       // range(child; child; child)
  map_values,  // map_values(child)
  by_key,      // sort_by(child), …        function: called with the keys
};

enum class Format : std::uint8_t { text, json, uri, base64, base64d, html, csv, tsv };

struct Function;
struct Node;
using NodePtr = std::unique_ptr<Node>;

// One step of a path.
struct Suffix {
  enum class Kind : std::uint8_t { field, index, slice, iterate };
  Kind kind = Kind::field;
  bool optional = false;  // followed by `?`: gives no value if the input cannot be indexed
  std::uint32_t at = 0;
  std::string name;  // field
  NodePtr from;      // index: the key; slice: its start, or none
  NodePtr to;        // slice: its end, or none
};

struct Node {
  Op op = Op::identity;
  Count count = Count::one;
  Format format = Format::text;
  std::uint8_t kinds = 0;  // only: bit n = Value::Kind n
  std::uint32_t at = 0;    // byte offset in the source
  std::uint32_t slot = 0;
  std::uint32_t height = 1;        // of this tree; bounds every recursion over it
  std::uint32_t count_source = 0;  // the position of the part that determines `count`
  const Function* function = nullptr;
  Value value;
  std::string name;
  std::vector<NodePtr> children;
  std::vector<Suffix> suffixes;
  std::vector<std::string> texts;
};

// A path alone. Before `//` and in comparisons with null it may give null where null fails
// elsewhere.
inline bool is_plain_path(const Node& node) {
  return node.op == Op::path || (node.op == Op::attempt && node.children[0]->op == Op::path);
}
inline bool is_null_literal(const Node& node) {
  return node.op == Op::literal && node.value.is_null();
}
// `A == null`, `null != A`.
inline bool compares_with_null(const Node& node) {
  return (node.op == Op::equal || node.op == Op::not_equal) &&
         ((is_null_literal(*node.children[0]) && is_plain_path(*node.children[1])) ||
          (is_null_literal(*node.children[1]) && is_plain_path(*node.children[0])));
}

// The maximum height of a tree: parentheses, brackets, ifs, bindings, operators.
inline constexpr std::uint32_t kHeightMax = 256;

struct ParsedSource {
  NodePtr tree;
  std::size_t slots = 0;
  ExprRoots roots;
};
// Fails with plan_invalid.
Result<ParsedSource> parse(std::string_view source, const ExprLimits& limits);

// A parsed expression; Expr objects share it.
struct Program {
  std::string source;
  NodePtr tree;
  std::size_t slots = 0;
  ExprRoots roots;
  bool may_nest_deeper = false;  // its value may nest deeper than the values it reads
};

}  // namespace ae::expr
