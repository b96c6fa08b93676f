#include "net/thread_pool.h"

#include <chrono>
#include <system_error>
#include <utility>

#include "net/system.h"

namespace ae::net {
namespace {

constexpr std::chrono::seconds kTrimAfter(1);

}  // namespace

ThreadPool::ThreadPool(async::Loop& loop, std::size_t threads_max)
    : loop_(loop), threads_max_(threads_max) {}

ThreadPool::~ThreadPool() {
  std::deque<Job> dropped;  // destroyed on this thread
  stopping_.request_stop();
  {
    const std::lock_guard lock(mutex_);
    dropped.swap(jobs_);
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run(Work work, async::Task then) {
  bool busy = false;
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back({std::move(work), std::move(then)});
    busy = jobs_.size() > idle_;
  }
  wake_.notify_one();
  if (!busy || threads_.size() == threads_max_ || start_thread() || !threads_.empty()) return;
  // The system has no thread for us: the loop does the work.
  Job job;
  {
    const std::lock_guard lock(mutex_);
    job = std::move(jobs_.front());
    jobs_.pop_front();
  }
  job.work(stopping_.get_token());
  loop_.post(std::move(job.then));
}

bool ThreadPool::start_thread() {
  try {
    threads_.emplace_back([this] { run_jobs(); });
    return true;
  } catch (const std::system_error&) {
    return false;
  }
}

void ThreadPool::run_jobs() {
  const auto is_ready = [this] { return stopping_.stop_requested() || !jobs_.empty(); };
  bool used = false;  // since memory was last returned to the system
  std::unique_lock lock(mutex_);
  while (true) {
    ++idle_;
    if (used && !wake_.wait_for(lock, kTrimAfter, is_ready)) {
      used = false;
      lock.unlock();
      trim_heap();
      lock.lock();
    }
    wake_.wait(lock, is_ready);
    --idle_;
    if (stopping_.stop_requested()) return;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job.work(stopping_.get_token());
    job.work = nullptr;
    loop_.post(std::move(job.then));
    used = true;
    lock.lock();
  }
}

}  // namespace ae::net
