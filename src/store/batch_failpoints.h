// Where AE_POINTs sit around a store's work: the same for every driver.
//
//   append.before, append.after    around every batch with events
//   the batch's own points         its rows are written: before the COMMIT with events, after it without
//   claim.after                    a claim is durable (also of a job that is born claimed)
//   heartbeat.before, signal.after_inbox
//
// `error` before the COMMIT is `unavailable`, nothing done; everything else is done and answers `unknown_outcome`.
// Threads: as hit_failpoint.
#pragma once

#include <optional>
#include <string_view>

#include "base/error.h"
#include "store/store.h"

namespace ae::store {

// The points of one batch, in the order before → inside → after.
class BatchFailpoints {
 public:
  // True when this batch can fail between its rows and the COMMIT, so that a driver can undo it alone.
  static bool may_fail_before_commit(const Batch& batch);

  explicit BatchFailpoints(const Batch& batch) : batch_(batch) {}
  // Before anything is written. An error is the answer; nothing may be written.
  std::optional<Error> before();
  // The rows are written, the COMMIT is not made. An error is the answer; the rows must be undone.
  std::optional<Error> inside();
  // The batch is durable. An error is the answer.
  std::optional<Error> after();

 private:
  std::optional<Error> hit_before_commit(std::string_view name);

  const Batch& batch_;       // borrowed
  std::string_view lost_{};  // the point that said error_after: the answer gets lost
};

// A point after something became durable: an error is the answer.
std::optional<Error> hit_after_failpoint(std::string_view name);

// A point before something is done: `go`, or an answer now, or an answer that replaces success later.
struct BeforeFailpoint {
  std::optional<Error> now;
  std::optional<Error> afterwards;
};
BeforeFailpoint hit_before_failpoint(std::string_view name);

}  // namespace ae::store
