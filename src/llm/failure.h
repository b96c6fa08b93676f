// What a person reads of a question to a model that was not answered: what was said, and where to look.
//
// The same failure has the same words each time, for they are recorded; they hold no key. Threads: pure functions.
#pragma once

#include <string>

#include "json/value.h"
#include "log/outcome.h"

namespace ae::llm {

// Whom a model's settings reach, in words.
struct Endpoint {
  std::string host;  // and its port, as base_url has them
  std::string key;   // the name of the secret; "": none is sent
};
Endpoint endpoint_of(const Value& settings);

// An answer that is no JSON becomes what a gateway says of one that it cannot use: http_502. REQUIRES: no success.
void add_hint(const Endpoint& endpoint, Outcome& outcome);

}  // namespace ae::llm
