// HttpConnection: the life cycle of a connection: handshake, deadlines, stop, close.
#include "net/http_connection_internal.h"

#include <utility>

#include "base/error.h"
#include "net/http_server_internal.h"
#include "net/tls_identity_internal.h"

namespace ae::net {
namespace {

constexpr std::int64_t kLingerUs = 1'000'000;
constexpr std::int64_t kLingerBodyUs = 10'000'000;  // for a client refused during its body

// 0: it is not known, or not in our pid namespace.
std::int64_t process_of(int unix_socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(unix_socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 ? peer.pid : 0;
}

}  // namespace

HttpConnection::HttpConnection(HttpServer::Impl& server, Socket socket, std::string peer, bool tcp)
    : server_(&server),
      loop_(server.loop),
      socket_(std::move(socket)),
      peer_(std::move(peer)),
      process_(tcp ? 0 : process_of(socket_.native_handle())),
      tcp_(tcp),
      parser_(server.options.limits, HttpParser::StopMode::before_body_too) {}

void HttpConnection::start() {
  if (tcp_ && server_->options.tls) return start_handshake();
  set_read_deadline(server_->options.idle_timeout);
  read();
}

void HttpConnection::reject_overload() {
  if (tcp_ && server_->options.tls) return close_now();  // before the handshake nothing can be sent
  HttpResponse full = problem(503, code_name(Code::unavailable),
                              "too many connections; the request was not processed, retry later");
  full.headers.push_back({"Retry-After", "1"});
  phase_ = Phase::handling;
  keep_alive_ = false;
  answer(std::move(full));
}

void HttpConnection::set_read_deadline(Duration time) {
  idle_since_ = now_us();
  read_deadline_ = idle_since_ + time.count();
}

std::optional<HttpConnection::Idleness> HttpConnection::idleness() const {
  if (phase_ == Phase::handshake || phase_ == Phase::lingering) {
    return Idleness{.has_begun = false, .since = idle_since_};
  }
  if (phase_ != Phase::reading || writing_) return std::nullopt;
  return Idleness{.has_begun = parser_.has_begun(), .since = idle_since_};
}

void HttpConnection::start_handshake() {
  phase_ = Phase::handshake;
  set_read_deadline(server_->options.head_timeout);
  tls_ = std::make_unique<TlsStream>(socket_, server_->options.tls->impl().context);
  tls_->async_handshake(TlsStream::server,
                        [self = shared_from_this()](const boost::system::error_code& error) {
                          if (self->phase_ == Phase::closed) return;
                          if (error) return self->close_now();
                          self->phase_ = Phase::reading;
                          self->set_read_deadline(self->server_->options.idle_timeout);
                          self->read();
                        });
}

void HttpConnection::end_exchange() {
  if (!keep_alive_ || server_->stopping) return linger();
  phase_ = Phase::reading;
  set_read_deadline(server_->options.idle_timeout);
  advance();
}

// Closing while the client still sends would reset the connection and lose the answer; so
// read for a moment first.
void HttpConnection::linger() {
  if (peer_closed_) return close_now();
  phase_ = Phase::lingering;
  idle_since_ = now_us();
  const bool is_in_body = parser_.state() == HttpParser::State::head ||
                          (parser_.state() == HttpParser::State::reading && parser_.is_in_body());
  read_deadline_ = idle_since_ + (is_in_body ? kLingerBodyUs : kLingerUs);
  if (tls_) return shutdown_tls();
  boost::system::error_code ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
  read();
}

// close_notify tells the client that the response was not truncated.
void HttpConnection::shutdown_tls() {
  tls_->async_shutdown([self = shared_from_this()](const boost::system::error_code&) {
    if (self->phase_ == Phase::closed) return;
    self->tls_shut_down_ = true;
    boost::system::error_code ignored;
    self->socket_.shutdown(Socket::shutdown_send, ignored);
    self->read();
  });
}

void HttpConnection::check_deadlines(std::int64_t now) {
  if (now >= write_deadline_) return close_now();
  if (now < read_deadline_) return;
  if (phase_ != Phase::reading || !parser_.has_begun()) return close_now();
  refuse({408, Code::unavailable, "the request took too long to arrive; it was not processed"});
}

void HttpConnection::stop() {
  keep_alive_ = false;
  if (phase_ == Phase::handshake) return close_now();
  if (phase_ == Phase::reading && !parser_.has_begun()) return close_now();
  if (is_streaming()) {
    notify_closed();
    if (is_upgraded_) return;  // its owner ends it
    end_stream();
  }
}

void HttpConnection::close_now() {
  if (phase_ == Phase::closed) return;
  const auto self = shared_from_this();
  phase_ = Phase::closed;
  read_deadline_ = write_deadline_ = kNever;
  boost::system::error_code ignored;
  socket_.close(ignored);
  drained_ = nullptr;
  drop_body();
  server_->out_bytes -= std::exchange(buffered_bytes_, 0);
  if (!writing_) out_.clear();  // else when the pending write completes
  notify_closed();
  std::exchange(server_, nullptr)->remove(self);
}

void HttpConnection::notify_closed() {
  if (!closed_) return;
  loop_.post([self = shared_from_this()] {
    // An answer or `end` in the meantime has removed the callback.
    if (async::Task closed = std::exchange(self->closed_, nullptr)) closed();
  });
}

void HttpConnection::on_closed(async::Task task) {
  closed_ = std::move(task);
  if (phase_ == Phase::closed || peer_closed_) notify_closed();
}

void HttpConnection::clear_callbacks() {
  // Destroyed outside of the members: they may own objects that call back.
  const async::Task closed = std::exchange(closed_, nullptr);
  const async::Task drained = std::exchange(drained_, nullptr);
  const Input input = std::exchange(input_, nullptr);
}

}  // namespace ae::net
