// CheckContext: validates types, words, durations, schemas and expressions, with one
// diagnostic for each error.
#include "agents/check_context.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "json/json.h"
#include "log/field_names.h"

namespace ae::agents {
namespace {

constexpr std::size_t kTemplateDepthMax =
    48;  // so that an event with a plan stays within JSON's 64
constexpr std::size_t kSchemaDepthMax = 48;
constexpr std::size_t kTextMax = 256u << 10;  // bytes of a string with expressions

std::size_t depth(const SourceTree& value) {
  std::size_t below = 0;
  for (const SourceTree& item : value.items) below = std::max(below, depth(item));
  return value.kind == SourceTree::Kind::scalar ? 0 : below + 1;
}

// `name`, or ["any other text"]
std::string path_part(std::string_view key) {
  if (engine::is_name(key)) return std::string(key);
  std::string quoted = quote(key);
  return fmt::format("[\"{}\"]", quoted.substr(1, quoted.size() - 2));
}

template <class F>
void for_each_string(const SourceNode& source_node, const F& visit) {
  if (source_node->is_string()) visit(source_node);
  for (std::size_t i = 0; i < source_node->items.size(); ++i) {
    if (source_node->items[i].kind == SourceTree::Kind::scalar &&
        !source_node->items[i].is_string())
      continue;
    SourceNode below = source_node.item(i);
    if (source_node->is_mapping()) below.path = source_node.path_of(source_node->keys[i].text);
    for_each_string(below, visit);
  }
}

// The position of `env.` directly after a `${`; npos = none.
std::size_t env_in(std::string_view text) {
  for (std::size_t at = text.find("${"); at != text.npos; at = text.find("${", at + 2)) {
    const std::size_t from = text.find_first_not_of(" \t\r\n", at + 2);
    if (from == text.npos) return from;
    if (text.substr(from).starts_with("env.")) return from;
  }
  return text.npos;
}

// The JSON pointer in a message such as "at /properties/a: …"; "" = none.
std::string_view pointer_in(std::string_view message) {
  const std::size_t from = message.find('/');
  if (from == message.npos) return {};
  return message.substr(from, message.find_first_of(" :,`'\")", from) - from);
}

// Removes "line 2, column 5: " from the start of a message; returns that byte offset in `source`.
std::size_t strip_position(std::string& message, std::string_view source) {
  std::size_t line = 0;
  std::size_t column = 0;
  const auto number = [&message](std::size_t from, std::size_t& out) {
    const char* end = message.data() + message.size();
    const auto [stop, error] =
        std::from_chars(message.data() + std::min(from, message.size()), end, out);
    return error == std::errc() ? static_cast<std::size_t>(stop - message.data()) : message.npos;
  };
  if (!message.starts_with("line ")) return 0;
  const std::size_t after_line = number(5, line);
  if (after_line == message.npos || message.compare(after_line, 9, ", column ") != 0) return 0;
  const std::size_t end = number(after_line + 9, column);
  if (end == message.npos || message.compare(end, 2, ": ") != 0) return 0;
  message.erase(0, end + 2);
  std::size_t at = 0;
  for (; line > 1 && at < source.size(); ++at) {
    if (source[at] == '\n') --line;
  }
  for (; column > 1 && at < source.size(); --column) {
    do {
      ++at;
    } while (at < source.size() && (static_cast<unsigned char>(source[at]) & 0xC0) == 0x80);
  }
  return at;
}

}  // namespace

bool is_secret_reference(std::string_view text) {
  if (!text.starts_with("secret:") || text.size() == 7) return false;
  return std::ranges::all_of(text.substr(7), [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

SourceNode follow(SourceNode source_node, std::string_view pointer) {
  while (pointer.starts_with('/')) {
    pointer.remove_prefix(1);
    std::string part(pointer.substr(0, pointer.find('/')));
    pointer.remove_prefix(part.size());
    for (std::size_t at = 0; (at = part.find('~', at)) != part.npos; ++at) {
      part.replace(at, 2, part.substr(at, 2) == "~1" ? "/" : "~");
    }
    if (source_node->is_list()) {
      std::size_t index = source_node->items.size();
      std::from_chars(part.data(), part.data() + part.size(), index);
      if (index >= source_node->items.size()) return source_node;
      source_node = source_node.item(index);
    } else {
      std::optional<SourceNode> below = source_node.find(part);
      if (!below) return source_node;
      source_node = *std::move(below);
    }
  }
  return source_node;
}

std::optional<SourceNode> SourceNode::find(std::string_view key) const {
  const SourceTree* found = value->find(key);
  if (found == nullptr) return std::nullopt;
  return SourceNode{found, path_of(key)};
}

SourceNode SourceNode::item(std::size_t index) const {
  return {&value->items[index], fmt::format("{}[{}]", path, index)};
}

std::string SourceNode::path_of(std::string_view key) const {
  const std::string part = path_part(key);
  return path.empty() || part.starts_with('[') ? path + part : fmt::format("{}.{}", path, part);
}

void CheckContext::report(const SourceNode& source_node, std::string message,
                          std::string suggestion, Code code) {
  if (source_node->is_invalid) return;
  report_at(source_node.at(), source_node.path, std::move(message), std::move(suggestion), code);
}

void CheckContext::report_at(SourceLocation at, std::string path, std::string message,
                             std::string suggestion, Code code) {
  diagnostics_.add(at, {.path = std::move(path),
                        .message = std::move(message),
                        .suggestion = std::move(suggestion),
                        .code = code});
}

std::string CheckContext::describe_missing_tool(std::string_view name) const {
  const auto known = unusable_.find(name);
  return known == unusable_.end() ? fmt::format("unknown tool {}", quote(name))
                                  : fmt::format("{} {}", quote(name), known->second);
}

bool CheckContext::may_be_unknown(std::string_view tool) const {
  if (tool == "*") return !unknown_servers_.empty();
  return std::ranges::any_of(unknown_servers_, [&](const std::string& server) {
    return tool.starts_with(server) && tool.substr(server.size()).starts_with('.');
  });
}

bool CheckContext::any_mapping(const SourceNode& source_node) {
  if (source_node->is_mapping()) return true;
  report(source_node, fmt::format("must be a mapping, not {}", kind_name(*source_node.value)));
  return false;
}

namespace {

// The key of `known` that a word of another workflow language corresponds to; "" = none.
std::string_view synonym_of(std::string_view word, Names known) {
  constexpr std::pair<std::string_view, std::string_view> kSynonyms[] = {
      {"if", "when"},
      {"condition", "when"},
      {"depends_on", "needs"},
      {"dependsOn", "needs"},
      {"after", "needs"},
      {"with", "args"},
      {field::arguments, "args"},
      {"params", "args"},
      {"parameters", "args"},
      {"inputs", "args"},
      {"for_each", "map"},
      {"foreach", "map"},
      {"uses", "tool"},
      {"retries", "retry"},
      {"prompts", "prompt"},
      {"name", "id"},
      {"attempts", field::max_attempts},
      {"steps", "plan"},
      {"nodes", "plan"},
      {"system_prompt", "system"},
      {"instructions", "system"}};
  for (const auto& [synonym, key] : kSynonyms) {
    if (synonym == word && contains(known, key)) return key;
  }
  return {};
}

}  // namespace

bool CheckContext::mapping(const SourceNode& source_node, const Shape& shape,
                           UnsupportedKeys unsupported_keys) {
  if (!any_mapping(source_node)) return false;
  const Names known = shape.keys;
  for (const SourceTree::Key& key : source_node->keys) {
    if (full()) break;
    if (contains(known, key.text)) continue;
    if (const std::string_view name = shape.key_of(key.text); name != key.text) {
      if (!source_node.find(name)) continue;
      report_at(key.at, source_node.path_of(key.text),
                fmt::format("`{}` is an alias of `{}`: remove it", key.text, name));
      continue;
    }
    const auto* unsupported_key =
        std::ranges::find(unsupported_keys, key.text, &UnsupportedKey::key);
    if (unsupported_key != unsupported_keys.end()) {
      report_at(key.at, source_node.path_of(key.text),
                fmt::format("unsupported key `{}`: {}", key.text, unsupported_key->why), {},
                Code::unsupported);
      continue;
    }
    ClosestName nearest(key.text);
    for (const std::string_view word : known) nearest.consider(word);
    for (const KeyAlias& one : shape.aliases) nearest.consider(one.alias);
    std::string suggestion(synonym_of(key.text, known));
    if (suggestion.empty()) suggestion = shape.key_of(nearest.best());
    const std::string allowed =
        suggestion.empty() ? fmt::format("; allowed keys: {}", join_names(known)) : "";
    report_at(key.at, source_node.path_of(key.text),
              fmt::format("unknown key {}{}", quote(key.text), allowed), std::move(suggestion));
  }
  return true;
}

bool CheckContext::list(const SourceNode& source_node) {
  if (source_node->is_list()) return true;
  report(source_node, fmt::format("must be a list, not {}", kind_name(*source_node.value)));
  return false;
}

void CheckContext::misplaced(const SourceNode& source_node, const Shape& shape,
                             std::string_view kind, const MisplacedMessage& message) {
  const Names own = shape.keys_of(kind);
  for (const std::string_view key : shape.keys) {
    if (contains(own, key) || contains(shape.kinds, key) || contains(shape.refused, key)) continue;
    const auto found = source_node.find(key);
    if (!found) continue;
    std::string text = message(key, shape.kinds_with(key));
    if (!text.empty()) report(*found, std::move(text));
  }
}

std::optional<SourceNode> CheckContext::required(const SourceNode& source_node,
                                                 std::string_view key, std::string_view hint) {
  std::optional<SourceNode> found = source_node.find(key);
  if (!found) {
    report_at(source_node.at(), source_node.path_of(key),
              fmt::format("`{}` is missing: {}", key, hint));
  }
  return found;
}

std::optional<std::string> CheckContext::text(const SourceNode& source_node) {
  if (source_node->is_string()) return source_node->scalar.as_string();
  const bool quotable = source_node->scalar.is_number() || source_node->scalar.is_bool();
  report(source_node, fmt::format("must be a string, not {}{}", kind_name(*source_node.value),
                                  quotable ? ": quote it" : ""));
  return std::nullopt;
}

std::optional<bool> CheckContext::boolean(const SourceNode& source_node) {
  if (source_node->scalar.is_bool()) return source_node->scalar.as_bool();
  report(source_node, fmt::format("must be true or false, not {}", kind_name(*source_node.value)));
  return std::nullopt;
}

std::optional<std::uint32_t> CheckContext::count(const SourceNode& source_node,
                                                 std::uint32_t most) {
  const Value& number = source_node->scalar;
  if (number.is_integer() && number.as_int() >= 1 && number.as_int() <= most) {
    return static_cast<std::uint32_t>(number.as_int());
  }
  report(source_node, fmt::format("must be a whole number from 1 to {}", most));
  return std::nullopt;
}

std::optional<Duration> CheckContext::duration(const SourceNode& source_node, Duration least) {
  if (source_node->is_string()) {
    const auto duration = duration_from_text(source_node->scalar.as_string());
    if (duration && *duration >= least) return *duration;
    if (duration) {
      report(source_node, fmt::format("must be at least {}", to_text(least)));
      return std::nullopt;
    }
  }
  std::string suggestion;
  if (source_node->scalar.is_integer())
    suggestion = fmt::format("{}s", source_node->scalar.as_int());
  report(source_node,
         "must be a duration: a whole number and ms, s, m, h or d, such as 30s; at most 36500d",
         std::move(suggestion));
  return std::nullopt;
}

std::optional<std::uint64_t> CheckContext::size(const SourceNode& source_node, std::uint64_t most) {
  std::uint64_t bytes = 0;
  bool good = false;
  if (source_node->scalar.is_integer() && source_node->scalar.as_int() >= 0) {
    bytes = static_cast<std::uint64_t>(source_node->scalar.as_int());
    good = true;
  } else if (source_node->is_string()) {
    const std::string& text = source_node->scalar.as_string();
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, bytes);
    const std::string_view unit(stop, end);
    const int shift = unit.empty()    ? 0
                      : unit == "KiB" ? 10
                      : unit == "MiB" ? 20
                      : unit == "GiB" ? 30
                                      : -1;
    good = error == std::errc() && shift >= 0 && bytes <= (most >> std::max(shift, 0));
    if (good) bytes <<= shift;
    if (shift >= 0 && error == std::errc() && !good) bytes = most + 1;
  }
  if (good && bytes >= 1 && bytes <= most) return bytes;
  report(source_node, good || bytes > most
                          ? fmt::format("must be a size from 1 byte to {} bytes", most)
                          : "must be a size: a whole number of bytes, or with KiB, MiB or GiB");
  return std::nullopt;
}

std::optional<std::string_view> CheckContext::word(const SourceNode& source_node, Names words) {
  const std::string_view text = source_node->is_string()
                                    ? std::string_view(source_node->scalar.as_string())
                                    : std::string_view();
  const auto found = std::ranges::find(words, text);
  if (found != words.end()) return *found;
  ClosestName nearest(text);
  for (const std::string_view word : words) nearest.consider(word);
  report(source_node,
         fmt::format("must be {}{}", words.size() > 1 ? "one of " : "", join_names(words)),
         nearest.best());
  return std::nullopt;
}

bool CheckContext::name(std::string_view what, std::string_view text, SourceLocation at,
                        const std::string& path) {
  if (engine::is_name(text)) return true;
  report_at(at, path,
            fmt::format("{} is not a valid name for {}: use up to 64 letters, digits, _ and -, "
                        "starting with a letter or _",
                        quote(text), what));
  return false;
}

std::optional<Schema> CheckContext::schema(const SourceNode& source_node) {
  if (depth(*source_node.value) > kSchemaDepthMax) {
    report(source_node, "a schema can nest at most 48 levels deep");
    return std::nullopt;
  }
  auto compiled = Schema::compile(source_node->value());
  if (compiled) return *std::move(compiled);
  const SourceNode where = follow(source_node, pointer_in(compiled.error().message));
  report(where, fmt::format("unsupported or invalid JSON Schema: {}", compiled.error().message));
  return std::nullopt;
}

bool CheckContext::templates(const SourceNode& source_node, const TemplateVisitor& visit) {
  return templates_below(source_node, visit, 0);
}

bool CheckContext::literal_key(const SourceTree::Key& key, const std::string& path) {
  Template compiled;
  const auto found = Template::compile(Value::object({{key.text, Value()}}), compiled);
  if (found.empty()) return true;
  report_at(key.at, path, found.front().error.message);
  return false;
}

bool CheckContext::templates_below(const SourceNode& source_node, const TemplateVisitor& visit,
                                   std::size_t depth_so_far) {
  if (source_node->kind == SourceTree::Kind::scalar) {
    if (!source_node->is_string() || !has_expression(source_node->scalar.as_string())) return true;
    if (full() || !text_fits(source_node)) return false;
    Template compiled;
    const auto found = Template::compile(source_node->scalar, compiled);
    report_template_errors(source_node, found);
    if (!found.empty()) return false;
    const std::size_t before = count();
    visit(source_node, compiled);
    if (count() == before) check_members(*this, source_node, compiled.roots());
    return true;
  }
  if (depth_so_far == kTemplateDepthMax) {
    report(source_node, "values can nest at most 48 levels deep here");
    return false;
  }
  bool good = true;
  for (std::size_t i = 0; i < source_node->items.size(); ++i) {
    SourceNode below = source_node.item(i);
    if (source_node->is_mapping()) {
      const SourceTree::Key& key = source_node->keys[i];
      below.path = source_node.path_of(key.text);
      if (has_expression(key.text)) good = literal_key(key, below.path) && good;
    }
    good = templates_below(below, visit, depth_so_far + 1) && good;
  }
  return good;
}

bool CheckContext::text_fits(const SourceNode& source_node) {
  if (source_node->scalar.as_string().size() <= kTextMax) return true;
  report(source_node, "a string with expressions can have at most 256 KiB");
  return false;
}

void CheckContext::report_template_errors(const SourceNode& source_node,
                                          std::span<const Template::Diagnostic> found) {
  const std::string_view text = source_node->is_string()
                                    ? std::string_view(source_node->scalar.as_string())
                                    : std::string_view();
  for (const Template::Diagnostic& found_error : found) {
    if (full()) return;
    std::string message = found_error.error.message;
    const std::size_t from = std::min(found_error.offset + 2, text.size());  // after the `${`
    const std::size_t inside = from + strip_position(message, text.substr(from));
    SourceLocation at = source_node.at();
    at.inside = static_cast<std::uint32_t>(inside);
    report_at(at, source_node.path, fmt::format("expression: {}", message));
  }
}

void CheckContext::report_root(const SourceNode& string, std::string_view mention,
                               std::string message, std::string suggestion, Code code) {
  const std::size_t inside = string->scalar.as_string().find(mention);
  SourceLocation at = string.at();
  at.inside = inside == std::string::npos ? 0 : static_cast<std::uint32_t>(inside);
  report_at(at, string.path, std::move(message), std::move(suggestion), code);
}

void reject_env_and_secrets(CheckContext& check, const SourceNode& source_node) {
  for_each_string(source_node, [&check](const SourceNode& string) {
    const std::string& text = string->scalar.as_string();
    if (is_secret_reference(text)) {
      check.report(
          string,
          "secrets are allowed in a tool's headers and env only; here it would be recorded");
    }
    const std::size_t env = env_in(text);
    if (env == text.npos) return;
    SourceLocation location = string.at();
    location.inside = static_cast<std::uint32_t>(env);
    check.report_at(location, string.path,
                    "env. is available in `tools` and `models` only; a plan reads .input");
  });
}

bool reads_only(CheckContext& check, const SourceNode& source_node, NameList roots) {
  const std::size_t before = check.count();
  reject_env_and_secrets(check, source_node);
  if (check.count() != before) return false;
  check.templates(source_node, [&](const SourceNode& string, const Template& compiled) {
    for (const std::string& root : compiled.roots().roots) {
      if (std::ranges::find(roots, root) != roots.end()) continue;
      ClosestName nearest(root);
      for (const std::string_view known : roots) nearest.consider(known);
      std::string suggestion = nearest.best();
      std::string available;
      for (const std::string_view known : roots) {
        available.append(available.empty() ? "." : ", .").append(known);
      }
      check.report_root(string, "." + root,
                        fmt::format(".{} is not available here; available: {}", root, available),
                        suggestion.empty() ? suggestion : "." + suggestion);
    }
  });
  return check.count() == before;
}

void check_members(CheckContext& check, const SourceNode& string, const ExprRoots& read) {
  constexpr std::string_view kOfJob[] = {field::agent, "created_at", "id", field::labels};
  constexpr std::string_view kOfCall[] = {field::external_key, field::invocation_id, "key",
                                          field::try_};
  const std::pair<std::string_view, std::span<const std::string_view>> kFixed[] = {
      {"job", kOfJob}, {"call", kOfCall}};
  for (const auto& [root, fixed] : kFixed) {
    const auto named = read.members.find(root);
    if (named == read.members.end()) continue;
    const std::string at = fmt::format(".{}", root);
    const auto below = [&](std::string_view name) { return fmt::format("{}.{}", at, name); };
    for (const std::string& name : named->second) {
      if (std::ranges::find(fixed, name) != fixed.end()) continue;
      ClosestName nearest(name);
      std::string available;
      for (const std::string_view known : fixed) {
        nearest.consider(known);
        available.append(available.empty() ? "." : ", .").append(known);
      }
      const std::string suggestion = nearest.best();
      const std::string written = below(name);
      const bool plain = string->scalar.as_string().find(written) != std::string::npos;
      check.report_root(
          string, plain ? written : at,
          fmt::format("{} has no member {}; available: {}", at, quote(name), available),
          suggestion.empty() ? suggestion : below(suggestion));
    }
  }
}

bool is_one_expression(const SourceTree& value) {
  if (!value.is_string() || !has_expression(value.scalar.as_string())) return false;
  const auto parts = Template::parts(value.scalar.as_string());
  return parts && parts->size() == 1 && std::holds_alternative<Expr>(parts->front());
}

}  // namespace ae::agents
