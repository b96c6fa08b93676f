// When a waiting request reads its job again.
#include "api/waiting_requests.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "api/api.h"
#include "api/request_context.h"

namespace ae::api {
namespace {

// The poll interval in addition to notifications; and the interval when commits are not notified.
constexpr Duration kPoll = std::chrono::seconds(1);
constexpr Duration kPollWithoutNotify = std::chrono::milliseconds(200);

}  // namespace

WaitingRequests::~WaitingRequests() {
  for (const LongPollPtr& long_poll : long_polls_) {
    if (long_poll->timer) loop_.cancel(*long_poll->timer);
  }
}

void WaitingRequests::wait(const RequestPtr& ctx, const JobId& job, Duration most,
                           std::function<void(const LongPollPtr&)> attempt) {
  // The body has been parsed; a waiting request releases its memory.
  ctx->request.body = std::string();
  ctx->request.body_quota.reset();
  auto long_poll = std::make_shared<LongPoll>();
  long_poll->job = job;
  long_poll->disconnected = ctx->request.disconnected;
  long_poll->until = steady_.since_start() + std::min(most, kWaitMax);
  long_poll->last = is_stopped_;
  long_poll->attempt = std::move(attempt);
  long_poll->keep_waiting = [this, alive = alive_.watch(), weak = std::weak_ptr(long_poll)] {
    const auto self = weak.lock();
    if (!self || !alive) return;
    self->is_reading = false;
    const Duration rest = self->not_before - steady_.since_start();
    const bool has_new_events = std::exchange(self->has_new_events, false);
    if (self->last || (has_new_events && rest.count() <= 0)) {
      return loop_.post([this, alive, self] {
        if (alive) check(self);
      });
    }
    const Duration left = self->until - steady_.since_start();
    const Duration poll =
        has_new_events ? rest : std::max(rest, receives_commits_ ? kPoll : kPollWithoutNotify);
    self->last = left <= poll;
    self->timer = loop_.after(std::max(Duration(0), std::min(left, poll)), [this, alive, self] {
      self->timer.reset();
      if (alive) check(self);
    });
  };
  long_polls_.push_back(long_poll);
  check(long_poll);
}

void WaitingRequests::check(const LongPollPtr& long_poll) {
  if (long_poll->is_reading || long_poll->is_done) return;
  if (const Duration rest = long_poll->not_before - steady_.since_start();
      rest.count() > 0 && !long_poll->last) {
    if (long_poll->timer) loop_.cancel(*long_poll->timer);
    long_poll->timer = loop_.after(rest, [this, alive = alive_.watch(), long_poll] {
      long_poll->timer.reset();
      if (alive) check(long_poll);
    });
    return;
  }
  if (long_poll->timer) loop_.cancel(*std::exchange(long_poll->timer, std::nullopt));
  long_poll->is_reading = true;
  long_poll->has_new_events = false;  // the read sees them
  if (long_poll->disconnected.stop_requested()) long_poll->last = true;
  std::erase_if(long_polls_, [](const auto& other) { return other->is_done; });
  long_poll->attempt(long_poll);
}

void WaitingRequests::wake(const JobId& job) {
  // `check` changes the list. Few of many requests wait for one job, and this is called for each
  // commit: only these are copied.
  std::vector<LongPollPtr> of_job;
  for (const auto& long_poll : long_polls_) {
    if (!long_poll->is_done && long_poll->job == job) of_job.push_back(long_poll);
  }
  for (const auto& long_poll : of_job) {
    if (long_poll->is_done) continue;
    long_poll->has_new_events = true;
    if (!long_poll->is_reading) check(long_poll);
  }
}

void WaitingRequests::stop() {
  is_stopped_ = true;
  const auto copy = long_polls_;
  for (const auto& long_poll : copy) {
    if (long_poll->is_done) continue;
    long_poll->last = true;
    if (!long_poll->is_reading) check(long_poll);
  }
}

std::size_t WaitingRequests::count() const {
  return static_cast<std::size_t>(std::ranges::count_if(
      long_polls_, [](const auto& long_poll) { return !long_poll->is_done; }));
}

}  // namespace ae::api
