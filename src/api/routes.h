// Routes: the operations of docs/openapi.json, as a table that the build generates
// (scripts/routes.py, docs/decisions/0082-one-source-of-routes.md).
//
// Threads: constants, pure functions.
#pragma once

#include <expected>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "api/roles.h"
#include "api/target.h"

namespace ae::api {

struct ApiContext;
struct RequestContext;
using RequestPtr = std::shared_ptr<RequestContext>;
// Answers a request with a known path, role and names of parameters and fields. Runs on the loop,
// and answers exactly once, in this call or later.
using Handler = void (*)(ApiContext& api, RequestPtr ctx);

struct BodyField {
  std::string_view name;
  std::string_view unsupported;    // why a request with this field is refused; "" = it is accepted
  std::string_view alias_of = {};  // the name of the field that this is an older name of
};

struct Route {
  std::string_view operation;                  // its operationId
  std::string_view method;                     // "GET"
  std::string_view path;                       // "/api/jobs/{id}"
  std::span<const std::string_view> segments;  // of the path; "{id}" matches any
  Access access;
  std::span<const QueryParameter> query;
  // Of a body that is a JSON object without other fields. Empty: the handler reads the body itself.
  std::span<const BodyField> fields;
  Handler handle;  // api/operations.h
};

// In the order of the document.
std::span<const Route> routes();
// The route of a request; or the methods of its path as in the header Allow, "" = there is no such
// path.
std::expected<const Route*, std::string> find_route(std::string_view method, const Path& path);
// Does the route of this request work without a key?
bool is_public_route(std::string_view method, const Path& path);

}  // namespace ae::api
