#include "net/http_header.h"

#include <algorithm>

namespace ae::net {
namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool is_token_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         (c != '\0' && std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos);
}

}  // namespace

bool equal_ignoring_case(std::string_view a, std::string_view b) noexcept {
  return std::ranges::equal(a, b, {}, lower, lower);
}

std::optional<std::string_view> find_header(const HttpHeaders& headers, std::string_view name) {
  for (const HttpHeader& header : headers) {
    if (equal_ignoring_case(header.name, name)) return header.value;
  }
  return std::nullopt;
}

bool is_header_name(std::string_view name) noexcept {
  return !name.empty() && std::ranges::all_of(name, is_token_char);
}

bool is_header_value(std::string_view value) noexcept {
  return std::ranges::all_of(value, [](char c) {
    return c == '\t' || (static_cast<unsigned char>(c) >= 0x20 && c != 0x7F);
  });
}

}  // namespace ae::net
