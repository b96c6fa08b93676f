// HTTP mapping: converts HTTP requests to Api requests, and Api responses to HTTP responses.
//
// The principal comes from the Authenticator. Threads: pure functions.
#pragma once

#include "api/api.h"
#include "api/authenticator.h"
#include "base/error.h"
#include "net/http_server.h"

namespace ae::app {

// HEAD is treated as GET; the server omits the body.
std::string method_of(const net::HttpRequest& request);
bool is_mcp(const net::HttpRequest& request);

// `principal`: the authenticated client; if it names no actor, the header X-Aetheris-By does.
// `local`: received on our own user's socket.
api::ApiRequest to_api_request(net::HttpRequest&& in, const api::Principal& principal, bool local);

// Called on the loop; a rendered body is passed on, and any other body is rendered.
net::HttpResponse to_http_response(api::ApiResponse in);
api::ApiResponse problem_response(const Error& error);

}  // namespace ae::app
