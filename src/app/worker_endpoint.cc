#include "app/worker_endpoint.h"

#include <memory>
#include <string>
#include <utility>

#include "async/alive.h"
#include "net/websocket.h"

namespace ae::app {
namespace {

constexpr std::string_view kSubprotocol = "aetheris.worker.1";
// Of unsent bytes. A record is sent whole; nothing else is started in a worker that does not read
// (Session::kUnsentHigh).
constexpr std::size_t kUnsentMax = 256u << 20;

// The WebSocket of a worker. RemoteRoutines owns it.
class WorkerSocket final : public routines::WorkerConnection {
 public:
  WorkerSocket(async::Loop& loop, routines::RemoteRoutines& workers)
      : loop_(loop), workers_(workers) {}

  // False: the request was answered with an error.
  bool open(const net::HttpRequest& request, net::Responder responder) {
    socket_ = net::WebSocket::accept(
        request, std::move(responder), kSubprotocol,
        {.on_text = [this](const std::string& text) { workers_.on_text(id_, text); },
         .on_drained = {},
         .on_closed = [this](std::uint16_t code,
                             const std::string&) { workers_.on_closed(id_, code); },
         // RemoteRoutines closes it when its routines have ended.
         .on_stop = {}},
        {.message_max = routines::kFrameMax, .unsent_max = kUnsentMax});
    return socket_ != nullptr;
  }
  void begin(routines::RemoteRoutines::ConnectionId id, std::shared_ptr<void> watch) {
    id_ = id;
    watch_ = std::move(watch);
  }

  bool send(std::string_view text) override {
    if (socket_->send(text)) return true;
    loop_.post([this, alive = alive_.watch()] {
      if (alive) workers_.on_closed(id_, net::websocket_code::kLost);
    });
    return false;
  }
  std::size_t unsent() const override { return socket_->unsent(); }
  void close(std::uint16_t code, std::string_view reason) override {
    watch_.reset();
    socket_->close(code, reason);
  }

 private:
  async::Loop& loop_;
  routines::RemoteRoutines& workers_;
  std::unique_ptr<net::WebSocket> socket_;
  routines::RemoteRoutines::ConnectionId id_ = 0;
  std::shared_ptr<void> watch_;  // of the key; type-erased by the authenticator
  async::Alive alive_;
};

}  // namespace

bool is_worker_route(const net::HttpRequest& request) {
  return request.path.size() == 2 && request.path[0] == "api" && request.path[1] == "worker";
}

void accept_worker(async::Loop& loop, routines::RemoteRoutines& workers,
                   api::Authenticator* authenticator, const net::HttpRequest& request,
                   net::Responder responder, const api::Principal& principal) {
  if (request.header("origin")) {
    return std::move(responder).answer(
        net::problem(403, "forbidden", "a worker is not a browser: the request has an Origin"));
  }
  if (principal.role != api::Role::worker && principal.role != api::Role::admin) {
    return std::move(responder).answer(
        net::problem(403, "forbidden", "the key needs the role worker or admin"));
  }
  auto socket = std::make_unique<WorkerSocket>(loop, workers);
  if (!socket->open(request, std::move(responder))) return;
  WorkerSocket& opened = *socket;
  std::shared_ptr<void> watch;
  if (authenticator != nullptr && !principal.key.empty()) {
    watch = authenticator->watch(
        principal, [&workers, key = principal.key](const Error&) { workers.revoke(key); });
  }
  // It is destroyed on the loop at the earliest after this call.
  opened.begin(workers.accept(std::move(socket), principal.key, request.process), std::move(watch));
}

}  // namespace ae::app
