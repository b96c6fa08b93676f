// HttpConnection: writes a response or a stream, within the limits of unsent bytes.
#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <charconv>
#include <utility>

#include "base/error.h"
#include "net/http_connection_internal.h"
#include "net/http_server_internal.h"

namespace ae::net {
namespace {

constexpr std::size_t kCoalesceMax = 32u
                                     << 10;  // small pieces of a stream are joined up to this size
constexpr std::size_t kBuffersPerWrite = 16;

std::string_view reason_phrase(int status) {
  switch (status) {
    case 101:
      return "Switching Protocols";
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
    case 426:
      return "Upgrade Required";
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

void HttpConnection::upgrade(HttpHeaders headers, Input input) {
  if (phase_ != Phase::handling) return;
  if (is_http_1_0_ || parser_.state() == HttpParser::State::head) {
    return refuse({400, Code::input_invalid, "an upgrade needs HTTP/1.1 and no body"});
  }
  clear_callbacks();
  phase_ = Phase::streaming;
  stream_ended_ = above_high_water_ = chunked_ = false;
  is_upgraded_ = keep_alive_ = true;
  HttpResponse head{.status = 101, .content_type = "", .headers = std::move(headers), .body = {}};
  send_head(head, std::nullopt);
  keep_alive_ = false;
  input_ = std::move(input);
  push({});
  if (peer_closed_) return close_now();
  loop_.post([self = shared_from_this()] { self->deliver_input(); });  // what came with the request
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

}  // namespace ae::net
