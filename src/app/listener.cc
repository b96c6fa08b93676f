#include "app/listener.h"

#include <charconv>
#include <utility>

#include "core/json.h"
#include "net/http_server.h"

namespace ae::app {
namespace {

constexpr std::string_view kHoldOn = "15s";

api::ApiRequest request_of(net::HttpRequest&& in) {
  api::ApiRequest out;
  out.method = std::move(in.method);
  if (const auto key = net::find_header(in.headers, "idempotency-key")) {
    out.idempotency_key = *key;
  }
  const auto by = net::find_header(in.headers, "x-aetheris-by");
  out.by = by ? std::string(*by) : "api";
  out.path = std::move(in.path);
  if (!out.path.empty() && out.path.back().empty()) out.path.pop_back();
  out.query = std::move(in.query);
  out.body = std::move(in.body);
  return out;
}

net::HttpResponse response_of(const api::ApiResponse& in) {
  net::HttpResponse out;
  out.status = in.status;
  if (!in.text.empty()) {
    out.content_type = "text/plain; version=0.0.4; charset=utf-8";
    out.body = in.text;
    return out;
  }
  if (in.status >= 400) out.content_type = "application/problem+json";
  if (!in.location.empty()) out.headers.push_back({"Location", in.location});
  out.body = canonical(in.body);
  out.body += '\n';
  return out;
}

// One live stream of a job's events: asks the Api again and again, each question waits for more.
class Live : public std::enable_shared_from_this<Live> {
 public:
  Live(api::Api& api, api::ApiRequest request, net::Responder responder)
      : api_(api), request_(std::move(request)), responder_(std::move(responder)) {}

  void resume_after(std::string_view last_event_id) { after_ = last_event_id; }

  void ask() {
    if (begun_ && stream_.closed()) return;
    api::ApiRequest request = request_;
    std::erase_if(request.query,
                  [](const auto& pair) { return pair.first == "wait" || pair.first == "limit"; });
    if (!after_.empty()) {
      std::erase_if(request.query, [](const auto& pair) { return pair.first == "after"; });
      request.query.emplace_back("after", after_);
    }
    request.query.emplace_back("wait", kHoldOn);
    request.query.emplace_back("limit", "256");
    api_.handle(std::move(request), [self = shared_from_this()](api::ApiResponse answer) {
      self->answered(std::move(answer));
    });
  }

 private:
  void answered(api::ApiResponse answer) {
    if (answer.status >= 400) {
      if (!begun_) return std::move(responder_).answer(response_of(answer));
      return stream_.end();
    }
    if (!begun_) {
      begun_ = true;
      net::HttpResponse head;
      head.content_type = "text/event-stream";
      head.headers.push_back({"Cache-Control", "no-store"});
      stream_ = std::move(responder_).begin(std::move(head));
    }
    std::string text = answer.body["events"].size() == 0 ? ":\n\n" : "";
    bool ended = answer.body["events"].size() == 0 && ended_;
    for (const Value& event : answer.body["events"].items()) {
      after_ = std::to_string(event["seq"].as_int());
      const std::string_view type = event.text("type");
      ended_ = ended_ || type == "job_completed" || type == "job_failed" || type == "job_cancelled";
      text += "id: " + after_ + "\nevent: " + std::string(type) + "\ndata: " + canonical(event) +
              "\n\n";
    }
    const bool goes_on = stream_.write(text);
    if (ended) return stream_.end();
    if (goes_on) return ask();
    stream_.on_drained([self = shared_from_this()] { self->ask(); });
  }

  api::Api& api_;
  api::ApiRequest request_;
  net::Responder responder_;
  net::HttpStream stream_;
  std::string after_;
  bool begun_ = false;
  bool ended_ = false;
};

bool wants_stream(const net::HttpRequest& request) {
  const auto accept = request.header("accept");
  return accept && accept->find("text/event-stream") != accept->npos && request.method == "GET" &&
         request.path.size() == 4 && request.path[3] == "events";
}

// A page of another site may make a browser send requests here. Programs send no Origin.
bool comes_from_elsewhere(const net::HttpRequest& request) {
  const auto origin = request.header("origin");
  if (!origin) return false;
  const std::string_view host = request.header("host").value_or("");
  return *origin != "http://" + std::string(host) && *origin != "https://" + std::string(host);
}

bool is_loopback(std::string_view address) {
  return address == "localhost" || address == "::1" || address == "[::1]" ||
         (address.starts_with("127.") && address.find_first_not_of("0123456789.") == address.npos);
}

}  // namespace

Listener::Listener(net::AsioLoop& loop, api::Api& api) {
  net::HttpServer::Options options;
  options.limits.body_max = api::kBodyMax;
  options.hosts = {"localhost", "127.0.0.1", "[::1]"};
  server_ = std::make_unique<net::HttpServer>(
      loop,
      [&api](net::HttpRequest request, net::Responder responder) {
        if (comes_from_elsewhere(request)) {
          return std::move(responder).answer(
              net::problem(403, "forbidden", "pages of other sites may not ask this server"));
        }
        if (wants_stream(request)) {
          const std::string last(request.header("last-event-id").value_or(""));
          auto live =
              std::make_shared<Live>(api, request_of(std::move(request)), std::move(responder));
          if (last.find_first_not_of("0123456789") == last.npos) live->resume_after(last);
          return live->ask();
        }
        api.handle(request_of(std::move(request)),
                   [responder = std::move(responder)](api::ApiResponse answer) mutable {
                     std::move(responder).answer(response_of(answer));
                   });
      },
      std::move(options));
}

Listener::~Listener() = default;

Status Listener::listen(const std::string& path) { return server_->listen_unix(path, 0600); }

Result<std::uint16_t> Listener::listen_tcp(const std::string& address, std::uint16_t port) {
  if (!is_loopback(address)) {
    return fail(Code::usage,
                address +
                    " can be reached from other machines, and whoever can connect may do "
                    "anything, since there are no keys yet: listen on 127.0.0.1");
  }
  const bool bracketed = address.starts_with('[');
  return server_->listen_tcp(bracketed ? address.substr(1, address.size() - 2) : address, port);
}

void Listener::stop(Duration grace, std::function<void()> done) {
  server_->stop(grace, std::move(done));
}

}  // namespace ae::app
