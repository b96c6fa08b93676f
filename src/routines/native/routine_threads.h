// RoutineThreads: the threads on which routines run, at most so many.
//
// A routine has a place until the last of its threads has ended, also after it was dropped: code
// that does not return keeps its place. Threads: any for `run`; the loop's for the rest.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

#include "async/loop.h"
#include "tools/native/native_pool.h"

namespace ae::routines {

class RoutineThreads {
 public:
  struct Limits {
    std::size_t routines = 256;
    std::size_t threads = 4'096;  // of all routines
  };
  // The place of one routine.
  class Place {
   public:
    std::size_t threads() const { return threads_; }  // that have not ended

   private:
    friend RoutineThreads;
    std::atomic<std::size_t> threads_ = 0;
    std::shared_ptr<void> counted_;
  };

  explicit RoutineThreads(const Limits& limits);
  // nullptr: there is none left.
  std::shared_ptr<Place> reserve();
  // Runs `work` on another thread at once. False: there is none left, and `work` was dropped.
  bool run(const std::shared_ptr<Place>& place, async::Task work);
  std::size_t routines() const { return *routines_; }
  std::size_t threads() const { return *threads_; }

 private:
  using Count = std::shared_ptr<std::atomic<std::size_t>>;
  const Limits limits_;
  const Count routines_ = std::make_shared<std::atomic<std::size_t>>(0);
  const Count threads_ = std::make_shared<std::atomic<std::size_t>>(0);
  tools::NativeThreadPool pool_;
};

}  // namespace ae::routines
