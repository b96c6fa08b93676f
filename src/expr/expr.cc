// Expr: parse once, evaluate often. The parts: expr_lex (tokens), expr_parse (tree), expr_eval,
// expr_each and expr_path (evaluation), expr_functions, expr_values and expr_text (functions),
// template (strings with `${ }`).
#include "expr/expr.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "expr/expr_eval.h"
#include "expr/expr_program.h"

namespace ae {
namespace {

// True if an evaluation may give a value that nests deeper than the values it reads.
bool may_nest_deeper(const expr::Node& n) {
  using expr::Op;
  const Op op = n.op;
  if (op == Op::collect || op == Op::object || op == Op::call || op == Op::map_values ||
      op == Op::by_key || op == Op::add || op == Op::multiply) {
    return true;
  }
  return std::ranges::any_of(n.children,
                             [](const expr::NodePtr& child) { return may_nest_deeper(*child); });
}

// Collects the names that are looked up; below `.args` the whole path. `needed`: null is not
// allowed here.
void note_members(const expr::Node& n, bool needed, ExprRoots& into) {
  using expr::Op;
  if (n.op == Op::path && n.children[0]->op == Op::root &&
      n.suffixes.front().kind == expr::Suffix::Kind::field) {
    into.members[n.children[0]->name].insert(n.suffixes.front().name);
  }
  if (n.op == Op::path && n.children[0]->op == Op::root && n.children[0]->name == "args") {
    std::vector<std::string> names;
    for (const expr::Suffix& s : n.suffixes) {
      if (s.kind != expr::Suffix::Kind::field) break;
      names.push_back(s.name);
      if (s.optional) needed = false;
    }
    if (!names.empty()) {
      bool& is_needed = into.args[std::move(names)];
      is_needed = is_needed || needed;
    }
  }
  for (const expr::Suffix& s : n.suffixes) {
    if (s.from) note_members(*s.from, true, into);
    if (s.to) note_members(*s.to, true, into);
  }
  for (std::size_t i = 0; i < n.children.size(); ++i) {
    const bool is_null_allowed =
        (n.op == Op::alternative && i == 0 && is_plain_path(*n.children[0])) ||
        n.op == Op::attempt || compares_with_null(n);
    note_members(*n.children[i], needed && !is_null_allowed, into);
  }
}

}  // namespace

bool expr::is_within_limits(const Value& v, const ExprLimits& limits) {
  const Value::Extent extent = v.extent();
  return extent.values <= limits.values_max && extent.bytes <= limits.bytes_max;
}

std::string expr::too_large(const ExprLimits& limits) {
  return fmt::format(
      "this makes a value with more than {} items and members, or more than {} MiB, "
      "counting each part wherever it occurs; make less at once",
      limits.values_max, limits.bytes_max >> 20);
}

Result<Expr> Expr::parse(std::string_view source, const ExprLimits& limits) {
  AE_ASSIGN(expr::ParsedSource parsed, expr::parse(source, limits));
  auto program = std::make_shared<expr::Program>();
  program->source = source;
  program->may_nest_deeper = may_nest_deeper(*parsed.tree);
  program->tree = std::move(parsed.tree);
  program->slots = parsed.slots;
  program->roots = std::move(parsed.roots);
  note_members(*program->tree, true, program->roots);
  Expr result;
  result.program_ = std::move(program);
  return result;
}

Result<Value> Expr::eval(const ExprScope& scope, const ExprLimits& limits) const {
  AE_CHECK(program_ != nullptr);
  std::size_t fuel = limits.fuel;
  auto value = expr::run(*program_, scope, limits, fuel);
  scope.charge(limits.fuel - fuel + (value ? expr::walking_cost(*value) : 0));
  return value;
}

std::string Expr::text() const {
  AE_CHECK(program_ != nullptr);
  const std::string& source = program_->source;
  const std::size_t begin = source.find_first_not_of(" \t\n");
  if (begin == source.npos) return {};
  return source.substr(begin, source.find_last_not_of(" \t\n") + 1 - begin);
}

const ExprRoots& Expr::roots() const {
  AE_CHECK(program_ != nullptr);
  return program_->roots;
}

}  // namespace ae
