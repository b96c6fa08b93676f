// Arithmetic, and the functions of numbers, arrays and objects.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "expr/expr_eval.h"
#include "expr/expr_functions.h"
#include "json/json.h"
#include "json/order.h"

namespace ae::expr {
namespace {

bool fail_argument_type(const Call& c, std::string_view expected) {
  return c.eval.fail(
      c.node, fmt::format("{} needs {}, not {}", c.node.function->name, expected, kind_name(c.in)));
}

bool return_array(const Call& c, std::vector<Value> items) {
  return c.eval.spend(c.node, items.size()) && return_value(c, Value::array(std::move(items)));
}

// Arithmetic.

bool fail_operands(Eval& eval, const Node& node, std::string_view verb, const Value& a,
                   const Value& b) {
  return eval.fail(node, fmt::format("cannot {} {} and {}", verb, kind_name(a), kind_name(b)));
}

// The members of both. For equal keys: the value of `b`, or the merged value if `deep` and both are
// objects.
bool merge(Eval& eval, const Node& node, const Value& a, const Value& b, bool deep,
           std::size_t depth, Value& out) {
  if (depth > eval.work_depth_max())
    return eval.fail(node, "the values nest too deep to be merged");
  if (!eval.spend(node, a.size() + b.size())) return false;
  const auto x = a.members();
  const auto y = b.members();
  std::size_t key_bytes = 0;  // the keys are copied
  for (const auto& [key, value] : x) key_bytes += key.size();
  for (const auto& [key, value] : y) key_bytes += key.size();
  if (!eval.spend(node, key_bytes / 64)) return false;
  std::vector<Member> members;
  members.reserve(x.size() + y.size());
  auto i = x.begin();
  auto j = y.begin();
  while (i != x.end() || j != y.end()) {
    if (j == y.end() || (i != x.end() && key_less(i->first, j->first))) {
      members.push_back(*i++);
    } else if (i == x.end() || key_less(j->first, i->first)) {
      members.push_back(*j++);
    } else {
      Value merged = j->second;
      if (deep && i->second.is_object() && j->second.is_object() &&
          !merge(eval, node, i->second, j->second, deep, depth + 1, merged)) {
        return false;
      }
      members.emplace_back(j->first, std::move(merged));
      ++i;
      ++j;
    }
  }
  out = Value::object(std::move(members));
  return true;
}

bool add(Eval& eval, const Node& node, const Value& a, const Value& b, Value& out) {
  if (a.is_null() || b.is_null()) {
    out = a.is_null() ? Value(b) : Value(a);
    return true;
  }
  if (a.kind() != b.kind()) return fail_operands(eval, node, "add", a, b);
  switch (a.kind()) {
    case Value::Kind::number:
      return eval.number(node, a.as_number() + b.as_number(), out);
    case Value::Kind::string: {
      const std::size_t bytes = a.as_string().size() + b.as_string().size();
      if (!eval.spend_text(node, bytes) ||
          !eval.check_text_limit(node, static_cast<double>(bytes))) {
        return false;
      }
      out = Value(a.as_string() + b.as_string());
      return true;
    }
    case Value::Kind::array: {
      if (!eval.spend(node, a.size() + b.size())) return false;
      std::vector<Value> items;
      items.reserve(a.size() + b.size());
      items.insert(items.end(), a.items().begin(), a.items().end());
      items.insert(items.end(), b.items().begin(), b.items().end());
      out = Value::array(std::move(items));
      return true;
    }
    case Value::Kind::object:
      return merge(eval, node, a, b, false, 0, out);
    case Value::Kind::null:
    case Value::Kind::boolean:
      break;
  }
  return fail_operands(eval, node, "add", a, b);
}

bool subtract(Eval& eval, const Node& node, const Value& a, const Value& b, Value& out) {
  if (a.is_number() && b.is_number()) return eval.number(node, a.as_number() - b.as_number(), out);
  if (!a.is_array() || !b.is_array()) return fail_operands(eval, node, "subtract", a, b);
  if (!eval.spend(node, a.size())) return false;
  std::vector<Value> items;
  for (const Value& item : a.items()) {
    bool found = false;
    for (const Value& other : b.items()) {
      auto order = std::strong_ordering::less;
      if (!eval.compare(node, item, other, order)) return false;
      found = order == 0;
      if (found) break;
    }
    if (!found) items.push_back(item);
  }
  out = Value::array(std::move(items));
  return true;
}

// Repeats a text `times` times; null if that is less than once, as in jq.
bool repeat(Eval& eval, const Node& node, const std::string& text, double times, Value& out) {
  if (times <= 0) {
    out = Value();
    return true;
  }
  const double count = std::max(1.0, std::floor(times));
  const double bytes = count * static_cast<double>(text.size());
  const double most = 64.0 * static_cast<double>(std::numeric_limits<std::uint32_t>::max());
  if (!eval.spend_text(node, static_cast<std::size_t>(std::min(bytes, most))) ||
      !eval.check_text_limit(node, bytes)) {
    return false;
  }
  std::string repeated;
  repeated.reserve(static_cast<std::size_t>(bytes));
  repeated = text;
  const auto size = static_cast<std::size_t>(bytes);
  while (repeated.size() < size) {  // by doubling: few large appends
    repeated.append(repeated, 0, std::min(repeated.size(), size - repeated.size()));
  }
  out = Value(std::move(repeated));
  return true;
}

bool multiply(Eval& eval, const Node& node, const Value& a, const Value& b, Value& out) {
  if (a.is_number() && b.is_number()) return eval.number(node, a.as_number() * b.as_number(), out);
  if (a.is_string() && b.is_number()) return repeat(eval, node, a.as_string(), b.as_number(), out);
  if (a.is_number() && b.is_string()) return repeat(eval, node, b.as_string(), a.as_number(), out);
  if (a.is_object() && b.is_object()) return merge(eval, node, a, b, true, 0, out);
  return fail_operands(eval, node, "multiply", a, b);
}

bool divide(Eval& eval, const Node& node, const Value& a, const Value& b, Value& out) {
  if (a.is_string() && b.is_string()) {
    return split_text(eval, node, a.as_string(), b.as_string(), out);
  }
  if (!a.is_number() || !b.is_number()) return fail_operands(eval, node, "divide", a, b);
  if (b.as_number() == 0) return eval.fail(node, "cannot divide by zero");
  return eval.number(node, a.as_number() / b.as_number(), out);
}

// The remainder of the integer parts; it has the sign of the dividend.
bool modulo(Eval& eval, const Node& node, const Value& a, const Value& b, Value& out) {
  if (!a.is_number() || !b.is_number())
    return fail_operands(eval, node, "take the remainder of", a, b);
  const double from = std::trunc(a.as_number());
  const double by = std::trunc(b.as_number());
  if (by == 0) return eval.fail(node, "cannot take a remainder by zero");
  // fmod needs one step per bit by which the dividend is longer than the divisor.
  const int longer = from == 0 ? 0 : std::max(std::ilogb(from) - std::ilogb(by), 0);
  if (!eval.spend(node, static_cast<std::size_t>(longer) / 128)) return false;
  return eval.number(node, std::fmod(from, by), out);
}

// Numbers.

template <double (*F)(double)>
bool rounded(const Call& c) {
  if (!c.in.is_number()) return fail_argument_type(c, "a number");
  return c.eval.number(c.node, F(c.in.as_number()), c.out);
}
double do_floor(double d) { return std::floor(d); }
double do_ceil(double d) { return std::ceil(d); }
double do_round(double d) { return std::round(d); }
double do_trunc(double d) { return std::trunc(d); }
double do_abs(double d) { return std::fabs(d); }

// IEEE 754 requires the correctly rounded root, so it is the same on all platforms.
bool sqrt(const Call& c) {
  if (!c.in.is_number()) return fail_argument_type(c, "a number");
  if (c.in.as_number() < 0) return c.eval.fail(c.node, "a negative number has no square root");
  return c.eval.number(c.node, std::sqrt(c.in.as_number()), c.out);
}

// Any value.

bool negation(const Call& c) { return return_value(c, Value(!truthy(c.in))); }

bool type(const Call& c) {
  constexpr std::string_view kNames[] = {"null", "boolean", "number", "string", "array", "object"};
  return return_value(c, Value(kNames[static_cast<std::size_t>(c.in.kind())]));
}

bool length(const Call& c) {
  switch (c.in.kind()) {
    case Value::Kind::null:
      return return_value(c, Value(0));
    case Value::Kind::number:
      return return_value(c, Value(std::fabs(c.in.as_number())));
    case Value::Kind::string:
      return c.eval.spend_text(c.node, c.in.as_string().size()) &&
             return_value(c, Value(static_cast<std::uint64_t>(code_points(c.in.as_string()))));
    case Value::Kind::array:
    case Value::Kind::object:
      return return_value(c, Value(static_cast<std::uint64_t>(c.in.size())));
    case Value::Kind::boolean:
      break;
  }
  return c.eval.fail(c.node, "a boolean has no length");
}

bool raise_error(const Call& c) {
  const Value& message = c.args.empty() ? c.in : c.args[0];
  std::string text;
  if (!append_text(c.eval, c.node, message, text)) return false;
  return c.eval.fail(c.node, text);
}

// True if `a` contains `b`: as a part of a text, each item in some item, each member in the same
// member, or by equality.
bool contains(const Call& c, const Value& a, const Value& b, std::size_t depth, bool& out) {
  if (depth > c.eval.work_depth_max()) return c.eval.fail(c.node, "the values nest too deep");
  if (!c.eval.spend(c.node, 1)) return false;
  out = true;
  if (a.is_object() && b.is_object()) {
    for (const auto& [key, value] : b.members()) {
      if (!c.eval.spend(c.node, 1 + find_cost(a.size(), key))) return false;
      const Value* member = a.find(key);
      if (member == nullptr) {
        out = false;
      } else if (!contains(c, *member, value, depth + 1, out)) {
        return false;
      }
      if (!out) return true;
    }
    return true;
  }
  if (a.is_array() && b.is_array()) {
    for (const Value& part : b.items()) {
      out = false;
      for (const Value& item : a.items()) {
        if (!contains(c, item, part, depth + 1, out)) return false;
        if (out) break;
      }
      if (!out) return true;
    }
    return true;
  }
  if (a.is_string() && b.is_string()) {
    if (!c.eval.spend_search(c.node, a.as_string().size() + b.as_string().size())) return false;
    out = find_text(a.as_string(), b.as_string(), 0) != std::string::npos;
    return true;
  }
  auto order = std::strong_ordering::less;
  if (!c.eval.compare(c.node, a, b, order)) return false;
  out = order == 0;
  return true;
}

bool contains_checked(const Call& c, const Value& a, const Value& b) {
  if (a.kind() != b.kind()) {
    return c.eval.fail(c.node,
                       fmt::format("{} cannot contain {}; for an array, ask for `contains([x])`",
                                   kind_name(a), kind_name(b)));
  }
  bool found = false;
  return contains(c, a, b, 0, found) && return_value(c, Value(found));
}
bool contains_arg(const Call& c) { return contains_checked(c, c.in, c.args[0]); }
bool inside(const Call& c) { return contains_checked(c, c.args[0], c.in); }

bool has(const Call& c, const Value& container, const Value& key) {
  if (container.is_object() && key.is_string()) {
    if (!c.eval.spend(c.node, find_cost(container.size(), key.as_string()))) return false;
    return return_value(c, Value(container.find(key.as_string()) != nullptr));
  }
  if (container.is_array() && key.is_number()) {
    const double i = key.as_number();
    return return_value(c, Value(i >= 0 && i < static_cast<double>(container.size())));
  }
  if (container.is_null() && (key.is_string() || key.is_number()))
    return return_value(c, Value(false));
  return c.eval.fail(c.node, fmt::format("cannot ask {} for a key that is {}", kind_name(container),
                                         kind_name(key)));
}
bool has_arg(const Call& c) { return has(c, c.in, c.args[0]); }
bool in_arg(const Call& c) { return has(c, c.args[0], c.in); }

bool getpath(const Call& c) {
  if (!c.args[0].is_array()) return c.eval.fail(c.node, "getpath takes an array of keys");
  Value at = c.in;
  for (const Value& key : c.args[0].items()) {
    Value next;
    if (!c.eval.spend(c.node, 1)) return false;
    if (!at.is_null() && !c.eval.index(c.node, at, key, next)) return false;
    at = std::move(next);
  }
  return return_value(c, std::move(at));
}

// Objects.

bool keys(const Call& c) {
  std::vector<Value> keys;
  if (c.in.is_array()) {
    if (!c.eval.spend(c.node, c.in.size())) return false;
    for (std::size_t i = 0; i < c.in.size(); ++i) keys.emplace_back(static_cast<std::uint64_t>(i));
    return return_value(c, Value::array(std::move(keys)));
  }
  if (!c.in.is_object()) return fail_argument_type(c, "an object or array");
  for (const auto& [key, value] : c.in.members()) {
    if (!c.eval.spend_text(c.node, key.size())) return false;
    keys.emplace_back(key);
  }
  // The order of texts, which differs from the order of members beyond U+D7FF.
  const auto less = [](const Value& a, const Value& b) { return a.as_string() < b.as_string(); };
  if (c.node.function->name == "keys" && !std::ranges::is_sorted(keys, less)) {
    std::size_t bytes = 0;
    for (const Value& key : keys) bytes += key.as_string().size();
    if (!c.eval.spend(c.node, sort_cost(keys.size(), bytes))) return false;
    std::ranges::stable_sort(keys, less);
  }
  return return_value(c, Value::array(std::move(keys)));
}

// In an array the indices are the keys.
bool to_entries(const Call& c) {
  if (!c.in.is_object() && !c.in.is_array()) return fail_argument_type(c, "an object");
  std::vector<Value> entries;
  const auto add_entry = [&](Value key, const Value& value) {
    entries.push_back(Value::object({{"key", std::move(key)}, {"value", value}}));
    return c.eval.spend(c.node, 3);
  };
  if (c.in.is_array()) {
    for (const Value& item : c.in.items()) {
      if (!add_entry(Value(static_cast<std::uint64_t>(entries.size())), item)) return false;
    }
    return return_value(c, Value::array(std::move(entries)));
  }
  for (const auto& [key, value] : c.in.members()) {
    if (!c.eval.spend_text(c.node, key.size()) || !add_entry(Value(key), value)) return false;
  }
  return return_value(c, Value::array(std::move(entries)));
}

bool from_entries(const Call& c) {
  if (!c.in.is_array()) return fail_argument_type(c, "an array");
  std::vector<Member> members;
  for (const Value& entry : c.in.items()) {
    if (!entry.is_object()) {
      return c.eval.fail(c.node,
                         fmt::format("an entry is {{key, value}}, not {}", kind_name(entry)));
    }
    // Looks up at most ten names.
    if (!c.eval.spend(c.node, 1 + 10 * find_cost(entry.size(), ""))) return false;
    const auto first_of = [&](std::initializer_list<std::string_view> names) {
      for (const std::string_view name : names) {
        const Value* found = entry.find(name);
        if (found != nullptr && !found->is_null()) return *found;
      }
      return Value();
    };
    const Value key = first_of({"key", "k", "name", "Name", "Key", "K"});
    if (!key.is_string() && !key.is_number() && !key.is_bool()) {
      return c.eval.fail(c.node,
                         fmt::format("the key of an entry is a string, not {}", kind_name(key)));
    }
    std::string name;
    if (!c.eval.spend(c.node, 1) || !append_text(c.eval, c.node, key, name)) return false;
    members.emplace_back(std::move(name), first_of({"value", "v", "Value", "V"}));
  }
  return object_of(c.eval, c.node, std::move(members), c.out);
}

// Arrays.

bool add_all(const Call& c) {
  if (!c.in.is_array() && !c.in.is_object()) return fail_argument_type(c, "an array or object");
  if (!c.eval.spend(c.node, c.in.size())) return false;
  std::vector<Value> items;
  if (c.in.is_array()) {
    items.assign(c.in.items().begin(), c.in.items().end());
  } else {
    for (const auto& [key, value] : c.in.members()) items.push_back(value);
  }
  // Texts and arrays are concatenated at once, without a copy per item.
  const auto all = [&](Value::Kind kind) {
    return !items.empty() &&
           std::ranges::all_of(items, [&](const Value& v) { return v.kind() == kind; });
  };
  if (all(Value::Kind::string)) {
    std::string text;
    for (const Value& item : items) {
      if (!c.eval.spend_text(c.node, item.as_string().size())) return false;
      text += item.as_string();
    }
    return return_value(c, Value(std::move(text)));
  }
  if (all(Value::Kind::array)) {
    std::vector<Value> joined;
    for (const Value& item : items) {
      if (!c.eval.spend(c.node, item.size())) return false;
      joined.insert(joined.end(), item.items().begin(), item.items().end());
    }
    return return_value(c, Value::array(std::move(joined)));
  }
  Value sum;
  for (const Value& item : items) {
    Value next;
    if (!add(c.eval, c.node, sum, item, next)) return false;
    sum = std::move(next);
  }
  return return_value(c, std::move(sum));
}

bool flatten_into(const Call& c, const Value& v, double depth, std::size_t levels,
                  std::vector<Value>& out) {
  if (levels > c.eval.work_depth_max()) return c.eval.fail(c.node, "the value nests too deep");
  const auto add_item = [&](const Value& item) {
    if (!c.eval.spend(c.node, 1)) return false;
    if (item.is_array() && depth > 0) return flatten_into(c, item, depth - 1, levels + 1, out);
    out.push_back(item);
    return true;
  };
  if (v.is_array()) return std::ranges::all_of(v.items(), add_item);
  return std::ranges::all_of(v.members(), [&](const Member& m) { return add_item(m.second); });
}

bool flatten(const Call& c) {
  if (!c.in.is_array() && !c.in.is_object()) return fail_argument_type(c, "an array");
  double depth = 1e9;
  if (!c.args.empty()) {
    if (!c.args[0].is_number() || c.args[0].as_number() < 0) {
      return c.eval.fail(c.node, "flatten counts levels with a number from 0 up");
    }
    depth = c.args[0].as_number();
  }
  std::vector<Value> items;
  return flatten_into(c, c.in, depth, 0, items) && return_value(c, Value::array(std::move(items)));
}

bool reverse(const Call& c) {
  if (c.in.is_null()) return return_value(c, Value::array({}));
  if (c.in.is_string()) {
    if (!c.eval.spend(c.node, c.in.as_string().size() / 4)) return false;
    std::string text;
    const std::string& s = c.in.as_string();
    for (std::size_t end = s.size(); end > 0;) {
      std::size_t start = end - 1;
      while ((static_cast<unsigned char>(s[start]) & 0xC0) == 0x80) --start;
      text.append(s, start, end - start);
      end = start;
    }
    return return_value(c, Value(std::move(text)));
  }
  if (!c.in.is_array()) return fail_argument_type(c, "an array");
  if (!c.eval.spend(c.node, c.in.size())) return false;
  return return_value(c, Value::array({c.in.items().rbegin(), c.in.items().rend()}));
}

// Indices of the items, sorted by their keys; stable.
bool sorted_positions(const Call& c, std::span<const Value> keys, std::vector<std::size_t>& out) {
  if (!c.eval.spend(c.node, keys.size())) return false;
  out.resize(keys.size());
  std::iota(out.begin(), out.end(), std::size_t{0});
  bool ok = true;
  // Without fuel the comparison is always false, which ends every loop of the sort.
  std::stable_sort(out.begin(), out.end(), [&](std::size_t a, std::size_t b) {
    auto order = std::strong_ordering::equal;
    ok = ok && c.eval.compare(c.node, keys[a], keys[b], order);
    return ok && order < 0;
  });
  return ok;
}

// The plain form sorts by the items themselves, `…_by` by the results of the filter.
std::span<const Value> keys_of(const Call& c) {
  return c.args.empty() ? c.in.items() : c.args[0].items();
}

bool sort(const Call& c) {
  if (!c.in.is_array()) return fail_argument_type(c, "an array");
  std::vector<std::size_t> at;
  if (!sorted_positions(c, keys_of(c), at)) return false;
  std::vector<Value> items;
  items.reserve(at.size());
  for (const std::size_t i : at) items.push_back(c.in.items()[i]);
  return return_array(c, std::move(items));
}

// Groups of items with equal keys, in the order of the keys.
bool groups(const Call& c, std::vector<std::vector<Value>>& out) {
  const auto keys = keys_of(c);
  std::vector<std::size_t> at;
  if (!sorted_positions(c, keys, at)) return false;
  for (std::size_t i = 0; i < at.size(); ++i) {
    auto order = std::strong_ordering::less;
    if (i > 0 && !c.eval.compare(c.node, keys[at[i - 1]], keys[at[i]], order)) return false;
    if (order != 0) out.emplace_back();
    out.back().push_back(c.in.items()[at[i]]);
  }
  return true;
}

bool group_by(const Call& c) {
  std::vector<std::vector<Value>> found;
  if (!groups(c, found)) return false;
  std::vector<Value> items;
  items.reserve(found.size());
  for (auto& group : found) items.push_back(Value::array(std::move(group)));
  return return_array(c, std::move(items));
}

bool unique(const Call& c) {
  if (!c.in.is_array()) return fail_argument_type(c, "an array");
  std::vector<std::vector<Value>> found;
  if (!groups(c, found)) return false;
  std::vector<Value> items;
  items.reserve(found.size());
  for (const auto& group : found) items.push_back(group.front());
  return return_array(c, std::move(items));
}

// Of equal items, min gives the first and max the last, as in jq.
bool extreme(const Call& c, bool greatest) {
  if (!c.in.is_array()) return fail_argument_type(c, "an array");
  const auto keys = keys_of(c);
  std::size_t best = 0;
  for (std::size_t i = 1; i < keys.size(); ++i) {
    auto order = std::strong_ordering::equal;
    if (!c.eval.compare(c.node, keys[i], keys[best], order)) return false;
    if (greatest ? order >= 0 : order < 0) best = i;
  }
  return return_value(c, keys.empty() ? Value() : Value(c.in.items()[best]));
}
bool least(const Call& c) { return extreme(c, false); }
bool greatest(const Call& c) { return extreme(c, true); }

bool item_at(const Call& c, double i) { return c.eval.index(c.node, c.in, Value(i), c.out); }
bool first(const Call& c) { return item_at(c, 0); }
bool last(const Call& c) { return item_at(c, -1); }
bool nth(const Call& c) {
  if (!c.args[0].is_number()) return c.eval.fail(c.node, "nth counts with a number");
  return item_at(c, c.args[0].as_number());
}

bool transpose(const Call& c) {
  if (!c.in.is_array()) return fail_argument_type(c, "an array of arrays");
  if (!c.eval.spend(c.node, c.in.size())) return false;
  std::size_t width = 0;
  for (const Value& row : c.in.items()) {
    if (!row.is_array()) return c.eval.fail(c.node, "transpose needs an array of arrays");
    width = std::max(width, row.size());
  }
  std::vector<Value> columns;
  for (std::size_t j = 0; j < width; ++j) {
    if (!c.eval.spend(c.node, c.in.size())) return false;
    std::vector<Value> column;
    for (const Value& row : c.in.items()) {
      column.push_back(j < row.size() ? row.items()[j] : Value());
    }
    columns.push_back(Value::array(std::move(column)));
  }
  return return_array(c, std::move(columns));
}

bool toarray(const Call& c) {
  return return_value(c, c.in.is_array() ? Value(c.in) : Value::array({Value(c.in)}));
}

constexpr Function by_key(std::string_view name, Apply apply) {
  return {.name = name,
          .args_min = 1,
          .args_max = 1,
          .reads_input = true,
          .op = Op::by_key,
          .apply = apply};
}

constexpr Function kValueFunctions[] = {
    plain("floor", 0, rounded<do_floor>),
    plain("ceil", 0, rounded<do_ceil>),
    plain("round", 0, rounded<do_round>),
    plain("trunc", 0, rounded<do_trunc>),
    plain("abs", 0, rounded<do_abs>),
    plain("fabs", 0, rounded<do_abs>),
    plain("sqrt", 0, sqrt),
    plain("not", 0, negation),
    plain("type", 0, type),
    plain("length", 0, length),
    plain("error", 0, raise_error),
    {.name = "error", .args_min = 1, .args_max = 1, .apply = raise_error},
    plain("contains", 1, contains_arg),
    plain("inside", 1, inside),
    plain("has", 1, has_arg),
    plain("in", 1, in_arg),
    plain("getpath", 1, getpath),
    plain("keys", 0, keys),
    plain("keys_unsorted", 0, keys),
    plain("to_entries", 0, to_entries),
    plain("from_entries", 0, from_entries),
    plain("add", 0, add_all),
    plain("flatten", 0, flatten),
    plain("flatten", 1, flatten),
    plain("reverse", 0, reverse),
    plain("sort", 0, sort),
    plain("unique", 0, unique),
    plain("min", 0, least),
    plain("max", 0, greatest),
    plain("first", 0, first),
    plain("last", 0, last),
    plain("nth", 1, nth),
    plain("transpose", 0, transpose),
    plain("toarray", 0, toarray),
    by_key("sort_by", sort),
    by_key("group_by", group_by),
    by_key("unique_by", unique),
    by_key("min_by", least),
    by_key("max_by", greatest),
};

}  // namespace

bool arithmetic(Eval& eval, const Node& node, const Value& a, const Value& b, Value& out) {
  switch (node.op) {
    case Op::add:
      return add(eval, node, a, b, out);
    case Op::subtract:
      return subtract(eval, node, a, b, out);
    case Op::multiply:
      return multiply(eval, node, a, b, out);
    case Op::divide:
      return divide(eval, node, a, b, out);
    default:
      return modulo(eval, node, a, b, out);
  }
}

std::span<const Function> value_functions() { return kValueFunctions; }

}  // namespace ae::expr
