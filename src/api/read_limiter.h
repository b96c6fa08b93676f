// ReadLimiter: limits the number of whole logs that are read at once.
//
// A log can be large: its bytes, its events and the response are in memory at once. A few are read
// at once. The others wait in one queue per caller, and the queues are served round robin.
// Decisions: 0065-admission-before-bodies.md, 0083-reader-threads.md. Threads: the loop's.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "async/loop.h"

namespace ae::api {

class ReadLimiter {
 public:
  // Borrows the loop.
  ReadLimiter(async::Loop& loop, std::size_t at_once);
  ~ReadLimiter();
  ReadLimiter(const ReadLimiter&) = delete;
  ReadLimiter& operator=(const ReadLimiter&) = delete;

  // The slot is held until its last copy is destroyed, which may be after the limiter.
  using Slot = std::shared_ptr<void>;
  using SlotCallback = std::move_only_function<void(Slot)>;
  // Calls `on_slot` when the caller gets a slot; inside this call if one is free. The destructor
  // drops callbacks that still wait.
  void acquire(const std::string& caller, SlotCallback on_slot);

 private:
  struct WaitingReads;
  static Slot begin(const std::shared_ptr<WaitingReads>& waiting_reads);
  static void next(const std::shared_ptr<WaitingReads>& waiting_reads);
  std::shared_ptr<WaitingReads> waiting_reads_;  // shared with the slots
};

}  // namespace ae::api
