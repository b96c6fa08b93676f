#include "tools/verify/definition_fields.h"

#include <fmt/core.h>

#include <algorithm>

#include "json/json.h"
#include "log/field_names.h"

namespace ae::tools {
namespace {

constexpr std::size_t kHeadersMax = 64;
constexpr std::size_t kTextMax = 8192;

std::unexpected<Error> bad(std::string_view key, std::string_view why) {
  return fail(Code::plan_invalid, "{}: {}", key, why);
}

Status check_roots(const ExprRoots& roots, std::string_view key, std::string_view root) {
  for (const std::string& read : roots.roots) {
    if (read != root) return bad(key, fmt::format("reads .{}; there is only .{}", read, root));
  }
  return {};
}

}  // namespace

Status check_known_keys(const Value& definition, std::initializer_list<std::string_view> keys) {
  for (const auto& [key, value] : definition.members()) {
    if (key == field::kind) continue;
    if (std::ranges::find(keys, key) == keys.end()) return bad(key, "no such key here");
  }
  return {};
}

Result<std::string> text_of(const Value& definition, std::string_view key) {
  const Value& value = definition[key];
  if (!value.is_string() || value.as_string().empty()) return bad(key, "a text is missing");
  return value.as_string();
}

Result<Duration> timeout_of(const Value& definition) {
  if (!definition.find("timeout")) return std::chrono::seconds(10);
  auto span = duration_from_text(definition.text("timeout"));
  if (!span || *span <= Duration(0)) return bad("timeout", "a duration such as 10s");
  return *span;
}

Result<Template> template_of(const Value& definition, std::string_view key, std::string_view root) {
  const Value& value = definition[key];
  if (value.is_null()) return bad(key, "it is missing");
  auto compiled = Template::compile(value);
  if (!compiled) return std::unexpected(std::move(compiled).error().with_context(key));
  if (!compiled->is_constant()) AE_TRY(check_roots(compiled->roots(), key, root));
  return *std::move(compiled);
}

Result<std::string> render_text(const Template& part, const Value& change) {
  AE_ASSIGN(const Value value, part.eval(SingleRootScope("change", change)));
  if (value.is_number()) return canonical(value);
  if (!value.is_string() || value.as_string().empty()) {
    return fail(Code::expression_failed, "the recorded value gives no string");
  }
  const std::string& text = value.as_string();
  if (text.size() > kTextMax || text.find('\0') != text.npos) {
    return fail(Code::expression_failed,
                "the recorded value gives a string that is too long or holds a NUL");
  }
  return text;
}

Result<TargetUrl> TargetUrl::parse(const Value& definition) {
  TargetUrl url;
  AE_ASSIGN(const std::string text, text_of(definition, "url"));
  auto parts = Template::parts(text);
  if (!parts) return std::unexpected(std::move(parts).error().with_context("url"));
  if (parts->size() == 1 && std::holds_alternative<Expr>(parts->front())) {
    AE_ASSIGN(url.whole_, template_of(definition, "url", "change"));
    return url;
  }
  AE_ASSIGN(url.template_, UrlTemplate::parse(text));
  for (const Template::Part& part : url.template_->parts()) {
    if (const auto* expression = std::get_if<Expr>(&part)) {
      AE_TRY(check_roots(expression->roots(), "url", "change"));
    }
  }
  return url;
}

Result<std::string> TargetUrl::render(const Value& change) const {
  if (template_) return template_->render(SingleRootScope("change", change));
  AE_ASSIGN(std::string url, render_text(*whole_, change));
  const bool http = url.starts_with("http://") || url.starts_with("https://");
  const std::size_t host = url.find("//") + 2;
  const std::string_view authority =
      http ? std::string_view(url).substr(host, url.find_first_of("/?#", host) - host)
           : std::string_view();
  const bool plain = std::ranges::all_of(url, [](char c) { return c > 0x20 && c < 0x7f; });
  if (!http || authority.empty() || authority.find('@') != authority.npos || !plain) {
    return fail(Code::expression_failed, "the recorded value is not an http or https url");
  }
  return url.substr(0, url.find('#'));
}

Result<Headers> Headers::parse(const Value& definition, bool is_host_literal) {
  Headers out;
  const Value* headers = definition.find("headers");
  if (headers == nullptr) return out;
  if (!is_host_literal) {
    return bad("headers", "they are sent only to a literal host, not to one from a result");
  }
  if (!headers->is_object() || headers->size() > kHeadersMax) {
    return bad("headers", "a mapping of at most 64 names and texts");
  }
  for (const auto& [name, value] : headers->members()) {
    if (!net::is_header_name(name) || !value.is_string()) {
      return bad("headers",
                 fmt::format("\"{}\" is not a header, or its value is not a string", name));
    }
    const auto parts = Template::parts(value.as_string());
    if (!parts || parts->size() > 1 ||
        (parts->size() == 1 && !std::holds_alternative<std::string>(parts->front()))) {
      return bad(
          "headers",
          fmt::format("\"{}\" holds an expression; only env. and secret: are allowed here", name));
    }
    out.headers_.emplace_back(
        name, parts->empty() ? std::string() : std::get<std::string>(parts->front()));
  }
  return out;
}

Result<net::HttpHeaders> Headers::fill(SecretSource& secrets, std::vector<UsedSecret>& used) const {
  net::HttpHeaders headers;
  for (const auto& [name, text] : headers_) {
    AE_ASSIGN(const Secret value, replace_secrets(text, secrets, used));
    std::string revealed(value.reveal());
    if (!net::is_header_value(revealed)) {
      return fail(Code::input_invalid, "the value of header {} holds a line break", name);
    }
    headers.push_back({name, std::move(revealed)});
  }
  return headers;
}

Result<std::string> encoded_path(std::string_view path) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~";
  std::string out, segment;
  for (std::size_t i = 0; i <= path.size(); ++i) {
    if (i < path.size() && path[i] != '/') {
      segment += path[i];
      continue;
    }
    if (segment.empty() || segment == "." || segment == "..") {
      return fail(Code::input_invalid, "\"{}\" names another place", path);
    }
    for (const char c : segment) {
      if (kPlain.find(c) != kPlain.npos) {
        out += c;
        continue;
      }
      const auto byte = static_cast<unsigned char>(c);
      out += '%';
      out += kDigits[byte >> 4];
      out += kDigits[byte & 15];
    }
    segment.clear();
    if (i < path.size()) out += '/';
  }
  return out;
}

}  // namespace ae::tools
