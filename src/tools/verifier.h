// Verifier: checks whether an external resource that a tool changed is still as the job left it
// (SPEC §8).
//
// It only reads. If it cannot read the resource, the verdict is `unreachable`, never a guess; if
// nothing was recorded to compare with, it is `unconfirmed`. Threads: call check on the loop's
// thread; the result is delivered there, once, within the verifier's own timeout.
#pragma once

#include "async/loop.h"
#include "json/value.h"
#include "log/check_result.h"

namespace ae::tools {

class Verifier {
 public:
  virtual ~Verifier() = default;
  // `change`: {type, id, op, version, etag, ref} as recorded; missing members are null. A change
  // whose op is `delete` matches when the resource is gone.
  virtual void check(Value change, async::Done<CheckResult> done) = 0;
};

}  // namespace ae::tools
