// Fields of verifier definitions: texts with `.change` expressions, urls, headers.
//
// Threads: values; pure functions, except for resolving secrets.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/time.h"
#include "expr/expr.h"
#include "json/value.h"
#include "net/http_header.h"
#include "tools/secrets.h"
#include "tools/url_template.h"

namespace ae::tools {

// One root, `.change` or `.result`.
class SingleRootScope final : public ExprScope {
 public:
  SingleRootScope(std::string_view name, const Value& value) : name_(name), value_(value) {}
  const Value* root(std::string_view name) const override {
    return name == name_ ? &value_ : nullptr;
  }
  const Value* step(std::string_view) const override { return nullptr; }
  Value steps() const override { return {}; }

 private:
  std::string_view name_;
  const Value& value_;
};

// Members of a definition. They fail with plan_invalid; the message begins with the key.
Status check_known_keys(const Value& definition, std::initializer_list<std::string_view> keys);
Result<std::string> text_of(const Value& definition, std::string_view key);
Result<Duration> timeout_of(const Value& definition);
// A text or list whose expressions read only `root`.
Result<Template> template_of(const Value& definition, std::string_view key, std::string_view root);
// The rendered text; a number gives its canonical text. Fails with expression_failed.
Result<std::string> render_text(const Template& part, const Value& change);

// A url with a literal scheme and host, or one ${ } that gives the whole url.
class TargetUrl {
 public:
  static Result<TargetUrl> parse(const Value& definition);
  Result<std::string> render(const Value& change) const;
  bool is_whole_url() const { return whole_.has_value(); }

 private:
  std::optional<UrlTemplate> template_;
  std::optional<Template> whole_;
};

// Literal names and literal texts with secret:NAME.
class Headers {
 public:
  static Result<Headers> parse(const Value& definition, bool is_host_literal);
  Result<net::HttpHeaders> fill(SecretSource& secrets, std::vector<UsedSecret>& used) const;

 private:
  std::vector<std::pair<std::string, std::string>> headers_;
};

// A path with each segment percent-encoded. Fails with input_invalid for a segment that is empty,
// `.` or `..`.
Result<std::string> encoded_path(std::string_view path);

}  // namespace ae::tools
