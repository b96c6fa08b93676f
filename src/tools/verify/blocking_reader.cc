// The thread that reads files and databases.
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "tools/verify/verify.h"

namespace ae::tools {

struct BlockingReader::Thread {
  struct ReadRequest {
    std::move_only_function<CheckResult()> task;
    async::Done<CheckResult> done;
  };
  explicit Thread(async::Loop& its_loop) : loop(its_loop) {}

  void run() {
    std::unique_lock lock(mutex);
    while (true) {
      wake.wait(lock, [this] { return is_stopping || !requests.empty(); });
      if (is_stopping) return;
      ReadRequest request = std::move(requests.front());
      requests.pop_front();
      lock.unlock();
      CheckResult check_result = request.task();
      loop.post([done = std::move(request.done), check_result = std::move(check_result)]() mutable {
        done(std::move(check_result));
      });
      lock.lock();
    }
  }

  async::Loop& loop;
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<ReadRequest> requests;
  bool is_stopping = false;
  std::thread thread;  // started by the first request
};

BlockingReader::BlockingReader(async::Loop& loop) : thread_(std::make_unique<Thread>(loop)) {}

BlockingReader::~BlockingReader() {
  {
    const std::lock_guard lock(thread_->mutex);
    thread_->is_stopping = true;
  }
  thread_->wake.notify_one();
  if (thread_->thread.joinable()) thread_->thread.join();
}

void BlockingReader::read(std::move_only_function<CheckResult()> task,
                          async::Done<CheckResult> done) {
  {
    const std::lock_guard lock(thread_->mutex);
    thread_->requests.push_back({std::move(task), std::move(done)});
  }
  if (!thread_->thread.joinable()) {
    thread_->thread = std::thread([thread = thread_.get()] { thread->run(); });
  }
  thread_->wake.notify_one();
}

}  // namespace ae::tools
