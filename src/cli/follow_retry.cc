#include "cli/follow_retry.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace ae::cli {
namespace {

constexpr Duration kFirstDelay = std::chrono::milliseconds(100);
constexpr Duration kDelayMax = std::chrono::seconds(2);

// Also a store whose new owner has the lock but does not serve yet.
bool is_outage(Code code) {
  return code == Code::unavailable || code == Code::unknown_outcome || code == Code::store_locked;
}

}  // namespace

FollowRetry::Environment FollowRetry::real_environment(
    std::function<void(const std::string&)> warn) {
  return {.now =
              [] {
                return std::chrono::duration_cast<Duration>(
                    std::chrono::steady_clock::now().time_since_epoch());
              },
          .sleep = [](Duration span) { std::this_thread::sleep_for(span); },
          .warn = std::move(warn)};
}

void FollowRetry::wait_for_turn() {
  if (!was_connected_ || failures_ > 0) return;
  const Duration rest = answered_at_ + kBetweenRequests - environment_.now();
  if (rest.count() > 0) environment_.sleep(rest);
}

void FollowRetry::on_success() {
  if (std::exchange(reported_, false)) environment_.warn("the connection is available again");
  was_connected_ = true;
  failures_ = 0;
  answered_at_ = environment_.now();
}

Status FollowRetry::on_failure(const Error& error) {
  was_connected_ = was_connected_ || error.code == Code::unknown_outcome;  // it was connected
  if (!was_connected_ || !is_outage(error.code)) return std::unexpected(error);
  const Duration now = environment_.now();
  if (++failures_ == 1) {
    lost_at_ = now;
    return {};
  }
  if (now - lost_at_ >= kOutageMax) {
    return fail(Code::unavailable, "no connection for {}: {}", to_text(kOutageMax), error.message);
  }
  if (!std::exchange(reported_, true)) {
    environment_.warn(fmt::format("the connection is lost; retrying for {}: {}",
                                  to_text(kOutageMax), error.message));
  }
  Duration delay = kFirstDelay;
  for (int i = 2; i < failures_ && delay < kDelayMax; ++i) delay *= 2;
  environment_.sleep(std::min({delay, kDelayMax, lost_at_ + kOutageMax - now}));
  return {};
}

}  // namespace ae::cli
