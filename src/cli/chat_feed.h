// ChatFeed: the events and the partial output of a job, from a thread that follows its stream.
//
// Threads: of the caller, except where it says otherwise.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "app/api_client.h"
#include "base/error.h"
#include "json/value.h"

namespace ae::cli {

class ChatFeed {
 public:
  struct Item {
    bool is_partial_output = false;
    Value value;  // an event, or {invocation_id, try, offset, text, node_id}
  };
  // Follows `job` after this event, with a client of its own.
  ChatFeed(std::unique_ptr<app::ApiClient> client, std::string job, std::uint64_t after);
  ~ChatFeed();
  ChatFeed(const ChatFeed&) = delete;
  ChatFeed& operator=(const ChatFeed&) = delete;

  // Becomes readable when there are items.
  int descriptor() const { return pipe_[0]; }
  std::vector<Item> take();
  // Why the job cannot be followed any more.
  std::optional<Error> failure();

 private:
  void run();  // on the thread
  bool add(const app::ApiClient::LiveEvent& live);
  void wake();
  void fail(Error why);

  const std::unique_ptr<app::ApiClient> client_;
  const std::string job_;
  std::uint64_t after_;
  std::atomic<bool> is_over_ = false;
  int pipe_[2] = {-1, -1};
  std::mutex mutex_;
  std::vector<Item> items_;       // guarded by mutex_
  std::optional<Error> failure_;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace ae::cli
