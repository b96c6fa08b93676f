#include "net/http_connection_internal.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <charconv>
#include <utility>

#include "base/error.h"
#include "json/json.h"
#include "net/asio_loop_internal.h"
#include "net/system.h"

namespace ae::net {
namespace {

constexpr std::int64_t kLingerUs = 1'000'000;
constexpr std::int64_t kLingerBodyUs = 10'000'000;  // for a client refused during its body
constexpr std::size_t kLingerMax = 8u << 20;        // bytes read from a refused client
constexpr std::size_t kBodyFree = 16u << 10;        // of each body, not counted in bodies_max
constexpr std::size_t kCoalesceMax = 32u
                                     << 10;  // small pieces of a stream are joined up to this size
constexpr std::size_t kBuffersPerWrite = 16;

std::int64_t now_us() { return BootClock().since_start().count(); }

std::string_view reason_phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 201:
      return "Created";
    case 202:
      return "Accepted";
    case 204:
      return "No Content";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 406:
      return "Not Acceptable";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 413:
      return "Content Too Large";
    case 414:
      return "URI Too Long";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 422:
      return "Unprocessable Content";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Status";
  }
}

void add_header(std::string& head, std::string_view name, std::string_view value) {
  head += name;
  head += ": ";
  for (const char c : value) {
    head += is_header_value(std::string_view(&c, 1)) ? c : ' ';
  }
  head += "\r\n";
}

std::string chunk_of(std::string_view bytes) {
  std::array<char, 16> digits;
  const auto end =
      std::to_chars(digits.data(), digits.data() + digits.size(), bytes.size(), 16).ptr;
  std::string chunk;
  // Reserved, because a string that grows by two bytes doubles its capacity
  // while the chunk is queued.
  chunk.reserve(static_cast<std::size_t>(end - digits.data()) + bytes.size() + 4);
  chunk.append(digits.data(), end);
  chunk += "\r\n";
  chunk += bytes;
  chunk += "\r\n";
  return chunk;
}

}  // namespace

HttpResponse problem(int status, std::string_view code, std::string_view detail) {
  std::string title(code);
  std::ranges::replace(title, '_', ' ');
  HttpResponse response;
  response.status = status;
  response.content_type = "application/problem+json";
  response.body = canonical(Value::object({{"code", code},
                                           {"title", title},
                                           {"detail", detail},
                                           {"status", status},
                                           {"type", "urn:aetheris:error:" + std::string(code)}}));
  return response;
}

HttpConnection::HttpConnection(HttpServer::Impl& server, Socket socket, std::string peer, bool tcp)
    : server_(&server),
      loop_(server.loop),
      socket_(std::move(socket)),
      peer_(std::move(peer)),
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

// ---- input

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

// ---- response

void HttpConnection::send_head(const HttpResponse& response, std::optional<std::size_t> length) {
  std::string head = "HTTP/1.1 " + std::to_string(response.status) + " ";
  head += reason_phrase(response.status);
  head += "\r\n";
  if (!response.content_type.empty()) add_header(head, "Content-Type", response.content_type);
  const bool bodyless = response.status == 204 || response.status == 304;
  if (length && !bodyless) add_header(head, "Content-Length", std::to_string(*length));
  if (!length && chunked_) add_header(head, "Transfer-Encoding", "chunked");
  if (!keep_alive_) add_header(head, "Connection", "close");
  add_header(head, "X-Content-Type-Options", "nosniff");
  for (const HttpHeader& header : response.headers) {
    AE_CHECK(is_header_name(header.name), header.name);
    add_header(head, header.name, header.value);
  }
  head += "\r\n";
  enqueue(std::move(head));
}

// Reads can be retried; for other methods the outcome is unknown.
HttpResponse HttpConnection::overload_response() const {
  HttpResponse full =
      is_read_only_
          ? problem(503, code_name(Code::unavailable),
                    "too many large responses at once; retry later, or request less")
          : problem(
                503, code_name(Code::unknown_outcome),
                "too many large responses at once; check the outcome before you retry the request");
  full.headers.push_back({"Retry-After", "1"});
  return full;
}

bool HttpConnection::has_capacity(std::size_t size) const {
  return server_ == nullptr || server_->has_capacity(size, this);
}

bool HttpConnection::is_slow_reader(std::int64_t now) {
  const HttpServer::Options& options = server_->options;
  const std::int64_t time = now - out_since_;
  if (buffered_bytes_ <= options.small_response_max || time < options.slow_after.count())
    return false;
  const double rate = static_cast<double>(out_written_) * 1e6 / static_cast<double>(time);
  // The kernel's send buffer took the first bytes, so the next measurement starts here.
  out_since_ = now;
  out_written_ = 0;
  return rate < static_cast<double>(options.slow_rate);
}

void HttpConnection::enqueue(std::string bytes) {
  if (out_.empty()) {
    out_since_ = now_us();
    out_written_ = 0;
  }
  if (bytes.size() > server_->options.small_response_max) {
    // A string that was built by appending may have twice the capacity, held
    // until the client has read it.
    bytes.shrink_to_fit();
    server_->on_freed(bytes.size());  // its temporaries were at least as large
  }
  out_bytes_ += bytes.size();
  buffered_bytes_ += bytes.size();
  server_->out_bytes += bytes.size();
  server_->out_peak = std::max(server_->out_peak, server_->out_bytes);
  out_.push_back(std::move(bytes));
}

void HttpConnection::answer(HttpResponse response) {
  if (phase_ != Phase::handling) return;  // closed meanwhile
  if (!is_head_ && !server_->has_capacity(response.body.size())) response = overload_response();
  clear_callbacks();
  phase_ = Phase::answering;
  if (parser_.state() == HttpParser::State::head) keep_alive_ = false;
  send_head(response, response.body.size());
  const bool bodyless = is_head_ || response.status == 204 || response.status == 304;
  push(bodyless ? std::string() : std::move(response.body));
}

void HttpConnection::begin(HttpResponse head) {
  if (phase_ != Phase::handling) return;
  clear_callbacks();
  phase_ = Phase::streaming;
  stream_ended_ = above_high_water_ = false;
  chunked_ = !is_http_1_0_;
  if (is_http_1_0_ || parser_.state() == HttpParser::State::head) keep_alive_ = false;
  send_head(head, std::nullopt);
  push({});
  if (peer_closed_) close_now();
}

bool HttpConnection::write_stream(std::string_view bytes) {
  if (!is_streaming() || is_head_ || bytes.empty()) return true;
  // A large first piece is allowed before the head is sent; exceeding the limit after `write`
  // returned false is not.
  if (above_high_water_ && out_bytes_ + bytes.size() > server_->options.stream_max) {
    close_now();
    return false;
  }
  std::string piece = chunked_ ? chunk_of(bytes) : std::string(bytes);
  if (!has_capacity(piece.size())) {
    close_now();
    return false;
  }
  if (out_.size() > in_write_ && out_.back().size() + piece.size() <= kCoalesceMax) {
    out_.back() += piece;
    out_bytes_ += piece.size();
    buffered_bytes_ += piece.size();
    server_->out_bytes += piece.size();
    server_->out_peak = std::max(server_->out_peak, server_->out_bytes);
    flush();
  } else {
    push(std::move(piece));
  }
  above_high_water_ = above_high_water_ || out_bytes_ > server_->options.stream_high;
  return !above_high_water_;
}

void HttpConnection::end_stream() {
  if (!is_streaming()) return;
  stream_ended_ = true;
  if (chunked_ && !is_head_) {
    push("0\r\n\r\n");
  } else if (out_.empty()) {
    end_exchange();
  }
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

// ---- output

void HttpConnection::push(std::string bytes) {
  if (!bytes.empty()) enqueue(std::move(bytes));
  flush();
}

void HttpConnection::flush() {
  if (writing_ || out_.empty() || phase_ == Phase::closed) return;
  writing_ = true;
  write_deadline_ = now_us() + server_->options.write_timeout.count();
  std::array<boost::asio::const_buffer, kBuffersPerWrite> buffers;
  in_write_ = std::min(out_.size(), buffers.size());
  for (std::size_t i = 0; i < in_write_; ++i) {
    const std::size_t skip = i == 0 ? out_offset_ : 0;
    buffers[i] = boost::asio::buffer(out_[i].data() + skip, out_[i].size() - skip);
  }
  auto written = [self = shared_from_this()](const boost::system::error_code& error,
                                             std::size_t size) {
    self->on_written(static_cast<bool>(error), size);
  };
  if (tls_) {
    tls_->async_write_some(buffers, std::move(written));
  } else {
    socket_.async_write_some(buffers, std::move(written));
  }
}

void HttpConnection::on_written(bool failed, std::size_t size) {
  writing_ = false;
  in_write_ = 0;
  if (phase_ == Phase::closed) return out_.clear();
  if (failed) return close_now();
  out_bytes_ -= size;
  out_written_ += size;
  size += out_offset_;
  while (!out_.empty() && size >= out_.front().size()) {
    size -= out_.front().size();
    buffered_bytes_ -= out_.front().size();
    server_->out_bytes -= out_.front().size();
    out_.pop_front();
  }
  out_offset_ = size;
  if (!out_.empty()) return flush();
  write_deadline_ = kNever;
  if (phase_ == Phase::answering || (phase_ == Phase::streaming && stream_ended_)) {
    return end_exchange();
  }
  if (phase_ == Phase::streaming && std::exchange(above_high_water_, false) && drained_) {
    // The callback may set another one, or destroy the stream.
    const auto self = shared_from_this();
    async::Task drained = std::move(drained_);
    drained_ = nullptr;
    drained();
    if (is_streaming() && !drained_) drained_ = std::move(drained);
  }
}

// ---- end

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
}

// ---- Responder, HttpStream

Responder::Responder(std::shared_ptr<HttpConnection> connection)
    : connection_(std::move(connection)) {}

Responder::~Responder() {
  if (connection_ && connection_->is_awaiting_answer()) {
    connection_->answer(
        problem(500, code_name(Code::unknown_outcome),
                "the server dropped the request; check the outcome before you retry it"));
  }
}

void Responder::answer(HttpResponse response) && {
  AE_CHECK(connection_, "answered twice");
  std::exchange(connection_, nullptr)->answer(std::move(response));
}

void Responder::read_body(HttpRequest head, HttpServer::Handler then) && {
  AE_CHECK(connection_, "answered twice");
  std::exchange(connection_, nullptr)->read_body(std::move(head), std::move(then));
}

HttpStream Responder::begin(HttpResponse head) && {
  AE_CHECK(connection_, "answered twice");
  connection_->begin(std::move(head));
  return HttpStream(std::exchange(connection_, nullptr));
}

void Responder::on_closed(async::Task task) { connection_->on_closed(std::move(task)); }

HttpStream::HttpStream(std::shared_ptr<HttpConnection> connection)
    : connection_(std::move(connection)) {}

HttpStream::~HttpStream() {
  if (!connection_) return;
  connection_->clear_callbacks();
  if (connection_->is_streaming()) connection_->close_now();
}

HttpStream& HttpStream::operator=(HttpStream&& o) noexcept {
  HttpStream old(std::exchange(connection_, std::exchange(o.connection_, nullptr)));
  return *this;
}

bool HttpStream::write(std::string_view bytes) {
  return connection_ == nullptr || connection_->write_stream(bytes);
}

void HttpStream::end() {
  if (!connection_) return;
  const auto connection = std::exchange(connection_, nullptr);
  connection->clear_callbacks();
  connection->end_stream();
}

bool HttpStream::closed() const { return !connection_ || !connection_->is_streaming(); }

bool HttpStream::has_capacity(std::size_t size) const {
  return closed() || connection_->has_capacity(size);
}

void HttpStream::on_drained(async::Task task) {
  if (connection_) connection_->on_drained(std::move(task));
}

void HttpStream::on_closed(async::Task task) {
  if (connection_) connection_->on_closed(std::move(task));
}

}  // namespace ae::net
