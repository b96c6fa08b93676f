// Tests of ThreadPool on a real loop.
#include "net/thread_pool.h"

#include <atomic>
#include <chrono>
#include <optional>
#include <semaphore>
#include <thread>
#include <utility>

#include "net/asio_loop.h"
#include "testing/test.h"

namespace ae::net {
namespace {

using namespace std::chrono_literals;

AE_TEST("thread_pool/work runs on a pool thread and its continuation on the loop thread") {
  AsioLoop loop;
  ThreadPool pool(loop, 2);
  const auto here = std::this_thread::get_id();
  std::thread::id worked_on, destroyed_on, continued_on;
  struct Traced {
    explicit Traced(std::thread::id& into) : id(&into) {}
    Traced(Traced&& from) noexcept : id(std::exchange(from.id, nullptr)) {}
    ~Traced() {
      if (id != nullptr) *id = std::this_thread::get_id();
    }
    std::thread::id* id;
  };
  pool.run([&worked_on, traced = Traced(destroyed_on)](
               const std::stop_token&) { worked_on = std::this_thread::get_id(); },
           [&] {
             continued_on = std::this_thread::get_id();
             loop.stop();
           });
  loop.run();
  EXPECT_NE(worked_on, here);
  EXPECT_EQ(destroyed_on, worked_on);
  EXPECT_EQ(continued_on, here);
}

AE_TEST("thread_pool/the loop runs other tasks while all pool threads are busy") {
  AsioLoop loop;
  ThreadPool pool(loop, 2);
  std::counting_semaphore<> release(0);
  int done = 0;
  for (int i = 0; i < 2; ++i) {
    pool.run([&release](const std::stop_token&) { release.acquire(); },
             [&] {
               if (++done == 2) loop.stop();
             });
  }
  bool other = false;
  loop.after(1ms, [&] {
    other = true;
    EXPECT_EQ(done, 0);
    release.release(2);
  });
  loop.run();
  EXPECT_TRUE(other);
  EXPECT_EQ(done, 2);
}

AE_TEST("thread_pool/work beyond the threads is queued and runs once") {
  AsioLoop loop;
  ThreadPool pool(loop, 3);
  constexpr int kWork = 200;
  std::atomic<int> worked = 0;
  int continued = 0;
  for (int i = 0; i < kWork; ++i) {
    pool.run([&worked](const std::stop_token&) { ++worked; },
             [&] {
               if (++continued == kWork) loop.stop();
             });
  }
  loop.run();
  EXPECT_EQ(worked, kWork);
  EXPECT_EQ(continued, kWork);
}

AE_TEST("thread_pool/destruction stops running work and drops queued work and continuations") {
  AsioLoop loop;
  std::optional<ThreadPool> pool(std::in_place, loop, 1);
  std::binary_semaphore begun(0);
  bool interrupted = false, second = false, continued = false;
  pool->run(
      [&](const std::stop_token& stopping) {
        begun.release();
        while (!stopping.stop_requested()) std::this_thread::yield();
        interrupted = true;
      },
      [&] { continued = true; });
  pool->run([&](const std::stop_token&) { second = true; }, [&] { continued = true; });
  begun.acquire();
  pool.reset();
  EXPECT_TRUE(interrupted);
  EXPECT_FALSE(second);
  EXPECT_FALSE(continued) << "the loop does not run";
}

}  // namespace
}  // namespace ae::net
