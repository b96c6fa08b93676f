// Verifier: looks at a thing outside that a tool has changed, and tells whether it is as it was left (SPEC §8).
//
// It only reads. What it cannot see is `unreachable`, never a guess; what was never recorded is `unconfirmed`.
// Threads: look is called on the loop's thread; the answer comes there too, once, within the verifier's own timeout.
#pragma once

#include "async/loop.h"
#include "json/value.h"
#include "log/check_result.h"

namespace ae::tools {

class Verifier {
 public:
  virtual ~Verifier() = default;
  // `change`: {type, id, op, version, etag, ref} as it was recorded; what was not is null. A change whose op is
  // `delete` is as it was left when the thing is gone.
  virtual void check(Value change, async::Done<CheckResult> done) = 0;
};

}  // namespace ae::tools
