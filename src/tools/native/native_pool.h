// NativeThreadPool: the threads that run native functions, so that none of them blocks the loop.
//
// Threads are started on demand, up to a limit. A function that does not return keeps its thread.
// When all threads are taken, work waits, and NativeTool withdraws its calls when their time to be
// sent is over. Threads: any for `run`; the loop's for the rest.
#pragma once

#include <cstddef>
#include <memory>

#include "tools/native/native.h"

namespace ae::tools {

class NativeThreadPool final : public Executor {
 public:
  struct Limits {
    std::size_t threads = 16;
    std::size_t waiting = 4096;
  };
  explicit NativeThreadPool(Limits limits);
  NativeThreadPool() : NativeThreadPool(Limits()) {}
  // Drops waiting work. Gives running functions 100 ms to return; the thread of a function that
  // does not return is abandoned. It exits when the function returns, and counts in
  // abandoned_threads() until then.
  ~NativeThreadPool() override;
  // Also false: the system has no thread for it.
  bool run(async::Task work) override;

  // Threads of this process that no pool waits for any more. While there are any, the process must
  // exit with `_exit`: they may use what exit() destroys.
  static std::size_t abandoned_threads();

 private:
  struct Shared;
  struct Worker;
  static void run_worker(const std::shared_ptr<Shared>& shared,
                         const std::shared_ptr<Worker>& worker);
  const Limits limits_;
  std::shared_ptr<Shared> shared_;
};

}  // namespace ae::tools
