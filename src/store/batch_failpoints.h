// BatchFailpoints: the failpoints of a store, the same for every driver.
//
//   append.before, append.after  around every batch with events
//   Batch::failpoints            rows written: before the COMMIT if there are events, else after it
//   claim.after                  a claim is durable (also of a job created with a lease)
//   heartbeat.before, signal.after_inbox
//
// `error` before the COMMIT answers `unavailable` and nothing is done. All others answer
// `unknown_outcome` and the work is done.
// Threads: as hit_failpoint.
#pragma once

#include <optional>
#include <string_view>

#include "base/error.h"
#include "store/store.h"

namespace ae::store {

// The failpoints of one batch, in the order before → inside → after.
class BatchFailpoints {
 public:
  // True if this batch can fail between its rows and the COMMIT, so that a driver must be able to
  // undo it alone.
  static bool may_fail_before_commit(const Batch& batch);

  explicit BatchFailpoints(const Batch& batch) : batch_(batch) {}
  // Before anything is written. An error is the answer; nothing may be written.
  std::optional<Error> before();
  // The rows are written, not committed. An error is the answer; the rows must be undone.
  std::optional<Error> before_commit();
  // The batch is durable. An error is the answer.
  std::optional<Error> after();

 private:
  std::optional<Error> hit_before_commit(std::string_view name);

  const Batch& batch_;              // borrowed
  std::string_view lost_answer_{};  // the failpoint that returned error_after: the answer is lost
};

// A failpoint after something became durable. An error is the answer.
std::optional<Error> hit_after_failpoint(std::string_view name);

// A failpoint before something is done. `now`: fail without doing it. `afterwards`: do it, then
// answer this error.
struct BeforeFailpoint {
  std::optional<Error> now;
  std::optional<Error> afterwards;
};
BeforeFailpoint hit_before_failpoint(std::string_view name);

}  // namespace ae::store
