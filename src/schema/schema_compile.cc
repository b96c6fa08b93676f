// Compiles a JSON Schema to nodes: every keyword is checked and either stored, an annotation, or
// rejected.
//
// `$ref` becomes an edge between nodes, so a schema that refers to itself is a cycle of nodes.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <utility>

#include "schema/schema_nodes.h"

namespace ae {
namespace {

constexpr std::size_t kNodesMax = 100'000;  // subschemas of one schema
constexpr std::size_t kSchemaDepthMax = 128;
constexpr std::int64_t kPatternMemory = 1 << 20;
constexpr std::string_view kDialect = "https://json-schema.org/draft/2020-12/schema";

constexpr std::string_view kAnnotations[] = {
    "$comment", "title",     "description",     "default",          "examples",     "deprecated",
    "readOnly", "writeOnly", "contentEncoding", "contentMediaType", "contentSchema"};

struct UnsupportedKeyword {
  std::string_view keyword;
  std::string_view why;
};
constexpr UnsupportedKeyword kUnsupportedKeywords[] = {
    {"$id", "a schema has no address of its own here; refer with `$ref: \"#/$defs/…\"`"},
    {"$dynamicRef", "dynamic references are not supported; use `$ref`"},
    {"$dynamicAnchor", "dynamic references are not supported; use `$anchor`"},
    {"$vocabulary", "schemas that define vocabularies are not supported"},
    {"$recursiveRef", "this is a keyword of draft 2019-09; use `$ref`"},
    {"$recursiveAnchor", "this is a keyword of draft 2019-09; use `$anchor`"},
    {"definitions", "this is a keyword of older drafts; use `$defs`"},
    {"dependencies",
     "this is a keyword of older drafts; use `dependentRequired` or `dependentSchemas`"},
    {"additionalItems", "this is a keyword of older drafts; use `prefixItems` and `items`"},
    {"id", "this is a keyword of older drafts"},
    {"nullable", "this is a keyword of OpenAPI 3.0; use `type: [\"…\", \"null\"]`"},
};

struct CompileError {
  std::string pointer;
  std::string why;
};

}  // namespace

std::string pointer_token(std::string_view key) {
  std::string token;
  for (const char c : key) {
    if (c == '~') {
      token += "~0";
    } else if (c == '/') {
      token += "~1";
    } else {
      token += c;
    }
  }
  return token;
}

// Compiles a schema to nodes. Errors are thrown and caught within this file.
class Schema::Compiled::Compiler {
 public:
  Compiler(const Value& schema, Compiled& out) : schema_(schema), out_(out) {}

  void run() {
    out_.root = node_at(schema_, "", 0);
    // A reference may point to a place that no keyword reached; compiling it may add references.
    for (std::size_t i = 0; i < refs_.size(); ++i) resolve(Ref(refs_[i]));
  }

 private:
  struct Ref {
    Node* from;
    std::string target;
  };

  [[noreturn]] static void refuse(std::string pointer, std::string why) {
    throw CompileError{std::move(pointer), std::move(why)};
  }

  const Node* node_at(const Value& schema, const std::string& pointer, std::size_t depth) {
    if (const auto known = by_pointer_.find(pointer); known != by_pointer_.end()) {
      return known->second;
    }
    if (depth > kSchemaDepthMax) refuse(pointer, "the schema nests too deep");
    if (!schema.is_bool() && !schema.is_object()) {
      refuse(pointer, "a schema is an object, true or false");
    }
    if (out_.nodes.size() >= kNodesMax) refuse(pointer, "the schema has too many parts");
    Node& node = out_.nodes.emplace_back();
    by_pointer_.emplace(pointer, &node);
    node.pointer = pointer;
    node.rejects_all = schema.is_bool() && !schema.as_bool();
    if (schema.is_object()) {
      for (const auto& [key, value] : schema.members()) {
        keyword(node, key, value, {fmt::format("{}/{}", pointer, pointer_token(key)), depth + 1});
      }
    }
    return &node;
  }

  // The position of a keyword.
  struct At {
    std::string pointer;
    std::size_t depth = 0;
  };

  void keyword(Node& n, std::string_view key, const Value& v, const At& at) {
    const bool known = reference_keyword(n, key, v, at) || plain_keyword(n, key, v, at) ||
                       number_keyword(n, key, v, at) || object_keyword(n, key, v, at) ||
                       array_keyword(n, key, v, at) || logic_keyword(n, key, v, at);
    if (known || std::ranges::find(kAnnotations, key) != std::end(kAnnotations)) return;
    for (const UnsupportedKeyword& refused : kUnsupportedKeywords) {
      if (refused.keyword == key) refuse(at.pointer, std::string(refused.why));
    }
    refuse(at.pointer, "there is no such keyword in JSON Schema 2020-12");
  }

  bool reference_keyword(Node& n, std::string_view key, const Value& v, const At& at) {
    if (key == "$ref") {
      if (!v.is_string() || !v.as_string().starts_with('#')) {
        refuse(at.pointer, "only references within the schema are followed, as in `#/$defs/…`");
      }
      refs_.push_back({&n, v.as_string()});
    } else if (key == "$defs") {
      for_each_schema(v, at, [](const std::string&, const Node*) {});
    } else if (key == "$anchor") {
      if (!v.is_string() || !is_anchor(v.as_string()))
        refuse(at.pointer, "an anchor is a plain name");
      if (!anchors_.emplace(v.as_string(), &n).second) {
        refuse(at.pointer, "duplicate anchor in the schema");
      }
    } else if (key == "$schema") {
      if (v != Value(kDialect) && v != Value(fmt::format("{}#", kDialect))) {
        refuse(at.pointer, fmt::format("only JSON Schema 2020-12 is supported: {}", kDialect));
      }
    } else {
      return false;
    }
    return true;
  }

  static bool is_anchor(std::string_view name) {
    const auto letter = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    };
    return !name.empty() && letter(name[0]) && std::ranges::all_of(name, [&](char c) {
      return letter(c) || (c >= '0' && c <= '9') || c == '-' || c == '.';
    });
  }

  bool plain_keyword(Node& n, std::string_view key, const Value& v, const At& at) {
    if (key == "type") {
      read_types(n, v, at);
    } else if (key == "enum" || key == "const") {
      if (key == "enum" && !v.is_array()) refuse(at.pointer, "an enum is an array of values");
      // `enum` and `const` together allow only the values in both.
      std::vector<Value> options =
          key == "enum" ? std::vector<Value>(v.items().begin(), v.items().end()) : std::vector{v};
      if (n.has_options) {
        std::erase_if(options, [&](const Value& option) {
          return std::ranges::find(n.options, option) == n.options.end();
        });
      }
      n.is_const = key == "const";
      n.has_options = true;
      n.options = std::move(options);
    } else if (key == "pattern") {
      if (!v.is_string()) refuse(at.pointer, "a pattern is a string");
      n.pattern = pattern(v.as_string(), at);
    } else if (key == "uniqueItems") {
      if (!v.is_bool()) refuse(at.pointer, "must be true or false");
      n.unique_items = v.as_bool();
    } else if (key == "format") {
      if (!v.is_string()) refuse(at.pointer, "a format is a string");
    } else {
      return false;
    }
    return true;
  }

  void read_types(Node& n, const Value& v, const At& at) {
    const std::vector<Value> names =
        v.is_array() ? std::vector<Value>(v.items().begin(), v.items().end()) : std::vector{v};
    for (const Value& name : names) {
      const auto found = std::ranges::find_if(
          kSchemaTypes, [&](const SchemaType& type) { return name == Value(type.name); });
      if (found == std::end(kSchemaTypes)) {
        refuse(at.pointer,
               "a type is one of null, boolean, number, integer, string, array, object");
      }
      n.types |= found->bit;
      if (!n.types_text.empty()) n.types_text += " or ";
      n.types_text += found->description;
    }
    if (n.types == 0) refuse(at.pointer, "at least one type must be named");
  }

  static Pattern pattern(const std::string& text, const At& at) {
    re2::RE2::Options options;
    options.set_log_errors(false);
    options.set_max_mem(kPatternMemory);
    Pattern result{.key = text, .regex = std::make_unique<re2::RE2>(text, options)};
    if (!result.regex->ok()) {
      refuse(at.pointer, fmt::format("this pattern is not supported ({}); patterns have no "
                                     "look-around and no back-references",
                                     result.regex->error()));
    }
    return result;
  }

  bool number_keyword(Node& n, std::string_view key, const Value& v, const At& at) {
    const std::pair<std::string_view, std::optional<double> Node::*> numbers[] = {
        {"multipleOf", &Node::multiple_of},
        {"maximum", &Node::maximum},
        {"exclusiveMaximum", &Node::exclusive_maximum},
        {"minimum", &Node::minimum},
        {"exclusiveMinimum", &Node::exclusive_minimum}};
    const std::pair<std::string_view, std::optional<double> Node::*> counts[] = {
        {"maxLength", &Node::max_length},         {"minLength", &Node::min_length},
        {"maxItems", &Node::max_items},           {"minItems", &Node::min_items},
        {"maxContains", &Node::max_contains},     {"minContains", &Node::min_contains},
        {"maxProperties", &Node::max_properties}, {"minProperties", &Node::min_properties}};
    for (const auto& [name, member] : numbers) {
      if (name != key) continue;
      if (!v.is_number()) refuse(at.pointer, "must be a number");
      if (key == "multipleOf" && v.as_number() <= 0) refuse(at.pointer, "must be greater than 0");
      n.*member = v.as_number();
      return true;
    }
    for (const auto& [name, member] : counts) {
      if (name != key) continue;
      if (!v.is_integer() || v.as_number() < 0) refuse(at.pointer, "must be an integer from 0 up");
      n.*member = v.as_number();
      return true;
    }
    return false;
  }

  template <class Visit>
  void for_each_schema(const Value& v, const At& at, Visit visit) {
    if (!v.is_object()) refuse(at.pointer, "must be an object of schemas");
    for (const auto& [name, schema] : v.members()) {
      visit(name,
            node_at(schema, fmt::format("{}/{}", at.pointer, pointer_token(name)), at.depth + 1));
    }
  }

  static std::vector<std::string> names(const Value& v, const std::string& pointer) {
    if (!v.is_array()) refuse(pointer, "must be an array of names");
    std::vector<std::string> result;
    for (const Value& name : v.items()) {
      if (!name.is_string()) refuse(pointer, "must be an array of names");
      result.push_back(name.as_string());
    }
    return result;
  }

  bool object_keyword(Node& n, std::string_view key, const Value& v, const At& at) {
    if (key == "required") {
      n.required = names(v, at.pointer);
    } else if (key == "dependentRequired") {
      if (!v.is_object()) refuse(at.pointer, "must be an object of arrays of names");
      for (const auto& [name, list] : v.members()) {
        n.dependent_required.push_back(
            {name, names(list, fmt::format("{}/{}", at.pointer, pointer_token(name)))});
      }
    } else if (key == "properties") {
      for_each_schema(v, at, [&](const std::string& name, const Node* schema) {
        n.properties.push_back({name, schema});
      });
    } else if (key == "dependentSchemas") {
      for_each_schema(v, at, [&](const std::string& name, const Node* schema) {
        n.dependent_schemas.push_back({name, schema});
      });
    } else if (key == "patternProperties") {
      for_each_schema(v, at, [&](const std::string& name, const Node* schema) {
        n.pattern_properties.push_back(
            pattern(name, {fmt::format("{}/{}", at.pointer, pointer_token(name))}));
        n.pattern_properties.back().schema = schema;
      });
    } else if (key == "additionalProperties") {
      n.additional_properties = node_at(v, at.pointer, at.depth);
    } else if (key == "propertyNames") {
      n.property_names = node_at(v, at.pointer, at.depth);
    } else if (key == "unevaluatedProperties") {
      n.unevaluated_properties = node_at(v, at.pointer, at.depth);
    } else {
      return false;
    }
    return true;
  }

  void read_list(std::vector<const Node*>& out, const Value& v, const At& at) {
    if (!v.is_array() || v.size() == 0)
      refuse(at.pointer, "must be an array of schemas, not empty");
    for (std::size_t i = 0; i < v.size(); ++i) {
      out.push_back(node_at(v.items()[i], fmt::format("{}/{}", at.pointer, i), at.depth + 1));
    }
  }

  bool array_keyword(Node& n, std::string_view key, const Value& v, const At& at) {
    if (key == "prefixItems") {
      read_list(n.prefix_items, v, at);
    } else if (key == "items") {
      if (v.is_array()) refuse(at.pointer, "an array of schemas is called `prefixItems`");
      n.items = node_at(v, at.pointer, at.depth);
    } else if (key == "contains") {
      n.contains = node_at(v, at.pointer, at.depth);
    } else if (key == "unevaluatedItems") {
      n.unevaluated_items = node_at(v, at.pointer, at.depth);
    } else {
      return false;
    }
    return true;
  }

  bool logic_keyword(Node& n, std::string_view key, const Value& v, const At& at) {
    if (key == "allOf") {
      read_list(n.all_of, v, at);
    } else if (key == "anyOf") {
      read_list(n.any_of, v, at);
    } else if (key == "oneOf") {
      read_list(n.one_of, v, at);
    } else if (key == "not") {
      n.not_schema = node_at(v, at.pointer, at.depth);
    } else if (key == "if") {
      n.if_schema = node_at(v, at.pointer, at.depth);
    } else if (key == "then") {
      n.then_schema = node_at(v, at.pointer, at.depth);
    } else if (key == "else") {
      n.else_schema = node_at(v, at.pointer, at.depth);
    } else {
      return false;
    }
    return true;
  }

  // The reference is `#`, `#name` or `#/json/pointer`, percent-encoded as part of a URI.
  void resolve(const Ref& ref) {
    const std::string where = ref.from->pointer + "/$ref";
    std::string pointer;
    for (std::size_t i = 1; i < ref.target.size(); ++i) {
      if (ref.target[i] != '%') {
        pointer += ref.target[i];
        continue;
      }
      unsigned byte = 0;
      const char* digits = ref.target.data() + i + 1;
      if (i + 2 >= ref.target.size() ||
          std::from_chars(digits, digits + 2, byte, 16).ptr != digits + 2) {
        refuse(where, "`%` is followed by two hexadecimal digits");
      }
      pointer += static_cast<char>(byte);
      i += 2;
    }
    if (!pointer.empty() && pointer[0] != '/') {
      const auto anchor = anchors_.find(pointer);
      if (anchor == anchors_.end()) refuse(where, fmt::format("there is no anchor `{}`", pointer));
      ref.from->ref = anchor->second;
      return;
    }
    const Value* target = &schema_;
    std::string canonical_pointer;
    std::string_view rest = pointer;
    std::size_t depth = 0;
    while (!rest.empty()) {
      rest.remove_prefix(1);
      const std::string_view token = rest.substr(0, rest.find('/'));
      rest.remove_prefix(token.size());
      target = child(*target, unescaped(token));
      if (target == nullptr) refuse(where, fmt::format("there is nothing at `{}`", pointer));
      canonical_pointer += "/" + pointer_token(unescaped(token));
      ++depth;
    }
    ref.from->ref = node_at(*target, canonical_pointer, depth);
  }

  static std::string unescaped(std::string_view token) {
    std::string text;
    for (std::size_t i = 0; i < token.size(); ++i) {
      const bool escape = token[i] == '~' && i + 1 < token.size();
      text += !escape ? token[i] : token[i + 1] == '1' ? '/' : '~';
      if (escape) ++i;
    }
    return text;
  }

  static const Value* child(const Value& v, const std::string& key) {
    if (v.is_object()) return v.find(key);
    if (!v.is_array()) return nullptr;
    std::size_t i = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), i);
    const bool index = error == std::errc() && end == key.data() + key.size();
    return index && i < v.size() ? &v.items()[i] : nullptr;
  }

  const Value& schema_;
  Compiled& out_;
  std::map<std::string, const Node*, std::less<>> by_pointer_;
  std::map<std::string, const Node*, std::less<>> anchors_;
  std::vector<Ref> refs_;
};

Result<std::shared_ptr<const Schema::Compiled>> Schema::Compiled::compile(const Value& schema) {
  auto compiled = std::make_shared<Compiled>();
  try {
    Compiler(schema, *compiled).run();
  } catch (const CompileError& fault) {
    return fail(Code::plan_invalid, "{}: {}", fault.pointer.empty() ? "the schema" : fault.pointer,
                fault.why);
  }
  return compiled;
}

}  // namespace ae
