// FollowRetry: the requests of a command with `-f`: how often it sends them, and what it does when the connection is lost.
//
// An outage begins when a request fails and the next one, sent at once, fails too. It is reported once. The command then
// retries for a minute, and reports when it is connected again. Threads: one.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/time.h"

namespace ae::cli {

class FollowRetry {
 public:
  static constexpr Duration kBetweenRequests = std::chrono::milliseconds(500);
  static constexpr Duration kOutageMax = std::chrono::seconds(60);

  struct Environment {
    std::function<Duration()> now;
    std::function<void(Duration)> sleep;
    std::function<void(const std::string&)> warn;
  };
  static Environment real_environment(std::function<void(const std::string&)> warn);

  explicit FollowRetry(Environment world) : environment_(std::move(world)) {}

  // Before a request: waits until 500 ms after the previous answer. A server reads the log of a waiting request at most twice
  // a second, and so the log is not read more often for both.
  void wait_for_turn();
  // A request was answered.
  void answered();
  // A request failed: waits until it is time for the next one. Fails with the error if the connection was not lost, or
  // when there was no connection yet; with unavailable when the outage has lasted for a minute.
  Status failed(const Error& error);

 private:
  Environment environment_;
  bool was_connected_ = false;  // there was a connection
  bool reported_ = false;       // the outage
  int failures_ = 0;            // in a row
  Duration answered_at_{};
  Duration lost_at_{};  // when the first of the failures was seen
};

}  // namespace ae::cli
