#include "app/listener.h"

#include <algorithm>
#include <string>
#include <utility>

#include "app/http_words.h"
#include "app/live.h"
#include "app/tool_peer.h"
#include "json/json.h"
#include "mcp/message.h"
#include "net/http_server.h"

namespace ae::app {
namespace {

// Of an act: saying that it was refused would be a lie.
api::ApiResponse not_told_any_more() {
  return refusal({Code::unknown_outcome,
                  "the API key became invalid while the request waited: it may have taken effect; "
                  "check the outcome with a valid key"});
}

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
    if (answer.rpc) {
      std::string message = message_event(answer.body);
      if (!stream_.has_room(message.size())) message = message_event(no_room(answer.body["id"]));
      stream_.write(message);
    }
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
  // In place of a large answer to the message `id`.
  static Value no_room(const Value& id) {
    const api::ApiResponse full = refusal(
        {Code::unknown_outcome,
         "too many large responses at once; check the outcome before you retry the request"});
    return mcp::error_response({.code = full.status,
                                .message = std::string(full.body.text("detail")),
                                .data = full.body,
                                .id = id});
  }
  static std::string message_event(const Value& message) {
    constexpr std::string_view kBegin = "event: message\ndata: ", kEnd = "\n\n";
    const std::string text = canonical(message);
    std::string event;
    event.reserve(kBegin.size() + text.size() + kEnd.size());  // growth would double it
    return event.append(kBegin).append(text).append(kEnd);
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

// A page of another site may make a browser send requests here. Programs send no Origin and no Sec-Fetch-Site; a browser
// sends the second one alone with what a page only shows or embeds.
bool comes_from_elsewhere(const net::HttpRequest& request) {
  const auto origin = request.header("origin");
  if (!origin) {
    const bool asks_health =
        request.path.size() >= 2 && request.path[0] == "api" && request.path[1] == "health";
    return request.header("sec-fetch-site") == "cross-site" && !asks_health;
  }
  const std::string_view host = request.header("host").value_or("");
  return *origin != "http://" + std::string(host) && *origin != "https://" + std::string(host);
}

// Bodies are JSON, in UTF-8. No type, and the one that curl gives to what it is told to send, are taken for it.
bool is_json(const net::HttpRequest& request) {
  const auto type = request.header("content-type");
  if (!type || !request.has_body) return true;
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

// REQUIRES: who asks has been let in.
void answer(const Place& place, net::HttpRequest request, net::Responder responder,
            const api::Pass& pass) {
  api::Gate* const gate = place.gate;
  if (auto one = one_idempotency_key(request.headers); !one) {
    return std::move(responder).answer(response_of(refusal(one.error())));
  }
  if (wants_stream(request)) {
    std::shared_ptr<void> right;
    if (gate != nullptr) {
      auto given = gate->stream(pass);
      if (!given) return std::move(responder).answer(response_of(given.error()));
      right = *std::move(given);
    }
    const std::string last(request.header("last-event-id").value_or(""));
    return stream_events(place, request_of(std::move(request), pass, gate == nullptr), last,
                         std::move(responder), pass, std::move(right));
  }
  const bool only_looks = method_of(request) == "GET";
  const bool tells = is_mcp(request) && takes_events(request);
  if (!is_mcp(request) && !request.query_value("wait")) {
    api::ApiRequest asked = request_of(std::move(request), pass, gate == nullptr);
    if (only_looks) asked.has_room = place.has_room;
    // What was done at once is told, also to whom it shut the door: a first key, one's own that is revoked.
    return place.api.handle(std::move(asked), [responder = std::move(responder)](
                                                  const api::ApiResponse& answer) mutable {
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
  place.api.handle(std::move(asked),
                   [still = still_of(gate, pass), waits](api::ApiResponse answer) {
                     waits->leave();
                     still([waits, answer = std::move(answer)](const Status& may) {
                       if (may) return waits->answer(answer);
                       waits->cut(may.error());
                     });
                   });
}

// Who asks may come in: the body is read only of what a route takes from them.
void let_in(const Place& place, net::HttpRequest request, net::Responder responder,
            const api::Pass& pass, const api::Path& path) {
  if (const auto refused = place.api.refuse_unread(method_of(request), path, pass.role)) {
    return std::move(responder).answer(response_of(*refused));
  }
  std::move(responder).read_body(
      std::move(request), [place, pass](net::HttpRequest whole, net::Responder its_responder) {
        answer(place, std::move(whole), std::move(its_responder), pass);
      });
}

// On a socket of our own user there is room for the commands of one person, or of a script.
constexpr std::size_t kOwnConnectionsMax = 128;

net::HttpResponse refused_to_tools() {
  return net::problem(
      403, "forbidden",
      "the client may be a program that a tool started; such programs need an API key: "
      "POST /api/keys creates one");
}

net::HttpServer::Options server_options() {
  net::HttpServer::Options options;
  options.limits.body_max = api::kBodyMax;
  return options;
}

net::HttpServer::Options own_options() {
  net::HttpServer::Options options = server_options();
  options.connections_max = kOwnConnectionsMax;
  options.is_tool = [](int fd, bool) { return is_tool_on_socket(fd); };
  return options;
}

}  // namespace

Listener::Listener(net::AsioLoop& loop, async::SteadyClock& steady, api::Api& api,
                   runtime::Sayings& sayings)
    : server_(std::make_unique<net::HttpServer>(
          loop,
          [place =
               Place{loop, steady, api, sayings, nullptr, [this] { return server_->has_room(); }}](
              net::HttpRequest request, net::Responder responder) {
            if (request.from_tool) return std::move(responder).answer(refused_to_tools());
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
  // Without keys everybody on this machine is let in, except tools.
  http.is_tool = [gate = gate_.get(), local](int fd, bool) {
    return local && !gate->asks_for_keys() && is_tool_on_loopback(fd);
  };
  http.tls = options_.tls;
  http.full = options_.warn;
  http.admit = [place = Place{loop, steady, api, sayings, gate_.get(), [this] {
                                return server_->has_room();
                              }}](net::HttpRequest request, net::Responder responder) {
    if (request.from_tool && !place.gate->asks_for_keys()) {
      return std::move(responder).answer(refused_to_tools());
    }
    if (comes_from_elsewhere(request)) {
      return std::move(responder).answer(
          net::problem(403, "forbidden", "cross-origin request denied"));
    }
    if (!is_json(request)) {
      return std::move(responder).answer(
          net::problem(415, "unsupported_media_type",
                       "unsupported media type; send JSON with Content-Type: application/json"));
    }
    api::Knock knock{.authorization = {}, .address = address_of(request.peer)};
    if (const auto key = request.header("authorization")) knock.authorization = *key;
    api::Path path = request.path;
    if (!path.empty() && path.back().empty()) path.pop_back();
    knock.open = api::Api::is_open(method_of(request), path);
    knock.of_process = path == api::Path{"metrics"};
    place.gate->knock(std::move(knock),
                      [place, path = std::move(path), request = std::move(request),
                       responder = std::move(responder)](
                          std::expected<api::Pass, api::ApiResponse> pass) mutable {
                        if (!pass) return std::move(responder).answer(response_of(pass.error()));
                        let_in(place, std::move(request), std::move(responder), *pass, path);
                      });
  };
  server_ = std::make_unique<net::HttpServer>(loop, nullptr, std::move(http));
}

Listener::~Listener() = default;

Status Listener::listen(const std::string& path) { return server_->listen_unix(path, 0600); }

Result<std::uint16_t> Listener::listen_tcp() {
  const std::string& address = options_.address;
  if (!is_loopback(address)) {
    if (options_.only_here) {
      return fail(Code::usage,
                  address +
                      " can be reached from other machines, but a worker serves only its own "
                      "machine, without TLS: listen on 127.0.0.1, and forward from there");
    }
    if (!options_.tls && !options_.insecure_http) {
      return fail(
          Code::usage,
          address +
              " can be reached from other machines: give --tls-cert and --tls-key, --insecure-http "
              "if a proxy encrypts, or listen on 127.0.0.1 (keys need TLS)");
    }
    if (!gate_->has_live_key()) {
      return fail(Code::usage,
                  address +
                      " can be reached from other machines, and there is no API key: create one "
                      "with `aetheris keys create --role admin`, or listen on 127.0.0.1");
    }
  }
  const bool bracketed = address.starts_with('[');
  auto port = server_->listen_tcp(bracketed ? address.substr(1, address.size() - 2) : address,
                                  options_.port);
  if (!port && port.error().code == Code::held) {
    return fail(
        Code::unavailable,
        port.error().message + ": stop the process that listens there, or give another --listen");
  }
  return port;
}

void Listener::stop(Duration grace, std::function<void()> done) {
  server_->stop(grace, std::move(done));
}

}  // namespace ae::app
