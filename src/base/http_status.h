// What an HTTP status implies about the effect of the call.
// Threads: pure functions.
#pragma once

namespace ae {

// 4xx: the call had no effect. Exceptions: after 408, 409 and 425 it may still be in progress.
constexpr bool is_no_effect_status(int status) {
  return status >= 400 && status < 500 && status != 408 && status != 409 && status != 425;
}

// A complete response with such a status settles the call: the request has no effect after the
// response. Excluded are statuses that an intermediary sends in place of the server (502, 503, 504,
// 520 to 530) and those that mean that a request is in progress (409, 425).
constexpr bool is_settling_status(int status) {
  const bool intermediary = (status >= 502 && status <= 504) || (status >= 520 && status <= 530);
  return status >= 300 && !intermediary && status != 409 && status != 425;
}

}  // namespace ae
