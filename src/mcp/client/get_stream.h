// GetStream: the GET stream on which a legacy HTTP server sends messages outside of responses. One
// per session.
//
//   off ─listen─▶ opening ─▶ open ─ended─▶ backing_off ─delay─▶ opening, while it is wanted
//    ▲               └─not supported by the server─▶ none: never requested again
//    └── no request is open for kStreamIdleTimeout
//
// It needs a connection, so it exists only while calls need it. A new stream resumes where the last
// one ended (Last-Event-ID). Threads: the loop's.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "async/alive.h"
#include "async/loop.h"
#include "base/time.h"
#include "json/sse_parser.h"
#include "net/http_client.h"

namespace ae::mcp::client {

constexpr Duration kReconnectDelay = std::chrono::seconds(1);  // unless the server sets `retry`
constexpr Duration kReconnectDelayMin =
    std::chrono::milliseconds(100);  // lower limit, also for the server's value
constexpr Duration kReconnectDelayMax = std::chrono::seconds(30);  // after streams without an event
constexpr Duration kStreamOpenTimeout =
    std::chrono::seconds(2);  // how long a call waits for it, once
constexpr Duration kStreamIdleTimeout =
    std::chrono::seconds(30);  // closed this long after the last request
constexpr Duration kStreamLifetimeMax =
    std::chrono::hours(1);  // of one connection; it may have died unnoticed

class GetStream {
 public:
  // Borrows loop and client.
  struct Dependencies {
    async::Loop& loop;
    net::HttpClient& client;
    std::function<net::HttpCall()> call;  // the request, with URL and headers
    std::function<bool()> is_wanted;      // whether a request is open that it may concern
    std::function<void(std::string_view data)> on_data;  // of one event; may close the stream
    Duration idle_timeout = kStreamIdleTimeout;
  };
  explicit GetStream(Dependencies deps) : deps_(std::move(deps)) {}
  ~GetStream() { close(); }
  GetStream(const GetStream&) = delete;
  GetStream& operator=(const GetStream&) = delete;

  // As Transport::listen.
  bool listen(async::Task ready);
  // Closes the stream until the next `listen`.
  void close();

 private:
  enum class Phase { off, opening, open, backing_off, none };

  void start();
  void stop(Phase phase);
  void on_bytes(std::string_view bytes);
  void on_closed(const net::HttpResult& answer);
  void schedule_reconnect();
  void restart_idle_timer();
  void release_waiters();
  void cancel_timer(async::TimerId& timer);

  Dependencies deps_;
  Phase phase_ = Phase::off;
  bool has_open_timed_out_ = false;  // a wait for it has timed out
  bool has_received_event_ = false;  // on the current stream
  std::uint32_t failures_ = 0;
  std::optional<SseParser> events_;
  std::string last_id_;
  std::optional<net::HttpClient::Id> http_;
  async::TimerId wait_timer_ = 0, reconnect_timer_ = 0, idle_timer_ = 0;
  std::vector<async::Task> waiters_;
  async::Alive alive_;  // of this stream; checked by callbacks
};

}  // namespace ae::mcp::client
