#include "cli/following.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace ae::cli {
namespace {

constexpr Duration kFirstDelay = std::chrono::milliseconds(100);
constexpr Duration kDelayMax = std::chrono::seconds(2);

// Also a store that its new owner has locked and does not serve yet.
bool is_outage(Code code) {
  return code == Code::unavailable || code == Code::unknown_outcome || code == Code::store_locked;
}

}  // namespace

Following::World Following::real(std::function<void(const std::string&)> warn) {
  return {.now =
              [] {
                return std::chrono::duration_cast<Duration>(
                    std::chrono::steady_clock::now().time_since_epoch());
              },
          .sleep = [](Duration span) { std::this_thread::sleep_for(span); },
          .warn = std::move(warn)};
}

void Following::pace() {
  if (!began_ || failures_ > 0) return;
  const Duration rest = answered_at_ + kBetweenRequests - world_.now();
  if (rest.count() > 0) world_.sleep(rest);
}

void Following::answered() {
  if (std::exchange(reported_, false)) world_.warn("the connection is available again");
  began_ = true;
  failures_ = 0;
  answered_at_ = world_.now();
}

Status Following::failed(const Error& error) {
  began_ = began_ || error.code == Code::unknown_outcome;  // it was connected
  if (!began_ || !is_outage(error.code)) return std::unexpected(error);
  const Duration now = world_.now();
  if (++failures_ == 1) {
    lost_at_ = now;
    return {};
  }
  if (now - lost_at_ >= kOutageMax) {
    return fail(Code::unavailable,
                "no connection for " + to_text(kOutageMax) + ": " + error.message);
  }
  if (!std::exchange(reported_, true)) {
    world_.warn("the connection is lost; retrying for " + to_text(kOutageMax) + ": " +
                error.message);
  }
  Duration delay = kFirstDelay;
  for (int i = 2; i < failures_ && delay < kDelayMax; ++i) delay *= 2;
  world_.sleep(std::min({delay, kDelayMax, lost_at_ + kOutageMax - now}));
  return {};
}

}  // namespace ae::cli
