// Template: JSON values whose strings contain `${ … }`; compiled once, evaluated on one budget of
// fuel.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "expr/expr.h"
#include "expr/expr_eval.h"
#include "expr/expr_functions.h"
#include "expr/expr_lex.h"
#include "json/json.h"

namespace ae {

// One value of the template; parts without expressions are stored as whole values.
struct Template::Node {
  enum class Kind { constant, expression, text, array, object };
  Kind kind = Kind::constant;
  Value constant;
  std::vector<Part> parts;        // expression: exactly one; text: any
  std::vector<std::string> keys;  // object
  std::vector<Node> children;     // array, object
};

namespace {

struct PartsError {
  std::size_t offset = 0;
  Error error;
};

void add_literal(std::string text, std::vector<Template::Part>& out) {
  if (!text.empty()) out.emplace_back(std::move(text));
}

// The parts of a string; collects the errors of all its expressions.
std::vector<Template::Part> split(std::string_view text, const ExprLimits& limits,
                                  std::vector<PartsError>& faults) {
  std::vector<Template::Part> parts;
  std::string literal;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::string_view rest = text.substr(at);
    if (rest.starts_with("$${")) {
      literal += "${";
      at += 3;
    } else if (!rest.starts_with("${")) {
      literal += text[at++];
    } else {
      const std::size_t end = expr::expression_end(text, at + 2);
      if (end == text.npos) {
        faults.push_back(
            {at,
             {Code::plan_invalid,
              "line 1, column 1: the `${` is not closed: a `}` is missing (write `$${` "
              "for a literal `${`)"}});
        break;
      }
      auto expression = Expr::parse(text.substr(at + 2, end - at - 2), limits);
      add_literal(std::exchange(literal, {}), parts);
      if (expression) {
        parts.emplace_back(std::move(*expression));
      } else {
        faults.push_back({at, std::move(expression).error()});
      }
      at = end + 1;
    }
  }
  add_literal(std::move(literal), parts);
  return parts;
}

std::string pointer_step(std::string_view key) {
  std::string token = "/";
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

void merge(const ExprRoots& from, ExprRoots& into) {
  into.roots.insert(from.roots.begin(), from.roots.end());
  for (const auto& [names, needed] : from.args) {
    bool& is_needed = into.args[names];
    is_needed = is_needed || needed;
  }
  for (const auto& [root, names] : from.members) {
    into.members[root].insert(names.begin(), names.end());
  }
  into.steps.insert(from.steps.begin(), from.steps.end());
  into.all_steps = into.all_steps || from.all_steps;
}

}  // namespace

std::string field_at(std::string field, std::string_view pointer) {
  while (!pointer.empty()) {
    pointer.remove_prefix(1);
    const std::size_t end = std::min(pointer.find('/'), pointer.size());
    const std::string_view token = pointer.substr(0, end);
    const bool digits = token.find_first_not_of("0123456789") == token.npos;
    field += digits && !token.empty() ? fmt::format("[{}]", token) : fmt::format(".{}", token);
    pointer.remove_prefix(end);
  }
  return field;
}

std::string Template::Failure::text(const std::string& field) const {
  const std::string place = field_at(field, pointer);
  if (gives_null) return fmt::format("{}: {} is null", place, expression);
  std::string_view message = error.message;
  const std::string where = fmt::format("at {}: ", pointer);
  if (!pointer.empty() && message.starts_with(where)) message.remove_prefix(where.size());
  return expression.empty() ? fmt::format("{}: {}", place, message)
                            : fmt::format("{}: {}: {}", place, expression, message);
}

// Builds the nodes; keeps track of the JSON pointer.
class Template::Compiler {
 public:
  Compiler(const ExprLimits& limits, std::vector<Diagnostic>& faults, ExprRoots& roots)
      : limits_(limits), faults_(faults), roots_(roots) {}

  Node compile(const Value& source, std::size_t depth) {
    if (depth > limits_.depth_max) {
      fault(0,
            {Code::plan_invalid, fmt::format("nested deeper than {} levels", limits_.depth_max)});
      return {};
    }
    if (source.is_string()) return text(source);
    if (source.is_array()) return array(source, depth);
    if (source.is_object()) return object(source, depth);
    return constant(source);
  }

 private:
  static Node constant(Value value) {
    Node node;
    node.constant = std::move(value);
    return node;
  }

  void fault(std::size_t offset, Error error) {
    faults_.push_back({.pointer = pointer_, .offset = offset, .error = std::move(error)});
  }

  Node text(const Value& source) {
    if (source.as_string().find("${") == std::string::npos) return constant(source);
    std::vector<PartsError> errors;
    Node node;
    node.parts = split(source.as_string(), limits_, errors);
    for (PartsError& f : errors) fault(f.offset, std::move(f.error));
    bool any = false;
    for (const Part& part : node.parts) {
      if (const Expr* e = std::get_if<Expr>(&part)) {
        any = true;
        merge(e->roots(), roots_);
      }
    }
    if (!any) {
      return constant(node.parts.empty() ? Value("") : Value(std::get<std::string>(node.parts[0])));
    }
    node.kind = node.parts.size() == 1 ? Node::Kind::expression : Node::Kind::text;
    return node;
  }

  Node array(const Value& source, std::size_t depth) {
    Node node;
    node.kind = Node::Kind::array;
    for (std::size_t i = 0; i < source.size(); ++i) {
      const std::size_t before = pointer_.size();
      pointer_ += fmt::format("/{}", i);
      node.children.push_back(compile(source.items()[i], depth + 1));
      pointer_.resize(before);
    }
    return folded(std::move(node));
  }

  Node object(const Value& source, std::size_t depth) {
    Node node;
    node.kind = Node::Kind::object;
    for (const auto& [key, value] : source.members()) {
      const std::size_t before = pointer_.size();
      pointer_ += pointer_step(key);
      node.keys.push_back(literal_key(key, node.keys));
      node.children.push_back(compile(value, depth + 1));
      pointer_.resize(before);
    }
    return folded(std::move(node));
  }

  std::string literal_key(const std::string& key, const std::vector<std::string>& before) {
    if (key.find("${") == std::string::npos) return key;
    std::vector<PartsError> errors;
    const std::vector<Part> parts = split(key, limits_, errors);
    if (!errors.empty() || parts.size() != 1 || !std::holds_alternative<std::string>(parts[0])) {
      fault(0, {Code::plan_invalid,
                "a key must be literal; to compute one, build the object with an expression: `${ "
                "{(key): value} }` (write `$${` for a literal `${`)"});
      return key;
    }
    std::string literal = std::get<std::string>(parts[0]);
    if (std::ranges::find(before, literal) != before.end()) {
      fault(0, {Code::plan_invalid, fmt::format("duplicate key `{}`", literal)});
      return key;
    }
    return literal;
  }

  // Replaces a node that contains no expressions by one value.
  static Node folded(Node node) {
    const bool constant_below = std::ranges::all_of(
        node.children, [](const Node& child) { return child.kind == Node::Kind::constant; });
    if (!constant_below) return node;
    std::vector<Value> items;
    items.reserve(node.children.size());
    for (Node& child : node.children) items.push_back(std::move(child.constant));
    if (node.kind == Node::Kind::array) return constant(Value::array(std::move(items)));
    std::vector<Member> members;
    members.reserve(items.size());
    for (std::size_t i = 0; i < items.size(); ++i) {
      members.emplace_back(std::move(node.keys[i]), std::move(items[i]));
    }
    return constant(Value::object(std::move(members)));
  }

  const ExprLimits& limits_;
  std::vector<Diagnostic>& faults_;
  ExprRoots& roots_;
  std::string pointer_;
};

// Evaluates the nodes; on failure the JSON pointer of the string is composed while unwinding.
class Template::Filler {
 public:
  Filler(const ExprScope& scope, const ExprLimits& limits)
      : scope_(scope), limits_(limits), fuel_(limits.fuel) {}

  // The place of the failure. REQUIRES: `run` has failed.
  Failure failure(Error error) const {
    return {.pointer = pointer_,
            .expression = culprit_ == nullptr ? "" : culprit_->text(),
            .gives_null = gives_null_,
            .error = std::move(error)};
  }

  Result<Value> run(const Node& root) {
    Value out;
    const bool filled = fill(root, out);
    scope_.charge(limits_.fuel - fuel_ + (filled ? expr::walking_cost(out) : 0));
    if (filled) return out;
    if (pointer_.empty()) return std::unexpected(std::move(error_));
    return std::unexpected(std::move(error_).with_context(fmt::format("at {}", pointer_)));
  }

 private:
  bool fill(const Node& node, Value& out) {
    switch (node.kind) {
      case Node::Kind::constant:
        out = node.constant;
        return true;
      case Node::Kind::expression:
        return evaluate(std::get<Expr>(node.parts[0]), out);
      case Node::Kind::text:
        return text(node, out);
      case Node::Kind::array:
      case Node::Kind::object:
        return container(node, out);
    }
    return false;
  }

  bool evaluate(const Expr& expression, Value& out) {
    auto value = expr::run(*expression.program_, scope_, limits_, fuel_);
    if (!value) {
      culprit_ = &expression;
      return failed(std::move(value).error());
    }
    out = std::move(*value);
    return true;
  }

  bool failed(Error error) {
    error_ = std::move(error);
    return false;
  }

  bool text(const Node& node, Value& out) {
    std::string text;
    for (const Part& part : node.parts) {
      if (const auto* literal = std::get_if<std::string>(&part)) {
        text += *literal;
        continue;
      }
      Value value;
      if (!evaluate(std::get<Expr>(part), value)) return false;
      if (value.is_null()) {
        culprit_ = &std::get<Expr>(part);
        gives_null_ = true;
        return failed({Code::expression_failed,
                       "an expression inside a longer string is null; add a default: `${ … // "
                       "\"nothing\" }`"});
      }
      if (!spend(expr::writing_cost(value))) return out_of_fuel();
      if (value.is_string()) {
        if (text.size() + value.as_string().size() > limits_.bytes_max) return too_large();
        text += value.as_string();
        continue;
      }
      if (text.size() + value.extent().bytes > limits_.bytes_max) return too_large();
      const std::size_t before = text.size();
      write_canonical(value, text);
      // Escapes, and the digits of numbers.
      const std::size_t more = text.size() - before - value.extent().bytes;
      if (!spend(more / 16)) return out_of_fuel();
      if (text.size() > limits_.bytes_max) return too_large();
    }
    out = Value(std::move(text));
    return true;
  }

  bool spend(std::size_t steps) {
    if (steps > fuel_) return false;
    fuel_ -= steps;
    return true;
  }

  bool out_of_fuel() {
    fuel_ = 0;
    return failed({Code::expression_failed, "the string becomes too long"});
  }
  bool too_large() { return failed({Code::expression_failed, expr::too_large(limits_)}); }

  bool container(const Node& node, Value& out) {
    std::vector<Value> items(node.children.size());
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (fill(node.children[i], items[i])) continue;
      const bool array = node.kind == Node::Kind::array;
      pointer_.insert(0, array ? fmt::format("/{}", i) : pointer_step(node.keys[i]));
      return false;
    }
    if (node.kind == Node::Kind::array) {
      out = Value::array(std::move(items));
      return expr::is_within_limits(out, limits_) || too_large();
    }
    std::vector<Member> members;
    members.reserve(items.size());
    for (std::size_t i = 0; i < items.size(); ++i) {
      members.emplace_back(node.keys[i], std::move(items[i]));
    }
    out = Value::object(std::move(members));
    return expr::is_within_limits(out, limits_) || too_large();
  }

  const ExprScope& scope_;
  const ExprLimits& limits_;
  std::size_t fuel_;
  Error error_;
  std::string pointer_;
  const Expr* culprit_ = nullptr;
  bool gives_null_ = false;
};

std::vector<Template::Diagnostic> Template::compile(const Value& source, Template& out,
                                                    const ExprLimits& limits) {
  std::vector<Diagnostic> faults;
  auto roots = std::make_shared<ExprRoots>();
  Node root = Compiler(limits, faults, *roots).compile(source, 0);
  if (!faults.empty()) return faults;
  out.root_ = std::make_shared<const Node>(std::move(root));
  out.roots_ = std::move(roots);
  return faults;
}

Result<Template> Template::compile(const Value& source, const ExprLimits& limits) {
  Template result;
  std::vector<Diagnostic> faults = compile(source, result, limits);
  if (faults.empty()) return result;
  Diagnostic& first = faults.front();
  if (first.pointer.empty()) return std::unexpected(std::move(first.error));
  return std::unexpected(std::move(first.error).with_context(fmt::format("at {}", first.pointer)));
}

Result<Value> Template::eval(const ExprScope& scope, const ExprLimits& limits) const {
  AE_CHECK(root_ != nullptr);
  AE_ASSIGN(Value value, Filler(scope, limits).run(*root_));
  if (!is_constant() && !expr::depth_within(value, limits.depth_max)) {
    return fail(Code::expression_failed, "the filled-in value nests deeper than {} levels",
                limits.depth_max);
  }
  return value;
}

std::optional<Template::Failure> Template::failure(const ExprScope& scope,
                                                   const ExprLimits& limits) const {
  AE_CHECK(root_ != nullptr);
  Filler filler(scope, limits);
  auto value = filler.run(*root_);
  if (!value) return filler.failure(std::move(value).error());
  auto result = eval(scope, limits);
  if (result) return std::nullopt;
  return Failure{.pointer = {}, .expression = {}, .error = std::move(result).error()};
}

const ExprRoots& Template::roots() const {
  AE_CHECK(roots_ != nullptr);
  return *roots_;
}

bool Template::is_constant() const {
  AE_CHECK(root_ != nullptr);
  return root_->kind == Node::Kind::constant;
}

Result<std::vector<Template::Part>> Template::parts(std::string_view text,
                                                    const ExprLimits& limits) {
  std::vector<PartsError> faults;
  std::vector<Part> parts = split(text, limits, faults);
  if (faults.empty()) return parts;
  return std::unexpected(std::move(faults[0].error)
                             .with_context(fmt::format("expression at byte {}", faults[0].offset)));
}

}  // namespace ae
