// Problem: the HTTP form of an error (RFC 9457), and the status of each code.
//
// Threads: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "json/value.h"

namespace ae::api {

int http_status(Code code);
// {type, title, status, code, detail}; docs/errors has a page for each code. An error with an
// action also has `action`, as data, and `act`, its request if there is one. `status`: overrides
// that of the code.
Value problem(const Error& error, int status = 0);
Error missing_job_error(std::string_view id);
// The reverse of `problem`, for a response body. An unknown code becomes `unavailable`; the detail
// is kept.
Error error_of_problem(const Value& body, int status);

}  // namespace ae::api
