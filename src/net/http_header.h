// HttpHeader: one header of a request or an answer, and how a list of them is searched.
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

// Letters of ASCII only: header names, media types.
bool equal_ignoring_case(std::string_view a, std::string_view b) noexcept;
// The value of the first header of this name. The view lives as long as `headers`.
std::optional<std::string_view> find_header(const HttpHeaders& headers, std::string_view name);

bool is_header_name(std::string_view name) noexcept;  // a token of RFC 9110
// No CR, LF, NUL or other control character but the tab: nothing that could begin a header of its own.
bool is_header_value(std::string_view value) noexcept;

}  // namespace ae::net
