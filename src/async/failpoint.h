// AE_FAILPOINT("append.before"): a named place where a test can inject a fault.
//
// One macro, three handlers: failpoints (API.md §3: AETHERIS_FAILPOINTS), the crash points of the
// simulator, and the coverage marks of the sweep. Without a handler it costs one load and a branch.
// Threads: failpoints are hit from any thread; the handler is set once, before threads start.
#pragma once

#include <string_view>

namespace ae::async {

enum class FailpointAction {
  proceed,      // no fault
  error,        // fail with `unavailable` without doing the operation
  error_after,  // do the operation, then report `unknown_outcome`
};

class FailpointHandler {
 public:
  virtual ~FailpointHandler() = default;
  // May also terminate the process or sleep.
  virtual FailpointAction hit(std::string_view name) = 0;
};

extern FailpointHandler* failpoint_handler;  // set by main or by a test; borrowed

inline FailpointAction hit_failpoint(std::string_view name) {
  return failpoint_handler ? failpoint_handler->hit(name) : FailpointAction::proceed;
}

}  // namespace ae::async

#define AE_FAILPOINT(name) (::ae::async::hit_failpoint(name))
