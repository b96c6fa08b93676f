// What an HTTP status says of the call that it answers.
// Threads: pure functions.
#pragma once

namespace ae {

// 4xx does: the call took no effect. Not so 408, 409 and 425, after which it may still be under way.
constexpr bool says_nothing_happened(int status) {
  return status >= 400 && status < 500 && status != 408 && status != 409 && status != 425;
}

}  // namespace ae
