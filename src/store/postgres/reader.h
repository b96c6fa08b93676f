// Reader: a thread with its own connection for reads. One of the readers also listens for
// notifications of other processes.
//
// Threads: its own; `enqueue` from the loop's thread.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "store/postgres/session.h"

namespace ae::store::postgres {

class Reader {
 public:
  using ReadTask = std::move_only_function<void(Session&)>;
  // Called on the reader's thread. Backend 0: the connection was lost, and hints may have been
  // missed.
  using HintCallback = std::function<void(std::string_view hint, int backend_pid)>;
  struct ListenOptions {
    std::vector<std::string> channels = {};  // none = do not listen
    HintCallback on_hint;
  };
  Reader(Session session, ListenOptions listening);
  ~Reader();  // runs the queued tasks first
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  void enqueue(ReadTask task);

 private:
  void run();
  void listen();
  void wait();

  Session session_;
  const ListenOptions listen_options_;
  std::uint64_t listening_generation_ = 0;  // session_.reconnects() + 1; 0 before the first LISTEN
  int wakeup_fd_ = -1;                      // an eventfd
  std::mutex mutex_;
  std::deque<ReadTask> tasks_;  // guarded by mutex_
  bool stop_ = false;           // guarded by mutex_
  std::thread thread_;
};

}  // namespace ae::store::postgres
