// AsioLoop: the production event loop. One thread runs it, and all runtime
// code runs on that thread.
//
// `post` is cheap from any thread: a burst of posts costs one wakeup. Timers count suspend time
// (CLOCK_BOOTTIME), so a lease watchdog fires right after the machine resumes. Asio types do not
// leave this module's .cc files.
// Threads: run on one thread; post and stop from any thread; everything else on the
// loop's thread, or before run.
#pragma once

#include <functional>
#include <memory>

#include "async/loop.h"

namespace ae::net {

class AsioLoop final : public async::Loop {
 public:
  AsioLoop();
  // Drops posted tasks that have not run. REQUIRES: run has returned; servers and clients of this
  // loop are destroyed.
  ~AsioLoop() override;
  AsioLoop(const AsioLoop&) = delete;
  AsioLoop& operator=(const AsioLoop&) = delete;

  // Runs tasks, timers and sockets until stop. May be called again after it has returned.
  void run() noexcept;
  // Makes run return soon: the current task finishes, no other starts. Before
  // run: it returns at once.
  void stop() noexcept;

  void post(async::Task task) override;
  async::TimerId after(Duration delay, async::Task task) override;
  void cancel(async::TimerId timer) override;

  // Handles SIGINT and SIGTERM: `seen` receives each on the loop, and the process does not end. It
  // does end, with 128 + the signal's number, if the loop has not taken a later signal within a
  // second, or if a signal arrives before the loop has taken the previous one.
  void on_signals(std::move_only_function<void(int signal)> handler);

  // Handles SIGHUP: `seen` runs on the loop for each, and the process does not end.
  void on_hangup(async::Task handler);

  struct Impl;  // asio_loop_internal.h, for the sockets of this module
  Impl& impl() noexcept { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace ae::net
