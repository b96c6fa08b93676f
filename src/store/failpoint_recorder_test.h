// FailpointRecorder: records the failpoints that a store hits, and lets a test choose what one of
// them does.
//
// It is the failpoint handler of the process while it exists.
// Threads: failpoints can be hit on any thread.
#pragma once

#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "async/failpoint.h"

namespace ae::store::conformance {

class FailpointRecorder final : public async::FailpointHandler {
 public:
  FailpointRecorder() { async::failpoint_handler = this; }
  ~FailpointRecorder() override { async::failpoint_handler = nullptr; }
  FailpointRecorder(const FailpointRecorder&) = delete;
  FailpointRecorder& operator=(const FailpointRecorder&) = delete;

  std::string action_at;                                            // this failpoint …
  async::FailpointAction action = async::FailpointAction::proceed;  // … performs this

  async::FailpointAction hit(std::string_view name) override {
    const std::lock_guard lock(mutex_);
    hits_ += (hits_.empty() ? "" : " ") + std::string(name);
    return name == action_at ? action : async::FailpointAction::proceed;
  }
  std::string hits() {
    const std::lock_guard lock(mutex_);
    return std::exchange(hits_, "");
  }

 private:
  std::mutex mutex_;
  std::string hits_;
};

}  // namespace ae::store::conformance
