// A compiled JSON Schema: one node for each subschema.
#pragma once

#include <re2/re2.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "schema/schema.h"

namespace ae {

// Bits of the types that a schema allows. Every integer is also a number.
using TypeBits = std::uint8_t;
struct SchemaType {
  std::string_view name;
  TypeBits bit;
  std::string_view description;
};
inline constexpr SchemaType kSchemaTypes[] = {
    {"null", 1, "null"},          {"boolean", 2, "a boolean"}, {"number", 4, "a number"},
    {"integer", 8, "an integer"}, {"string", 16, "a string"},  {"array", 32, "an array"},
    {"object", 64, "an object"}};

// A key as a token of a JSON pointer.
std::string pointer_token(std::string_view key);

// One subschema. Pointers to other nodes stay valid: nodes are never moved.
struct Schema::Compiled {
  struct Node;
  struct Pattern {
    std::string key;
    std::unique_ptr<re2::RE2> regex;
    const Node* schema = nullptr;  // patternProperties
  };
  struct KeyedSchema {
    std::string key;
    const Node* schema = nullptr;
  };
  struct KeyedNames {
    std::string key;
    std::vector<std::string> names;
  };

  struct Node {
    std::string pointer;
    bool rejects_all = false;  // the schema `false`
    TypeBits types = 0;        // 0: any
    std::string types_text;
    std::vector<Value> options;  // enum, const
    bool has_options = false;
    bool is_const = false;
    std::optional<double> multiple_of, maximum, exclusive_maximum, minimum, exclusive_minimum;
    std::optional<double> max_length, min_length, max_items, min_items, max_contains, min_contains,
        max_properties, min_properties;
    bool unique_items = false;
    std::optional<Pattern> pattern;
    std::vector<std::string> required;
    std::vector<KeyedNames> dependent_required;
    std::vector<KeyedSchema> properties, dependent_schemas;  // sorted by key
    std::vector<Pattern> pattern_properties;
    const Node* additional_properties = nullptr;
    const Node* property_names = nullptr;
    const Node* unevaluated_properties = nullptr;
    std::vector<const Node*> prefix_items;
    const Node* items = nullptr;
    const Node* contains = nullptr;
    const Node* unevaluated_items = nullptr;
    std::vector<const Node*> all_of, any_of, one_of;
    const Node* not_schema = nullptr;
    const Node* if_schema = nullptr;
    const Node* then_schema = nullptr;
    const Node* else_schema = nullptr;
    const Node* ref = nullptr;
  };

  std::deque<Node> nodes;
  const Node* root = nullptr;

  class Compiler;
  class Walk;

  // Fails with plan_invalid.
  static Result<std::shared_ptr<const Compiled>> compile(const Value& schema);
  std::vector<SchemaViolation> validate(const Value& instance, std::size_t* work) const;
};

}  // namespace ae
