// Reader: a thread of its own for questions, each repeated once when the connection was lost. One of them listens to
// what other processes notify.
//
// Threads: its own; `ask` from the loop's thread.
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
  using Question = std::move_only_function<void(Session&)>;
  // Called on the reader's thread; backend 0: the connection was lost meanwhile, and anything may have been missed.
  using Heard = std::function<void(std::string_view hint, int backend)>;
  struct Listening {
    std::vector<std::string> channels = {};  // none = to nothing
    Heard heard;
  };
  Reader(Session session, Listening listening);
  ~Reader();  // answers what was asked before
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  void ask(Question question);

 private:
  void run();
  void listen();
  void wait();

  Session session_;
  const Listening listening_;
  std::uint64_t listened_at_ = 0;  // session_.reopened(), + 1
  int bell_ = -1;                  // an eventfd
  std::mutex mutex_;
  std::deque<Question> questions_;  // guarded by mutex_
  bool stop_ = false;               // guarded by mutex_
  std::thread thread_;
};

}  // namespace ae::store::postgres
