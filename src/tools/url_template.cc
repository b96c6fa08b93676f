#include "tools/url_template.h"

#include <algorithm>

#include "json/json.h"

namespace ae::tools {
namespace {

bool is_alphanumeric(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

bool is_unreserved(char c) {
  return is_alphanumeric(c) || c == '-' || c == '.' || c == '_' || c == '~';
}

bool is_url_character(char c) {
  return is_unreserved(c) ||
         std::string_view("%:/?[]@!$&'()*+,;=").find(c) != std::string_view::npos;
}

void percent_encode(std::string_view text, std::string& out) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  for (const char c : text) {
    if (is_unreserved(c)) {
      out += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      out += '%';
      out += kDigits[byte >> 4];
      out += kDigits[byte & 15];
    }
  }
}

std::unexpected<Error> bad_url(std::string_view why) {
  return fail(Code::plan_invalid, "url: {}", why);
}

// `host`, `host:port`, `[v6]:port`.
Status check_server(std::string_view authority) {
  if (authority.find('@') != std::string_view::npos) {
    return bad_url("no user name or password in it: use a header with secret:NAME");
  }
  std::string_view host = authority;
  if (authority.starts_with('[')) {
    const std::size_t end = authority.find(']');
    if (end == std::string_view::npos) return bad_url("the [ of its host is not closed");
    host = authority.substr(0, end + 1);
  } else {
    host = authority.substr(0, authority.find(':'));
    const auto fits = [](char c) { return is_unreserved(c); };
    if (!std::ranges::all_of(host, fits)) return bad_url("its host holds a forbidden character");
  }
  if (host.empty() || host == "[]") return bad_url("it names no host");
  const std::string_view port = authority.substr(host.size());
  if (port.empty()) return {};
  unsigned number = 0;
  for (const char c : port.substr(1)) {
    if (c < '0' || c > '9' || number > 65535) return bad_url("its port is not a number");
    number = number * 10 + static_cast<unsigned>(c - '0');
  }
  if (port[0] != ':' || number == 0 || number > 65535)
    return bad_url("its port is not a number from 1 to 65535");
  return {};
}

// The part of the URL that is being written: a path segment, with or without an argument, or the
// query.
struct UrlPosition {
  std::string segment;
  bool from_argument = false;
  bool in_query = false;

  Status end_segment() {
    if (from_argument && !in_query && (segment.empty() || segment == "." || segment == "..")) {
      return fail(
          Code::input_invalid,
          "an argument makes the URL's path segment \"{}\", which would name another resource",
          segment);
    }
    segment.clear();
    from_argument = false;
    return {};
  }
};

}  // namespace

Result<UrlTemplate> UrlTemplate::parse(std::string_view text) {
  UrlTemplate url;
  AE_ASSIGN(url.parts_, Template::parts(text));
  for (const Template::Part& part : url.parts_) {
    const auto* literal = std::get_if<std::string>(&part);
    if (literal == nullptr) continue;
    if (literal->find('#') != std::string::npos) {
      return bad_url("a fragment (#) is never sent to a server: leave it out");
    }
    if (!std::ranges::all_of(*literal, is_url_character)) {
      return bad_url("it holds a character that must be percent-encoded");
    }
  }
  const auto* first = url.parts_.empty() ? nullptr : std::get_if<std::string>(&url.parts_[0]);
  if (first == nullptr) return bad_url("scheme, host and port must be literal");
  const std::size_t scheme = first->starts_with("http://")    ? 7
                             : first->starts_with("https://") ? 8
                                                              : 0;
  if (scheme == 0) return bad_url("it must begin with http:// or https://");
  const std::size_t end = std::min(first->find_first_of("/?", scheme), first->size());
  if (end == first->size() && url.parts_.size() > 1) {
    return bad_url("scheme, host and port must be literal: put a / after them");
  }
  AE_TRY(check_server(std::string_view(*first).substr(scheme, end - scheme)));
  url.server_ = first->substr(0, end);
  return url;
}

Result<std::string> UrlTemplate::render(const ExprScope& scope) const {
  std::string out = server_;
  UrlPosition position;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (const auto* expression = std::get_if<Expr>(&parts_[i])) {
      AE_ASSIGN(const std::string text, render_expression(*expression, scope));
      std::string encoded;
      percent_encode(text, encoded);
      position.from_argument = true;
      if (!position.in_query) position.segment += encoded;
      out += encoded;
      continue;
    }
    const std::string_view literal = std::get<std::string>(parts_[i]);
    for (const char c : literal.substr(i == 0 ? server_.size() : 0)) {
      out += c;
      if (position.in_query) continue;
      if (c == '/' || c == '?') {
        AE_TRY(position.end_segment());
        position.in_query = c == '?';
      } else {
        position.segment += c;
      }
    }
  }
  AE_TRY(position.end_segment());
  return out;
}

Result<std::string> render_expression(const Expr& expression, const ExprScope& scope) {
  auto value = expression.eval(scope);
  if (!value) return std::unexpected(std::move(value).error().with_context(expression.text()));
  if (value->is_null()) return fail(Code::expression_failed, "{} is null", expression.text());
  return value->is_string() ? value->as_string() : canonical(*value);
}

}  // namespace ae::tools
