// Error messages of failed model calls: the error, and what to check.
//
// Deterministic, because they are recorded; they contain no key. Threads: pure functions.
#pragma once

#include <string>

#include "json/value.h"
#include "log/outcome.h"

namespace ae::llm {

// The server that a model's settings name, for messages.
struct Endpoint {
  std::string host;  // with port, as in base_url
  std::string key;   // name of the secret; "": no key is sent
};
Endpoint endpoint_of(const Value& settings);

// Adds what to check. A response that is not JSON becomes http_502. REQUIRES: not a success.
void add_hint(const Endpoint& endpoint, Outcome& outcome);

}  // namespace ae::llm
