// HttpConnection: reads a client's bytes, and passes each request to its handler.
#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <utility>

#include "base/error.h"
#include "net/http_connection_internal.h"
#include "net/http_server_internal.h"
#include "net/system.h"

namespace ae::net {
namespace {

constexpr std::size_t kLingerMax = 8u << 20;  // bytes read from a refused client
constexpr std::size_t kBodyFree = 16u << 10;  // of each body, not counted in bodies_max

}  // namespace

void HttpConnection::read() {
  if (reading_ || peer_closed_ || phase_ == Phase::closed) return;
  if (begin_ == end_ || phase_ == Phase::lingering) begin_ = end_ = 0;
  if (end_ == buffer_.size()) return;  // full of pipelined requests: they wait
  reading_ = true;
  const auto into = boost::asio::buffer(buffer_.data() + end_, buffer_.size() - end_);
  auto seen = [self = shared_from_this()](const boost::system::error_code& error,
                                          std::size_t size) {
    const bool ended =
        error == boost::asio::error::eof || error == boost::asio::ssl::error::stream_truncated;
    self->on_read(ended, static_cast<bool>(error), size);
  };
  if (tls_ && !tls_shut_down_) {
    tls_->async_read_some(into, std::move(seen));
  } else {
    socket_.async_read_some(into, std::move(seen));
  }
}

void HttpConnection::on_read(bool end_of_stream, bool failed, std::size_t size) {
  reading_ = false;
  if (phase_ == Phase::closed) return;
  // After close_notify was sent, reads bypass TLS.
  if (failed && phase_ == Phase::lingering && tls_ && !tls_shut_down_) return;
  if (!failed) {
    end_ += size;
    if (phase_ == Phase::reading) return advance();
    if (phase_ == Phase::streaming && is_upgraded_) return deliver_input();
    if (phase_ == Phase::lingering && (lingered_ += size) > kLingerMax) return close_now();
    return read();
  }
  peer_closed_ = true;
  switch (phase_) {
    case Phase::reading:
      return end_of_stream ? advance() : close_now();
    case Phase::handling:
    case Phase::answering:
      // A client that closed only its sending side can still read the answer.
      if (!end_of_stream) return close_now();
      return notify_closed();
    case Phase::handshake:
    case Phase::streaming:
    case Phase::lingering:
    case Phase::closed:
      return close_now();
  }
}

// The callback may end or destroy the stream. Nothing is read into the buffer meanwhile.
void HttpConnection::deliver_input() {
  const auto self = shared_from_this();
  const bool was_reading = std::exchange(reading_, true);
  const std::string_view bytes(buffer_.data() + begin_, end_ - begin_);
  begin_ = end_;
  if (!bytes.empty() && is_streaming() && input_) {
    Input input = std::exchange(input_, nullptr);
    input(bytes);
    if (is_streaming()) input_ = std::move(input);
  }
  reading_ = was_reading;
  read();
}

void HttpConnection::advance() {
  const std::size_t used = parser_.feed({buffer_.data() + begin_, end_ - begin_});
  begin_ += used;
  switch (parser_.state()) {
    case HttpParser::State::refused:
      return refuse(parser_.refusal());
    case HttpParser::State::request:
      return body_handler_ ? body_complete() : dispatch();
    case HttpParser::State::head:
      return dispatch();
    case HttpParser::State::reading:
      break;
  }
  if (!reserve_body()) return;
  if (peer_closed_) {
    if (!parser_.has_begun()) return close_now();
    return refuse({400, Code::input_invalid, "the request is incomplete"});
  }
  update_part();
  read();
}

// Each part of a request has its own time limit, from its first byte to its last.
void HttpConnection::update_part() {
  const Part part = !parser_.has_begun()    ? Part::none
                    : !parser_.is_in_body() ? Part::head
                                            : Part::body;
  if (part == part_) return;
  part_ = part;
  const HttpServer::Options& options = server_->options;
  set_read_deadline(part == Part::none   ? options.idle_timeout
                    : part == Part::head ? options.head_timeout
                                         : options.body_timeout);
}

bool HttpConnection::is_allowed_host(const HttpRequest& request) const {
  if (!tcp_ || server_->options.hosts.empty()) return true;
  std::string_view host = request.header("host").value_or("");
  host = host.substr(0, host.starts_with('[') ? host.find(']') + 1 : host.find(':'));
  return std::ranges::any_of(server_->options.hosts, [&](const std::string& known) {
    return equal_ignoring_case(known, host);
  });
}

void HttpConnection::dispatch() {
  phase_ = Phase::handling;
  part_ = Part::none;
  read_deadline_ = kNever;
  keep_alive_ = parser_.keep_alive() && !server_->stopping;
  is_http_1_0_ = parser_.is_http_1_0();
  HttpRequest request =
      parser_.state() == HttpParser::State::head ? parser_.take_head() : parser_.take();
  is_head_ = request.method == "HEAD";
  is_read_only_ = is_head_ || request.method == "GET";
  request.peer = peer_;
  request.process = process_;
  // Not on connect: the check reads the whole process table, which silent
  // connections must not cause.
  if (!from_tool_) {
    const auto& is_tool = server_->options.is_tool;
    from_tool_ = is_tool && is_tool(socket_.native_handle(), tcp_);
  }
  request.from_tool = *from_tool_;
  if (!is_allowed_host(request)) {
    return refuse({400, Code::input_invalid, "Host header not allowed"});
  }
  const auto self = shared_from_this();  // the handler may close the connection
  read();
  const HttpServer::Impl& server = *self->server_;
  if (server.options.on_headers)
    return server.options.on_headers(std::move(request), Responder(self));
  Responder(self).read_body(std::move(request), server.handler);
}

void HttpConnection::read_body(HttpRequest head, HttpServer::Handler then) {
  if (phase_ != Phase::handling) return;  // closed meanwhile
  if (parser_.state() != HttpParser::State::head) {
    return then(std::move(head), Responder(shared_from_this()));
  }
  clear_callbacks();
  phase_ = Phase::reading;
  head_ = std::move(head);
  body_handler_ = std::move(then);
  parser_.read_body();
  if (parser_.take_expects_continue() && begin_ == end_) push("HTTP/1.1 100 Continue\r\n\r\n");
  if (phase_ == Phase::reading) advance();
}

void HttpConnection::body_complete() {
  if (!reserve_body()) return;
  phase_ = Phase::handling;
  part_ = Part::none;
  read_deadline_ = kNever;
  HttpRequest request = std::exchange(head_, {});
  HttpRequest rest = parser_.take();
  request.body = std::move(rest.body);
  request.has_body = true;
  request.body_quota = std::exchange(body_quota_, nullptr);
  const HttpServer::Handler then = std::exchange(body_handler_, nullptr);
  const auto self = shared_from_this();
  read();
  then(std::move(request), Responder(self));
}

void HttpConnection::drop_body() {
  const auto forgotten = std::exchange(body_handler_, nullptr);
  body_quota_.reset();
  const std::size_t size = parser_.body_size();
  const EagerRelease eager;
  parser_.drop_body();
  server_->on_freed(size);
}

// False: the body does not fit, and the client got 503.
bool HttpConnection::reserve_body() {
  const std::size_t size = parser_.body_size();
  if (size <= kBodyFree) return true;
  if (!body_quota_) body_quota_ = std::make_shared<BodyQuota>(server_->body_bytes);
  const bool fits = body_quota_->grow_to(size - kBodyFree, server_->options.bodies_max);
  server_->body_bytes_peak = std::max(server_->body_bytes_peak, *server_->body_bytes);
  if (fits) return true;
  HttpResponse full =
      problem(503, code_name(Code::unavailable),
              "too many large requests at once; the request was not processed, retry later");
  full.headers.push_back({"Retry-After", "1"});
  refuse_with(std::move(full));
  return false;
}

bool BodyQuota::grow_to(std::size_t size, std::size_t max) {
  const std::size_t more = size - size_;
  if (more > max || *all_ > max - more) return false;
  *all_ += more;
  size_ = size;
  return true;
}

// Answers with an error and closes: the position in the input is lost.
void HttpConnection::refuse(const HttpRefusal& refusal) {
  refuse_with(problem(refusal.status, code_name(refusal.code), refusal.detail));
}

void HttpConnection::refuse_with(HttpResponse response) {
  phase_ = Phase::handling;
  read_deadline_ = kNever;
  keep_alive_ = false;
  drop_body();
  answer(std::move(response));
}

}  // namespace ae::net
