// Threads that take work from one queue.
#include "tools/native/native_pool.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace ae::tools {
namespace {

constexpr auto kShutdownGrace = std::chrono::milliseconds(100);

// Per process, not per pool: it outlives every pool.
std::atomic<std::size_t> g_abandoned_threads = 0;

}  // namespace

struct NativeThreadPool::Worker {
  std::thread thread;
  bool is_busy = false;       // guarded by Shared::mutex
  bool is_abandoned = false;  // guarded by Shared::mutex
};

struct NativeThreadPool::Shared {
  std::mutex mutex;
  std::condition_variable wake, became_idle;
  // Guarded by mutex.
  std::deque<async::Task> waiting;
  std::vector<std::shared_ptr<Worker>> workers;
  std::size_t busy_count = 0;
  bool closed = false;
};

NativeThreadPool::NativeThreadPool(Limits limits)
    : limits_(limits), shared_(std::make_shared<Shared>()) {}

bool NativeThreadPool::run(async::Task work) {
  Shared& shared = *shared_;
  {
    const std::scoped_lock lock(shared.mutex);
    if (shared.waiting.size() >= limits_.waiting) return false;
    shared.waiting.push_back(std::move(work));
    const std::size_t idle = shared.workers.size() - shared.busy_count;
    if (idle < shared.waiting.size() && shared.workers.size() < limits_.threads) {
      auto worker = std::make_shared<Worker>();
      try {
        worker->thread = std::thread([shared = shared_, worker] { run_worker(shared, worker); });
      } catch (const std::system_error&) {
        shared.waiting.pop_back();
        return false;
      }
      shared.workers.push_back(std::move(worker));
    }
  }
  shared.wake.notify_one();
  return true;
}

void NativeThreadPool::run_worker(const std::shared_ptr<Shared>& shared,
                                  const std::shared_ptr<Worker>& worker) {
  std::unique_lock lock(shared->mutex);
  for (;;) {
    shared->wake.wait(lock, [&] { return shared->closed || !shared->waiting.empty(); });
    if (shared->closed) break;
    async::Task work = std::move(shared->waiting.front());
    shared->waiting.pop_front();
    worker->is_busy = true;
    shared->busy_count++;
    lock.unlock();
    work();
    work = nullptr;
    lock.lock();
    worker->is_busy = false;
    shared->busy_count--;
    shared->became_idle.notify_all();
  }
  if (!worker->is_abandoned) return;
  lock.unlock();
  g_abandoned_threads--;
}

NativeThreadPool::~NativeThreadPool() {
  std::vector<std::shared_ptr<Worker>> workers;
  std::deque<async::Task> dropped;
  {
    std::unique_lock lock(shared_->mutex);
    shared_->closed = true;
    dropped.swap(shared_->waiting);
    shared_->wake.notify_all();
    shared_->became_idle.wait_for(lock, kShutdownGrace, [&] { return shared_->busy_count == 0; });
    workers.swap(shared_->workers);
    for (const auto& worker : workers) {
      if (!worker->is_busy) continue;
      worker->is_abandoned = true;
      g_abandoned_threads++;
      // A running function cannot be stopped, and the process must not wait for it.
      worker->thread.detach();
    }
  }
  for (const auto& worker : workers) {
    if (worker->thread.joinable()) worker->thread.join();
  }
}

std::size_t NativeThreadPool::abandoned_threads() { return g_abandoned_threads; }

}  // namespace ae::tools
