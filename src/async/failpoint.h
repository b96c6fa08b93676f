// AE_FAILPOINT("append.before"): a named place where something can go wrong on purpose.
//
// One mark with three handlers: failpoints (API.md §3: AETHERIS_FAILPOINTS), the crash points of the simulator, and
// the reached-marks of the sweep. Without a handler a mark costs one load and a branch.
// Threads: marks are hit from any thread; the handler is set once, before threads start.
#pragma once

#include <string_view>

namespace ae::async {

enum class FailpointAction {
  go,           // nothing happens here
  error,        // fail with `unavailable`; nothing done
  error_after,  // do it, then report `unknown_outcome`
};

class FailpointHandler {
 public:
  virtual ~FailpointHandler() = default;
  // May also end the process or sleep.
  virtual FailpointAction hit(std::string_view name) = 0;
};

extern FailpointHandler* failpoint_handler;  // set by main or by a test; borrowed

inline FailpointAction hit_failpoint(std::string_view name) {
  return failpoint_handler ? failpoint_handler->hit(name) : FailpointAction::go;
}

}  // namespace ae::async

#define AE_FAILPOINT(name) (::ae::async::hit_failpoint(name))
