// HttpConnection: one client of HttpServer. Only for this module's .cc files.
//
//   handshake (TLS)
//      │
//   reading ──request─▶ handling ──answer─▶ answering ──written─▶ reading (keep-alive)
//                           │                                     or lingering ──▶ closed
//                           └────begin────▶ streaming ──end─────▶  "
//                                or upgrade
//
// While a handler runs, the connection keeps reading into its buffer, to detect a disconnect;
// pipelined requests wait there. http_connection_input.cc reads, http_connection_output.cc writes,
// http_connection.cc opens and closes.
// Threads: the loop's.
#pragma once

#include <array>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/ssl.hpp>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "net/asio_loop.h"
#include "net/http_parser.h"
#include "net/http_request.h"
#include "net/http_server.h"
#include "net/system.h"

namespace ae::net {

using Socket = boost::asio::generic::stream_protocol::socket;
using TlsStream = boost::asio::ssl::stream<Socket&>;
constexpr std::int64_t kNever = INT64_MAX;

inline std::int64_t now_us() { return BootClock().since_start().count(); }

// The bytes of one body that count toward bodies_max. Copies of a request share it.
class BodyQuota {
 public:
  explicit BodyQuota(std::shared_ptr<std::size_t> all) : all_(std::move(all)) {}
  ~BodyQuota() { *all_ -= size_; }
  BodyQuota(const BodyQuota&) = delete;
  BodyQuota& operator=(const BodyQuota&) = delete;
  // False: the total would exceed `max`.
  bool grow_to(std::size_t size, std::size_t max);

 private:
  const std::shared_ptr<std::size_t> all_;  // outlives the server until the last request is gone
  std::size_t size_ = 0;
};

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(HttpServer::Impl& server, Socket socket, std::string peer, bool tcp);

  // Called by the server.
  void start();
  void check_deadlines(std::int64_t now);
  void stop();             // graceful
  void reject_overload();  // instead of start: answers 503
  void close_now();

  // Called by Responder and HttpStream.
  void answer(HttpResponse response);
  void begin(HttpResponse head);
  using Input = std::move_only_function<void(std::string_view bytes)>;
  void upgrade(HttpHeaders headers, Input input);
  bool write_stream(std::string_view bytes);
  void end_stream();
  void on_closed(async::Task task);
  void on_drained(async::Task task) { drained_ = std::move(task); }
  void clear_callbacks();
  bool is_streaming() const { return phase_ == Phase::streaming && !stream_ended_; }
  // An evictable connection: whether a request has begun, and since when the client is silent.
  // Connections in use have none.
  struct Idleness {
    bool has_begun = false;
    std::int64_t since = 0;
    auto operator<=>(const Idleness&) const = default;
  };
  std::optional<Idleness> idleness() const;
  void read_body(HttpRequest head, HttpServer::Handler then);
  bool has_capacity(std::size_t size) const;
  // Bytes not sent yet.
  std::size_t buffered_bytes() const { return buffered_bytes_; }
  // True if the client has read a large response too slowly since the last
  // call. REQUIRES: not closed.
  bool is_slow_reader(std::int64_t now);
  bool is_awaiting_answer() const { return phase_ == Phase::handling; }

 private:
  enum class Phase : std::uint8_t {
    handshake,
    reading,
    handling,
    answering,
    streaming,
    lingering,
    closed
  };
  enum class Part : std::uint8_t { none, head, body };

  void start_handshake();
  void shutdown_tls();
  void read();
  void on_read(bool end_of_stream, bool failed, std::size_t size);
  void deliver_input();
  void advance();
  void update_part();
  void set_read_deadline(Duration time);
  void dispatch();
  void refuse(const HttpRefusal& refusal);
  void refuse_with(HttpResponse response);
  void body_complete();
  bool reserve_body();
  void drop_body();
  bool is_allowed_host(const HttpRequest& request) const;
  void send_head(const HttpResponse& response, std::optional<std::size_t> length);
  void push(std::string bytes);
  void enqueue(std::string bytes);
  HttpResponse overload_response() const;
  void flush();
  void on_written(bool failed, std::size_t size);
  void end_exchange();
  void linger();
  void notify_closed();

  HttpServer::Impl* server_;  // null once closed
  AsioLoop& loop_;
  Socket socket_;
  std::unique_ptr<TlsStream> tls_;  // around the socket; null: plain text
  bool tls_shut_down_ = false;      // no more reads through tls_
  const std::string peer_;
  const std::int64_t process_;
  std::optional<bool> from_tool_;  // nullopt: before the first request
  const bool tcp_;
  Phase phase_ = Phase::reading;

  // Input.
  HttpParser parser_;
  std::array<char, 16u << 10> buffer_;
  std::size_t begin_ = 0, end_ = 0;  // unread in buffer_
  bool reading_ = false;
  bool peer_closed_ = false;
  Part part_ = Part::none;  // of the request being read
  std::int64_t read_deadline_ = kNever;
  std::int64_t idle_since_ = 0;  // of reading
  std::size_t lingered_ = 0;     // bytes
  // The request whose body is being read.
  HttpRequest head_;
  HttpServer::Handler body_handler_;
  std::shared_ptr<BodyQuota> body_quota_;  // shared with the request's handler

  // The current exchange.
  bool keep_alive_ = true;
  bool is_head_ = false;
  bool is_read_only_ = false;
  bool is_http_1_0_ = false;
  bool chunked_ = false;
  bool stream_ended_ = false;
  bool above_high_water_ = false;
  async::Task closed_, drained_;
  bool is_upgraded_ = false;  // streaming: the client's bytes go to input_
  Input input_;

  // Output.
  std::deque<std::string> out_;
  std::size_t out_bytes_ = 0;
  std::size_t buffered_bytes_ = 0;  // as out_bytes_, plus the sent part of out_.front()
  std::int64_t out_since_ = 0;      // out_written_ is counted from here
  std::size_t out_written_ = 0;     // bytes sent
  std::size_t out_offset_ = 0;      // sent bytes of out_.front()
  std::size_t in_write_ = 0;        // strings used by the write in progress
  bool writing_ = false;
  std::int64_t write_deadline_ = kNever;
};

}  // namespace ae::net
