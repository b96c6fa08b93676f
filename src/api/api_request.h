// ApiRequest, ApiResponse: one call of a route, without a transport.
//
// Threads: values. Render and the quota of the body are used and released on any thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "api/roles.h"
#include "api/target.h"
#include "base/time.h"
#include "json/value.h"
#include "mcp/protocol/revision.h"
#include "mcp/server/request_headers.h"

namespace ae::api {

constexpr std::size_t kBodyMax = 4u << 20;  // bytes of a request body

// A body as the client gets it.
struct RenderedBody {
  std::string bytes;
  bool gzip = false;  // compressed
};
// Called on a reader thread: uses only its argument and what it owns.
using Render = std::function<RenderedBody(const Value& body)>;

struct ApiRequest {
  std::string method = "GET";
  Path path;  // {"api", "jobs", id}
  QueryPairs query;
  std::string body;                            // JSON; "" = none
  std::shared_ptr<void> body_quota = {};       // memory share of the body; released with this
  std::optional<std::string> idempotency_key;  // header Idempotency-Key
  std::string traceparent, tracestate;         // these headers, unchanged
  std::string by;                              // the client, for the audit log and events
  Role role = Role::admin;                     // of the key; our own user has every permission
  bool local = true;                           // from our own user, on this machine
  // Requested once the client has disconnected: waiting and reading on its behalf end.
  std::stop_token disconnected = {};
  std::string if_none_match = {};  // this header
  // Renders the body of a successful read of a job or a list. Empty: the body stays a Value.
  Render render = {};
  bool accepts_gzip = false;  // `render` compresses large bodies
  // Is there memory for a large response now? Set for requests that only read; empty = always.
  std::function<bool()> has_capacity = {};
  // For POST /mcp (mcp.h): what its headers declare about the message; nullopt = it came by stdio.
  std::optional<mcp::RequestHeaders> mcp_headers = {};
  std::optional<mcp::Revision> mcp_revision = {};  // stdio: the negotiated revision
  // Receives notifications that precede the response; null = none, still working. Empty = no
  // receiver.
  std::function<void(const Value&)> on_notification = {};
};

struct ApiResponse {
  int status = 200;
  Value body;               // problem+json when status >= 400
  std::string location;     // of the created resource; "" = none
  std::string text;         // plain text instead of the body: /metrics
  Duration retry_after{0};  // when to retry; 0 = unknown
  std::string allow = {};   // for 405: the methods of this path
  bool rpc = false;         // the body is a JSON-RPC message, whatever the status; null = none
  std::optional<RenderedBody> rendered = {};  // in the place of `body` (ApiRequest::render)
  std::string etag = {};                      // of a view of a job; "" = none
};

}  // namespace ae::api
