// HttpRequest: a parsed and decoded request, as HttpServer passes it to a handler.
//
// Threads: a value.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "net/http_header.h"

namespace ae::net {

struct HttpRequest {
  std::string method;  // GET HEAD POST PUT PATCH DELETE OPTIONS
  // Percent-decoded, valid UTF-8 without control characters; no segment is "." or "..":
  // "/api/jobs/a%2Fb" is {api, jobs, a/b}; "/" is {}; "/api/" is {api, ""}.
  std::vector<std::string> path;
  std::vector<std::pair<std::string, std::string>> query;  // decoded, in order, keys may repeat
  HttpHeaders headers;                                     // names in lower case, values trimmed
  std::string body;
  bool from_tool = false;    // HttpServer::Options::is_tool
  std::string peer;          // "127.0.0.1:52100", "[::1]:52100", or "unix"
  std::int64_t process = 0;  // that made the connection to a Unix socket; 0 = unknown
  bool has_body = false;
  // Holds the share of `body` in HttpServer::Options::bodies_max while it exists.
  // shared_ptr: type-erased.
  std::shared_ptr<void> body_quota = {};

  std::optional<std::string_view> header(std::string_view name) const {
    return find_header(headers, name);
  }
  // The first value with this name.
  std::optional<std::string_view> query_value(std::string_view key) const {
    for (const auto& [name, value] : query) {
      if (name == key) return value;
    }
    return std::nullopt;
  }
};

}  // namespace ae::net
