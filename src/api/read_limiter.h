// ReadLimiter: how many whole logs are read for answers at once.
//
// A log may be large: each that is read takes memory and a time of the loop. A few are read at once; the others wait, in one
// line per caller, and the lines take turns. Between two turns the loop does what else there is.
// Decision: 0065-admission-before-bodies.md. Threads: the loop's.
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

  // The turn lasts until its last copy is dropped, which may be after this.
  using Slot = std::shared_ptr<void>;
  using SlotCallback = std::move_only_function<void(Slot)>;
  // Calls `on_slot` when it is the caller's turn; inside this call when nothing is read. Those that still wait at the end of this
  // are dropped.
  void acquire(const std::string& caller, SlotCallback on_slot);

 private:
  struct WaitingReads;
  static Slot begin(const std::shared_ptr<WaitingReads>& waiting_reads);
  static void next(const std::shared_ptr<WaitingReads>& waiting_reads);
  std::shared_ptr<WaitingReads> waiting_reads_;  // shared with the turns
};

}  // namespace ae::api
