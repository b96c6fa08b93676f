#include "mcp/client/get_stream.h"

#include <algorithm>
#include <utility>

#include "base/http_status.h"
#include "mcp/protocol/message.h"
#include "tools/tool.h"

namespace ae::mcp::client {
namespace {

constexpr Duration kHealthyAfter =
    std::chrono::seconds(10);  // a stream that lasted this long was useful
constexpr std::uint32_t kDoublingsMax = 5;

// The server has no such stream. Except 409: for the server the previous stream has not ended yet.
bool is_unsupported(const net::HttpResult& answer) {
  if (answer.phase != net::HttpPhase::complete || answer.status == 429) return false;
  return answer.status < 400 || answer.status == 501 || is_no_effect_status(answer.status);
}

}  // namespace

bool GetStream::listen(async::Task ready) {
  if (phase_ == Phase::none) return true;
  restart_idle_timer();
  if (phase_ == Phase::off) start();
  if (phase_ != Phase::opening || has_open_timed_out_) return true;
  waiters_.push_back(std::move(ready));
  return false;
}

void GetStream::close() {
  waiters_.clear();
  stop(Phase::off);
}

void GetStream::stop(Phase phase) {
  phase_ = phase;
  alive_.end();
  for (async::TimerId* timer : {&reconnect_timer_, &idle_timer_}) cancel_timer(*timer);
  if (http_) deps_.client.cancel(*http_);
  http_.reset();
  release_waiters();
}

// Cancels a timer that is set; does not use the loop otherwise, which may be gone.
void GetStream::cancel_timer(async::TimerId& timer) {
  if (timer != 0) deps_.loop.cancel(std::exchange(timer, 0));
}

// Resumes the waiting calls: the stream is open, or failed.
void GetStream::release_waiters() {
  cancel_timer(wait_timer_);
  for (auto& task : std::exchange(waiters_, {})) deps_.loop.post(std::move(task));
}

void GetStream::restart_idle_timer() {
  cancel_timer(idle_timer_);
  idle_timer_ = deps_.loop.after(deps_.idle_timeout, [this] {
    if (deps_.is_wanted()) return restart_idle_timer();
    stop(Phase::off);
  });
}

void GetStream::start() {
  phase_ = Phase::opening;
  has_received_event_ = false;
  events_.emplace(SseLimits{.line_max = kMessageMax, .event_max = kMessageMax});
  alive_.renew();
  net::HttpCall call = deps_.call();
  std::erase_if(call.headers, [](const auto& header) { return header.name == "Accept"; });
  call.headers.push_back({"Accept", "text/event-stream"});
  if (!last_id_.empty()) call.headers.push_back({"Last-Event-ID", last_id_});
  call.total_timeout = kStreamLifetimeMax;
  call.response_max = tools::kStreamMax;
  call.on_events_begin = [this, alive = alive_.watch()] {
    if (!alive) return;
    phase_ = Phase::open;
    has_open_timed_out_ = false;
    release_waiters();
  };
  call.on_event_bytes = [this, alive = alive_.watch()](const net::HttpHeaders&,
                                                       const std::string& bytes) {
    if (alive) on_bytes(bytes);
  };
  http_ = deps_.client.start(std::move(call),
                             [this, alive = alive_.watch()](const net::HttpResult& answer) {
                               if (alive) on_closed(answer);
                             });
  wait_timer_ = deps_.loop.after(kStreamOpenTimeout, [this] {
    has_open_timed_out_ = true;
    release_waiters();
  });
}

void GetStream::on_bytes(std::string_view bytes) {
  const async::Alive::Watch alive = alive_.watch();
  std::vector<SseEvent> events;
  const bool fits = events_->feed(bytes, events).has_value();
  if (net::is_header_value(events_->last_id())) last_id_ = events_->last_id();
  for (const SseEvent& event : events) {
    has_received_event_ = true;
    deps_.on_data(event.data);
    if (!alive) return;
  }
  if (!fits) stop(Phase::none);  // a new stream would repeat the event
}

void GetStream::on_closed(const net::HttpResult& answer) {
  http_.reset();
  const bool was_open = phase_ == Phase::open;
  if (!was_open && is_unsupported(answer)) return stop(Phase::none);
  failures_ =
      was_open && (has_received_event_ || answer.elapsed >= kHealthyAfter) ? 0 : failures_ + 1;
  const bool is_wanted = !waiters_.empty() || deps_.is_wanted();
  phase_ = is_wanted ? Phase::backing_off : Phase::off;
  if (is_wanted) schedule_reconnect();
  release_waiters();
}

void GetStream::schedule_reconnect() {
  const Duration least =
      failures_ == 0 ? kReconnectDelayMin
                     : std::min(kReconnectDelay * (1u << std::min(failures_, kDoublingsMax)),
                                kReconnectDelayMax);
  const Duration wait = std::max(events_->retry().value_or(kReconnectDelay), least);
  reconnect_timer_ = deps_.loop.after(wait, [this] {
    phase_ = Phase::off;
    if (deps_.is_wanted()) start();
  });
}

}  // namespace ae::mcp::client
