// What an HTTP status says of the call that it answers.
// Threads: pure functions.
#pragma once

namespace ae {

// 4xx does: the call took no effect. Not so 408, 409 and 425, after which it may still be under way.
constexpr bool is_no_effect_status(int status) {
  return status >= 400 && status < 500 && status != 408 && status != 409 && status != 425;
}

// A complete response with it settles the call: the request has no effect after the response. Not so the statuses with which
// an intermediary answers for the server (502, 503, 504, 520 to 530), and those that say that a request is under way.
constexpr bool is_settling_status(int status) {
  const bool intermediary = (status >= 502 && status <= 504) || (status >= 520 && status <= 530);
  return status >= 300 && !intermediary && status != 409 && status != 425;
}

}  // namespace ae
