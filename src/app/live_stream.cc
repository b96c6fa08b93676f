#include "app/live_stream.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>

#include "app/http_mapping.h"
#include "base/utf8.h"
#include "json/json.h"
#include "log/field_names.h"

namespace ae::app {
namespace {

constexpr std::string_view kPollWait = "15s";
constexpr std::size_t kDeltaMax = 32u << 10;  // bytes of text in one event
// The minimum interval between polls without new events: early responses must not cause a busy
// loop.
constexpr Duration kPollInterval = std::chrono::seconds(1);

// One live stream of a job's events: polls the Api with ?wait, and sends partial output in between.
// A slow client gets the rest of it in the event with the result.
class LiveStream : public std::enable_shared_from_this<LiveStream> {
 public:
  // `slot`: kept while the stream is open.
  LiveStream(const ServerContext& context, api::ApiRequest request, net::Responder responder,
             Revalidator revalidate, const api::Principal& principal, std::shared_ptr<void> slot)
      : context_(context),
        request_(std::move(request)),
        job_(request_.path[2]),
        responder_(std::move(responder)),
        revalidate_(std::move(revalidate)),
        principal_(principal),
        slot_(std::move(slot)) {
    request_.disconnected = disconnected_.get_token();
    request_.render = {};  // each poll has its own
    request_.if_none_match.clear();
  }

  void resume_after(std::string_view last_event_id) { after_ = last_event_id; }

  void begin() {
    responder_.on_closed(disconnect_handler());
    if (context_.authenticator != nullptr) {
      watch_ =
          context_.authenticator->watch(principal_, [weak = weak_from_this()](const Error& why) {
            if (const auto self = weak.lock()) self->revoke(why);
          });
    }
    // A client that filters events gets no partial output.
    const bool chooses = std::ranges::any_of(request_.query, [](const auto& pair) {
      return (pair.first == "class" || pair.first == "type") && !pair.second.empty();
    });
    if (!chooses) {
      output_subscription_ = context_.output_hub.subscribe(job_, [weak = weak_from_this()] {
        if (const auto self = weak.lock()) self->send_partial_output();
      });
    }
    poll();
  }

 private:
  enum class Pending : std::uint8_t { now, later };  // when to poll next
  using Try = std::pair<InvocationId, std::uint32_t>;

  async::Task disconnect_handler() {
    return [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->release();
    };
  }
  void release() {
    disconnected_.request_stop();
    slot_.reset();
    watch_.reset();
    output_subscription_.reset();
  }

  void revoke(const Error& why) {
    if (std::exchange(is_revoked_, true)) return;
    release();
    if (has_begun_) return stream_.end();
    std::move(responder_).answer(to_http_response(problem_response(why)));
  }

  void poll() {
    if (is_revoked_ || (has_begun_ && stream_.closed())) return;
    api::ApiRequest request = request_;
    std::erase_if(request.query,
                  [](const auto& pair) { return pair.first == "wait" || pair.first == "limit"; });
    if (!after_.empty()) {
      std::erase_if(request.query, [](const auto& pair) { return pair.first == "after"; });
      request.query.emplace_back("after", after_);
    }
    // The first poll does not wait, so that partial output is sent at once.
    if (accepted_) request.query.emplace_back("wait", kPollWait);
    request.query.emplace_back("limit", "256");
    polled_at_ = context_.steady.since_start();
    // Written on a reader thread, then read on the loop.
    auto page = std::make_shared<EventPage>();
    request.render = [page](const Value& body) { return render_page(body, *page); };
    context_.api.handle(
        std::move(request), [self = shared_from_this(), page](api::ApiResponse answer) {
          if (answer.rendered) page->text = std::move(answer.rendered->bytes);
          self->revalidate_([self, page, answer = std::move(answer)](Status may) mutable {
            self->on_response(may ? std::move(answer) : problem_response(may.error()),
                              std::move(*page));
          });
        });
  }

  // Events as text of the stream.
  struct EventPage {
    std::string text;
    std::string last;  // id of the last event; "" = there is none
    std::string next;  // of the next page; "" = it is the last one
    bool ended = false;

    bool is_empty() const { return last.empty(); }
  };
  // On a reader thread.
  static api::RenderedBody render_page(const Value& body, EventPage& page) {
    api::RenderedBody text;
    page.ended = body["ended"] == Value(true);
    if (body["next"].is_integer()) page.next = std::to_string(body["next"].as_int());
    for (const Value& event : body["events"].items()) {
      page.last = std::to_string(event["seq"].as_int());
      text.bytes += fmt::format("id: {}\nevent: {}\ndata: {}\n\n", page.last, event.text("type"),
                                canonical(event));
    }
    return text;
  }

  void on_response(api::ApiResponse answer, EventPage page) {
    if (is_revoked_) return;
    if (is_full_) {
      held_response_.emplace(std::move(answer), std::move(page));
      return;
    }
    if (answer.status >= 400) {
      if (!has_begun_) return std::move(responder_).answer(to_http_response(std::move(answer)));
      return stream_.end();
    }
    // No more events follow. The last one may have been sent before, or be filtered out.
    const bool over = page.is_empty() && page.ended && page.next.empty();
    if (!has_begun_ && over) return answer_no_content();
    const bool first = !std::exchange(accepted_, true);
    if (first && page.is_empty() && !over) {
      send_partial_output();
      return schedule_next(Pending::now);
    }
    if (!has_begun_) begin_stream();
    const std::string_view text = page.is_empty() && !over ? ":\n\n" : std::string_view(page.text);
    if (!stream_.has_capacity(text.size())) return schedule_next(Pending::later);
    if (!page.is_empty() || !page.next.empty()) after_ = page.next.empty() ? page.last : page.next;
    write(text);
    if (over) return end();
    if (first) send_partial_output();
    schedule_next(page.is_empty() && page.next.empty() ? Pending::later : Pending::now);
  }
  void schedule_next(Pending next) {
    if (is_full_) {
      pending_ = next;
    } else {
      poll_again(next);
    }
  }

  void write(std::string_view text) {
    if (stream_.write(text)) return;
    is_full_ = true;
    stream_.on_drained([self = shared_from_this()] { self->drained(); });
  }
  void drained() {
    is_full_ = false;
    if (held_response_) {
      auto [answer, page] = *std::exchange(held_response_, std::nullopt);
      return on_response(std::move(answer), std::move(page));
    }
    send_partial_output();
    if (is_full_ || !pending_) return;
    poll_again(*std::exchange(pending_, std::nullopt));
  }
  void end() {
    output_subscription_.reset();
    stream_.end();
  }

  // Partial output bypasses the store, so a revocation is checked here: while the key cannot be
  // validated, nothing is sent.
  bool is_still_valid() {
    if (context_.authenticator == nullptr || context_.authenticator->is_valid_now(principal_))
      return true;
    if (std::exchange(is_revalidating_, true)) return false;
    revalidate_([weak = weak_from_this()](const Status& may) {
      const auto self = weak.lock();
      if (!self) return;
      if (!may) return self->revalidate_later();
      self->is_revalidating_ = false;
      self->send_partial_output();
    });
    return false;
  }
  void revalidate_later() {
    context_.loop.after(kPollInterval, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) {
        self->is_revalidating_ = false;
        self->send_partial_output();
      }
    });
  }

  // Sends the partial output that this client does not have yet.
  void send_partial_output() {
    if (!accepted_ || is_revoked_ || is_full_ || !output_subscription_ ||
        (has_begun_ && stream_.closed()))
      return;
    if (!is_still_valid()) return;
    const auto all = context_.output_hub.outputs_of(job_);
    const bool has_output =
        std::ranges::any_of(all, [](const auto& one) { return !one->text.empty(); });
    if (has_output && !has_begun_) begin_stream();
    std::map<Try, std::size_t> sent;
    for (const auto& output : all) {
      const Try key{output->invocation, output->try_no};
      const auto before = sent_.find(key);
      std::size_t& at = sent[key];
      at = before == sent_.end() ? 0 : before->second;
      while (at < output->text.size() && !is_full_) {
        const std::string_view delta =
            truncate_utf8(std::string_view(output->text).substr(at), kDeltaMax);
        write(fmt::format("event: said\ndata: {}\n\n", canonical(delta_json(*output, at, delta))));
        at += delta.size();
      }
    }
    sent_ = std::move(sent);
  }
  static Value delta_json(const runtime::PartialOutput& output, std::size_t offset,
                          std::string_view text) {
    return Value::object({{field::invocation_id, output.invocation.text},
                          {field::node_id, output.node},
                          {"offset", static_cast<std::uint64_t>(offset)},
                          {field::step_id, output.step.text},
                          {"text", std::string(text)},
                          {field::try_, std::uint64_t{output.try_no}}});
  }

  // A browser's EventSource reconnects after any other response, and after the end of a stream.
  void answer_no_content() {
    net::HttpResponse none;
    none.status = 204;
    none.content_type.clear();
    none.headers.push_back({"Cache-Control", "no-store"});
    std::move(responder_).answer(std::move(none));
  }

  void begin_stream() {
    has_begun_ = true;
    net::HttpResponse head;
    head.content_type = "text/event-stream";
    head.headers.push_back({"Cache-Control", "no-store"});
    stream_ = std::move(responder_).begin(std::move(head));
    stream_.on_closed(disconnect_handler());
  }

  void poll_again(Pending next) {
    if (has_begun_ && stream_.closed()) return;
    const Duration early = polled_at_ + kPollInterval - context_.steady.since_start();
    if (next == Pending::now || early <= Duration(0)) return poll();
    context_.loop.after(early, [self = shared_from_this()] { self->poll(); });
  }

  const ServerContext context_;
  api::ApiRequest request_;
  const JobId job_;
  net::Responder responder_;
  const Revalidator revalidate_;
  const api::Principal principal_;
  std::shared_ptr<void> slot_, watch_, output_subscription_;
  std::map<Try, std::size_t> sent_;  // bytes sent of each open try
  // Shared with the poll in flight.
  const std::stop_source disconnected_;
  net::HttpStream stream_;
  std::string after_;
  Duration polled_at_{};  // by the steady clock
  // Continued when the client has read enough: a held response, or the next poll.
  std::optional<std::pair<api::ApiResponse, EventPage>> held_response_;
  std::optional<Pending> pending_;
  bool accepted_ = false;  // the Api responded without an error
  bool has_begun_ = false;
  bool is_full_ = false;          // the client is slow
  bool is_revoked_ = false;       // the key of the client was revoked
  bool is_revalidating_ = false;  // a revalidation is running or scheduled
};

}  // namespace

Revalidator make_revalidator(api::Authenticator* authenticator, const api::Principal& principal) {
  if (authenticator == nullptr) return [](api::Authenticator::StatusCallback then) { then({}); };
  return [authenticator, principal](api::Authenticator::StatusCallback then) {
    authenticator->revalidate(principal, std::move(then));
  };
}

void stream_events(const ServerContext& context, api::ApiRequest request,
                   const std::string& last_event_id, net::Responder responder,
                   const api::Principal& principal, std::shared_ptr<void> slot) {
  auto stream = std::make_shared<LiveStream>(context, std::move(request), std::move(responder),
                                             make_revalidator(context.authenticator, principal),
                                             principal, std::move(slot));
  if (last_event_id.find_first_not_of("0123456789") == last_event_id.npos) {
    stream->resume_after(last_event_id);
  }
  stream->begin();
}

}  // namespace ae::app
