// UrlTemplate: the URL of an HTTP call. Arguments can select a resource, but never a server.
//
// Scheme, host and port are literal. Each `${ }` becomes one percent-encoded path segment (or part
// of one) or query value, so untrusted arguments cannot change the structure of the URL. A path
// segment that would become empty, `.` or `..` is rejected, because servers resolve those to
// another resource. Threads: a value; rendering is a pure function.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "expr/expr.h"

namespace ae::tools {

class UrlTemplate {
 public:
  // Fails with plan_invalid.
  static Result<UrlTemplate> parse(std::string_view text);
  // Fails with expression_failed or input_invalid.
  Result<std::string> render(const ExprScope& scope) const;

  const std::vector<Template::Part>& parts() const { return parts_; }
  const std::string& server() const { return server_; }  // http://host:port

 private:
  std::vector<Template::Part> parts_;
  std::string server_;
};

// The value of an expression inside a longer text: strings unchanged, other values as canonical
// JSON. Fails with expression_failed for null.
Result<std::string> render_expression(const Expr& expression, const ExprScope& scope);

}  // namespace ae::tools
