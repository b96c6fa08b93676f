// Walks a value along the nodes of a schema, with a budget.
//
// The marks for unevaluatedProperties and unevaluatedItems are collected only where a schema uses
// them.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "json/json.h"
#include "json/order.h"
#include "schema/schema_nodes.h"

namespace ae {
namespace {

constexpr std::size_t kViolationsMax = 16;
constexpr std::size_t kWorkMax = 4'000'000;  // nodes, items and compared values per validation
// The limit of nested subschemas, whether or not the value gets smaller.
constexpr std::size_t kWalkDepthMax = 512;

std::size_t code_points(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

// A number as digits × 10^exponent, with the fewest digits that identify it (at most 17).
struct Decimal {
  std::uint64_t digits = 0;
  int exponent = 0;
};

// REQUIRES: number > 0.
Decimal decimal(double number) {
  char text[40];
  const auto end =
      std::to_chars(text, text + sizeof text, number, std::chars_format::scientific).ptr;
  Decimal result;
  int behind_point = -1;
  const char* c = text;
  for (; c != end && *c != 'e'; ++c) {
    if (*c == '.') {
      behind_point = 0;
      continue;
    }
    result.digits = result.digits * 10 + static_cast<std::uint64_t>(*c - '0');
    if (behind_point >= 0) ++behind_point;
  }
  if (c != end) {
    ++c;
    if (*c == '+') ++c;
    std::from_chars(c, end, result.exponent);
  }
  result.exponent -= std::max(behind_point, 0);
  while (result.digits % 10 == 0) {
    result.digits /= 10;
    ++result.exponent;
  }
  return result;
}

// Exact for the decimal numbers as written: 0.3 is a multiple of 0.1. REQUIRES: a > 0.
bool is_multiple(const Decimal& a, const Decimal& b) {
  if (a.exponent < b.exponent) return false;  // `a` has no factor ten left
  std::uint64_t rest = a.digits % b.digits;   // below 10^17, so ten times that fits
  for (int i = b.exponent; i < a.exponent && rest != 0; ++i) rest = rest * 10 % b.digits;
  return rest == 0;
}

TypeBits type_of(const Value& v) {
  switch (v.kind()) {
    case Value::Kind::null:
      return 1;
    case Value::Kind::boolean:
      return 2;
    case Value::Kind::number:
      return v.as_number() == std::trunc(v.as_number()) ? 4 | 8 : 4;
    case Value::Kind::string:
      return 16;
    case Value::Kind::array:
      return 32;
    case Value::Kind::object:
      return 64;
  }
  return 0;
}

}  // namespace

// One validation: the budget, the violations so far, and the location in the value.
class Schema::Compiled::Walk {
 public:
  std::vector<SchemaViolation> run(const Node& top, const Value& instance) {
    walk(top, instance, nullptr, {.report = true});
    return std::move(violations_);
  }
  std::size_t spent() const { return kWorkMax - work_; }

 private:
  struct Location {
    const Location* parent = nullptr;
    std::string_view key;
    std::size_t index = 0;
    bool is_index = false;
  };

  struct WalkOptions {
    bool report = false;  // collect violations; else the first one ends the walk
    std::vector<bool>* evaluated =
        nullptr;  // marks the members or items that a schema has evaluated
  };

  // The context of one subschema.
  struct Context {
    const Node& n;
    const Value& v;
    const Location* location;
    bool report;
    std::vector<bool>* evaluated;
  };

  bool walk(const Node& n, const Value& v, const Location* location, WalkOptions walk_options) {
    if (stopped_ || !spend(1)) return false;
    if (depth_ >= kWalkDepthMax) {
      return stop("nests too deep to be checked, or the schema refers to itself without end");
    }
    std::vector<bool> evaluated;
    const bool needs_marks = walk_options.evaluated != nullptr ||
                             n.unevaluated_properties != nullptr || n.unevaluated_items != nullptr;
    if (needs_marks) {
      if (!spend(v.size() / 8)) return false;
      evaluated.assign(v.size(), false);
    }
    ++depth_;
    const Context context{n, v, location, walk_options.report, needs_marks ? &evaluated : nullptr};
    const bool ok = all_of(context) && !stopped_;
    if (ok && walk_options.evaluated != nullptr) {
      for (std::size_t i = 0; i < evaluated.size(); ++i) {
        if (evaluated[i]) (*walk_options.evaluated)[i] = true;
      }
    }
    --depth_;
    return ok;
  }

  using Check = bool (Walk::*)(const Context&);
  bool all_of(const Context& h) {
    constexpr Check kChecks[] = {&Walk::value_itself, &Walk::number,     &Walk::text,
                                 &Walk::in_place,     &Walk::conditions, &Walk::array,
                                 &Walk::object,       &Walk::unevaluated};
    bool ok = true;
    for (const Check check : kChecks) {
      ok = (this->*check)(h) && ok;
      if (!ok && has_enough_violations(h)) return false;
    }
    return ok;
  }

  bool has_enough_violations(const Context& h) const {
    return stopped_ || !h.report || violations_.size() >= kViolationsMax;
  }

  // Violations.

  // `make_message` makes the message; called only if the violation is reported.
  template <class MakeMessage>
  bool add_violation(const Context& h, std::string_view keyword, const MakeMessage& make_message) {
    if (!h.report || violations_.size() >= kViolationsMax) return false;
    std::string path = keyword.empty() ? h.n.pointer : fmt::format("{}/{}", h.n.pointer, keyword);
    violations_.push_back({pointer(h.location), std::move(path), std::string(make_message())});
    spend(violations_.back().instance_path.size() / 64);
    return false;
  }

  bool stop(std::string message) {
    if (!stopped_) violations_.push_back({"", "", std::move(message)});
    stopped_ = true;
    return false;
  }

  bool spend(std::size_t n) {
    if (n > work_) {
      work_ = 0;
      return stop("takes too much work to be checked against this schema");
    }
    work_ -= n;
    return true;
  }

  static std::string pointer(const Location* location) {
    std::vector<const Location*> places;
    for (; location != nullptr; location = location->parent) places.push_back(location);
    std::string text;
    for (auto i = places.rbegin(); i != places.rend(); ++i) {
      text += (*i)->is_index ? fmt::format("/{}", (*i)->index) : "/" + pointer_token((*i)->key);
    }
    return text;
  }

  static std::string description(double number) {
    std::string text;
    write_canonical_number(number, text);
    return text;
  }

  static std::string quoted(std::string_view string) {
    constexpr std::size_t kShownMax = 80;
    std::string text;
    if (string.size() <= kShownMax) write_canonical_string(string, text);
    return !text.empty() && text.size() <= kShownMax ? text : "a long string";
  }
  static std::string description(const Value& value) {
    if (value.is_string()) return quoted(value.as_string());
    if (value.is_array() || value.is_object()) return value.is_array() ? "[…]" : "{…}";
    return canonical(value);
  }

  // Looks up a member and spends its cost: a binary search compares long keys repeatedly.
  const Value* find(const Context& h, std::string_view key) {
    if (!spend(1 + find_cost(h.v.size(), key))) return nullptr;
    return h.v.find(key);
  }

  // Keywords.

  bool value_itself(const Context& h) {
    if (h.n.rejects_all) {
      return add_violation(h, "", [] { return "is not allowed here"; });
    }
    bool ok = true;
    if (h.n.types != 0 && (h.n.types & type_of(h.v)) == 0) {
      ok = add_violation(h, "type", [&] { return fmt::format("must be {}", h.n.types_text); });
    }
    if (!h.n.has_options) return ok;
    for (const Value& option : h.n.options) {
      const auto result = compare_values(option, h.v, work_);
      if (!result) return spend(1);
      if (*result == 0) return ok;
    }
    return add_violation(h, h.n.is_const ? "const" : "enum", [&] {
      std::string message = h.n.is_const ? "must be " : "must be one of ";
      for (std::size_t i = 0; i < std::min<std::size_t>(h.n.options.size(), 8); ++i) {
        message += (i == 0 ? "" : ", ") + description(h.n.options[i]);
      }
      if (h.n.options.size() > 8) message += ", …";
      return message;
    });
  }

  bool multiple(const Context& h, double number) {
    if (number == 0) return true;
    const Decimal a = decimal(std::fabs(number));
    const Decimal of = decimal(*h.n.multiple_of);
    if (!spend(1 + static_cast<std::size_t>(std::max(a.exponent - of.exponent, 0)) / 4)) {
      return false;
    }
    if (is_multiple(a, of)) return true;
    return add_violation(h, "multipleOf", [&] {
      return fmt::format("must be a multiple of {}", description(*h.n.multiple_of));
    });
  }

  bool number(const Context& h) {
    if (!h.v.is_number()) return true;
    const Node& n = h.n;
    const double d = h.v.as_number();
    bool ok = !n.multiple_of || multiple(h, d);
    const auto out_of_bounds = [&](std::string_view keyword, std::string_view requirement,
                                   double bound) {
      return add_violation(h, keyword,
                           [&] { return fmt::format("{} {}", requirement, description(bound)); });
    };
    if (n.maximum && d > *n.maximum) ok = out_of_bounds("maximum", "must be at most", *n.maximum);
    if (n.exclusive_maximum && d >= *n.exclusive_maximum) {
      ok = out_of_bounds("exclusiveMaximum", "must be less than", *n.exclusive_maximum);
    }
    if (n.minimum && d < *n.minimum) ok = out_of_bounds("minimum", "must be at least", *n.minimum);
    if (n.exclusive_minimum && d <= *n.exclusive_minimum) {
      ok = out_of_bounds("exclusiveMinimum", "must be greater than", *n.exclusive_minimum);
    }
    return ok;
  }

  // Checks `count` against a minimum and a maximum; `what` as in "characters".
  bool counted(const Context& h, std::size_t count, std::string_view what,
               std::pair<std::string_view, std::optional<double>> least,
               std::pair<std::string_view, std::optional<double>> most) {
    const auto c = static_cast<double>(count);
    bool ok = true;
    const auto check_count = [&](std::string_view keyword, std::string_view bound, double number) {
      return add_violation(h, keyword, [&] {
        return fmt::format("must have at {} {} {}", bound, description(number), what);
      });
    };
    if (least.second && c < *least.second) ok = check_count(least.first, "least", *least.second);
    if (most.second && c > *most.second) ok = check_count(most.first, "most", *most.second);
    return ok;
  }

  bool matches(const re2::RE2& regex, const std::string& text) {
    const auto size = static_cast<std::size_t>(std::max(regex.ProgramSize(), 1));
    return spend(1 + text.size() * size / 16) && re2::RE2::PartialMatch(text, regex);
  }

  bool text(const Context& h) {
    if (!h.v.is_string()) return true;
    const std::string& text = h.v.as_string();
    bool ok = true;
    if (h.n.min_length || h.n.max_length) {
      if (!spend(text.size() / 64)) return false;
      ok = counted(h, code_points(text), "characters", {"minLength", h.n.min_length},
                   {"maxLength", h.n.max_length});
    }
    if (h.n.pattern && !matches(*h.n.pattern->regex, text)) {
      ok = add_violation(h, "pattern", [&] {
        return fmt::format("must match the pattern {}", quoted(h.n.pattern->key));
      });
    }
    return ok;
  }

  // Subschemas of the same value.

  bool apply_in_place(const Context& h, const Node& schema) {
    return walk(schema, h.v, h.location, {.report = h.report, .evaluated = h.evaluated});
  }
  bool is_valid_quietly(const Context& h, const Node& schema) {
    return walk(schema, h.v, h.location, {.report = false, .evaluated = h.evaluated});
  }

  bool in_place(const Context& h) {
    const Node& n = h.n;
    bool ok = true;
    if (n.ref != nullptr && !apply_in_place(h, *n.ref)) ok = false;
    for (const Node* schema : n.all_of) {
      if (!ok && has_enough_violations(h)) return false;
      if (!apply_in_place(h, *schema)) ok = false;
    }
    if (!n.any_of.empty()) {
      bool any = false;
      for (const Node* schema : n.any_of) {
        if (is_valid_quietly(h, *schema)) any = true;
        if (any && h.evaluated == nullptr) break;
      }
      if (!any) {
        ok = add_violation(h, "anyOf",
                           [] { return "must match at least one of the schemas of anyOf"; });
      }
    }
    if (!n.one_of.empty()) {
      std::size_t matching = 0;
      for (const Node* schema : n.one_of) matching += is_valid_quietly(h, *schema) ? 1 : 0;
      if (matching != 1) {
        ok = add_violation(h, "oneOf", [&] {
          return fmt::format("must match exactly one of the schemas of oneOf, not {}",
                             matching == 0 ? "none" : std::to_string(matching));
        });
      }
    }
    return ok;
  }

  bool conditions(const Context& h) {
    const Node& n = h.n;
    bool ok = true;
    if (n.not_schema != nullptr && walk(*n.not_schema, h.v, h.location, {})) {
      ok = add_violation(h, "not", [] { return "must not match the schema of not"; });
    }
    if (n.if_schema != nullptr) {
      const Node* branch = is_valid_quietly(h, *n.if_schema) ? n.then_schema : n.else_schema;
      if (branch != nullptr && !stopped_ && !apply_in_place(h, *branch)) ok = false;
    }
    for (const KeyedSchema& dependent : n.dependent_schemas) {
      if (find(h, dependent.key) != nullptr && !apply_in_place(h, *dependent.schema)) ok = false;
      if (!ok && has_enough_violations(h)) return false;
    }
    return ok;
  }

  // Subschemas of items and members.

  bool item(const Context& h, std::size_t i, const Node& schema, bool report) {
    const Location location{.parent = h.location, .index = i, .is_index = true};
    return walk(schema, h.v.items()[i], &location, {.report = report});
  }
  bool member(const Context& h, const Member& m, const Node& schema) {
    const Location location{.parent = h.location, .key = m.first};
    return walk(schema, m.second, &location, {.report = h.report});
  }
  static void mark(const Context& h, std::size_t i) {
    if (h.evaluated != nullptr) (*h.evaluated)[i] = true;
  }

  bool array(const Context& h) {
    if (!h.v.is_array()) return true;
    const Node& n = h.n;
    bool ok = counted(h, h.v.size(), "items", {"minItems", n.min_items}, {"maxItems", n.max_items});
    for (std::size_t i = 0; i < h.v.size(); ++i) {
      const Node* schema = i < n.prefix_items.size() ? n.prefix_items[i] : n.items;
      if (schema == nullptr) break;
      if (!item(h, i, *schema, h.report)) ok = false;
      mark(h, i);
      if (!ok && has_enough_violations(h)) return false;
    }
    if (n.contains != nullptr && !contained(h)) ok = false;
    if (n.unique_items && !unique(h)) ok = false;
    return ok;
  }

  bool contained(const Context& h) {
    std::size_t matching = 0;
    for (std::size_t i = 0; i < h.v.size(); ++i) {
      if (!item(h, i, *h.n.contains, false)) continue;
      ++matching;
      mark(h, i);
    }
    if (stopped_) return false;
    const std::optional<double> least = h.n.min_contains ? h.n.min_contains : 1;
    return counted(h, matching, "items that match the schema of contains",
                   {h.n.min_contains ? "minContains" : "contains", least},
                   {"maxContains", h.n.max_contains});
  }

  bool unique(const Context& h) {
    if (!spend(h.v.size())) return false;
    std::vector<const Value*> items;
    for (const Value& v : h.v.items()) items.push_back(&v);
    bool ok = true;
    const auto compare = [&](const Value* a, const Value* b) {
      const auto result = ok ? compare_values(*a, *b, work_) : std::nullopt;
      ok = result.has_value();
      return result.value_or(std::strong_ordering::equal);
    };
    // After the work limit the comparison is always false, which ends every loop of the sort.
    std::stable_sort(items.begin(), items.end(),
                     [&](const Value* a, const Value* b) { return compare(a, b) < 0; });
    for (std::size_t i = 1; i < items.size() && ok; ++i) {
      if (compare(items[i - 1], items[i]) == 0 && ok) {
        return add_violation(h, "uniqueItems", [] { return "must not have equal items"; });
      }
    }
    return ok || spend(1);
  }

  bool object(const Context& h) {
    if (!h.v.is_object()) return true;
    const Node& n = h.n;
    bool ok = counted(h, h.v.size(), "members", {"minProperties", n.min_properties},
                      {"maxProperties", n.max_properties});
    if (!has(h, "required", n.required)) ok = false;
    for (const KeyedNames& dependent : n.dependent_required) {
      if (!ok && has_enough_violations(h)) return false;
      if (find(h, dependent.key) == nullptr) continue;
      if (!has(h, "dependentRequired", dependent.names)) ok = false;
    }
    if (stopped_) return false;
    if (n.properties.empty() && n.pattern_properties.empty() &&
        n.additional_properties == nullptr && n.property_names == nullptr) {
      return ok;
    }
    for (std::size_t i = 0; i < h.v.size(); ++i) {
      if (!one_member(h, i)) ok = false;
      if (!ok && has_enough_violations(h)) return false;
    }
    return ok;
  }

  // True if the value has members with all these names.
  bool has(const Context& h, std::string_view keyword, const std::vector<std::string>& names) {
    bool ok = true;
    for (const std::string& name : names) {
      if (find(h, name) != nullptr) continue;
      ok = !stopped_ && add_violation(h, keyword, [&] {
        return fmt::format("must have the member {}", quoted(name));
      });
      if (!ok && has_enough_violations(h)) return false;
    }
    return ok;
  }

  bool one_member(const Context& h, std::size_t i) {
    const Node& n = h.n;
    const Member& m = h.v.members()[i];
    bool ok = true;
    bool is_evaluated = false;
    const std::size_t copied = n.property_names != nullptr ? m.first.size() / 64 : 0;
    if (!spend(1 + copied + find_cost(n.properties.size(), m.first))) return false;
    if (n.property_names != nullptr) {
      const Location location{.parent = h.location, .key = m.first};
      if (!walk(*n.property_names, Value(m.first), &location, {.report = h.report})) ok = false;
    }
    const auto property = std::lower_bound(
        n.properties.begin(), n.properties.end(), m.first,
        [](const KeyedSchema& a, const std::string& key) { return key_less(a.key, key); });
    if (property != n.properties.end() && property->key == m.first) {
      is_evaluated = true;
      if (!member(h, m, *property->schema)) ok = false;
    }
    for (const Pattern& pattern : n.pattern_properties) {
      if (!matches(*pattern.regex, m.first)) continue;
      is_evaluated = true;
      if (!member(h, m, *pattern.schema)) ok = false;
    }
    if (!is_evaluated && n.additional_properties != nullptr) {
      is_evaluated = true;
      if (!member(h, m, *n.additional_properties)) ok = false;
    }
    if (is_evaluated) mark(h, i);
    return ok;
  }

  // Applies to the items or members that no other keyword evaluated, neither of this schema nor of
  // those that it applies to the same value.
  bool unevaluated(const Context& h) {
    bool ok = true;
    const bool of_items = h.v.is_array() && h.n.unevaluated_items != nullptr;
    const bool of_members = h.v.is_object() && h.n.unevaluated_properties != nullptr;
    if (!of_items && !of_members) return true;
    for (std::size_t i = 0; i < h.v.size(); ++i) {
      if ((*h.evaluated)[i]) continue;
      if (of_items ? !item(h, i, *h.n.unevaluated_items, h.report)
                   : !member(h, h.v.members()[i], *h.n.unevaluated_properties)) {
        ok = false;
      }
      (*h.evaluated)[i] = true;
      if (!ok && has_enough_violations(h)) return false;
    }
    return ok;
  }

  std::size_t work_ = kWorkMax;
  std::size_t depth_ = 0;
  bool stopped_ = false;
  std::vector<SchemaViolation> violations_;
};

std::vector<SchemaViolation> Schema::Compiled::validate(const Value& instance,
                                                        std::size_t* work) const {
  Walk walk;
  std::vector<SchemaViolation> faults = walk.run(*root, instance);
  if (work != nullptr) *work += walk.spent();
  return faults;
}

}  // namespace ae
