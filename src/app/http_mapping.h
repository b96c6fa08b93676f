// HTTP mapping: a request as HTTP says it in the words of the Api, and the Api's answer in those of HTTP.
//
// Who it is that asks is the Authenticator's to say, and is given. Threads: pure functions.
#pragma once

#include "api/api.h"
#include "api/authenticator.h"
#include "base/error.h"
#include "net/http_server.h"

namespace ae::app {

// HEAD is a GET of which only the head is sent: the server leaves the body out.
std::string method_of(const net::HttpRequest& request);
bool is_mcp(const net::HttpRequest& request);

// `principal`: who it is, if the gate knows; otherwise they say it themselves.
// `local`: on the socket of our own user.
api::ApiRequest to_api_request(net::HttpRequest&& in, const api::Principal& principal, bool local);

net::HttpResponse to_http_response(const api::ApiResponse& in);
api::ApiResponse problem_response(const Error& error);

}  // namespace ae::app
