#include "inspect/json_patch.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "log/field_names.h"

namespace ae::engine {
namespace {

using Values = std::span<const Value>;

// "~" and "/" are escaped in a JSON Pointer.
std::string escaped(std::string_view name) {
  std::string text;
  for (const char c : name) {
    if (c == '~') {
      text += "~0";
    } else if (c == '/') {
      text += "~1";
    } else {
      text += c;
    }
  }
  return text;
}

// The positions of objects by the value of this member; nullopt: it does not identify all of them.
using Positions = std::unordered_map<std::string_view, std::size_t>;
std::optional<Positions> positions_by(Values objects, std::string_view member) {
  Positions positions;
  for (std::size_t i = 0; i < objects.size(); ++i) {
    const Value* const key = objects[i].is_object() ? objects[i].find(member) : nullptr;
    if (key == nullptr || !key->is_string()) return std::nullopt;
    if (!positions.emplace(key->as_string(), i).second) return std::nullopt;
  }
  return positions;
}

class PatchBuilder {
 public:
  void compare(const Value& before, const Value& after, const std::string& path) {
    if (is_full() || before == after) return;
    if (before.is_object() && after.is_object()) return compare_objects(before, after, path);
    if (before.is_array() && after.is_array()) {
      return compare_lists(before.items(), after.items(), path);
    }
    add("replace", path, &before, &after);
  }
  Value take() && {
    const bool capped = changes_.size() > kChangesMax;
    if (capped) changes_.resize(kChangesMax);
    return Value::object({{"capped", capped}, {"changes", Value::array(std::move(changes_))}});
  }

 private:
  bool is_full() const { return changes_.size() > kChangesMax; }

  void add(std::string_view op, const std::string& path, const Value* before, const Value* after) {
    if (is_full()) return;
    const Value none{};
    const Value& step = step_ != nullptr ? *step_ : none;
    changes_.push_back(Value::object({{"before", before != nullptr ? *before : none},
                                      {field::node_id, step[field::node_id]},
                                      {"op", op},
                                      {"path", path},
                                      {field::step_id, step[field::step_id]},
                                      {field::value, after != nullptr ? *after : none}}));
  }

  void compare_objects(const Value& before, const Value& after, const std::string& path) {
    const Value* const outer = step_;
    if (after[field::step_id].is_string()) step_ = &after;
    for (const auto& [name, value] : before.members()) {
      if (after.find(name) == nullptr) add("remove", path + "/" + escaped(name), &value, nullptr);
    }
    for (const auto& [name, value] : after.members()) {
      const std::string inner = path + "/" + escaped(name);
      const Value* const known = before.find(name);
      if (known == nullptr) {
        add("add", inner, nullptr, &value);
      } else {
        compare(*known, value, inner);
      }
    }
    step_ = outer;
  }

  void compare_lists(Values before, Values after, const std::string& path) {
    for (const std::string_view member :
         {std::string_view(field::step_id), std::string_view(field::correlation_key),
          std::string_view(field::idempotency_key), std::string_view("id")}) {
      const auto from = positions_by(before, member);
      const auto to = from ? positions_by(after, member) : std::nullopt;
      if (to && compare_by_key(before, after, *from, *to, member, path)) return;
    }
    compare_by_position(before, after, path);
  }

  // False: the objects that both lists have are in another order.
  bool compare_by_key(Values before, Values after, const Positions& from, const Positions& to,
                      std::string_view member, const std::string& path) {
    std::vector<std::pair<std::size_t, std::size_t>>
        same;  // positions in both, in the order of `after`
    for (std::size_t i = 0; i < after.size(); ++i) {
      const auto known = from.find(after[i].text(member));
      if (known != from.end()) same.emplace_back(known->second, i);
    }
    if (!std::ranges::is_sorted(same)) return false;
    for (std::size_t i = before.size(); i-- > 0;) {
      if (!to.contains(before[i].text(member))) remove(before[i], path, i);
    }
    for (std::size_t i = 0; i < after.size(); ++i) {
      if (!from.contains(after[i].text(member))) insert(after[i], path, i);
    }
    for (const auto& [i, j] : same) compare(before[i], after[j], path + "/" + std::to_string(j));
    return true;
  }

  void compare_by_position(Values before, Values after, const std::string& path) {
    std::size_t first = 0, end = 0;
    const std::size_t shorter = std::min(before.size(), after.size());
    while (first < shorter && before[first] == after[first]) ++first;
    while (end < shorter - first &&
           before[before.size() - 1 - end] == after[after.size() - 1 - end]) {
      ++end;
    }
    for (std::size_t i = first; i < shorter - end; ++i) {
      compare(before[i], after[i], path + "/" + std::to_string(i));
    }
    for (std::size_t i = before.size() - end; i-- > shorter - end;) remove(before[i], path, i);
    for (std::size_t i = shorter - end; i < after.size() - end; ++i) insert(after[i], path, i);
  }

  void remove(const Value& value, const std::string& path, std::size_t at) {
    with_step(value, [&] { add("remove", path + "/" + std::to_string(at), &value, nullptr); });
  }
  void insert(const Value& value, const std::string& path, std::size_t at) {
    with_step(value, [&] { add("add", path + "/" + std::to_string(at), nullptr, &value); });
  }
  void with_step(const Value& value, const auto& change) {
    const Value* const outer = step_;
    if (value.is_object() && value[field::step_id].is_string()) step_ = &value;
    change();
    step_ = outer;
  }

  std::vector<Value> changes_;
  const Value* step_ = nullptr;
};

}  // namespace

Value json_patch(const Value& before, const Value& after) {
  PatchBuilder patch;
  patch.compare(before, after, "");
  return std::move(patch).take();
}

}  // namespace ae::engine
