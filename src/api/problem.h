// Problem: how an error looks at the edge (RFC 9457), and which HTTP status each code has.
//
// Threads: pure functions.
#pragma once

#include <string>

#include "core/error.h"
#include "core/value.h"

namespace ae::api {

int http_status(Code code);
// {type, title, status, code, detail}; docs/errors has a page for each code. `status`: another one than the code has.
Value problem(const Error& error, int status = 0);
// And back, from a body that came over a socket. Unknown codes become `unavailable` with the detail kept.
Error error_of_problem(const Value& body, int status);

}  // namespace ae::api
