// Outcomes of calls that the runtime performs itself, as `Tool::perform` would return them.
//
// Threads: pure functions.
#pragma once

#include <string>
#include <utility>

#include "log/outcome.h"

namespace ae::runtime {

inline Outcome definite_failure(std::string code, std::string message) {
  return {.kind = OutcomeKind::failure,
          .definite = true,
          .error_code = std::move(code),
          .error_message = std::move(message)};
}

// Nothing happened: the call is tried again.
inline Outcome not_sent(std::string why) {
  Outcome outcome = definite_failure("not_sent", std::move(why));
  outcome.retryable = true;
  return outcome;
}

}  // namespace ae::runtime
