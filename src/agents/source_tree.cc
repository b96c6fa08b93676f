// SourceTree: names of its kinds, and building it within limits.
#include "agents/source_tree.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace ae::agents {

const SourceTree* SourceTree::find(std::string_view key) const {
  const auto found = std::ranges::find(keys, key, &Key::text);
  return found == keys.end() ? nullptr : &items[static_cast<std::size_t>(found - keys.begin())];
}

Value SourceTree::value() const {
  if (is_list()) {
    std::vector<Value> values;
    values.reserve(items.size());
    for (const SourceTree& item : items) values.push_back(item.value());
    return Value::array(std::move(values));
  }
  if (is_mapping()) {
    std::vector<Member> members;
    members.reserve(items.size());
    for (std::size_t i = 0; i < items.size(); ++i) {
      members.emplace_back(keys[i].text, items[i].value());
    }
    return Value::object(std::move(members));
  }
  return scalar;
}

std::string_view kind_name(const SourceTree& value) {
  if (value.is_list()) return "a list";
  if (value.is_mapping()) return "a mapping";
  switch (value.scalar.kind()) {
    case Value::Kind::boolean:
      return "true or false";
    case Value::Kind::number:
      return "a number";
    case Value::Kind::string:
      return "a string";
    default:
      return "nothing";
  }
}

bool SourceTreeBuilder::expects_key() const {
  return !open_.empty() && open_.back().value.is_mapping() && !open_.back().after_key;
}

bool SourceTreeBuilder::open(SourceTree::Kind kind, SourceLocation at) {
  if (open_.size() == kDepthMax) {
    diagnostics_.add(at,
                     {.path = {}, .message = "lists and mappings can nest at most 64 levels deep"});
    return false;
  }
  Open& open = open_.emplace_back();
  open.value.kind = kind;
  open.value.at = at;
  return true;
}

bool SourceTreeBuilder::close() {
  SourceTree value = std::move(open_.back().value);
  open_.pop_back();
  if (value.is_mapping()) drop_duplicate_keys(value);
  return add(std::move(value));
}

bool SourceTreeBuilder::scalar(Value value, SourceLocation at, bool is_invalid) {
  SourceTree located;
  located.at = at;
  located.scalar = std::move(value);
  located.is_invalid = is_invalid;
  return add(std::move(located));
}

void SourceTreeBuilder::key(std::string text, SourceLocation at) {
  open_.back().value.keys.push_back({std::move(text), at});
  open_.back().after_key = true;
}

bool SourceTreeBuilder::add(SourceTree value) {
  if (++values_ > kValuesMax) {
    diagnostics_.add(value.at, {.path = {}, .message = "a file can have at most 1,000,000 values"});
    return false;
  }
  if (open_.empty()) {
    root_ = std::move(value);
    done_ = true;
    return true;
  }
  open_.back().after_key = false;
  open_.back().value.items.push_back(std::move(value));
  return true;
}

// Keeps only the first of each key, so that the tree is a valid mapping.
void SourceTreeBuilder::drop_duplicate_keys(SourceTree& mapping) {
  std::vector<std::size_t> order(mapping.keys.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(
      order, {}, [&](std::size_t i) -> const std::string& { return mapping.keys[i].text; });
  std::vector<bool> twin(order.size(), false);
  for (std::size_t i = 1; i < order.size(); ++i) {
    const SourceTree::Key& key = mapping.keys[order[i]];
    if (key.text != mapping.keys[order[i - 1]].text) continue;
    twin[order[i]] = true;
    diagnostics_.add(key.at,
                     {.path = {}, .message = fmt::format("duplicate key {}", quote(key.text))});
  }
  if (std::ranges::find(twin, true) == twin.end()) return;
  SourceTree kept;
  kept.kind = mapping.kind;
  kept.at = mapping.at;
  for (std::size_t i = 0; i < twin.size(); ++i) {
    if (twin[i]) continue;
    kept.items.push_back(std::move(mapping.items[i]));
    kept.keys.push_back(std::move(mapping.keys[i]));
  }
  mapping = std::move(kept);
}

}  // namespace ae::agents
