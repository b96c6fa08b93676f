// LostCalls: the calls of sessions that are gone. A worker may have performed them, so the outcome
// of each is unknown, but not before its permit has expired. For 10 minutes its worker may report
// its outcome.
//
//   lost ──permit expired──▶ reported as unknown ──the worker reports it──▶ its late outcome
//     └──the worker reports it, or never received it──▶ its outcome
//
// Threads: the loop's.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "async/alive.h"
#include "async/loop.h"
#include "base/time.h"
#include "log/outcome.h"
#include "routines/remote/worker_messages.h"

namespace ae::routines {

class LostCalls {
 public:
  static constexpr Duration kKept = std::chrono::minutes(10);

  struct Call {
    std::string principal, worker;  // that it was given to
    async::Done<Outcome> done;      // empty: its outcome was reported
    async::Done<Outcome> on_late_outcome;
    // By the steady clock: it was written to the connection, and its permit expires
    Duration sent_at{}, send_by{};
    bool was_received = false;  // the worker has reported about it: it was begun
  };
  LostCalls(async::Loop& loop, async::SteadyClock& clock) : loop_(loop), clock_(clock) {}

  void add(const CallName& name, Call call);
  // The worker begins a session: those of its calls that `left` covers and lacks were never begun.
  void on_left(std::string_view principal, std::string_view worker, const LeftCalls& left);
  // False: there is no such call of this worker.
  bool on_late(std::string_view principal, std::string_view worker, const CallName& name,
               const Outcome& outcome);
  // Forgets those that were lost kKept ago.
  void remove_old();
  std::size_t size() const { return calls_.size(); }

 private:
  struct Entry {
    Call call;
    Duration lost_at{};
  };
  void on_expired(const CallName& name);
  // Removes it.
  void end(std::map<CallName, Entry>::iterator entry, Outcome outcome);

  async::Loop& loop_;
  async::SteadyClock& clock_;
  std::map<CallName, Entry> calls_;
  async::Alive alive_;
};

}  // namespace ae::routines
