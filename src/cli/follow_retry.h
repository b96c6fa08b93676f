// FollowRetry: the pace of requests of a command with `-f`, and its retries after a lost
// connection.
//
// An outage begins when a request fails and its immediate retry fails too. It is reported once. The
// command then retries for a minute, and reports when it is connected again. Threads: one.
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

  explicit FollowRetry(Environment environment) : environment_(std::move(environment)) {}

  // Before a request: waits until 500 ms after the previous response. A server reads the log for a
  // waiting request at most twice a second, so faster requests would increase that.
  void wait_for_turn();
  // A request got a response.
  void on_success();
  // A request failed: waits until the next one is due. Fails with the error if the connection was
  // not lost or never existed; with unavailable if the outage has lasted for a minute.
  Status on_failure(const Error& error);

 private:
  Environment environment_;
  bool was_connected_ = false;  // it was connected before
  bool reported_ = false;       // the outage was reported
  int failures_ = 0;            // in a row
  Duration answered_at_{};
  Duration lost_at_{};  // time of the first failure
};

}  // namespace ae::cli
