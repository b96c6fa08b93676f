// Paths: evaluates `.a`, `[key]`, `[from:to]` and `[]` on a value.
#include <fmt/core.h>

#include <cmath>
#include <utility>

#include "base/utf8.h"
#include "expr/expr_eval.h"
#include "expr/expr_functions.h"
#include "json/order.h"

namespace ae::expr {
namespace {

// The byte offset of the n-th code point.
std::size_t code_point_offset(std::string_view text, std::size_t n) {
  std::size_t i = 0;
  for (; i < text.size(); ++i) {
    const bool starts = (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80;
    if (starts && n-- == 0) break;
  }
  return i;
}

// Shortens a name, which may come from a document, without splitting a character.
std::string quoted_name(std::string_view name) {
  return fmt::format("`{}`", truncate_utf8(name, 80));
}

struct Range {
  std::size_t from = 0;
  std::size_t to = 0;
};

// Negative bounds count from the end; fractional bounds include the whole item.
Range slice_range(const Value* from, const Value* to, std::size_t size) {
  const auto length = static_cast<double>(size);
  const auto bound = [&](const Value* v, double otherwise) {
    double d = v != nullptr && v->is_number() ? v->as_number() : otherwise;
    if (d < 0) d += length;
    return std::min(std::max(d, 0.0), length);
  };
  const double start = std::floor(bound(from, 0));
  const double end = std::max(std::ceil(bound(to, length)), start);
  return {.from = static_cast<std::size_t>(start), .to = static_cast<std::size_t>(end)};
}

}  // namespace

Eval::Found Eval::not_found(const Suffix& s, std::string message) {
  if (s.optional) return Found::missing;
  fail_at(s.at, message);
  return Found::failed;
}

Eval::Found Eval::slice(const Suffix& s, const Value& v, const Value* from, const Value* to,
                        Value& out) {
  for (const Value* bound : {from, to}) {
    if (bound != nullptr && !bound->is_number() && !bound->is_null()) {
      return not_found(s, "a slice goes from number to number");
    }
  }
  if (v.is_null()) {
    out = Value();
    return Found::yes;
  }
  if (v.is_array()) {
    const Range range = slice_range(from, to, v.size());
    const auto items = v.items().subspan(range.from, range.to - range.from);
    if (!spend_at(s.at, items.size())) return Found::failed;
    out = Value::array({items.begin(), items.end()});
    return Found::yes;
  }
  if (v.is_string()) {
    const std::string& text = v.as_string();
    if (!spend_at(s.at, 1 + text.size() / 16)) return Found::failed;
    const Range range = slice_range(from, to, code_points(text));
    const std::size_t start = code_point_offset(text, range.from);
    const std::string_view rest = std::string_view(text).substr(start);
    out = Value(rest.substr(0, code_point_offset(rest, range.to - range.from)));
    return Found::yes;
  }
  return not_found(s, fmt::format("cannot take a slice of {}", kind_name(v)));
}

bool Eval::fails_on_null(const Node& path) const {
  if (null_is_accepted_) return false;
  const Node& source = *path.children[0];
  return scope_.fails_on_null(source.op == Op::root ? std::string_view(source.name)
                                                    : std::string_view());
}

bool Eval::is_of_closed_root(const Node& path, const Suffix& s) const {
  return &s == path.suffixes.data() && path.children[0]->op == Op::root &&
         scope_.is_closed(path.children[0]->name);
}

Eval::Found Eval::look_up(const Node& path, const Suffix& s, const Value& v, const Value* from,
                          const Value* to, const Value*& found, Value& storage) {
  const Found result = look_up(s, v, from, to, found, storage);
  if (result != Found::yes || !found->is_null()) return result;
  if (v.is_object() && is_of_closed_root(path, s)) {
    const std::string& name = s.kind == Suffix::Kind::field ? s.name : from->as_string();
    if (v.find(name) == nullptr) {
      fail_at(s.at,
              fmt::format("there is no {} in .{}", quoted_name(name), path.children[0]->name));
      return Found::failed;
    }
  }
  if (!fails_on_null(path)) return result;
  const std::string name = s.kind == Suffix::Kind::field ? s.name
                           : from && from->is_string()   ? from->as_string()
                                                         : std::string();
  return not_found(s, fmt::format("{} is null or missing; add a default: `… // other`",
                                  name.empty() ? "this value" : quoted_name(name)));
}

// `found` points into `v`, to null, or to `storage`.
Eval::Found Eval::look_up(const Suffix& s, const Value& v, const Value* from, const Value* to,
                          const Value*& found, Value& storage) {
  if (s.kind == Suffix::Kind::slice) {
    found = &storage;
    return slice(s, v, from, to, storage);
  }
  const bool by_name = s.kind == Suffix::Kind::field || from->is_string();
  const std::string& name = s.kind == Suffix::Kind::field || !by_name ? s.name : from->as_string();
  found = &null_value();
  if (by_name && !spend_at(s.at, find_cost(v.size(), name))) return Found::failed;
  if (v.is_object() && by_name) {
    const Value* member = v.find(name);
    if (member != nullptr) found = member;
    return Found::yes;
  }
  const bool by_number = !by_name && from->is_number();
  if (v.is_null() && (by_name || by_number)) return Found::yes;
  if (v.is_array() && by_number) {
    double i = from->as_number();
    if (i < 0) i += static_cast<double>(v.size());
    if (i >= 0 && i < static_cast<double>(v.size()) && i == std::floor(i)) {
      found = &v.items()[static_cast<std::size_t>(i)];
    }
    return Found::yes;
  }
  std::string what = by_name ? quoted_name(name) : std::string(kind_name(*from));
  if (by_number) what = "a number";
  return not_found(s, fmt::format("cannot look up {} in {}", what, kind_name(v)));
}

bool Eval::index(const Node& node, const Value& v, const Value& key, Value& out) {
  Suffix s;
  s.kind = Suffix::Kind::index;
  s.at = node.at;
  const Value* found = nullptr;
  Value storage;
  if (look_up(s, v, &key, nullptr, found, storage) != Found::yes) return false;
  out = Value(*found);
  return true;
}

bool Eval::one_path(const Node& n, const Value& in, Value& out) {
  Value owned;
  const Value* at = &in;
  if (n.children[0]->op != Op::identity) {
    if (!one(*n.children[0], in, owned)) return false;
    at = &owned;
  }
  for (const Suffix& s : n.suffixes) {
    Value from;
    Value to;
    if (!spend_at(s.at, 1)) return false;
    if (s.from != nullptr && !one(*s.from, in, from)) return false;
    if (s.to != nullptr && !one(*s.to, in, to)) return false;
    const Value* found = nullptr;
    Value storage;
    if (look_up(n, s, *at, s.from ? &from : nullptr, s.to ? &to : nullptr, found, storage) !=
        Found::yes) {
      return false;
    }
    if (found == &storage) {
      owned = std::move(storage);
      found = &owned;
    }
    at = found;
  }
  out = Value(*at);
  return true;
}

// Evaluates the first `suffixes` suffixes of the path. The keys of the last one are the outer loop.
bool Eval::each_path(const Node& n, const Value& in, std::size_t suffixes, Sink sink) {
  if (suffixes == 0) return each(*n.children[0], in, sink);
  const Suffix& s = n.suffixes[suffixes - 1];
  const auto with_bounds = [&](const Value* from, const Value* to) {
    auto on_value = [&](const Value& v) { return each_suffix(n, s, v, from, to, sink); };
    return each_path(n, in, suffixes - 1, on_value);
  };
  const auto with_from = [&](const Value* from) {
    if (s.to == nullptr) return with_bounds(from, nullptr);
    auto on_value = [&](const Value& to) { return with_bounds(from, &to); };
    return each(*s.to, in, on_value);
  };
  if (s.from == nullptr) return with_from(nullptr);
  auto on_value = [&](const Value& from) { return with_from(&from); };
  return each(*s.from, in, on_value);
}

bool Eval::each_suffix(const Node& n, const Suffix& s, const Value& v, const Value* from,
                       const Value* to, Sink sink) {
  if (!spend_at(s.at, 1)) return false;
  if (s.kind != Suffix::Kind::iterate) {
    const Value* found = nullptr;
    Value storage;
    const Found result = look_up(n, s, v, from, to, found, storage);
    return result == Found::yes ? sink(*found) : result == Found::missing;
  }
  if (v.is_array()) {
    for (const Value& item : v.items()) {
      if (!spend_at(s.at, 1) || !sink(item)) return false;
    }
    return true;
  }
  if (v.is_object()) {
    for (const auto& [key, value] : v.members()) {
      if (!spend_at(s.at, 1) || !sink(value)) return false;
    }
    return true;
  }
  return not_found(s, fmt::format("cannot go through the items of {}", kind_name(v))) ==
         Found::missing;
}

}  // namespace ae::expr
