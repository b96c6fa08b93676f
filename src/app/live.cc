#include "app/live.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "app/http_words.h"
#include "base/utf8.h"
#include "json/json.h"

namespace ae::app {
namespace {

constexpr std::string_view kHoldOn = "15s";
constexpr std::size_t kPieceMax = 32u << 10;  // bytes of text in one event
// Between two questions of a stream that heard nothing: whatever answers early, it does not spin.
constexpr Duration kAgainAfter = std::chrono::seconds(1);

// One live stream of a job's events: asks the Api again and again, each question waits for more. In between it tells what
// answers say as they come; who reads too slowly for that reads it in the event of the answer.
class Live : public std::enable_shared_from_this<Live> {
 public:
  // `right`: kept as long as the stream is open.
  Live(const Place& place, api::ApiRequest request, net::Responder responder, Still still,
       const api::Pass& pass, std::shared_ptr<void> right)
      : place_(place),
        request_(std::move(request)),
        job_(request_.path[2]),
        responder_(std::move(responder)),
        still_(std::move(still)),
        pass_(pass),
        right_(std::move(right)) {
    request_.gone = gone_;
  }

  void resume_after(std::string_view last_event_id) { after_ = last_event_id; }

  void begin() {
    responder_.on_closed(gone());
    if (place_.gate != nullptr) {
      watch_ = place_.gate->watch(pass_, [weak = weak_from_this()](const Error& why) {
        if (const auto self = weak.lock()) self->cut(why);
      });
    }
    // Who asks for some of the events asks for nothing else.
    const bool chooses = std::ranges::any_of(request_.query, [](const auto& pair) {
      return (pair.first == "class" || pair.first == "type") && !pair.second.empty();
    });
    if (!chooses) {
      hears_ = place_.sayings.listen(job_, [weak = weak_from_this()] {
        if (const auto self = weak.lock()) self->say();
      });
    }
    ask();
  }

 private:
  enum class Pending : std::uint8_t { now, later };  // the next question
  using Try = std::pair<InvocationId, std::uint32_t>;

  async::Task gone() {
    return [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->leave();
    };
  }
  void leave() {
    *gone_ = true;
    right_.reset();
    watch_.reset();
    hears_.reset();
  }

  void cut(const Error& why) {
    if (std::exchange(cut_, true)) return;
    leave();
    if (begun_) return stream_.end();
    std::move(responder_).answer(response_of(refusal(why)));
  }

  void ask() {
    if (cut_ || (begun_ && stream_.closed())) return;
    api::ApiRequest request = request_;
    std::erase_if(request.query,
                  [](const auto& pair) { return pair.first == "wait" || pair.first == "limit"; });
    if (!after_.empty()) {
      std::erase_if(request.query, [](const auto& pair) { return pair.first == "after"; });
      request.query.emplace_back("after", after_);
    }
    // Whoever comes while something is being said does not wait for an event to hear it.
    if (may_) request.query.emplace_back("wait", kHoldOn);
    request.query.emplace_back("limit", "256");
    asked_at_ = place_.steady.since_start();
    place_.api.handle(std::move(request), [self = shared_from_this()](api::ApiResponse answer) {
      self->still_([self, answer = std::move(answer)](Status may) mutable {
        self->answered(may ? std::move(answer) : refusal(may.error()));
      });
    });
  }

  void answered(api::ApiResponse answer) {
    if (cut_) return;
    if (full_) {
      held_ = std::move(answer);
      return;
    }
    if (answer.status >= 400) {
      if (!begun_) return std::move(responder_).answer(response_of(answer));
      return stream_.end();
    }
    const auto events = answer.body["events"].items();
    // Nothing comes after it. Its end may have been told before, or be none of what was asked for.
    const bool over = events.empty() && answer.body["ended"] == Value(true);
    if (!begun_ && over) return nothing_to_come();
    const bool first = !std::exchange(may_, true);
    if (first && events.empty() && !over) {
      say();
      return then(Pending::now);
    }
    if (!begun_) begin_stream();
    std::string text = events.empty() && !over ? ":\n\n" : "";
    std::string last = after_;
    for (const Value& event : events) {
      last = std::to_string(event["seq"].as_int());
      text += "id: " + last + "\nevent: " + std::string(event.text("type")) +
              "\ndata: " + canonical(event) + "\n\n";
    }
    if (!stream_.has_room(text.size())) return then(Pending::later);
    after_ = std::move(last);
    write(text);
    if (over) return end();
    if (first) say();
    then(events.empty() ? Pending::later : Pending::now);
  }
  void then(Pending next) {
    if (full_) {
      pending_ = next;
    } else {
      ask_again(next);
    }
  }

  void write(std::string_view text) {
    if (stream_.write(text)) return;
    full_ = true;
    stream_.on_drained([self = shared_from_this()] { self->drained(); });
  }
  void drained() {
    full_ = false;
    if (held_) return answered(*std::exchange(held_, std::nullopt));
    say();
    if (full_ || !pending_) return;
    ask_again(*std::exchange(pending_, std::nullopt));
  }
  void end() {
    hears_.reset();
    stream_.end();
  }

  // Nothing of this comes from the store, which might say meanwhile that their key was revoked: while it says nothing, they
  // are told nothing.
  bool may_hear() {
    if (place_.gate == nullptr || place_.gate->may_now(pass_)) return true;
    if (std::exchange(looks_, true)) return false;
    still_([weak = weak_from_this()](const Status& may) {
      const auto self = weak.lock();
      if (!self) return;
      if (!may) return self->look_later();
      self->looks_ = false;
      self->say();
    });
    return false;
  }
  void look_later() {
    place_.loop.after(kAgainAfter, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) {
        self->looks_ = false;
        self->say();
      }
    });
  }

  // What is being said, behind what this reader has of it.
  void say() {
    if (!may_ || cut_ || full_ || !hears_ || (begun_ && stream_.closed())) return;
    if (!may_hear()) return;
    const auto all = place_.sayings.of(job_);
    const bool says = std::ranges::any_of(all, [](const auto& one) { return !one->text.empty(); });
    if (says && !begun_) begin_stream();
    std::map<Try, std::size_t> told;
    for (const auto& saying : all) {
      const Try key{saying->invocation, saying->try_no};
      const auto before = told_.find(key);
      std::size_t& at = told[key];
      at = before == told_.end() ? 0 : before->second;
      while (at < saying->text.size() && !full_) {
        const std::string_view piece =
            beginning_of(std::string_view(saying->text).substr(at), kPieceMax);
        write("event: said\ndata: " + canonical(said(*saying, at, piece)) + "\n\n");
        at += piece.size();
      }
    }
    told_ = std::move(told);
  }
  static Value said(const runtime::Saying& saying, std::size_t offset, std::string_view text) {
    return Value::object({{"invocation_id", saying.invocation.text},
                          {"node_id", saying.node},
                          {"offset", static_cast<std::uint64_t>(offset)},
                          {"step_id", saying.step.text},
                          {"text", std::string(text)},
                          {"try", std::uint64_t{saying.try_no}}});
  }

  // A browser's EventSource asks again after every other answer, and after each end.
  void nothing_to_come() {
    net::HttpResponse none;
    none.status = 204;
    none.content_type.clear();
    none.headers.push_back({"Cache-Control", "no-store"});
    std::move(responder_).answer(std::move(none));
  }

  void begin_stream() {
    begun_ = true;
    net::HttpResponse head;
    head.content_type = "text/event-stream";
    head.headers.push_back({"Cache-Control", "no-store"});
    stream_ = std::move(responder_).begin(std::move(head));
    stream_.on_closed(gone());
  }

  void ask_again(Pending next) {
    if (begun_ && stream_.closed()) return;
    const Duration early = asked_at_ + kAgainAfter - place_.steady.since_start();
    if (next == Pending::now || early <= Duration(0)) return ask();
    place_.loop.after(early, [self = shared_from_this()] { self->ask(); });
  }

  const Place place_;
  api::ApiRequest request_;
  const JobId job_;
  net::Responder responder_;
  const Still still_;
  const api::Pass pass_;
  std::shared_ptr<void> right_, watch_, hears_;
  std::map<Try, std::size_t> told_;  // bytes of what each that is open has said
  // Shared with the question under way.
  const std::shared_ptr<bool> gone_ = std::make_shared<bool>(false);
  net::HttpStream stream_;
  std::string after_;
  Duration asked_at_{};  // of the steady clock
  // When there is room again: what was answered meanwhile, or the next question.
  std::optional<api::ApiResponse> held_;
  std::optional<Pending> pending_;
  bool may_ = false;  // the Api has answered, and did not refuse
  bool begun_ = false;
  bool full_ = false;   // the client is slow
  bool cut_ = false;    // who listens may not any more
  bool looks_ = false;  // whether they still may is being asked, or will be
};

}  // namespace

Still still_of(api::Gate* gate, const api::Pass& pass) {
  if (gate == nullptr) return [](api::Gate::Still then) { then({}); };
  return [gate, pass](api::Gate::Still then) { gate->look_again(pass, std::move(then)); };
}

void stream_events(const Place& place, api::ApiRequest request, const std::string& last_event_id,
                   net::Responder responder, const api::Pass& pass, std::shared_ptr<void> right) {
  auto live = std::make_shared<Live>(place, std::move(request), std::move(responder),
                                     still_of(place.gate, pass), pass, std::move(right));
  if (last_event_id.find_first_not_of("0123456789") == last_event_id.npos) {
    live->resume_after(last_event_id);
  }
  live->begin();
}

}  // namespace ae::app
