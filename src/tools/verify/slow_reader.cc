// The thread that reads files and databases.
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "tools/verify/verify.h"

namespace ae::tools {

struct SlowReader::Thread {
  struct Wish {
    std::move_only_function<Sighting()> what;
    async::Done<Sighting> done;
  };
  explicit Thread(async::Loop& its_loop) : loop(its_loop) {}

  void run() {
    std::unique_lock lock(mutex);
    while (true) {
      more.wait(lock, [this] { return over || !wishes.empty(); });
      if (over) return;
      Wish wish = std::move(wishes.front());
      wishes.pop_front();
      lock.unlock();
      Sighting seen = wish.what();
      loop.post([done = std::move(wish.done), seen = std::move(seen)]() mutable {
        done(std::move(seen));
      });
      lock.lock();
    }
  }

  async::Loop& loop;
  std::mutex mutex;
  std::condition_variable more;
  std::deque<Wish> wishes;
  bool over = false;
  std::thread thread;  // begun with the first wish
};

SlowReader::SlowReader(async::Loop& loop) : thread_(std::make_unique<Thread>(loop)) {}

SlowReader::~SlowReader() {
  {
    const std::lock_guard lock(thread_->mutex);
    thread_->over = true;
  }
  thread_->more.notify_one();
  if (thread_->thread.joinable()) thread_->thread.join();
}

void SlowReader::read(std::move_only_function<Sighting()> what, async::Done<Sighting> done) {
  {
    const std::lock_guard lock(thread_->mutex);
    thread_->wishes.push_back({std::move(what), std::move(done)});
  }
  if (!thread_->thread.joinable()) {
    thread_->thread = std::thread([thread = thread_.get()] { thread->run(); });
  }
  thread_->more.notify_one();
}

}  // namespace ae::tools
