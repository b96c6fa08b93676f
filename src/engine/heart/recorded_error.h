// Errors in the form in which a decision records them.
//
// Threads: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "json/value.h"
#include "log/event.h"
#include "log/seal.h"

namespace ae::engine {

inline RecordedError recorded_error(const Error& error) {
  return {std::string(code_name(error.code)), Value(error.message)};
}

inline std::unexpected<Error> too_large(std::string_view what) {
  return fail(Code::payload_too_large,
              "{} is longer than {} MiB as canonical JSON, the most that is kept", what,
              kValueMax >> 20);
}

}  // namespace ae::engine
