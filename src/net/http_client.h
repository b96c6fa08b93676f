// HttpClient: one HTTP exchange, sent at most once and reported exactly as observed.
//
// A library must not send an agent's payment twice, and the runtime must know whether it was sent.
// So: no redirects, retries, cookies, decompression or proxy from the environment. Each result
// states whether the exchange ended before or after the first byte of the request was sent. libcurl
// re-sends a request by itself if a reused connection turns out dead: `new_connection` calls never
// reuse one, and for others the second send is refused.
// Threads: start and cancel on the loop's thread; libcurl runs on its own thread;
// results arrive on the loop.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "async/loop.h"
#include "net/http_header.h"

namespace ae::net {

// A request. REQUIRES: an upper-case method, valid header names and values; else `invalid`.
struct HttpCall {
  std::string method = "GET";
  std::string url;  // http or https, already encoded, sent verbatim; no user name
  HttpHeaders headers;
  std::string body;  // Content-Length is derived from it; GET and HEAD have none
  // The host was chosen by data: connects to public addresses only (net/outbound.h); else
  // `connect_failed`, nothing is sent. REQUIRES: new_connection, because addresses are
  // checked when connecting.
  bool public_only = false;
  std::string unix_socket;     // connects here instead of to the URL's host
  bool new_connection = true;  // own HTTP/1.1 connection; false: pooled, for reads

  Duration connect_timeout = std::chrono::seconds(10);  // name, connection and TLS together
  Duration total_timeout = std::chrono::seconds(30);    // from sending to the end of the response
  std::optional<Duration> send_within;  // from start; if not sent by then: `not_sent`
  std::size_t response_max = 1u << 20;  // body bytes; at most one more is read

  // Receives the body of a 2xx `text/event-stream` as it arrives, with the response headers, on the
  // loop, before the result. Empty: only the result contains it.
  std::function<void(const HttpHeaders& headers, std::string bytes)> on_event_bytes;
  bool keep_event_body = true;  // the result also contains that body, which may be large
  // Called once when such a body begins, before its bytes, on the loop. The stream may be long.
  std::function<void()> on_events_begin;
};

enum class HttpPhase : std::uint8_t {
  // The request was not sent, not one byte:
  invalid,         // malformed request
  not_sent,        // cancelled, or past its deadline
  resolve_failed,  // unknown name, or DNS failed
  connect_failed,  // refused, unreachable, or connect_timeout
  tls_failed,      // the server's certificate is not trusted
  // The request may have arrived:
  no_response,  // no response
  cut_off,      // the response began but did not end
  complete,     // complete response
};

struct HttpResult {
  HttpPhase phase = HttpPhase::invalid;
  bool sent() const { return phase >= HttpPhase::no_response; }
  bool timed_out = false;  // ended by connect_timeout or total_timeout
  bool cancelled = false;  // ended by cancel or by ~HttpClient
  bool too_large = false;  // cut_off by the client: response_max + 1 body bytes were read

  int status = 0;       // 0 until all headers of the final response were read
  HttpHeaders headers;  // of the final response, in order
  std::string body;     // raw bytes
  std::string error;    // why it is not complete; for display; contains no header values
  std::optional<Duration> retry_after;
  Duration elapsed{0};  // from start
};

class HttpClient {
 public:
  struct Options {
    std::string proxy;               // http://host:port; empty: none, the environment is ignored
    std::string ca_file;             // PEM; trusted instead of the system's CAs
    std::size_t calls_max = 10'000;  // concurrent; further calls are `not_sent`
    long connections_max = 1024;     // concurrent; further calls wait, within their send_within
    std::size_t response_headers_max = 64u << 10;  // bytes, including informational responses
  };

  // Borrows the loop, which must outlive it.
  explicit HttpClient(async::Loop& loop, Options options);
  explicit HttpClient(async::Loop& loop) : HttpClient(loop, Options()) {}
  // Cancels calls in flight; their results are posted to the loop as usual.
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  using Id = std::uint64_t;
  Id start(HttpCall call, async::Done<HttpResult> done);
  // The result still arrives, once: `not_sent` if nothing was sent, else what was received so far.
  void cancel(Id id);

 private:
  class Worker;
  std::unique_ptr<Worker> worker_;
};

}  // namespace ae::net
