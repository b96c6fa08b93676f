// AE_POINT("append.before"): a named place where something can go wrong on purpose.
//
// One mark with three handlers: failpoints (API.md §3: AETHERIS_FAILPOINTS), the crash points of the simulator, and
// the reached-marks of the sweep. Without a handler a mark costs one load and a branch.
// Threads: marks are hit from any thread; the handler is set once, before threads start.
#pragma once

#include <string_view>

namespace ae::async {

enum class PointAction {
  go,           // nothing happens here
  error,        // fail with `unavailable`; nothing done
  error_after,  // do it, then report `unknown_outcome`
};

class PointHandler {
 public:
  virtual ~PointHandler() = default;
  // May also end the process or sleep.
  virtual PointAction hit(std::string_view name) = 0;
};

extern PointHandler* point_handler;  // set by main or by a test; borrowed

inline PointAction at_point(std::string_view name) {
  return point_handler ? point_handler->hit(name) : PointAction::go;
}

}  // namespace ae::async

#define AE_POINT(name) (::ae::async::at_point(name))
