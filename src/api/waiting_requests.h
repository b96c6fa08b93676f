// WaitingRequests: requests that wait for a job to progress (?wait).
//
// A request reads its job when it begins, after each commit, and at intervals, because commits of
// other processes may not be notified. It answers when it has something to show, when its time is
// up, or when the process ends. Their number is limited at admission (Authenticator, connections).
// Threads: the loop's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <stop_token>

#include "api/routes.h"
#include "async/alive.h"
#include "async/loop.h"
#include "base/ids.h"
#include "base/time.h"

namespace ae::api {

// One request that waits. `attempt` reads, then answers and sets `is_done`, or calls
// `keep_waiting`; when `last` is set it must answer.
struct LongPoll {
  JobId job;
  Duration until{};   // by the steady clock
  bool last = false;  // answer now with the current state
  bool is_reading = false;
  bool has_new_events = false;  // during the read
  bool is_done = false;
  Duration not_before{};   // by the steady clock; an earlier read only if `last`
  std::uint64_t seen = 0;  // the job's last event at the last read; 0 = not read yet
  std::optional<async::TimerId> timer;
  std::stop_token disconnected;  // ApiRequest::disconnected
  std::function<void(const std::shared_ptr<LongPoll>&)> attempt;
  std::function<void()> keep_waiting;
};
using LongPollPtr = std::shared_ptr<LongPoll>;

class WaitingRequests {
 public:
  // Borrows all arguments. `receives_commits`: `wake` is called for each commit to the store.
  WaitingRequests(async::Loop& loop, async::SteadyClock& steady, bool receives_commits)
      : loop_(loop), steady_(steady), receives_commits_(receives_commits) {}
  ~WaitingRequests();
  WaitingRequests(const WaitingRequests&) = delete;
  WaitingRequests& operator=(const WaitingRequests&) = delete;

  // Calls `attempt` now, and again until it is done. `most`: at most kWaitMax. The body of the
  // request is released.
  void wait(const RequestPtr& ctx, const JobId& job, Duration most,
            std::function<void(const LongPollPtr&)> attempt);
  // The job progressed.
  void wake(const JobId& job);
  // Those that wait, and those that come, answer with the current state.
  void stop();
  std::size_t count() const;

 private:
  void check(const LongPollPtr& long_poll);

  async::Loop& loop_;
  async::SteadyClock& steady_;
  const bool receives_commits_;
  std::list<LongPollPtr> long_polls_;
  bool is_stopped_ = false;
  async::Alive alive_;
};

}  // namespace ae::api
