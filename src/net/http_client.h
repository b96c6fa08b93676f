// HttpClient: one HTTP exchange, sent at most once, and told back exactly as it was seen.
//
// An agent's payment must not be sent twice by a library that means well, and nobody may guess whether it was sent.
// So: no redirects, no retries, no cookies, no decompression, no proxy from the environment; and each answer says
// on which side of the first request byte the exchange ended. libcurl re-sends a request by itself when a reused
// connection turns out dead: `new_connection` calls never reuse one, and for the others the second sending is refused.
// Threads: start and cancel on the loop's thread; libcurl runs on a thread of its own; answers come on the loop.
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

// What is sent. REQUIRES: a method of upper-case letters, valid header names and values; else `invalid`.
struct HttpCall {
  std::string method = "GET";
  std::string url;  // http or https, already encoded, sent as it is; no user name in it
  HttpHeaders headers;
  std::string body;  // Content-Length is set from it; GET and HEAD have none
  // Data chose the host: only public addresses (net/outbound.h) are connected to; else `connect_failed`, and nothing was
  // sent. REQUIRES: fresh, as the address is judged when a connection is opened.
  bool public_only = false;
  std::string unix_socket;  // connect here instead of to the URL's host
  bool new_connection =
      true;  // a connection of its own, HTTP/1.1; false: shared ones, for calls that only read

  Duration connect_timeout = std::chrono::seconds(10);  // name, connection and TLS together
  Duration total_timeout = std::chrono::seconds(30);    // from the send to the answer's last byte
  std::optional<Duration> send_within;                  // from start; not sent by then: `not_sent`
  std::size_t answer_max = 1u << 20;  // bytes of body; reading stops after one more

  // Hears the body of a `text/event-stream` with a status of 2xx as it comes, on the loop, before the answer; with the
  // answer's headers. Empty: only the answer has it.
  std::function<void(const HttpHeaders& headers, std::string bytes)> on_event_bytes;
  bool keep_event_body =
      true;  // the answer holds such a body too, which may be large; false: it does not
  // Of such a body: it begins, and may be long in coming. Once, on the loop, before its bytes.
  std::function<void()> on_events_begin;
};

enum class HttpPhase : std::uint8_t {
  // No byte of the request has left:
  invalid,         // no such request can be made
  not_sent,        // cancelled or too late
  resolve_failed,  // no such name, or nobody who would know
  connect_failed,  // refused, unreachable, or no answer within connect_timeout
  tls_failed,      // not the server we trust
  // The request may have arrived:
  no_response,  // nothing came back
  cut_off,      // an answer began, and its end was not seen
  complete,     // the whole answer
};

struct HttpResult {
  HttpPhase phase = HttpPhase::invalid;
  bool sent() const { return phase >= HttpPhase::no_response; }
  bool timed_out = false;  // ended by connect_timeout or total_timeout
  bool cancelled = false;  // ended by cancel or the client's end
  bool too_large = false;  // cut_off by us: of the body, answer_max + 1 bytes were read

  int status = 0;       // 0 until all headers of the final answer were seen
  HttpHeaders headers;  // of the final answer, in its order
  std::string body;     // as it came: bytes
  std::string error;    // why it is not complete, for a person; never holds header values
  std::optional<Duration> retry_after;
  Duration took{0};  // from start
};

class HttpClient {
 public:
  struct Options {
    std::string proxy;               // http://host:port; empty: none, whatever the environment says
    std::string ca_file;             // PEM; whom we trust instead of the system's list
    std::size_t calls_max = 10'000;  // at once; more are `not_sent`
    long connections_max = 1024;     // at once; more calls wait, within their send_within
    std::size_t answer_headers_max = 64u << 10;  // bytes, informational answers included
  };

  // Borrows the loop, which must outlive it.
  explicit HttpClient(async::Loop& loop, Options options);
  explicit HttpClient(async::Loop& loop) : HttpClient(loop, Options()) {}
  // Cancels what is in flight; these answers are posted to the loop like all others.
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  using Id = std::uint64_t;
  Id start(HttpCall call, async::Done<HttpResult> done);
  // The answer still comes, once: `not_sent` when no byte had left, else what was seen so far.
  void cancel(Id id);

 private:
  class Worker;
  std::unique_ptr<Worker> worker_;
};

}  // namespace ae::net
