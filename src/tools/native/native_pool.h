// NativeThreadPool: the threads on which native functions run, so that none of them holds up the loop.
//
// Threads are begun when they are needed, up to a limit. A function that does not return keeps its thread; when all are
// kept, work waits, and its calls are withdrawn in time by whoever asked (NativeTool).
// Threads: the loop's.
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
  // What waits is dropped. Functions that run are given a moment (100 ms) to return; a thread whose function does not is
  // left to itself. It ends when the function does, and until then abandoned_threads() counts it.
  ~NativeThreadPool() override;
  bool run(async::Task work) override;

  // Threads of this process that no pool waits for any more. While there are any, the process must end by `_exit`: they
  // could use what exit() destroys.
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
