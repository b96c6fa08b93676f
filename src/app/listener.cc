#include "app/listener.h"

#include <fmt/core.h>

#include <algorithm>
#include <stop_token>
#include <string>
#include <utility>

#include "app/clock_control.h"
#include "app/http_mapping.h"
#include "app/live_stream.h"
#include "app/tool_peer.h"
#include "app/worker_endpoint.h"
#include "json/json.h"
#include "log/field_names.h"
#include "mcp/protocol/message.h"
#include "net/http_server.h"

namespace ae::app {
namespace {

// For a control request: a refusal would wrongly imply that it had no effect.
api::ApiResponse unknown_outcome_response() {
  return problem_response(
      {Code::unknown_outcome,
       "the API key became invalid while the request waited: it may have taken effect; "
       "check the outcome with a valid key"});
}

// A waiting request and its response: the final state, or the revocation of its key. MCP
// notifications turn the response into a stream.
class PendingResponse : public std::enable_shared_from_this<PendingResponse> {
 public:
  // `slot`: kept until the response.
  PendingResponse(net::Responder responder, bool is_read_only, std::shared_ptr<void> slot)
      : responder_(std::move(responder)), is_read_only_(is_read_only), slot_(std::move(slot)) {}

  // Stopped when the client disconnects or its key is revoked.
  std::stop_token begin(api::Authenticator* authenticator, const api::Principal& principal) {
    responder_.on_closed([gone = disconnected_] { gone.request_stop(); });
    if (authenticator != nullptr) {
      watch_ = authenticator->watch(principal, [weak = weak_from_this()](const Error& why) {
        if (const auto self = weak.lock()) self->revoke(why);
      });
    }
    return disconnected_.get_token();
  }
  void release() {
    slot_.reset();
    watch_.reset();
  }
  void answer(api::ApiResponse answer) {
    if (std::exchange(answered_, true)) return;
    if (!is_streaming_) return std::move(responder_).answer(to_http_response(std::move(answer)));
    if (answer.rpc) {
      std::string message = answer.rendered ? message_event(std::move(answer.rendered->bytes))
                                            : message_event(answer.body);
      if (!stream_.has_capacity(message.size()))
        message = message_event(response_limit_error(answer.body["id"]));
      stream_.write(message);
    }
    stream_.end();
  }
  // Null: a comment as keep-alive, so that proxies do not close the connection.
  void send_notification(const Value& message) {
    if (answered_) return;
    if (!std::exchange(is_streaming_, true)) {
      net::HttpResponse head;
      head.content_type = "text/event-stream";
      head.headers.push_back({"Cache-Control", "no-store"});
      head.headers.push_back({"X-Accel-Buffering", "no"});
      stream_ = std::move(responder_).begin(std::move(head));
      stream_.on_closed([gone = disconnected_] { gone.request_stop(); });
    }
    stream_.write(message.is_null() ? ":\n\n" : message_event(message));
  }
  void revoke(const Error& why) {
    disconnected_.request_stop();
    release();
    answer(is_read_only_ ? problem_response(why) : unknown_outcome_response());
  }

 private:
  // Replaces a large response to the message `id`.
  static Value response_limit_error(const Value& id) {
    const api::ApiResponse full = problem_response(
        {Code::unknown_outcome,
         "too many large responses at once; check the outcome before you retry the request"});
    return mcp::error_response({.code = full.status,
                                .message = std::string(full.body.text(field::detail)),
                                .data = full.body,
                                .id = id});
  }
  static std::string message_event(const Value& message) {
    return message_event(canonical(message));
  }
  static std::string message_event(std::string text) {
    constexpr std::string_view kBegin = "event: message\ndata: ", kEnd = "\n\n";
    if (text.ends_with('\n')) text.pop_back();
    std::string event;
    event.reserve(kBegin.size() + text.size() + kEnd.size());  // growth would double it
    return event.append(kBegin).append(text).append(kEnd);
  }

  net::Responder responder_;
  const bool is_read_only_;
  std::shared_ptr<void> slot_, watch_;
  const std::stop_source disconnected_;
  net::HttpStream stream_;
  bool answered_ = false;
  bool is_streaming_ = false;
};

bool accepts_event_stream(const net::HttpRequest& request) {
  const auto accept = request.header("accept");
  return accept && accept->find("text/event-stream") != accept->npos;
}

bool wants_stream(const net::HttpRequest& request) {
  return accepts_event_stream(request) && request.method == "GET" && request.path.size() == 4 &&
         request.path[3] == "events";
}

// A page of another site can make a browser send requests here. Programs send neither Origin nor
// sec-fetch-site; for images and embedded content a browser sends only the latter.
bool is_cross_origin(const net::HttpRequest& request) {
  const auto origin = request.header("origin");
  if (!origin) {
    const bool is_health =
        request.path.size() >= 2 && request.path[0] == "api" && request.path[1] == "health";
    return request.header("sec-fetch-site") == "cross-site" && !is_health;
  }
  const std::string_view host = request.header("host").value_or("");
  return *origin != fmt::format("http://{}", host) && *origin != fmt::format("https://{}", host);
}

// Bodies must be JSON in UTF-8. A missing type and curl's default type are treated as JSON.
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

// Two different headers are ambiguous and rejected.
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

// REQUIRES: an authenticated principal.
bool is_other_upgrade(const net::HttpRequest& request) {
  return request.header("upgrade") && !is_worker_route(request);
}

void answer(const ServerContext& context, net::HttpRequest request, net::Responder responder,
            const api::Principal& principal) {
  api::Authenticator* const authenticator = context.authenticator;
  if (is_other_upgrade(request)) {
    return std::move(responder).answer(
        net::problem(501, "unsupported", "only GET /api/worker can be upgraded"));
  }
  if (context.workers != nullptr && is_worker_route(request)) {
    return accept_worker(context.loop, *context.workers, authenticator, request,
                         std::move(responder), principal);
  }
  if (context.clock != nullptr && is_clock_route(request)) {
    return answer_clock(*context.clock, request, std::move(responder), principal);
  }
  if (auto one = one_idempotency_key(request.headers); !one) {
    return std::move(responder).answer(to_http_response(problem_response(one.error())));
  }
  if (wants_stream(request)) {
    std::shared_ptr<void> slot;
    if (authenticator != nullptr) {
      auto given = authenticator->acquire_stream(principal);
      if (!given) return std::move(responder).answer(to_http_response(std::move(given).error()));
      slot = *std::move(given);
    }
    const std::string last(request.header("last-event-id").value_or(""));
    return stream_events(context,
                         to_api_request(std::move(request), principal, authenticator == nullptr),
                         last, std::move(responder), principal, std::move(slot));
  }
  const bool is_read_only = method_of(request) == "GET";
  const bool notifies = is_mcp(request) && accepts_event_stream(request);
  if (!is_mcp(request) && !request.query_value("wait")) {
    api::ApiRequest api_request =
        to_api_request(std::move(request), principal, authenticator == nullptr);
    if (is_read_only) {
      api_request.has_capacity = context.has_capacity;
      const std::stop_source disconnected;
      api_request.disconnected = disconnected.get_token();
      responder.on_closed([disconnected] { disconnected.request_stop(); });
    }
    // A completed request is answered even if it invalidated its own access: the first key, or
    // revoking one's own key.
    return context.api.handle(std::move(api_request),
                              [responder = std::move(responder)](api::ApiResponse answer) mutable {
                                std::move(responder).answer(to_http_response(std::move(answer)));
                              });
  }
  std::shared_ptr<void> slot;
  if (authenticator != nullptr) {
    auto given = authenticator->acquire_wait(principal);
    if (!given) return std::move(responder).answer(to_http_response(std::move(given).error()));
    slot = *std::move(given);
  }
  api::ApiRequest api_request =
      to_api_request(std::move(request), principal, authenticator == nullptr);
  auto pending =
      std::make_shared<PendingResponse>(std::move(responder), is_read_only, std::move(slot));
  api_request.disconnected = pending->begin(authenticator, principal);
  if (notifies)
    api_request.on_notification = [pending](const Value& message) {
      pending->send_notification(message);
    };
  context.api.handle(
      std::move(api_request),
      [revalidate = make_revalidator(authenticator, principal), pending](api::ApiResponse answer) {
        pending->release();
        revalidate([pending, answer = std::move(answer)](const Status& may) mutable {
          if (may) return pending->answer(std::move(answer));
          pending->revoke(may.error());
        });
      });
}

// The principal is authenticated; the body is read only if the route accepts the request.
void read_body_and_answer(const ServerContext& context, net::HttpRequest request,
                          net::Responder responder, const api::Principal& principal,
                          const api::Path& path) {
  if (is_other_upgrade(request) || (context.workers != nullptr && is_worker_route(request))) {
    return answer(context, std::move(request), std::move(responder), principal);
  }
  const bool is_of_clock = context.clock != nullptr && is_clock_route(request);
  const auto refused =
      is_of_clock ? std::nullopt
                  : context.api.refuse_before_body(method_of(request), path, principal.role);
  if (refused) {
    return std::move(responder).answer(to_http_response(*refused));
  }
  std::move(responder).read_body(
      std::move(request),
      [context, principal](net::HttpRequest whole, net::Responder its_responder) {
        answer(context, std::move(whole), std::move(its_responder), principal);
      });
}

// The socket of our own user needs connections only for interactive commands and scripts.
constexpr std::size_t kOwnConnectionsMax = 128;

net::HttpResponse tool_forbidden_response() {
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

net::HttpServer::Options unix_socket_options() {
  net::HttpServer::Options options = server_options();
  options.connections_max = kOwnConnectionsMax;
  options.is_tool = [](int fd, bool) { return is_tool_on_socket(fd); };
  return options;
}

}  // namespace

Listener::Listener(net::AsioLoop& loop, async::SteadyClock& steady, api::Api& api,
                   runtime::OutputHub& output_hub, routines::RemoteRoutines* workers)
    : server_(std::make_unique<net::HttpServer>(
          loop,
          [context = ServerContext{loop, steady, api, output_hub, nullptr,
                                   [this] { return server_->has_capacity(); }, workers}](
              net::HttpRequest request, net::Responder responder) {
            if (request.from_tool) return std::move(responder).answer(tool_forbidden_response());
            const api::Principal us{.role = api::Role::admin, .key = {}, .by = {}};
            answer(context, std::move(request), std::move(responder), us);
          },
          unix_socket_options())) {}

Listener::Listener(net::AsioLoop& loop, async::SteadyClock& steady, store::Store& store,
                   api::Api& api, runtime::OutputHub& output_hub, ServeOptions options,
                   routines::RemoteRoutines* workers)
    : options_(std::move(options)) {
  const bool local = is_loopback(options_.address);
  authenticator_ = std::make_unique<api::Authenticator>(
      loop, steady, store, api.registry(),
      api::Authenticator::Options{
          .allow_without_keys = local,
          .rate = options_.rate.value_or(api::kRateDefault),
          .limit_keyless = options_.rate.has_value(),
          .on_rejected = [&api](std::string_view type) { api.count_rejection(type); }});
  net::HttpServer::Options http = server_options();
  // For other addresses the host names of clients are unknown, but every request needs a key.
  if (local) {
    http.hosts = {"localhost", "127.0.0.1", "[::1]"};
    if (std::ranges::find(http.hosts, options_.address) == http.hosts.end()) {
      http.hosts.push_back(options_.address);  // 127.0.0.2 is this machine, too
    }
  }
  // Without keys every local client is accepted, except tools.
  http.is_tool = [authenticator = authenticator_.get(), local](int fd, bool) {
    return local && !authenticator->requires_keys() && is_tool_on_loopback(fd);
  };
  http.tls = options_.tls;
  http.on_full = options_.warn;
  http.on_headers = [context = ServerContext{loop, steady, api, output_hub, authenticator_.get(),
                                             [this] { return server_->has_capacity(); }, workers,
                                             options_.clock}](net::HttpRequest request,
                                                              net::Responder responder) {
    if (request.from_tool && !context.authenticator->requires_keys()) {
      return std::move(responder).answer(tool_forbidden_response());
    }
    if (is_cross_origin(request)) {
      return std::move(responder).answer(
          net::problem(403, "forbidden", "cross-origin request denied"));
    }
    if (!is_json(request)) {
      return std::move(responder).answer(
          net::problem(415, "unsupported_media_type",
                       "unsupported media type; send JSON with Content-Type: application/json"));
    }
    api::Credentials credentials{.authorization = {}, .address = address_of(request.peer)};
    if (const auto key = request.header("authorization")) credentials.authorization = *key;
    api::Path path = request.path;
    if (!path.empty() && path.back().empty()) path.pop_back();
    credentials.open = api::is_public_route(method_of(request), path);
    credentials.is_process_route = path == api::Path{"metrics"};
    context.authenticator->authenticate(
        std::move(credentials),
        [context, path = std::move(path), request = std::move(request),
         responder = std::move(responder)](
            std::expected<api::Principal, api::ApiResponse> principal) mutable {
          if (!principal) return std::move(responder).answer(to_http_response(principal.error()));
          read_body_and_answer(context, std::move(request), std::move(responder), *principal, path);
        });
  };
  server_ = std::make_unique<net::HttpServer>(loop, nullptr, std::move(http));
}

Listener::~Listener() = default;

Status Listener::listen(const std::string& path) { return server_->listen_unix(path, 0600); }

Result<std::uint16_t> Listener::listen_tcp() {
  const std::string& address = options_.address;
  if (!is_loopback(address)) {
    if (options_.local_only) {
      return fail(Code::usage,
                  "{} can be reached from other machines, but a worker serves only its own "
                  "machine, without TLS: listen on 127.0.0.1, and forward from there",
                  address);
    }
    if (!options_.tls && !options_.insecure_http) {
      return fail(Code::usage,
                  "{} can be reached from other machines: give --tls-cert and --tls-key, "
                  "--insecure-http if a proxy encrypts, or listen on 127.0.0.1 (keys need TLS)",
                  address);
    }
    if (!authenticator_->has_live_key()) {
      return fail(Code::usage, Action{.act = act::kCreateKey},
                  "{} can be reached from other machines, and there is no API key: create one, or "
                  "listen on 127.0.0.1",
                  address);
    }
  }
  const bool bracketed = address.starts_with('[');
  auto port = server_->listen_tcp(bracketed ? address.substr(1, address.size() - 2) : address,
                                  options_.port);
  if (!port && port.error().code == Code::held) {
    return fail(Code::unavailable,
                "{}: stop the process that listens there, or give another --listen",
                port.error().message);
  }
  return port;
}

void Listener::stop(Duration grace, std::function<void()> done) {
  server_->stop(grace, std::move(done));
}

}  // namespace ae::app
