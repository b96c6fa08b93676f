// EarlierCalls: what a worker reports about calls that an earlier process of this server declared.
//
// RemoteRoutines knows the calls of its own sessions for 10 minutes after they ended. Others come
// here: the log says which worker was given such a call, and the reports of no other one count.
// Threads: the loop's.
#pragma once

#include <string_view>
#include <vector>

#include "log/outcome.h"
#include "routines/remote/worker_messages.h"

namespace ae::routines {

class EarlierCalls {
 public:
  virtual ~EarlierCalls() = default;
  // A worker begins a session. `left`: the calls that it had received in sessions that are gone. A
  // declared call that was meant for this worker and is not among them was never begun.
  // `principal`: as in RemoteRoutines::accept.
  virtual void on_left(std::string_view principal, std::string_view worker,
                       const LeftCalls& left) = 0;
  // How such a call ended.
  virtual void on_late(std::string_view principal, std::string_view worker, const CallName& call,
                       const Outcome& outcome) = 0;
};

}  // namespace ae::routines
