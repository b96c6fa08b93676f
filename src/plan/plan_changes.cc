#include "plan/plan_changes.h"

#include <fmt/core.h>

#include <string>
#include <utility>
#include <vector>

namespace ae::engine {
namespace {

// The named parts of a task graph: nodes by id, members of objects, and the other members.
std::vector<Member> parts_of(const Value& graph) {
  std::vector<Member> parts;
  for (const auto& [name, value] : graph.members()) {
    if (name == "nodes" && value.is_array()) {
      for (const Value& node : value.items()) {
        parts.emplace_back(fmt::format("nodes.{}", node.text("id")), node);
      }
    } else if (value.is_object()) {
      for (const auto& [key, part] : value.members()) {
        parts.emplace_back(fmt::format("{}.{}", name, key), part);
      }
    } else {
      parts.emplace_back(name, value);
    }
  }
  return parts;
}

Value entry(std::string_view change, const std::string& path, std::vector<Value> fields = {}) {
  return Value::object(
      {{"change", change}, {"fields", Value::array(std::move(fields))}, {"path", path}});
}

std::vector<Value> differing_fields(const Value& before, const Value& after) {
  std::vector<Value> fields;
  if (!before.is_object() || !after.is_object()) return fields;
  for (const auto& [name, value] : after.members()) {
    const Value* const was = before.find(name);
    if (was == nullptr || *was != value) fields.emplace_back(name);
  }
  for (const auto& [name, value] : before.members()) {
    if (after.find(name) == nullptr) fields.emplace_back(name);
  }
  return fields;
}

}  // namespace

Value plan_changes(const Value& before, const Value& after) {
  // As objects, so that parts can be found by path.
  const Value old_parts = Value::object(parts_of(before));
  const Value new_parts = Value::object(parts_of(after));
  std::vector<Value> changes;
  for (const auto& [path, part] : parts_of(after)) {
    const Value* const was = old_parts.find(path);
    if (was == nullptr) {
      changes.push_back(entry("added", path));
    } else if (*was != part) {
      changes.push_back(entry("changed", path, differing_fields(*was, part)));
    }
  }
  for (const auto& [path, part] : parts_of(before)) {
    if (new_parts.find(path) == nullptr) changes.push_back(entry("removed", path));
  }
  return Value::array(std::move(changes));
}

}  // namespace ae::engine
