// HttpServer: requests come in by TCP or a Unix socket, each is answered once, or with a stream.
//
// Callbacks, no coroutines. A handler gets a request that is already checked, bounded and decoded, and a Responder,
// which it may keep as long as it likes. Slow, silent and broken clients cost a bounded buffer and end by themselves;
// what is badly framed is answered with problem+json, and the connection closed.
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
class HttpConnection;  // http_server.cc

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";  // "" = none
  HttpHeaders headers;                            // control characters in values become blanks
  std::string body;
};

// application/problem+json: {code, title, detail, status, type}.
HttpResponse problem(int status, std::string_view code, std::string_view detail);

// An answer without a known end: text/event-stream, NDJSON, a large export. Dropped without `end`, the connection is
// cut, so that the client sees that something is missing. Move-only.
class HttpStream {
 public:
  HttpStream() = default;  // a closed one
  HttpStream(HttpStream&&) noexcept = default;
  HttpStream& operator=(HttpStream&& o) noexcept;
  ~HttpStream();

  // Sends, or keeps. False: the client is slow, wait for on_drained; who does not wait loses the connection at
  // Options::stream_max, or where has_capacity is false. On a closed stream it does nothing and says true.
  bool write(std::string_view bytes);
  void end();
  bool closed() const;
  // Is there room for so much, among the answers of all? Who has none tries again later.
  bool has_capacity(std::size_t size) const;
  // Called each time that all which `write` kept has left, after it said false.
  void on_drained(async::Task task);
  // Called once, when the client goes, the server stops, or the stream is cut; never after `end`.
  void on_closed(async::Task task);

 private:
  friend class Responder;
  explicit HttpStream(std::shared_ptr<HttpConnection> connection);
  std::shared_ptr<HttpConnection> connection_;  // shared with the sockets' callbacks
};

// The right to answer one request, once. Dropped unused, it answers 500 `unknown_outcome`. Move-only.
class Responder {
 public:
  Responder(Responder&&) noexcept = default;
  Responder& operator=(Responder&&) = delete;
  ~Responder();

  void answer(HttpResponse response) &&;
  // Reads the body of `head`, and goes on with the whole request; at once when there is none. Without it an answer closes
  // the connection of a client that has announced a body.
  void read_body(HttpRequest head, std::function<void(HttpRequest, Responder)> then) &&;
  // Sends status and headers; the body follows through the stream.
  HttpStream begin(HttpResponse head) &&;
  // Called once if the client goes before the answer: nobody waits any more. Answering is still allowed.
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
    // Gets each request after its headers, before anything of its body is kept or asked for (`100 Continue`), and answers
    // it or goes on with Responder::read_body. Empty: the server reads every body for its handler.
    Handler on_headers = {};
    // Bytes of the bodies that are being read or handled, all together, without the first 16 KiB of each. A body beyond
    // them is answered 503.
    std::size_t bodies_max = 64u << 20;
    // At once, and half of the process's descriptors at most. When they are all there, who has been silent the longest makes
    // room: nothing of a request was seen, or one has been on its way for over a second. Else more are answered 503.
    std::size_t connections_max = 1024;
    // Told, once a minute at most, that connections were closed or turned away for want of room; may be empty.
    std::function<void(const std::string& what)> on_full = {};
    // Bytes of all answers and streams that have not left yet; one with up to `answer_small` does not count. An
    // answer beyond them is replaced by 503, and a stream is cut, unless it is the only large one. Clients that have
    // read less than `slow_rate` a second for `slow_after` make room.
    std::size_t answers_max = 64u << 20;
    std::size_t answer_small = 256u << 10;
    Duration slow_after = std::chrono::seconds(10);
    std::size_t slow_rate = 256u << 10;
    std::size_t stream_max = 1u << 20;     // bytes kept for a stream whose client does not read
    std::size_t stream_high = 128u << 10;  // above it `write` says false
    Duration head_timeout =
        std::chrono::seconds(10);  // from the first byte to the end of the headers
    Duration body_timeout = std::chrono::seconds(30);
    Duration idle_timeout = std::chrono::seconds(75);   // between requests
    Duration write_timeout = std::chrono::seconds(30);  // without any progress
    // Names by which clients may call us over TCP, without port, as in `localhost` or `[::1]`; empty: any. A page on
    // a name of its own that resolves to this machine is kept out by it.
    std::vector<std::string> hosts;
    // Called once for each client, with its socket, at its first request: did a program of our own tools connect?
    // Requests of such a client carry `from_tool`. Empty: not called.
    std::function<bool(int fd, bool tcp)> is_tool = {};
    // TCP clients speak TLS, and are shown this; nullptr: they speak in the clear. Shared with who renews it. A handshake
    // has `head_timeout`.
    std::shared_ptr<TlsIdentity> tls;
  };

  // Borrows the loop, which must outlive the server.
  HttpServer(AsioLoop& loop, Handler handler, Options options);
  HttpServer(AsioLoop& loop, Handler handler) : HttpServer(loop, std::move(handler), Options()) {}
  ~HttpServer();  // closes everything at once
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Takes the place of a socket that nobody listens on any more; never of another kind of file. The path is removed
  // again at the end. Fails with held when somebody listens there, unavailable otherwise.
  Status listen_unix(const std::string& path, unsigned mode = 0600);
  // A literal address or `localhost`; port 0 takes a free one. Gives the port. Fails with held when it is taken, with
  // input_invalid for no address, unavailable otherwise.
  Result<std::uint16_t> listen_tcp(const std::string& address, std::uint16_t port);

  // Accepts nothing more, ends streams and idle connections, lets answers that are due go out, cuts after `grace`
  // what is left, and then calls `done`.
  void stop(Duration grace, async::Task done);

  std::size_t connections() const;
  // Is there room for another large answer?
  bool has_capacity() const;

 private:
  friend class HttpConnection;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ae::net
