// ChatHost: runs jobs on a thread of its own, while the command's thread talks with its user.
//
// The two threads share nothing but the socket: the command is a client of the API, as it is of
// another process that owns the store. Threads: of the caller.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "app/instance.h"
#include "base/error.h"

namespace ae::cli {

class ChatHost final : public runtime::RuntimeObserver {
 public:
  // Opens the instance and starts its runtime. Fails as Instance::open.
  static Result<std::unique_ptr<ChatHost>> start(app::InstanceOptions options, Duration grace);
  // Waits up to `grace` for calls in flight.
  ~ChatHost() override;
  ChatHost(const ChatHost&) = delete;
  ChatHost& operator=(const ChatHost&) = delete;

  const std::string& socket() const { return socket_; }
  // Since the last call.
  std::vector<std::string> take_warnings();

 private:
  explicit ChatHost(Duration grace) : grace_(grace) {}
  void run(app::InstanceOptions options, std::promise<Result<std::string>> opened);
  void stop();
  void add_warning(const JobId& job, const std::string& what);
  bool reads(EventType) const override { return false; }
  void on_released(const JobId& job, const std::optional<Error>& problem) override;
  void on_warning(const JobId& job, const std::string& what) override { add_warning(job, what); }
  void on_store_health(const std::optional<Error>& out) override;
  void on_store_stopped(const Error& error) override { add_warning({}, error.message); }

  const Duration grace_;
  std::string socket_;
  std::unique_ptr<app::Instance> instance_;  // of the thread
  bool is_over_ = false;                     // of the thread
  std::mutex mutex_;
  std::vector<std::string> warnings_;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace ae::cli
