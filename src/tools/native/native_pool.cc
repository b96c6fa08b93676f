// Threads that take work from one queue.
#include "tools/native/native_pool.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace ae::tools {
namespace {

constexpr auto kFarewell = std::chrono::milliseconds(100);

// A fact about the process, not state of a pool: it outlives each of them.
std::atomic<std::size_t> g_left_behind = 0;

}  // namespace

struct NativePool::Worker {
  std::thread thread;
  bool works = false;        // guarded by Shared::mutex
  bool left_behind = false;  // guarded by Shared::mutex
};

struct NativePool::Shared {
  std::mutex mutex;
  std::condition_variable wake, rests;
  // Guarded by mutex.
  std::deque<async::Task> waiting;
  std::vector<std::shared_ptr<Worker>> workers;
  std::size_t working = 0;
  bool closed = false;
};

NativePool::NativePool(Limits limits) : limits_(limits), shared_(std::make_shared<Shared>()) {}

bool NativePool::run(async::Task work) {
  Shared& shared = *shared_;
  {
    const std::scoped_lock lock(shared.mutex);
    if (shared.waiting.size() >= limits_.waiting) return false;
    shared.waiting.push_back(std::move(work));
    const std::size_t idle = shared.workers.size() - shared.working;
    if (idle < shared.waiting.size() && shared.workers.size() < limits_.threads) {
      auto worker = std::make_shared<Worker>();
      worker->thread = std::thread([shared = shared_, worker] { serve(shared, worker); });
      shared.workers.push_back(std::move(worker));
    }
  }
  shared.wake.notify_one();
  return true;
}

void NativePool::serve(const std::shared_ptr<Shared>& shared,
                       const std::shared_ptr<Worker>& worker) {
  std::unique_lock lock(shared->mutex);
  for (;;) {
    shared->wake.wait(lock, [&] { return shared->closed || !shared->waiting.empty(); });
    if (shared->closed) break;
    async::Task work = std::move(shared->waiting.front());
    shared->waiting.pop_front();
    worker->works = true;
    shared->working++;
    lock.unlock();
    work();
    work = nullptr;
    lock.lock();
    worker->works = false;
    shared->working--;
    shared->rests.notify_all();
  }
  if (!worker->left_behind) return;
  lock.unlock();
  g_left_behind--;
}

NativePool::~NativePool() {
  std::vector<std::shared_ptr<Worker>> workers;
  std::deque<async::Task> dropped;
  {
    std::unique_lock lock(shared_->mutex);
    shared_->closed = true;
    dropped.swap(shared_->waiting);
    shared_->wake.notify_all();
    shared_->rests.wait_for(lock, kFarewell, [&] { return shared_->working == 0; });
    workers.swap(shared_->workers);
    for (const auto& worker : workers) {
      if (!worker->works) continue;
      worker->left_behind = true;
      g_left_behind++;
      // Nobody can end a function from outside, and nobody is to wait for it.
      worker->thread.detach();
    }
  }
  for (const auto& worker : workers) {
    if (worker->thread.joinable()) worker->thread.join();
  }
}

std::size_t NativePool::left_behind() { return g_left_behind; }

}  // namespace ae::tools
