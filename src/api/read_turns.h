// ReadTurns: how many whole logs are read for answers at once.
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

class ReadTurns {
 public:
  // Borrows the loop.
  ReadTurns(async::Loop& loop, std::size_t at_once);
  ~ReadTurns();
  ReadTurns(const ReadTurns&) = delete;
  ReadTurns& operator=(const ReadTurns&) = delete;

  // The turn lasts until its last copy is dropped, which may be after this.
  using Turn = std::shared_ptr<void>;
  using Go = std::move_only_function<void(Turn)>;
  // Calls `go` when it is the caller's turn; inside this call when nothing is read. Those that still wait at the end of this
  // are dropped.
  void take(const std::string& caller, Go go);

 private:
  struct Lines;
  static Turn begin(const std::shared_ptr<Lines>& lines);
  static void next(const std::shared_ptr<Lines>& lines);
  std::shared_ptr<Lines> lines_;  // shared with the turns
};

}  // namespace ae::api
