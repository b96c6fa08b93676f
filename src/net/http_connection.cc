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
constexpr std::int64_t kLingerBodyUs = 10'000'000;  // for a client that was refused within its body
constexpr std::size_t kLingerMax = 8u << 20;        // bytes read from a client that was refused
constexpr std::size_t kBodyFree = 16u << 10;        // of each body, not counted among all of them
constexpr std::size_t kJoinMax = 32u << 10;  // small pieces of a stream are put together up to here
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
  // A string that grows by its last two bytes takes twice as much, for as long as the chunk is kept.
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
      parser_(server.options.limits, HttpParser::Stops::before_body_too) {}

void HttpConnection::start() {
  if (tcp_ && server_->options.tls) return greet();
  wait_for(server_->options.idle_timeout);
  read();
}

void HttpConnection::turn_away() {
  if (tcp_ && server_->options.tls) return cut();  // nothing can be said before the handshake
  HttpResponse full = problem(503, code_name(Code::unavailable),
                              "too many connections; the request was not processed, retry later");
  full.headers.push_back({"Retry-After", "1"});
  phase_ = Phase::handling;
  keep_alive_ = false;
  answer(std::move(full));
}

void HttpConnection::wait_for(Duration time) {
  waits_since_ = now_us();
  read_deadline_ = waits_since_ + time.count();
}

std::optional<HttpConnection::Silence> HttpConnection::silence() const {
  if (phase_ == Phase::greeting || phase_ == Phase::lingering) {
    return Silence{.begun = false, .since = waits_since_};
  }
  if (phase_ != Phase::reading || writing_) return std::nullopt;
  return Silence{.begun = parser_.begun(), .since = waits_since_};
}

void HttpConnection::greet() {
  phase_ = Phase::greeting;
  wait_for(server_->options.head_timeout);
  tls_ = std::make_unique<TlsStream>(socket_, server_->options.tls->impl().context);
  tls_->async_handshake(TlsStream::server,
                        [self = shared_from_this()](const boost::system::error_code& error) {
                          if (self->phase_ == Phase::closed) return;
                          if (error) return self->cut();
                          self->phase_ = Phase::reading;
                          self->wait_for(self->server_->options.idle_timeout);
                          self->read();
                        });
}

// ---- in

void HttpConnection::read() {
  if (reading_ || peer_gone_ || phase_ == Phase::closed) return;
  if (begin_ == end_ || phase_ == Phase::lingering) begin_ = end_ = 0;
  if (end_ == buffer_.size()) return;  // full of requests that came too early: they wait
  reading_ = true;
  const auto into = boost::asio::buffer(buffer_.data() + end_, buffer_.size() - end_);
  auto seen = [self = shared_from_this()](const boost::system::error_code& error,
                                          std::size_t size) {
    const bool ended =
        error == boost::asio::error::eof || error == boost::asio::ssl::error::stream_truncated;
    self->on_read(ended, static_cast<bool>(error), size);
  };
  if (tls_ && !said_goodbye_) {
    tls_->async_read_some(into, std::move(seen));
  } else {
    socket_.async_read_some(into, std::move(seen));
  }
}

void HttpConnection::on_read(bool end_of_stream, bool failed, std::size_t size) {
  reading_ = false;
  if (phase_ == Phase::closed) return;
  // What cannot be read through TLS any more is read past it, once the goodbye is out.
  if (failed && phase_ == Phase::lingering && tls_ && !said_goodbye_) return;
  if (!failed) {
    end_ += size;
    if (phase_ == Phase::reading) return advance();
    if (phase_ == Phase::lingering && (lingered_ += size) > kLingerMax) return cut();
    return read();
  }
  peer_gone_ = true;
  switch (phase_) {
    case Phase::reading:
      return end_of_stream ? advance() : cut();
    case Phase::handling:
    case Phase::answering:
      // Whoever only closed their half still reads the answer.
      if (!end_of_stream) return cut();
      return tell_closed();
    case Phase::greeting:
    case Phase::streaming:
    case Phase::lingering:
    case Phase::closed:
      return cut();
  }
}

void HttpConnection::advance() {
  const std::size_t used = parser_.feed({buffer_.data() + begin_, end_ - begin_});
  begin_ += used;
  switch (parser_.state()) {
    case HttpParser::State::refused:
      return refuse(parser_.refusal());
    case HttpParser::State::request:
      return with_body_ ? body_complete() : dispatch();
    case HttpParser::State::head:
      return dispatch();
    case HttpParser::State::reading:
      break;
  }
  if (!count_body()) return;
  if (peer_gone_) {
    if (!parser_.begun()) return cut();
    return refuse({400, Code::input_invalid, "the request is incomplete"});
  }
  note_part();
  read();
}

// Each part of a request has a time of its own, from its first byte to its last.
void HttpConnection::note_part() {
  const Part part = !parser_.begun() ? Part::none : !parser_.in_body() ? Part::head : Part::body;
  if (part == part_) return;
  part_ = part;
  const HttpServer::Options& options = server_->options;
  wait_for(part == Part::none   ? options.idle_timeout
           : part == Part::head ? options.head_timeout
                                : options.body_timeout);
}

bool HttpConnection::host_is_known(const HttpRequest& request) const {
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
  only_reads_ = is_head_ || request.method == "GET";
  request.peer = peer_;
  // Not when it connects: finding out reads all processes, which a connection that sends nothing must not cause.
  if (!from_tool_) {
    const auto& is_tool = server_->options.is_tool;
    from_tool_ = is_tool && is_tool(socket_.native_handle(), tcp_);
  }
  request.from_tool = *from_tool_;
  if (!host_is_known(request)) {
    return refuse({400, Code::input_invalid, "Host header not allowed"});
  }
  const auto self = shared_from_this();  // the handler may end it all
  read();
  const HttpServer::Impl& server = *self->server_;
  if (server.options.admit) return server.options.admit(std::move(request), Responder(self));
  Responder(self).read_body(std::move(request), server.handler);
}

void HttpConnection::read_body(HttpRequest head, HttpServer::Handler then) {
  if (phase_ != Phase::handling) return;  // closed meanwhile
  if (parser_.state() != HttpParser::State::head) {
    return then(std::move(head), Responder(shared_from_this()));
  }
  forget_callbacks();
  phase_ = Phase::reading;
  head_ = std::move(head);
  with_body_ = std::move(then);
  parser_.read_body();
  if (parser_.take_expects_continue() && begin_ == end_) push("HTTP/1.1 100 Continue\r\n\r\n");
  if (phase_ == Phase::reading) advance();
}

void HttpConnection::body_complete() {
  if (!count_body()) return;
  phase_ = Phase::handling;
  part_ = Part::none;
  read_deadline_ = kNever;
  HttpRequest request = std::exchange(head_, {});
  HttpRequest rest = parser_.take();
  request.body = std::move(rest.body);
  request.has_body = true;
  request.body_room = std::exchange(room_, nullptr);
  const HttpServer::Handler then = std::exchange(with_body_, nullptr);
  const auto self = shared_from_this();
  read();
  then(std::move(request), Responder(self));
}

void HttpConnection::drop_body() {
  const auto forgotten = std::exchange(with_body_, nullptr);
  room_.reset();
  const std::size_t size = parser_.body_size();
  parser_.drop_body();
  server_->on_freed(size);
}

// False: there is no room for this body, and the client was told so.
bool HttpConnection::count_body() {
  const std::size_t size = parser_.body_size();
  if (size <= kBodyFree) return true;
  if (!room_) room_ = std::make_shared<BodyRoom>(server_->body_bytes);
  const bool fits = room_->grow_to(size - kBodyFree, server_->options.bodies_max);
  server_->body_bytes_peak = std::max(server_->body_bytes_peak, *server_->body_bytes);
  if (fits) return true;
  HttpResponse full =
      problem(503, code_name(Code::unavailable),
              "too many large requests at once; the request was not processed, retry later");
  full.headers.push_back({"Retry-After", "1"});
  refuse_with(std::move(full));
  return false;
}

bool BodyRoom::grow_to(std::size_t size, std::size_t max) {
  const std::size_t more = size - size_;
  if (more > max || *all_ > max - more) return false;
  *all_ += more;
  size_ = size;
  return true;
}

// What we cannot read on from.
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

// ---- the answer

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
  keep(std::move(head));
}

// What was only read can be read again; of what was done, the client must look.
HttpResponse HttpConnection::no_room() const {
  HttpResponse full =
      only_reads_
          ? problem(503, code_name(Code::unavailable),
                    "too many large responses at once; retry later, or request less")
          : problem(
                503, code_name(Code::unknown_outcome),
                "too many large responses at once; check the outcome before you retry the request");
  full.headers.push_back({"Retry-After", "1"});
  return full;
}

bool HttpConnection::has_room(std::size_t size) const {
  return server_ == nullptr || server_->has_room(size, this);
}

bool HttpConnection::reads_slowly(std::int64_t now) {
  const HttpServer::Options& options = server_->options;
  const std::int64_t time = now - out_since_;
  if (kept_ <= options.answer_small || time < options.slow_after.count()) return false;
  const double rate = static_cast<double>(out_written_) * 1e6 / static_cast<double>(time);
  // What the kernel has taken at first says nothing of the client: looked at again from here.
  out_since_ = now;
  out_written_ = 0;
  return rate < static_cast<double>(options.slow_rate);
}

void HttpConnection::keep(std::string bytes) {
  if (out_.empty()) {
    out_since_ = now_us();
    out_written_ = 0;
  }
  if (bytes.size() > server_->options.answer_small) {
    // A text that grew while it was made has up to as much again to spare, for as long as the client needs to read it.
    bytes.shrink_to_fit();
    server_->on_freed(bytes.size());  // what it was made of is at least as large
  }
  out_bytes_ += bytes.size();
  kept_ += bytes.size();
  server_->out_bytes += bytes.size();
  server_->out_peak = std::max(server_->out_peak, server_->out_bytes);
  out_.push_back(std::move(bytes));
}

void HttpConnection::answer(HttpResponse response) {
  if (phase_ != Phase::handling) return;  // closed meanwhile
  if (!is_head_ && !server_->has_room(response.body.size())) response = no_room();
  forget_callbacks();
  phase_ = Phase::answering;
  if (parser_.state() == HttpParser::State::head) keep_alive_ = false;
  send_head(response, response.body.size());
  const bool bodyless = is_head_ || response.status == 204 || response.status == 304;
  push(bodyless ? std::string() : std::move(response.body));
}

void HttpConnection::begin(HttpResponse head) {
  if (phase_ != Phase::handling) return;
  forget_callbacks();
  phase_ = Phase::streaming;
  stream_ended_ = was_high_ = false;
  chunked_ = !is_http_1_0_;
  if (is_http_1_0_ || parser_.state() == HttpParser::State::head) keep_alive_ = false;
  send_head(head, std::nullopt);
  push({});
  if (peer_gone_) cut();
}

bool HttpConnection::write_stream(std::string_view bytes) {
  if (!is_streaming() || is_head_ || bytes.empty()) return true;
  // A first large piece may come before the head has left; what comes after `write` said false may not.
  if (was_high_ && out_bytes_ + bytes.size() > server_->options.stream_max) {
    cut();
    return false;
  }
  std::string piece = chunked_ ? chunk_of(bytes) : std::string(bytes);
  if (!has_room(piece.size())) {
    cut();
    return false;
  }
  if (out_.size() > in_write_ && out_.back().size() + piece.size() <= kJoinMax) {
    out_.back() += piece;
    out_bytes_ += piece.size();
    kept_ += piece.size();
    server_->out_bytes += piece.size();
    server_->out_peak = std::max(server_->out_peak, server_->out_bytes);
    flush();
  } else {
    push(std::move(piece));
  }
  was_high_ = was_high_ || out_bytes_ > server_->options.stream_high;
  return !was_high_;
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
  wait_for(server_->options.idle_timeout);
  advance();
}

// A client that still sends would lose our answer to a reset; so we listen for a moment before we close.
void HttpConnection::linger() {
  if (peer_gone_) return cut();
  phase_ = Phase::lingering;
  waits_since_ = now_us();
  const bool in_body = parser_.state() == HttpParser::State::head ||
                       (parser_.state() == HttpParser::State::reading && parser_.in_body());
  read_deadline_ = waits_since_ + (in_body ? kLingerBodyUs : kLingerUs);
  if (tls_) return say_goodbye();
  boost::system::error_code ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
  read();
}

// TLS has an end of its own, by which the client knows that nothing was cut off.
void HttpConnection::say_goodbye() {
  tls_->async_shutdown([self = shared_from_this()](const boost::system::error_code&) {
    if (self->phase_ == Phase::closed) return;
    self->said_goodbye_ = true;
    boost::system::error_code ignored;
    self->socket_.shutdown(Socket::shutdown_send, ignored);
    self->read();
  });
}

// ---- out

void HttpConnection::push(std::string bytes) {
  if (!bytes.empty()) keep(std::move(bytes));
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
  if (failed) return cut();
  out_bytes_ -= size;
  out_written_ += size;
  size += out_offset_;
  while (!out_.empty() && size >= out_.front().size()) {
    size -= out_.front().size();
    kept_ -= out_.front().size();
    server_->out_bytes -= out_.front().size();
    out_.pop_front();
  }
  out_offset_ = size;
  if (!out_.empty()) return flush();
  write_deadline_ = kNever;
  if (phase_ == Phase::answering || (phase_ == Phase::streaming && stream_ended_)) {
    return end_exchange();
  }
  if (phase_ == Phase::streaming && std::exchange(was_high_, false) && drained_) {
    // The callback may set another, or drop the stream.
    const auto self = shared_from_this();
    async::Task drained = std::move(drained_);
    drained_ = nullptr;
    drained();
    if (is_streaming() && !drained_) drained_ = std::move(drained);
  }
}

// ---- ends

void HttpConnection::check_deadlines(std::int64_t now) {
  if (now >= write_deadline_) return cut();
  if (now < read_deadline_) return;
  if (phase_ != Phase::reading || !parser_.begun()) return cut();
  refuse({408, Code::unavailable, "the request took too long to arrive; it was not processed"});
}

void HttpConnection::stop() {
  keep_alive_ = false;
  if (phase_ == Phase::greeting) return cut();
  if (phase_ == Phase::reading && !parser_.begun()) return cut();
  if (is_streaming()) {
    tell_closed();
    end_stream();
  }
}

void HttpConnection::cut() {
  if (phase_ == Phase::closed) return;
  const auto self = shared_from_this();
  phase_ = Phase::closed;
  read_deadline_ = write_deadline_ = kNever;
  boost::system::error_code ignored;
  socket_.close(ignored);
  drained_ = nullptr;
  drop_body();
  server_->out_bytes -= std::exchange(kept_, 0);
  if (!writing_) out_.clear();  // else with the write, whose end comes
  tell_closed();
  std::exchange(server_, nullptr)->remove(self);
}

void HttpConnection::tell_closed() {
  if (!closed_) return;
  loop_.post([self = shared_from_this()] {
    // Whoever answered or ended meanwhile has taken it back.
    if (async::Task closed = std::exchange(self->closed_, nullptr)) closed();
  });
}

void HttpConnection::on_closed(async::Task task) {
  closed_ = std::move(task);
  if (phase_ == Phase::closed || peer_gone_) tell_closed();
}

void HttpConnection::forget_callbacks() {
  // Destroyed outside: they may own what comes back here.
  const async::Task closed = std::exchange(closed_, nullptr);
  const async::Task drained = std::exchange(drained_, nullptr);
}

// ---- Responder, HttpStream

Responder::Responder(std::shared_ptr<HttpConnection> connection)
    : connection_(std::move(connection)) {}

Responder::~Responder() {
  if (connection_ && connection_->waits_for_answer()) {
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
  connection_->forget_callbacks();
  if (connection_->is_streaming()) connection_->cut();
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
  connection->forget_callbacks();
  connection->end_stream();
}

bool HttpStream::closed() const { return !connection_ || !connection_->is_streaming(); }

bool HttpStream::has_room(std::size_t size) const {
  return closed() || connection_->has_room(size);
}

void HttpStream::on_drained(async::Task task) {
  if (connection_) connection_->on_drained(std::move(task));
}

void HttpStream::on_closed(async::Task task) {
  if (connection_) connection_->on_closed(std::move(task));
}

}  // namespace ae::net
