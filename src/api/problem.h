// Problem: how an error looks at the edge (RFC 9457), and which HTTP status each code has.
//
// Threads: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "json/value.h"

namespace ae::api {

int http_status(Code code);
// {type, title, status, code, detail}; docs/errors has a page for each code. `status`: another one than the code has.
Value problem(const Error& error, int status = 0);
// The message with the request of the API in place of each command of the program, as clients of the API read it; and
// back, as the program prints it.
std::string with_requests(std::string_view message);
std::string with_commands(std::string_view message);
Error no_job(std::string_view id);
// And back, from a body that came over a socket. Unknown codes become `unavailable` with the detail kept.
Error error_of_problem(const Value& body, int status);

}  // namespace ae::api
