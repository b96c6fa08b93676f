// AsioLoop: the real event loop. One thread runs it; everything of the runtime happens there.
//
// `post` is cheap from any thread: a burst of posts costs one wake. Timers count suspend (CLOCK_BOOTTIME), so a lease
// watchdog trips right after the machine wakes up, not a night later. No Asio type leaves this module's .cc files.
// Threads: run on one thread; post and stop from any; everything else from the thread that runs it, or before run.
#pragma once

#include <functional>
#include <memory>

#include "async/loop.h"

namespace ae::net {

class AsioLoop final : public async::Loop {
 public:
  AsioLoop();
  // What was posted and has not run is dropped, unrun. REQUIRES: run has returned; servers and clients of this loop
  // are gone.
  ~AsioLoop() override;
  AsioLoop(const AsioLoop&) = delete;
  AsioLoop& operator=(const AsioLoop&) = delete;

  // Runs tasks, timers and sockets until stop. May be called again after it has returned.
  void run() noexcept;
  // Makes run return soon: the task that runs now is finished, no other is begun. Before run: it returns at once.
  void stop() noexcept;

  void post(async::Task task) override;
  async::TimerId after(Duration delay, async::Task task) override;
  void cancel(async::TimerId timer) override;

  // From now on the first SIGINT or SIGTERM does not end the process: `seen` gets it, on the loop. Each later one is
  // passed to `seen` too; when the loop is too busy to take it within a second, or has not even taken the one before it,
  // the process ends with 128 + its number.
  void on_signals(std::move_only_function<void(int signal)> seen);

  // From now on SIGHUP does not end the process: `seen` hears of each, on the loop.
  void on_hangup(async::Task seen);

  struct Impl;  // asio_loop_internal.h, for the sockets of this module
  Impl& impl() noexcept { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace ae::net
