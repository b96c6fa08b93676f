#include "app/listener.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "api/problem.h"
#include "core/json.h"
#include "net/http_server.h"

namespace ae::app {
namespace {

constexpr std::string_view kHoldOn = "15s";
constexpr std::size_t kPieceMax = 32u << 10;  // bytes of text in one event
// Between two questions of a stream that heard nothing: whatever answers early, it does not spin.
constexpr Duration kAgainAfter = std::chrono::seconds(1);

// Two of them are as good as none: nobody knows which one is meant.
std::string only_header(const net::HttpHeaders& headers, std::string_view name) {
  std::string value;
  for (const net::HttpHeader& header : headers) {
    if (!net::equal_ignoring_case(header.name, name)) continue;
    if (!value.empty()) return {};
    value = header.value;
  }
  return value;
}

// Several are one list.
std::string listed_header(const net::HttpHeaders& headers, std::string_view name) {
  std::string list;
  for (const net::HttpHeader& header : headers) {
    if (net::equal_ignoring_case(header.name, name))
      list += (list.empty() ? "" : ",") + header.value;
  }
  return list;
}

// HEAD is a GET of which only the head is sent: the server leaves the body out.
std::string method_of(const net::HttpRequest& request) {
  return request.method == "HEAD" ? "GET" : request.method;
}

bool is_mcp(const net::HttpRequest& request) {
  return !request.path.empty() && request.path[0] == "mcp" && request.method == "POST" &&
         (request.path.size() == 1 || (request.path.size() == 2 && request.path[1].empty()));
}

mcp::Headers mcp_headers(const net::HttpHeaders& headers) {
  mcp::Headers out;
  const auto take = [&](std::string_view name, std::optional<std::string>& into) {
    for (const net::HttpHeader& header : headers) {
      if (!net::equal_ignoring_case(header.name, name)) continue;
      out.twice = out.twice || into.has_value();
      into = header.value;
    }
  };
  take("mcp-protocol-version", out.version);
  take("mcp-method", out.method);
  take("mcp-name", out.name);
  return out;
}

// `pass`: who it is, if the gate knows; otherwise they say it themselves.
// `local`: on the socket of our own user.
api::ApiRequest request_of(net::HttpRequest&& in, const api::Pass& pass, bool local) {
  api::ApiRequest out;
  out.local = local;
  out.method = method_of(in);
  if (const auto key = net::find_header(in.headers, "idempotency-key")) {
    out.idempotency_key = *key;
  }
  if (is_mcp(in)) out.mcp_headers = mcp_headers(in.headers);
  const auto by = net::find_header(in.headers, "x-aetheris-by");
  out.by = !pass.by.empty() ? pass.by : by ? std::string(*by) : "api";
  out.role = pass.role;
  out.traceparent = only_header(in.headers, "traceparent");
  out.tracestate = listed_header(in.headers, "tracestate");
  out.path = std::move(in.path);
  if (!out.path.empty() && out.path.back().empty()) out.path.pop_back();
  out.query = std::move(in.query);
  out.body = std::move(in.body);
  return out;
}

net::HttpResponse response_of(const api::ApiResponse& in) {
  net::HttpResponse out;
  out.status = in.status;
  out.headers.push_back({"Cache-Control", "no-store"});
  if (in.retry_after.count() > 0) {
    const auto seconds = std::chrono::ceil<std::chrono::seconds>(in.retry_after).count();
    out.headers.push_back({"Retry-After", std::to_string(seconds)});
  }
  if (!in.allow.empty()) out.headers.push_back({"Allow", in.allow});
  if (in.status == 401) out.headers.push_back({"WWW-Authenticate", "Bearer"});
  if (!in.text.empty()) {
    out.content_type = "text/plain; version=0.0.4; charset=utf-8";
    out.body = in.text;
    return out;
  }
  if (in.status >= 400 && !in.rpc) out.content_type = "application/problem+json";
  if (in.rpc && in.body.is_null()) {
    out.content_type.clear();
    return out;
  }
  if (!in.location.empty()) out.headers.push_back({"Location", in.location});
  out.body = canonical(in.body);
  out.body += '\n';
  return out;
}

api::ApiResponse refusal(const Error& error) {
  return {.status = api::http_status(error.code),
          .body = api::problem(error),
          .location = {},
          .text = {}};
}

// Of an act: saying that it was refused would be a lie.
api::ApiResponse not_told_any_more() {
  return refusal({Code::unknown_outcome,
                  "while this waited, the key stopped to count: what was asked for may have been "
                  "done, and who has a key that counts can look"});
}

// Who is let in once may be let out again: what is about to be told is told only if they still may hear it.
using Still = std::function<void(api::Gate::Still)>;

Still still_of(api::Gate* gate, const api::Pass& pass) {
  if (gate == nullptr) return [](api::Gate::Still then) { then({}); };
  return [gate, pass](api::Gate::Still then) { gate->look_again(pass, std::move(then)); };
}

// The longest text that ends here and cuts no character.
std::string_view piece_of(std::string_view text) {
  if (text.size() <= kPieceMax) return text;
  std::size_t end = kPieceMax;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end);
}

// One live stream of a job's events: asks the Api again and again, each question waits for more. In between it tells what
// answers say as they come; who reads too slowly for that reads it in the event of the answer.
class Live : public std::enable_shared_from_this<Live> {
 public:
  // `right`: kept as long as the stream is open.
  Live(net::AsioLoop& loop, async::SteadyClock& steady, api::Api& api, runtime::Sayings& sayings,
       api::ApiRequest request, net::Responder responder, Still still, std::shared_ptr<void> right)
      : loop_(loop),
        steady_(steady),
        api_(api),
        sayings_(sayings),
        request_(std::move(request)),
        job_(request_.path[2]),
        responder_(std::move(responder)),
        still_(std::move(still)),
        right_(std::move(right)) {
    request_.gone = gone_;
  }

  void resume_after(std::string_view last_event_id) { after_ = last_event_id; }

  void begin(api::Gate* gate, const api::Pass& pass) {
    responder_.on_closed(gone());
    if (gate != nullptr) {
      watch_ = gate->watch(pass, [weak = weak_from_this()](const Error& why) {
        if (const auto self = weak.lock()) self->cut(why);
      });
    }
    // Who asks for some of the events asks for nothing else.
    const bool chooses = std::ranges::any_of(request_.query, [](const auto& pair) {
      return (pair.first == "class" || pair.first == "type") && !pair.second.empty();
    });
    if (!chooses) {
      hears_ = sayings_.listen(job_, [weak = weak_from_this()] {
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
    asked_at_ = steady_.since_start();
    api_.handle(std::move(request), [self = shared_from_this()](api::ApiResponse answer) {
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
    for (const Value& event : events) {
      after_ = std::to_string(event["seq"].as_int());
      text += "id: " + after_ + "\nevent: " + std::string(event.text("type")) +
              "\ndata: " + canonical(event) + "\n\n";
    }
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

  // What is being said, behind what this reader has of it.
  void say() {
    if (!may_ || cut_ || full_ || !hears_ || (begun_ && stream_.closed())) return;
    const auto all = sayings_.of(job_);
    const bool says = std::ranges::any_of(all, [](const auto& one) { return !one->text.empty(); });
    if (says && !begun_) begin_stream();
    std::map<Try, std::size_t> told;
    for (const auto& saying : all) {
      const Try key{saying->invocation, saying->try_no};
      const auto before = told_.find(key);
      std::size_t& at = told[key];
      at = before == told_.end() ? 0 : before->second;
      while (at < saying->text.size() && !full_) {
        const std::string_view piece = piece_of(std::string_view(saying->text).substr(at));
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
    const Duration early = asked_at_ + kAgainAfter - steady_.since_start();
    if (next == Pending::now || early <= Duration(0)) return ask();
    loop_.after(early, [self = shared_from_this()] { self->ask(); });
  }

  net::AsioLoop& loop_;
  async::SteadyClock& steady_;
  api::Api& api_;
  runtime::Sayings& sayings_;
  api::ApiRequest request_;
  const JobId job_;
  net::Responder responder_;
  const Still still_;
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
  bool full_ = false;  // the client is slow
  bool cut_ = false;   // who listens may not any more
};

// A request that waits, and its one answer: what there is in the end, or that its key is gone. What MCP tells before it
// makes a stream of the answer.
class Waits : public std::enable_shared_from_this<Waits> {
 public:
  // `right`: kept as long as it waits.
  Waits(net::Responder responder, bool only_looks, std::shared_ptr<void> right)
      : responder_(std::move(responder)), only_looks_(only_looks), right_(std::move(right)) {}

  // Says when nobody waits any more.
  std::shared_ptr<const bool> begin(api::Gate* gate, const api::Pass& pass) {
    responder_.on_closed([gone = gone_] { *gone = true; });
    if (gate != nullptr) {
      watch_ = gate->watch(pass, [weak = weak_from_this()](const Error& why) {
        if (const auto self = weak.lock()) self->cut(why);
      });
    }
    return gone_;
  }
  void leave() {
    right_.reset();
    watch_.reset();
  }
  void answer(const api::ApiResponse& answer) {
    if (std::exchange(answered_, true)) return;
    if (!streams_) return std::move(responder_).answer(response_of(answer));
    if (answer.rpc) stream_.write(message_event(answer.body));
    stream_.end();
  }
  // Null: a comment, so that nobody on the way takes the silence for the end.
  void tell(const Value& message) {
    if (answered_) return;
    if (!std::exchange(streams_, true)) {
      net::HttpResponse head;
      head.content_type = "text/event-stream";
      head.headers.push_back({"Cache-Control", "no-store"});
      head.headers.push_back({"X-Accel-Buffering", "no"});
      stream_ = std::move(responder_).begin(std::move(head));
      stream_.on_closed([gone = gone_] { *gone = true; });
    }
    stream_.write(message.is_null() ? ":\n\n" : message_event(message));
  }
  void cut(const Error& why) {
    *gone_ = true;
    leave();
    answer(only_looks_ ? refusal(why) : not_told_any_more());
  }

 private:
  static std::string message_event(const Value& message) {
    return "event: message\ndata: " + canonical(message) + "\n\n";
  }

  net::Responder responder_;
  const bool only_looks_;
  std::shared_ptr<void> right_, watch_;
  const std::shared_ptr<bool> gone_ = std::make_shared<bool>(false);
  net::HttpStream stream_;
  bool answered_ = false;
  bool streams_ = false;
};

bool takes_events(const net::HttpRequest& request) {
  const auto accept = request.header("accept");
  return accept && accept->find("text/event-stream") != accept->npos;
}

bool wants_stream(const net::HttpRequest& request) {
  return takes_events(request) && request.method == "GET" && request.path.size() == 4 &&
         request.path[3] == "events";
}

// A page of another site may make a browser send requests here. Programs send no Origin.
bool comes_from_elsewhere(const net::HttpRequest& request) {
  const auto origin = request.header("origin");
  if (!origin) return false;
  const std::string_view host = request.header("host").value_or("");
  return *origin != "http://" + std::string(host) && *origin != "https://" + std::string(host);
}

// Bodies are JSON, in UTF-8. No type, and the one that curl gives to what it is told to send, are taken for it.
bool is_json(const net::HttpRequest& request) {
  const auto type = request.header("content-type");
  if (!type || request.body.empty()) return true;
  std::string text(*type);
  std::erase_if(text, [](char c) { return c == ' ' || c == '"'; });
  std::ranges::transform(text, text.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  });
  const std::size_t end = text.find(';');
  const std::string kind = text.substr(0, end);
  if (const std::size_t at = text.find(";charset="); at != text.npos) {
    const std::string charset = text.substr(at + 9, text.find(';', at + 1) - at - 9);
    if (charset != "utf-8") return false;
  }
  return kind == "application/json" || kind.ends_with("+json") ||
         kind == "application/x-www-form-urlencoded";
}

bool is_loopback(std::string_view address) {
  return address == "localhost" || address == "::1" || address == "[::1]" ||
         (address.starts_with("127.") && address.find_first_not_of("0123456789.") == address.npos);
}

std::string address_of(const std::string& peer) { return peer.substr(0, peer.rfind(':')); }

// Two that differ name no job: each reader would take another one.
Status one_idempotency_key(const net::HttpHeaders& headers) {
  const std::string* first = nullptr;
  for (const net::HttpHeader& header : headers) {
    if (!net::equal_ignoring_case(header.name, "idempotency-key")) continue;
    if (first != nullptr && *first != header.value) {
      return fail(Code::input_invalid, "two headers Idempotency-Key differ");
    }
    first = &header.value;
  }
  return {};
}

// Where requests come in.
struct Place {
  net::AsioLoop& loop;
  async::SteadyClock& steady;
  api::Api& api;
  runtime::Sayings& sayings;
  api::Gate* gate;  // nullptr: only our own user comes in here
};

// REQUIRES: who asks has been let in.
void answer(const Place& place, net::HttpRequest request, net::Responder responder,
            const api::Pass& pass) {
  api::Gate* const gate = place.gate;
  if (auto one = one_idempotency_key(request.headers); !one) {
    return std::move(responder).answer(response_of(refusal(one.error())));
  }
  const Still still = still_of(gate, pass);
  if (wants_stream(request)) {
    std::shared_ptr<void> right;
    if (gate != nullptr) {
      auto given = gate->stream(pass);
      if (!given) return std::move(responder).answer(response_of(given.error()));
      right = *std::move(given);
    }
    const std::string last(request.header("last-event-id").value_or(""));
    auto live = std::make_shared<Live>(place.loop, place.steady, place.api, place.sayings,
                                       request_of(std::move(request), pass, gate == nullptr),
                                       std::move(responder), still, std::move(right));
    if (last.find_first_not_of("0123456789") == last.npos) live->resume_after(last);
    return live->begin(gate, pass);
  }
  const bool only_looks = method_of(request) == "GET";
  const bool tells = is_mcp(request) && takes_events(request);
  if (!is_mcp(request) && !request.query_value("wait")) {
    // What was done at once is told, also to whom it shut the door: a first key, one's own that is revoked.
    return place.api.handle(
        request_of(std::move(request), pass, gate == nullptr),
        [responder = std::move(responder)](const api::ApiResponse& answer) mutable {
          std::move(responder).answer(response_of(answer));
        });
  }
  std::shared_ptr<void> right;
  if (gate != nullptr) {
    auto given = gate->wait(pass);
    if (!given) return std::move(responder).answer(response_of(given.error()));
    right = *std::move(given);
  }
  api::ApiRequest asked = request_of(std::move(request), pass, gate == nullptr);
  auto waits = std::make_shared<Waits>(std::move(responder), only_looks, std::move(right));
  asked.gone = waits->begin(gate, pass);
  if (tells) asked.note = [waits](const Value& message) { waits->tell(message); };
  place.api.handle(std::move(asked), [still, waits](api::ApiResponse answer) {
    waits->leave();
    still([waits, answer = std::move(answer)](const Status& may) {
      if (may) return waits->answer(answer);
      waits->cut(may.error());
    });
  });
}

// On a socket of our own user there is room for the commands of one person, or of a script.
constexpr std::size_t kOwnConnectionsMax = 128;

net::HttpServer::Options server_options() {
  net::HttpServer::Options options;
  options.limits.body_max = api::kBodyMax;
  return options;
}

net::HttpServer::Options own_options() {
  net::HttpServer::Options options = server_options();
  options.connections_max = kOwnConnectionsMax;
  return options;
}

}  // namespace

Listener::Listener(net::AsioLoop& loop, async::SteadyClock& steady, api::Api& api,
                   runtime::Sayings& sayings)
    : server_(std::make_unique<net::HttpServer>(
          loop,
          [place = Place{loop, steady, api, sayings, nullptr}](net::HttpRequest request,
                                                               net::Responder responder) {
            const api::Pass us{.role = api::Role::admin, .key = {}, .by = {}};
            answer(place, std::move(request), std::move(responder), us);
          },
          own_options())) {}

Listener::Listener(net::AsioLoop& loop, async::SteadyClock& steady, store::Store& store,
                   api::Api& api, runtime::Sayings& sayings, ServeOptions options)
    : options_(std::move(options)) {
  const bool local = is_loopback(options_.address);
  gate_ = std::make_unique<api::Gate>(
      loop, steady, store, api.registry(),
      api::Gate::Options{.open_without_keys = local,
                         .rate = options_.rate.value_or(api::kRateDefault),
                         .limits_us = options_.rate.has_value(),
                         .rejected = [&api](std::string_view type) { api.count_rejection(type); }});
  net::HttpServer::Options http = server_options();
  // Elsewhere the names by which others call us are not ours to know; there everybody shows a key.
  if (local) {
    http.hosts = {"localhost", "127.0.0.1", "[::1]"};
    if (std::ranges::find(http.hosts, options_.address) == http.hosts.end()) {
      http.hosts.push_back(options_.address);  // 127.0.0.2 is this machine, too
    }
  }
  http.tls = options_.tls;
  http.full = options_.warn;
  server_ = std::make_unique<net::HttpServer>(
      loop,
      [place = Place{loop, steady, api, sayings, gate_.get()}](net::HttpRequest request,
                                                               net::Responder responder) {
        if (comes_from_elsewhere(request)) {
          return std::move(responder).answer(
              net::problem(403, "forbidden", "pages of other sites may not ask this server"));
        }
        if (!is_json(request)) {
          return std::move(responder).answer(
              net::problem(415, "unsupported", "send JSON, as Content-Type: application/json"));
        }
        api::Knock knock{.authorization = {}, .address = address_of(request.peer)};
        if (const auto key = request.header("authorization")) knock.authorization = *key;
        api::Path path = request.path;
        if (!path.empty() && path.back().empty()) path.pop_back();
        knock.open = api::Api::is_open(method_of(request), path);
        knock.of_process = path == api::Path{"metrics"};
        place.gate->knock(std::move(knock),
                          [place, request = std::move(request), responder = std::move(responder)](
                              std::expected<api::Pass, api::ApiResponse> pass) mutable {
                            if (!pass)
                              return std::move(responder).answer(response_of(pass.error()));
                            answer(place, std::move(request), std::move(responder), *pass);
                          });
      },
      std::move(http));
}

Listener::~Listener() = default;

Status Listener::listen(const std::string& path) { return server_->listen_unix(path, 0600); }

Result<std::uint16_t> Listener::listen_tcp() {
  const std::string& address = options_.address;
  if (!is_loopback(address)) {
    if (options_.only_here) {
      return fail(
          Code::usage,
          address +
              " can be reached from other machines, and a worker answers on its own alone, in "
              "the clear: listen on 127.0.0.1, and let a program there ask it for others");
    }
    if (!options_.tls && !options_.insecure_http) {
      return fail(Code::usage,
                  address +
                      " can be reached from other machines, and without TLS whoever "
                      "is on the way reads the keys: give --tls-cert and --tls-key, say "
                      "--insecure-http if something before this server encrypts, or "
                      "listen on 127.0.0.1");
    }
    if (!gate_->has_live_key()) {
      return fail(Code::usage,
                  address +
                      " can be reached from other machines, and no key is there to ask them for: "
                      "make one with `aetheris keys create --role admin`, or listen on 127.0.0.1");
    }
  }
  const bool bracketed = address.starts_with('[');
  auto port = server_->listen_tcp(bracketed ? address.substr(1, address.size() - 2) : address,
                                  options_.port);
  if (!port && port.error().code == Code::held) {
    return fail(Code::unavailable,
                port.error().message + ": end what listens there, or give another --listen");
  }
  return port;
}

void Listener::stop(Duration grace, std::function<void()> done) {
  server_->stop(grace, std::move(done));
}

}  // namespace ae::app
