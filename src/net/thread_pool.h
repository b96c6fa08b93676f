// ThreadPool: the reader threads of a process (async/executor.h).
//
// A thread is started when work arrives and no thread is free, up to a limit. A thread that is idle
// for a second returns its free memory to the system.
// Threads: `run`, constructor and destructor on the loop's.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include "async/executor.h"

namespace ae::net {

class ThreadPool final : public async::Executor {
 public:
  // Borrows the loop. REQUIRES: threads_max >= 1.
  ThreadPool(async::Loop& loop, std::size_t threads_max);
  // Drops work that has not begun, interrupts the rest and waits for it.
  ~ThreadPool() override;
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Work begins in the order of the calls.
  void run(Work work, async::Task then) override;

 private:
  struct Job {
    Work work;
    async::Task then;
  };
  bool start_thread();
  void run_jobs();

  async::Loop& loop_;
  const std::size_t threads_max_;
  std::stop_source stopping_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> jobs_;  // guarded by mutex_
  std::size_t idle_ = 0;  // threads that wait for a job; guarded by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace ae::net
