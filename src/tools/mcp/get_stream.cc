#include "tools/mcp/get_stream.h"

#include <algorithm>
#include <utility>

#include "base/http_status.h"
#include "tools/mcp/message.h"
#include "tools/tool.h"

namespace ae::tools::mcp {
namespace {

constexpr Duration kWell = std::chrono::seconds(10);  // a stream that lasts so long was of use
constexpr std::uint32_t kDoublingsMost = 5;

// No stream, and there will be none. 409: the one before has not ended for the server yet.
bool has_none(const net::HttpAnswer& answer) {
  if (answer.phase != net::HttpPhase::complete || answer.status == 429) return false;
  return answer.status < 400 || answer.status == 501 || says_nothing_happened(answer.status);
}

}  // namespace

bool GetStream::listen(async::Task heard) {
  if (phase_ == Phase::none) return true;
  keep_while_wanted();
  if (phase_ == Phase::off) start();
  if (phase_ != Phase::opening || slow_) return true;
  waiting_.push_back(std::move(heard));
  return false;
}

void GetStream::close() {
  waiting_.clear();
  stop(Phase::off);
}

void GetStream::stop(Phase phase) {
  phase_ = phase;
  if (alive_) *alive_ = false;
  for (async::TimerId* timer : {&rest_timer_, &idle_timer_}) forget(*timer);
  if (http_) needs_.client.cancel(*http_);
  http_.reset();
  settle();
}

// Of a timer that was never set, also when the loop is gone.
void GetStream::forget(async::TimerId& timer) {
  if (timer != 0) needs_.loop.forget(std::exchange(timer, 0));
}

// Nobody waits any longer: it is open, or was not to be had.
void GetStream::settle() {
  forget(wait_timer_);
  for (auto& task : std::exchange(waiting_, {})) needs_.loop.post(std::move(task));
}

void GetStream::keep_while_wanted() {
  forget(idle_timer_);
  idle_timer_ = needs_.loop.after(needs_.stays, [this] {
    if (needs_.wanted()) return keep_while_wanted();
    stop(Phase::off);
  });
}

void GetStream::start() {
  phase_ = Phase::opening;
  spoke_ = false;
  events_.emplace(EventLimits{.line_max = kMessageMax, .event_max = kMessageMax});
  alive_ = std::make_shared<bool>(true);
  net::HttpCall call = needs_.call();
  std::erase_if(call.headers, [](const auto& header) { return header.name == "Accept"; });
  call.headers.push_back({"Accept", "text/event-stream"});
  if (!last_id_.empty()) call.headers.push_back({"Last-Event-ID", last_id_});
  call.total_timeout = kHearMost;
  call.answer_max = kStreamMax;
  call.events_begin = [this, alive = alive_] {
    if (!*alive) return;
    phase_ = Phase::open;
    slow_ = false;
    settle();
  };
  call.hear_events = [this, alive = alive_](const net::HttpHeaders&, const std::string& bytes) {
    if (*alive) hear(bytes);
  };
  http_ =
      needs_.client.start(std::move(call), [this, alive = alive_](const net::HttpAnswer& answer) {
        if (*alive) end(answer);
      });
  wait_timer_ = needs_.loop.after(kHearWithin, [this] {
    slow_ = true;
    settle();
  });
}

void GetStream::hear(std::string_view bytes) {
  const std::shared_ptr<bool> alive = alive_;
  std::vector<ServerEvent> events;
  const bool fits = events_->feed(bytes, events).has_value();
  if (net::is_header_value(events_->last_id())) last_id_ = events_->last_id();
  for (const ServerEvent& event : events) {
    spoke_ = true;
    needs_.heard(event.data);
    if (!*alive) return;
  }
  if (!fits) stop(Phase::none);  // taken up again, it would say the same again
}

void GetStream::end(const net::HttpAnswer& answer) {
  http_.reset();
  const bool was_open = phase_ == Phase::open;
  if (!was_open && has_none(answer)) return stop(Phase::none);
  failures_ = was_open && (spoke_ || answer.took >= kWell) ? 0 : failures_ + 1;
  const bool wanted = !waiting_.empty() || needs_.wanted();
  phase_ = wanted ? Phase::resting : Phase::off;
  if (wanted) rest();
  settle();
}

void GetStream::rest() {
  const Duration least =
      failures_ == 0
          ? kTakeUpLeast
          : std::min(kTakeUpAfter * (1u << std::min(failures_, kDoublingsMost)), kTakeUpMost);
  const Duration wait = std::max(events_->retry().value_or(kTakeUpAfter), least);
  rest_timer_ = needs_.loop.after(wait, [this] {
    phase_ = Phase::off;
    if (needs_.wanted()) start();
  });
}

}  // namespace ae::tools::mcp
