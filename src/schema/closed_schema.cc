// One walk over the places of a schema that can contain other schemas.
#include "schema/closed_schema.h"

#include <algorithm>
#include <string_view>

namespace ae {
namespace {

bool has_type(const Value& schema, std::string_view word) {
  const Value& type = schema["type"];
  if (type.is_string()) return type.as_string() == word;
  if (!type.is_array()) return false;
  return std::ranges::any_of(type.items(), [&](const Value& one) { return one == Value(word); });
}

bool describes_objects(const Value& schema) {
  return has_type(schema, "object") || schema["properties"].is_object();
}

// True if the rule is met by this schema and all schemas in it. A schema that is not an object
// meets it.
template <class Rule>
bool holds_for_all_subschemas(const Value& schema, Rule rule) {
  if (!schema.is_object()) return true;
  if (!rule(schema)) return false;
  for (const std::string_view key :
       {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}) {
    if (!schema[key].is_object()) continue;
    for (const auto& [name, below] : schema[key].members()) {
      if (!holds_for_all_subschemas(below, rule)) return false;
    }
  }
  for (const std::string_view key : {"anyOf", "allOf", "oneOf", "prefixItems"}) {
    if (!schema[key].is_array()) continue;
    for (const Value& below : schema[key].items()) {
      if (!holds_for_all_subschemas(below, rule)) return false;
    }
  }
  for (const std::string_view key : {"items", "additionalProperties", "not", "if", "then", "else",
                                     "contains", "propertyNames"}) {
    if (!holds_for_all_subschemas(schema[key], rule)) return false;
  }
  return true;
}

bool object_is_closed(const Value& schema) {
  return !describes_objects(schema) || schema["additionalProperties"] == Value(false);
}

bool object_is_complete(const Value& schema) {
  constexpr std::string_view kUnsupportedKeywords[] = {"allOf",
                                                       "oneOf",
                                                       "not",
                                                       "if",
                                                       "then",
                                                       "else",
                                                       "patternProperties",
                                                       "dependentRequired",
                                                       "dependentSchemas"};
  for (const std::string_view key : kUnsupportedKeywords) {
    if (schema.find(key) != nullptr) return false;
  }
  const Value& properties = schema["properties"];
  if (!properties.is_object()) return true;
  const Value& required = schema["required"];
  return std::ranges::all_of(properties.members(), [&](const Member& property) {
    return required.is_array() && std::ranges::any_of(required.items(), [&](const Value& name) {
             return name == Value(property.first);
           });
  });
}

}  // namespace

bool is_closed(const Value& schema) { return holds_for_all_subschemas(schema, object_is_closed); }

bool is_complete(const Value& schema) {
  return schema["type"] == Value("object") && schema.find("anyOf") == nullptr &&
         is_closed(schema) && holds_for_all_subschemas(schema, object_is_complete);
}

}  // namespace ae
