// ToolText: env., secrets, expressions and URLs in the strings of a tool.
#include "agents/tool_text.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/ascii.h"
#include "base/utf8.h"
#include "expr/expr_lex.h"
#include "log/field_names.h"

namespace ae::agents {
namespace {

constexpr std::size_t kBodyDepthMax = 32;

// True if the text contains `secret:NAME` as a separate word.
bool contains_secret_reference(std::string_view text) {
  const std::size_t at = text.find("secret:");
  if (at == text.npos || (at > 0 && (is_letter(text[at - 1]) || is_digit(text[at - 1])))) {
    return false;
  }
  return at + 7 < text.size() && (is_letter(text[at + 7]) || text[at + 7] == '_');
}

// The name in `${ env.NAME }`; "" for other expressions.
std::string_view env_name(std::string_view expression) {
  const std::size_t from = expression.find_first_not_of(" \t\r\n");
  if (from == expression.npos) return {};
  expression = expression.substr(from, expression.find_last_not_of(" \t\r\n") + 1 - from);
  if (!expression.starts_with("env.")) return {};
  expression.remove_prefix(4);
  return is_env_name(expression) ? expression : std::string_view();
}

// Escapes a text so that a template evaluates to it, also if `next` follows.
std::string as_literal(std::string_view value, char next) {
  std::string out;
  for (std::size_t i = 0; i < value.size(); ++i) {
    if (value[i] == '$' && i + 1 < value.size() && value[i + 1] == '{') out += '$';
    out += value[i];
  }
  // A trailing dollar must not combine with the next character.
  if (out.ends_with('$') && (next == '$' || next == '{')) {
    out.replace(out.size() - 1, 1, "${\"$\"}");
  }
  return out;
}

bool is_url_char(char c) {
  constexpr std::string_view kMarks = "-._~%:/?[]@!$&'()*+,;=";
  return is_letter(c) || is_digit(c) || kMarks.find(c) != kMarks.npos || c == '#';
}

bool is_authority(std::string_view text) {
  std::string_view port;
  std::string_view host = text;
  if (text.starts_with('[')) {
    const std::size_t end = text.find(']');
    if (end == text.npos || end < 3) return false;
    host = text.substr(1, end - 1);
    if (host.find_first_not_of("0123456789abcdefABCDEF:.") != host.npos) return false;
    port = text.substr(end + 1);
  } else {
    const std::size_t colon = text.find(':');
    host = text.substr(0, colon);
    if (colon != text.npos) port = text.substr(colon);
    if (host.empty() || host.size() > 253 || !std::ranges::all_of(host, [](char c) {
          return is_letter(c) || is_digit(c) || c == '-' || c == '.' || c == '_';
        })) {
      return false;
    }
  }
  if (port.empty()) return true;
  if (port[0] != ':' || port.size() < 2 || port.size() > 6) return false;
  port.remove_prefix(1);
  if (!std::ranges::all_of(port, is_digit)) return false;
  const int number = std::stoi(std::string(port));
  return number >= 1 && number <= 65535;
}

}  // namespace

bool is_header_name(std::string_view text) {
  constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  return !text.empty() && text.size() <= 128 && std::ranges::all_of(text, [&](char c) {
    return is_letter(c) || is_digit(c) || kMarks.find(c) != kMarks.npos;
  });
}

bool is_env_name(std::string_view text) {
  return !text.empty() && text.size() <= 128 && !is_digit(text[0]) &&
         std::ranges::all_of(text, [](char c) { return is_letter(c) || is_digit(c) || c == '_'; });
}

std::optional<std::string> ToolText::resolved(const SourceNode& source_node, Secrets secrets) {
  auto text = check_.text(source_node);
  if (!text) return std::nullopt;
  if (secrets == Secrets::refused && contains_secret_reference(*text)) {
    check_.report(source_node, "secret:NAME is allowed in headers and env values only");
  }
  if (!has_expression(*text)) return text;
  if (check_.full() || !check_.text_fits(source_node)) return std::nullopt;
  std::string out;
  bool good = true;
  bool replaced = false;
  for (std::size_t at = 0; at < text->size();) {
    const std::string_view rest = std::string_view(*text).substr(at);
    if (!rest.starts_with("${")) {
      const std::size_t length = rest.starts_with("$${") ? 3 : 1;
      out += rest.substr(0, length);
      at += length;
      continue;
    }
    const std::size_t end = expr::expression_end(*text, at + 2);
    if (end == text->npos) {  // not closed: the template reports it
      out += rest;
      break;
    }
    const std::string_view inner = rest.substr(2, end - at - 2);
    if (const std::string_view name = env_name(inner); !name.empty()) {
      const char next = end + 1 < text->size() ? (*text)[end + 1] : '\0';
      good = env(source_node, at, name, next, out) && good;
      replaced = true;
    } else {
      out += rest.substr(0, end + 1 - at);
    }
    at = end + 1;
  }
  if (!good) return std::nullopt;
  return checked(source_node, std::move(out), replaced);
}

bool ToolText::env(const SourceNode& source_node, std::size_t at, std::string_view name, char next,
                   std::string& out) {
  const auto& lookup = check_.source().env;
  const auto value = lookup ? lookup(name) : std::nullopt;
  if (!value || !is_utf8(*value)) {
    SourceLocation place = source_node.at();
    place.inside = static_cast<std::uint32_t>(at);
    check_.report_at(
        place, source_node.path,
        fmt::format("the environment variable {} is not {}", name, value ? "UTF-8" : "set"));
    return false;
  }
  out += as_literal(*value, next);
  return true;
}

std::optional<std::string> ToolText::checked(const SourceNode& source_node, std::string text,
                                             bool replaced) {
  Template compiled;
  auto found = Template::compile(Value(text), compiled);
  if (replaced) {
    for (auto& error : found) error.offset = 0;  // the replaced text is not in the file
  }
  check_.report_template_errors(source_node, found);
  if (!found.empty()) return std::nullopt;
  for (const std::string& root : compiled.roots().roots) {
    if (root_.empty() ? root == "args" || root == "call" : root == root_) continue;
    if (!root_.empty()) {
      check_.report_root(source_node, "." + root,
                         fmt::format(".{} is not available here; available: .{}", root, root_));
      continue;
    }
    ClosestName nearest(root);
    nearest.consider("args");
    nearest.consider("call");
    const bool elsewhere = root == field::input || root == "steps" || root == "job";
    check_.report_root(source_node, "." + root,
                       fmt::format("a tool can read .args and .call, not .{}{}", root,
                                   elsewhere ? "; pass the value in `args`" : ""),
                       elsewhere ? "" : nearest.best(),
                       elsewhere ? Code::unsupported : Code::plan_invalid);
  }
  check_members(check_, source_node, compiled.roots());
  return text;
}

std::optional<Value> ToolText::below(const SourceNode& source_node, std::size_t depth) {
  if (source_node->is_string()) {
    auto text = resolved(source_node, Secrets::refused);
    return text ? std::optional<Value>(*std::move(text)) : std::nullopt;
  }
  if (source_node->kind == SourceTree::Kind::scalar) return source_node->scalar;
  if (depth == kBodyDepthMax) {
    check_.report(source_node, "a body can nest at most 32 levels deep");
    return std::nullopt;
  }
  std::vector<Value> items;
  std::vector<Member> members;
  for (std::size_t i = 0; i < source_node->items.size(); ++i) {
    SourceNode inner = source_node.item(i);
    if (source_node->is_mapping()) {
      const SourceTree::Key& key = source_node->keys[i];
      inner.path = source_node.path_of(key.text);
      if (has_expression(key.text)) {
        check_.report_at(key.at, inner.path, "a key cannot contain ${ }");
      }
    }
    auto value = below(inner, depth + 1);
    if (!value) continue;
    if (source_node->is_list()) {
      items.push_back(*std::move(value));
    } else {
      members.emplace_back(source_node->keys[i].text, *std::move(value));
    }
  }
  return source_node->is_list() ? Value::array(std::move(items))
                                : Value::object(std::move(members));
}

std::optional<std::string> ToolText::literal(const SourceNode& source_node, Secrets secrets) {
  auto text = resolved(source_node, secrets);
  if (!text || !has_expression(*text)) return text;
  const auto compiled = Template::compile(Value(*text));
  if (compiled && compiled->roots().roots.empty()) {
    const auto value = compiled->eval(NoScope());
    if (value && value->is_string()) return value->as_string();
  }
  check_.report(source_node,
                root_.empty() ? "only ${ env.NAME } is allowed here; pass other values in `args`"
                              : "only ${ env.NAME } is allowed here",
                {}, Code::unsupported);
  return std::nullopt;
}

void ToolText::url(const SourceNode& source_node, const std::string& text) {
  const auto parts = Template::parts(text);
  if (!parts) return;  // already reported
  const auto* first = parts->empty() ? nullptr : std::get_if<std::string>(&parts->front());
  const std::string literal = first != nullptr ? *first : "";
  const bool whole = parts->size() < 2;
  const std::size_t scheme = literal.starts_with("http://")    ? 7
                             : literal.starts_with("https://") ? 8
                                                               : 0;
  if (scheme == 0) {
    check_.report(source_node, "a url must start with a literal http:// or https://");
    return;
  }
  const std::size_t end = literal.find_first_of("/?#", scheme);
  if (end == literal.npos && !whole) {
    check_.report(source_node, "scheme, host and port must be literal: no ${ } before the path");
    return;
  }
  const std::string host = literal.substr(scheme, end == literal.npos ? end : end - scheme);
  if (!is_authority(host)) {
    check_.report(source_node,
                  host.find('@') != host.npos
                      ? "a url cannot contain a user name; use a header with secret:NAME"
                      : fmt::format("{} is not a valid HOST or HOST:PORT", quote(host)));
  }
  for (const Template::Part& part : *parts) {
    const auto* words = std::get_if<std::string>(&part);
    if (words == nullptr) continue;
    if (words->find('#') != words->npos) {
      check_.report(source_node, "a fragment (#) is never sent; remove it");
    } else if (!std::ranges::all_of(*words, is_url_char)) {
      check_.report(source_node, "percent-encode this character (a space is %20)");
    }
  }
}

}  // namespace ae::agents
