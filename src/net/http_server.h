// HttpServer: serves HTTP over TCP or a Unix socket; one response or one stream per request.
//
// Callbacks, no coroutines. A handler gets a validated, bounded and decoded request, and a
// Responder that it may keep for any time. Slow, silent and broken clients cost a bounded buffer
// and time out; badly framed requests get problem+json, and the connection is closed.
// Threads: everything on the loop's thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "async/loop.h"
#include "base/error.h"
#include "net/http_parser.h"
#include "net/http_request.h"

namespace ae::net {

class AsioLoop;
class TlsIdentity;
class HttpConnection;  // http_connection_internal.h

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";  // "" = none
  HttpHeaders headers;                            // control characters in values become blanks
  std::string body;
};

// application/problem+json: {code, title, detail, status, type}.
HttpResponse problem(int status, std::string_view code, std::string_view detail);

// A response of unknown length: text/event-stream, NDJSON, a large export. Without `end` the
// destructor cuts the connection, so the client detects the truncation. Move-only.
class HttpStream {
 public:
  HttpStream() = default;  // closed
  HttpStream(HttpStream&&) noexcept = default;
  HttpStream& operator=(HttpStream&& o) noexcept;
  ~HttpStream();

  // Sends or buffers. False: the client is slow, wait for on_drained; a caller that does not wait
  // loses the connection at Options::stream_max, or if has_capacity is false. On a closed stream: a
  // no-op that returns true.
  bool write(std::string_view bytes);
  void end();
  bool closed() const;
  // True if `size` more bytes fit among all responses. If not, try again later.
  bool has_capacity(std::size_t size) const;
  // Called each time the buffer has drained after `write` returned false.
  void on_drained(async::Task task);
  // Called once when the client disconnects, the server stops or the stream
  // is cut; never after `end`.
  void on_closed(async::Task task);

 private:
  friend class Responder;
  explicit HttpStream(std::shared_ptr<HttpConnection> connection);
  std::shared_ptr<HttpConnection> connection_;  // shared with the sockets' callbacks
};

// The right to answer one request, once. If dropped unused, answers 500
// `unknown_outcome`. Move-only.
class Responder {
 public:
  Responder(Responder&&) noexcept = default;
  Responder& operator=(Responder&&) = delete;
  ~Responder();

  void answer(HttpResponse response) &&;
  // Reads the body of `head` and calls `then` with the whole request; at once if there is no body.
  // An answer to a request whose announced body was not read closes the connection.
  void read_body(HttpRequest head, std::function<void(HttpRequest, Responder)> then) &&;
  // Sends status and headers; the body follows through the stream.
  HttpStream begin(HttpResponse head) &&;
  // Answers 101 Switching Protocols: from now on the bytes in both directions are those of another
  // protocol. `input` gets the client's, in pieces, on the loop and never inside this call; it may
  // destroy the stream, and is not called after that. When the server stops, the stream stays open
  // until it is ended or the grace is over. A request of HTTP/1.0 or with a body is refused: then
  // the stream is closed.
  HttpStream upgrade(HttpHeaders headers,
                     std::move_only_function<void(std::string_view bytes)> input) &&;
  // Called once if the client disconnects before the answer. Answering is still allowed.
  void on_closed(async::Task task);

 private:
  friend class HttpConnection;
  explicit Responder(std::shared_ptr<HttpConnection> connection);
  std::shared_ptr<HttpConnection> connection_;  // shared with the sockets' callbacks
};

class HttpServer {
 public:
  using Handler = std::function<void(HttpRequest, Responder)>;

  struct Options {
    HttpLimits limits;
    // Called with each request after its headers, before any of its body is buffered or requested
    // (`100 Continue`); it answers or calls Responder::read_body. Empty: the server reads every
    // body for its handler.
    Handler on_headers = {};
    // Total bytes of the bodies being read or handled, except the first 16 KiB of each. A body that
    // exceeds it is answered 503.
    std::size_t bodies_max = 64u << 20;
    // Concurrent connections, at most half of the process's descriptors. At the limit, the longest
    // silent one is evicted: one without a request, or with one that has been arriving for over a
    // second. If there is none, further clients get 503.
    std::size_t connections_max = 1024;
    // Called at most once a minute, when connections were evicted or rejected; may be empty.
    std::function<void(const std::string& what)> on_full = {};
    // Total unsent bytes of all responses and streams. Up to `small_response_max` always fits.
    // Beyond it, a response is replaced by 503 and a stream is cut, unless it is the only large
    // one.
    // Clients that read less than `slow_rate` bytes per second for `slow_after` are
    // disconnected to make room.
    std::size_t responses_max = 64u << 20;
    std::size_t small_response_max = 256u << 10;
    Duration slow_after = std::chrono::seconds(10);
    std::size_t slow_rate = 256u << 10;
    std::size_t stream_max = 1u << 20;     // bytes buffered for a stream whose client does not read
    std::size_t stream_high = 128u << 10;  // above it `write` returns false
    Duration head_timeout = std::chrono::seconds(10);  // from the first byte to the end of headers
    Duration body_timeout = std::chrono::seconds(30);
    Duration idle_timeout = std::chrono::seconds(75);   // between requests
    Duration write_timeout = std::chrono::seconds(30);  // without progress
    // Accepted Host names over TCP, without port, for example `localhost` or `[::1]`; empty: any.
    // Protects against DNS rebinding.
    std::vector<std::string> hosts;
    // Called once per connection, with its socket, at its first request: whether the
    // client is a program started by one of our tools. Its requests then have
    // `from_tool` set. Empty: not called.
    std::function<bool(int fd, bool tcp)> is_tool = {};
    // TCP clients must use TLS with this identity; nullptr: plain text. Shared with the code that
    // renews it. The handshake is limited by `head_timeout`.
    std::shared_ptr<TlsIdentity> tls;
  };

  // Borrows the loop, which must outlive the server.
  HttpServer(AsioLoop& loop, Handler handler, Options options);
  HttpServer(AsioLoop& loop, Handler handler) : HttpServer(loop, std::move(handler), Options()) {}
  ~HttpServer();  // closes all connections at once
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Replaces a stale socket, but no other kind of file. Removes the path at the end. Fails with
  // held if another process listens there, unavailable otherwise.
  Status listen_unix(const std::string& path, unsigned mode = 0600);
  // An IP address or `localhost`; port 0 picks a free port. Returns the port. Fails with held if
  // the port is in use, input_invalid if it is not an address, unavailable otherwise.
  Result<std::uint16_t> listen_tcp(const std::string& address, std::uint16_t port);

  // Stops accepting, ends streams and idle connections, lets pending responses finish, cuts the
  // rest after `grace`, then calls `done`.
  void stop(Duration grace, async::Task done);

  std::size_t connections() const;
  // True if another large response fits.
  bool has_capacity() const;

 private:
  friend class HttpConnection;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ae::net
