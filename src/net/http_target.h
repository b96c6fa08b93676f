// parse_target: the path and the query of a request, decoded.
//
// Threads: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace ae::net {

struct HttpTarget {
  // "/api/jobs/a%2Fb" is {api, jobs, a/b}; "/" is {}; "/api/" is {api, ""}. UTF-8 without control
  // characters; no segment is "." or "..".
  std::vector<std::string> path;
  std::vector<std::pair<std::string, std::string>> query;  // in order, keys may repeat
};

// A path that begins with "/", and a query: "/api/jobs?label=a%3Db". Fails with input_invalid.
Result<HttpTarget> parse_target(std::string_view target);

}  // namespace ae::net
