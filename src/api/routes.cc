// The lookup of routes.
#include "api/routes.h"

#include <algorithm>

#include "api/route_table.inc"

namespace ae::api {
namespace {

bool matches(const Route& route, const Path& path) {
  return std::ranges::equal(route.segments, path,
                            [](std::string_view pattern, std::string_view segment) {
                              return pattern.starts_with('{') || pattern == segment;
                            });
}

}  // namespace

std::span<const Route> routes() { return kRoutes; }

std::expected<const Route*, std::string> find_route(std::string_view method, const Path& path) {
  std::string allow;
  for (const Route& route : kRoutes) {
    if (!matches(route, path)) continue;
    if (route.method == method) return &route;
    allow.append(allow.empty() ? "" : ", ").append(route.method);
    if (route.method == "GET") allow += ", HEAD";
  }
  return std::unexpected(std::move(allow));
}

bool is_public_route(std::string_view method, const Path& path) {
  const auto route = find_route(method, path);
  return route && (*route)->access == Access::open;
}

}  // namespace ae::api
