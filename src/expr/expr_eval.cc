// The evaluator: failures, fuel, and the nodes that give one value. Nodes that may give any number
// are in expr_each.cc, paths in expr_path.cc.
#include "expr/expr_eval.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/utf8.h"
#include "expr/expr_functions.h"
#include "expr/expr_lex.h"
#include "json/json.h"
#include "json/order.h"

namespace ae::expr {

const Value& null_value() {
  static constinit const Value kNull{};
  return kNull;
}

Result<Value> run(const Program& program, const ExprScope& scope, const ExprLimits& limits,
                  std::size_t& fuel) {
  return Eval(program, scope, limits, fuel).run();
}

std::size_t walking_cost(const Value& v) {
  const Value::Extent extent = v.extent();
  return extent.values / 2 + extent.bytes / 64;
}

std::size_t writing_cost(const Value& v) {
  const Value::Extent extent = v.extent();
  if (v.is_string()) return extent.bytes / 64;
  return std::size_t{2} * extent.values + extent.bytes / 64;
}

Result<Value> Eval::run() {
  Value out;
  if (exactly_one(*program_.tree, null_value(), out)) {
    // A value that is only read is within the depth of a document; a composed one must be checked.
    if (!program_.may_nest_deeper || depth_within(out, limits_.depth_max)) return out;
    fail_at(program_.tree->at,
            fmt::format("the result nests deeper than {} levels", limits_.depth_max));
  }
  return ae::fail(Code::expression_failed, "{}: {}", position(program_.source, fault_at_), fault_);
}

// Failures.

bool Eval::fail_at(std::uint32_t at, std::string_view message) {
  if (failed_) return false;
  failed_ = true;
  fault_at_ = at;
  fault_ = message;
  return false;
}

bool Eval::out_of_fuel(std::uint32_t at) {
  if (!failed_) fatal_ = true;
  return fail_at(
      at, fmt::format("this takes more than the {} steps an evaluation may take; do less at once",
                      limits_.fuel));
}

bool Eval::too_large_at(std::uint32_t at) {
  if (!failed_) fatal_ = true;
  return fail_at(at, too_large(limits_));
}

bool Eval::spend_at(std::uint32_t at, std::size_t n) {
  if (n > fuel_) {
    fuel_ = 0;
    return out_of_fuel(at);
  }
  fuel_ -= n;
  return true;
}

bool Eval::compare(const Node& node, const Value& a, const Value& b, std::strong_ordering& out) {
  const auto result = compare_values(a, b, fuel_);
  if (!result) return out_of_fuel(node.at);
  out = *result;
  return true;
}

bool Eval::number(const Node& node, double d, Value& out) {
  if (!is_valid_number(d)) {
    return fail(node, std::isfinite(d)
                          ? "the result is an integer beyond 2^53-1, which is not exact"
                          : "the result is not a finite number");
  }
  out = Value(d);
  return true;
}

bool Eval::spend_written(const Node& node, std::string_view text) {
  if (!spend_text(node, text.size())) return false;
  return !has_escapes(text) || spend(node, text.size() / 8);
}

bool Eval::spend_value(const Node& node, const Value& v) {
  if (v.extent().values > fuel_) {  // known without walking it
    fuel_ = 0;
    return out_of_fuel(node.at);
  }
  struct Todo {
    const Value* value;
    std::size_t depth;
  };
  std::vector<Todo> todo{{&v, 0}};
  while (!todo.empty()) {
    const auto [value, depth] = todo.back();
    todo.pop_back();
    if (depth > work_depth_max()) return fail(node, "the value nests too deep to be written");
    if (value->is_string() && !spend_written(node, value->as_string())) return false;
    if (!spend(node, 1 + value->size())) return false;
    if (value->is_array()) {
      for (const Value& item : value->items()) todo.push_back({&item, depth + 1});
    } else if (value->is_object()) {
      for (const auto& [key, member] : value->members()) {
        if (!spend_written(node, key)) return false;
        todo.push_back({&member, depth + 1});
      }
    }
  }
  return true;
}

// One value.

bool Eval::exactly_one(const Node& n, const Value& in, Value& out) {
  if (n.count == Count::one) return one(n, in, out);
  std::size_t count = 0;
  auto on_value = [&](const Value& v) {
    out = v;
    return ++count < 2;
  };
  if (!each(n, in, on_value) && failed_) return false;
  if (count == 1) return true;
  return fail(n, count == 0 ? "this gives no value; add a default: `… // other`"
                            : "this gives more than one value; collect them: `[ … ]`");
}

// Long: one case for each operation.
bool Eval::one(const Node& n, const Value& in, Value& out) {
  if (!spend(n, 1)) return false;
  switch (n.op) {
    case Op::identity:
      out = in;
      return true;
    case Op::root:
      return root(n, out);
    case Op::step:
      return step(n, n.name, out);
    case Op::step_by:
      return one_step_by(n, in, out);
    case Op::all_steps:
      out = scope_.steps();
      return spend(n, 4 * out.size()) && check_limits(n, out);
    case Op::literal:
      out = n.value;
      return true;
    case Op::variable:
      out = slots_[n.slot];
      return true;
    case Op::path:
      return one_path(n, in, out);
    case Op::pipe:
      return one_pipe(n, in, out);
    case Op::collect:
      return collect(n, in, out);
    case Op::object:
      return one_object(n, in, out);
    case Op::text:
      return one_text(n, in, out);
    case Op::negate:
      return one_negated(n, in, out);
    case Op::add:
    case Op::subtract:
    case Op::multiply:
    case Op::divide:
    case Op::modulo:
    case Op::equal:
    case Op::not_equal:
    case Op::less:
    case Op::less_equal:
    case Op::greater:
    case Op::greater_equal:
      return one_binary(n, in, out);
    case Op::logical_and:
    case Op::logical_or:
      return one_logic(n, in, out);
    case Op::conditional:
      return one_conditional(n, in, out);
    case Op::bind:
      return one(*n.children[0], in, slots_[n.slot]) && one(*n.children[1], in, out);
    case Op::reduce:
      return one_reduce(n, in, out);
    case Op::call:
      return one_call(n, in, out);
    case Op::any:
      return search(n, in, true, out);
    case Op::all:
      return search(n, in, false, out);
    case Op::is_in:
      return is_in(n, in, out);
    case Op::is_empty:
      return is_empty(n, in, out);
    case Op::map_values:
      return map_values(n, in, out);
    case Op::by_key:
      return by_key(n, in, out);
    case Op::alternative:
      return one_alternative(n, in, out);
    case Op::comma:
    case Op::attempt:
    case Op::select:
    case Op::only:
    case Op::empty:
    case Op::first:
    case Op::last:
    case Op::limit:
    case Op::nth:
    case Op::range:
      break;
  }
  AE_CHECK(false, "a part that can give many values is used where one is needed");
}

bool Eval::root(const Node& n, Value& out) {
  const Value* found = scope_.root(n.name);
  if (found == nullptr) return fail(n, fmt::format("there is no `.{}` here", n.name));
  out = *found;
  return true;
}

bool Eval::step(const Node& n, std::string_view name, Value& out) {
  const Value* found = scope_.step(name);
  if (found == nullptr) {
    return fail(n, fmt::format("there is no step `{}`", truncate_utf8(name, 80)));
  }
  out = *found;
  return true;
}

bool Eval::one_step_by(const Node& n, const Value& in, Value& out) {
  Value name;
  if (!one(*n.children[0], in, name)) return false;
  if (!name.is_string()) return fail(n, "a step is named by a string");
  return spend(n, name.as_string().size() / 64) && step(n, name.as_string(), out);
}

bool Eval::one_pipe(const Node& n, const Value& in, Value& out) {
  Value piped = in;
  for (const NodePtr& stage : n.children) {
    Value next;
    if (!one(*stage, piped, next)) return false;
    piped = std::move(next);
  }
  out = std::move(piped);
  return true;
}

bool Eval::one_negated(const Node& n, const Value& in, Value& out) {
  Value v;
  if (!one(*n.children[0], in, v)) return false;
  if (!v.is_number()) {
    return fail(n, fmt::format("cannot negate {}", kind_name(v)));
  }
  out = Value(-v.as_number());
  return true;
}

bool Eval::one_binary(const Node& n, const Value& in, Value& out) {
  Value a;
  Value b;
  const bool before = null_is_accepted_;
  null_is_accepted_ = before || compares_with_null(n);
  const bool good = one(*n.children[1], in, b) && one(*n.children[0], in, a);
  null_is_accepted_ = before;
  return good && apply_binary(n, a, b, out);
}

bool Eval::one_logic(const Node& n, const Value& in, Value& out) {
  const bool ends = n.op == Op::logical_or;
  Value v;
  if (!one(*n.children[0], in, v)) return false;
  if (truthy(v) != ends && !one(*n.children[1], in, v)) return false;
  out = Value(truthy(v));
  return true;
}

bool Eval::one_conditional(const Node& n, const Value& in, Value& out) {
  Value condition;
  if (!one(*n.children[0], in, condition)) return false;
  return one(*n.children[truthy(condition) ? 1 : 2], in, out);
}

bool Eval::one_alternative(const Node& n, const Value& in, Value& out) {
  auto on_value = [&](const Value& v) {
    out = v;
    return true;
  };
  return each_alternative(n, in, on_value);
}

bool Eval::collect(const Node& n, const Value& in, Value& out) {
  std::vector<Value> items;
  auto on_value = [&](const Value& v) {
    items.push_back(v);
    return spend(n, 1);
  };
  if (!n.children.empty() && !each(*n.children[0], in, on_value)) return false;
  out = Value::array(std::move(items));
  return check_limits(n, out);
}

bool Eval::one_object(const Node& n, const Value& in, Value& out) {
  std::vector<Value> flat(n.children.size());
  for (std::size_t i = 0; i < n.children.size(); ++i) {
    if (!one(*n.children[i], in, flat[i])) return false;
  }
  return make_object(n, flat, out);
}

// `flat` contains key, value, key, value, …; the last of equal keys wins.
bool Eval::make_object(const Node& n, const std::vector<Value>& flat, Value& out) {
  std::vector<Member> members;
  members.reserve(flat.size() / 2);
  for (std::size_t i = 0; i < flat.size(); i += 2) {
    if (!flat[i].is_string()) {
      return fail_at(n.children[i]->at,
                     fmt::format("a key is a string, not {}", kind_name(flat[i])));
    }
    if (!spend_text(n, flat[i].as_string().size())) return false;
    members.emplace_back(flat[i].as_string(), flat[i + 1]);
  }
  return object_of(*this, n, std::move(members), out) && check_limits(n, out);
}

bool Eval::one_text(const Node& n, const Value& in, Value& out) {
  std::string text = n.texts[0];
  for (std::size_t i = 0; i < n.children.size(); ++i) {
    Value v;
    if (!one(*n.children[i], in, v) || !apply_format(*this, *n.children[i], n.format, v, text))
      return false;
    text += n.texts[i + 1];
  }
  if (!spend_text(n, text.size())) return false;
  out = Value(std::move(text));
  return check_limits(n, out);
}

bool Eval::one_reduce(const Node& n, const Value& in, Value& out) {
  Value state;
  if (!exactly_one(*n.children[1], in, state)) return false;
  auto on_value = [&](const Value& v) {
    slots_[n.slot] = v;
    Value next;
    if (!exactly_one(*n.children[2], state, next)) return false;
    state = std::move(next);
    return true;
  };
  if (!each(*n.children[0], in, on_value)) return false;
  out = std::move(state);
  return true;
}

bool Eval::one_call(const Node& n, const Value& in, Value& out) {
  Value args[3];
  for (std::size_t i = 0; i < n.children.size(); ++i) {
    if (!one(*n.children[i], in, args[i])) return false;
  }
  return n.function->apply(
             {.eval = *this, .node = n, .in = in, .args = {args, n.children.size()}, .out = out}) &&
         check_limits(n, out);
}

bool Eval::comparable(const Node& n, const Value& a, const Value& b) {
  if (a.kind() == b.kind() || !scope_.fails_on_mixed_types()) return true;
  const bool ordered = n.op >= Op::less && n.op <= Op::greater_equal;
  const auto is_scalar = [](const Value& v) {
    return v.is_bool() || v.is_number() || v.is_string();
  };
  if (!ordered && !(is_scalar(a) && is_scalar(b))) return true;
  return fail(n, fmt::format("{} is compared with {}; convert one of them (`tonumber`, "
                             "`tostring`), or compare its `type`",
                             kind_name(a), kind_name(b)));
}

bool Eval::apply_binary(const Node& n, const Value& a, const Value& b, Value& out) {
  if (n.op >= Op::add && n.op <= Op::modulo) {
    return arithmetic(*this, n, a, b, out) && check_limits(n, out);
  }
  if (!comparable(n, a, b)) return false;
  auto order = std::strong_ordering::equal;
  if (!compare(n, a, b, order)) return false;
  switch (n.op) {
    case Op::equal:
      out = Value(order == 0);
      return true;
    case Op::not_equal:
      out = Value(order != 0);
      return true;
    case Op::less:
      out = Value(order < 0);
      return true;
    case Op::less_equal:
      out = Value(order <= 0);
      return true;
    case Op::greater:
      out = Value(order > 0);
      return true;
    default:
      out = Value(order >= 0);
      return true;
  }
}

// any (target: true) and all (target: false): the first item whose result is `target` decides.
bool Eval::search(const Node& n, const Value& in, bool target, Value& out) {
  bool found = false;
  auto test = [&](const Value& v) {
    if (truthy(v) == target) found = true;
    return !found;
  };
  auto on_value = [&](const Value& v) { return each(*n.children[1], v, test); };
  if (!each(*n.children[0], in, on_value) && failed_) return false;
  out = Value(found == target);
  return true;
}

bool Eval::is_in(const Node& n, const Value& in, Value& out) {
  bool found = false;
  auto on_value = [&](const Value& v) {
    auto order = std::strong_ordering::less;
    if (!comparable(n, in, v) || !compare(n, in, v, order)) return false;
    if (order == 0) found = true;
    return !found;
  };
  if (!each(*n.children[0], in, on_value) && failed_) return false;
  out = Value(found);
  return true;
}

bool Eval::is_empty(const Node& n, const Value& in, Value& out) {
  bool empty = true;
  auto on_value = [&](const Value&) { return empty = false; };
  if (!each(*n.children[0], in, on_value) && failed_) return false;
  out = Value(empty);
  return true;
}

// Replaces each value by the first result of the filter, or drops it if there is none.
bool Eval::map_values(const Node& n, const Value& in, Value& out) {
  bool has = false;
  Value mapped;
  auto on_value = [&](const Value& v) {
    mapped = v;
    has = true;
    return false;
  };
  const auto map = [&](const Value& v) {
    has = false;
    return spend(n, 1) && (each(*n.children[0], v, on_value) || !failed_);
  };
  if (in.is_array()) {
    std::vector<Value> items;
    for (const Value& item : in.items()) {
      if (!map(item)) return false;
      if (has) items.push_back(mapped);
    }
    out = Value::array(std::move(items));
    return check_limits(n, out);
  }
  if (!in.is_object()) {
    return fail(n, fmt::format("cannot map the values of {}", kind_name(in)));
  }
  std::vector<Member> members;
  for (const auto& [key, value] : in.members()) {
    if (!spend(n, key.size() / 64) || !map(value)) return false;
    if (has) members.emplace_back(key, mapped);
  }
  out = Value::object(std::move(members));
  return check_limits(n, out);
}

// sort_by and similar functions: the function receives, for each item, the array of the filter's
// results.
bool Eval::by_key(const Node& n, const Value& in, Value& out) {
  if (!in.is_array()) {
    return fail(n, fmt::format("{} needs an array, not {}", n.function->name, kind_name(in)));
  }
  std::vector<Value> keys;
  for (const Value& item : in.items()) {
    Value key;
    if (!spend(n, 1) || !collect(n, item, key)) return false;
    keys.push_back(std::move(key));
  }
  const Value args[] = {Value::array(std::move(keys))};
  return n.function->apply({.eval = *this, .node = n, .in = in, .args = args, .out = out}) &&
         check_limits(n, out);
}

}  // namespace ae::expr
