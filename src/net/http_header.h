// HttpHeader: one header of a request or response, and lookup in a list of them.
//
// Threads: values.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ae::net {

struct HttpHeader {
  std::string name;
  std::string value;
};
using HttpHeaders = std::vector<HttpHeader>;

// Ignores the case of ASCII letters only; for header names and media types.
bool equal_ignoring_case(std::string_view a, std::string_view b) noexcept;
// The value of the first header of this name. The view lives as long as `headers`.
std::optional<std::string_view> find_header(const HttpHeaders& headers, std::string_view name);

bool is_header_name(std::string_view name) noexcept;  // a token of RFC 9110
// No CR, LF, NUL or other control character except tab, so the value cannot inject a header.
bool is_header_value(std::string_view value) noexcept;

}  // namespace ae::net
