// Executor: runs long computations outside of the loop, on reader threads.
//
// Production uses net::ThreadPool. The simulator and tests use InlineExecutor, which computes on
// the loop's thread and is deterministic. Decision: 0083-reader-threads.md.
// Threads: `run` on the loop's.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <utility>

#include "async/loop.h"

namespace ae::async {

class Executor {
 public:
  // Long work checks `stopping` from time to time and ends early if it is requested.
  using Work = std::move_only_function<void(const std::stop_token& stopping)>;
  virtual ~Executor() = default;
  // Runs `work` on a reader thread, then `then` on the loop. `work` owns what it uses, or borrows
  // what does not change; it is destroyed on the thread that ran it. `then` is destroyed on the
  // loop's thread. Neither is called after the executor is destroyed.
  virtual void run(Work work, Task then) = 0;
};

// Runs both inside of the call.
class InlineExecutor final : public Executor {
 public:
  void run(Work work, Task then) override {
    work({});
    work = nullptr;
    then();
  }
};

// As Executor::run, for work with a result, which `then` takes.
template <class T>
void compute(Executor& executor, std::move_only_function<T(const std::stop_token&)> work,
             Done<T> then) {
  auto result = std::make_shared<std::optional<T>>();
  executor.run([result, work = std::move(work)](
                   const std::stop_token& stopping) mutable { result->emplace(work(stopping)); },
               [result, then = std::move(then)]() mutable { then(*std::move(*result)); });
}

// The reasons to end work early. Any thread may check.
struct Interrupt {
  std::stop_token stopping;   // the process stops
  std::stop_token abandoned;  // no caller waits for the result

  bool requested() const { return stopping.stop_requested() || abandoned.stop_requested(); }
};

}  // namespace ae::async
