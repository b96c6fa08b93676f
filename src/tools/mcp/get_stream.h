// GetStream: the stream of GET, on which a server of the old era says over HTTP what belongs to no answer of its own. One
// for each session.
//
//   off ─listen─▶ opening ─▶ open ─it ends─▶ resting ─a pause─▶ opening, while it is wanted
//    ▲               └─the server has none─▶ none: never asked for again
//    └── nothing is open for kStreamIdleTimeout
//
// It costs a connection, so it is there for calls only; where it ended, it goes on (Last-Event-ID). Threads: the loop's.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "async/loop.h"
#include "base/time.h"
#include "json/sse_parser.h"
#include "net/http_client.h"

namespace ae::tools::mcp {

constexpr Duration kReconnectDelay = std::chrono::seconds(1);  // unless the server says when
constexpr Duration kReconnectDelayMin = std::chrono::milliseconds(100);  // … whatever it says
constexpr Duration kReconnectDelayMax =
    std::chrono::seconds(30);  // after streams that were of no use
constexpr Duration kStreamOpenTimeout =
    std::chrono::seconds(2);  // a call waits so long for it, once
constexpr Duration kStreamIdleTimeout =
    std::chrono::seconds(30);  // it stays after the last request
constexpr Duration kStreamLifetimeMax =
    std::chrono::hours(1);  // one connection; it may have died unseen

class GetStream {
 public:
  // Borrows loop and client.
  struct Dependencies {
    async::Loop& loop;
    net::HttpClient& client;
    std::function<net::HttpCall()> call;                 // with its URL and headers
    std::function<bool()> is_wanted;                     // is anything open that it may be about?
    std::function<void(std::string_view data)> on_data;  // of one event; may close it
    Duration idle_timeout = kStreamIdleTimeout;
  };
  explicit GetStream(Dependencies deps) : deps_(std::move(deps)) {}
  ~GetStream() { close(); }
  GetStream(const GetStream&) = delete;
  GetStream& operator=(const GetStream&) = delete;

  // As Transport::listen.
  bool listen(async::Task ready);
  // Silence, until it is wanted again.
  void close();

 private:
  enum class Phase { off, opening, open, backing_off, none };

  void start();
  void stop(Phase phase);
  void on_bytes(std::string_view bytes);
  void end(const net::HttpResult& answer);
  void schedule_reconnect();
  void restart_idle_timer();
  void release_waiters();
  void forget(async::TimerId& timer);

  Dependencies deps_;
  Phase phase_ = Phase::off;
  bool has_open_timed_out_ = false;  // it was waited for in vain
  bool has_received_event_ = false;  // this stream
  std::uint32_t failures_ = 0;
  std::optional<SseParser> events_;
  std::string last_id_;
  std::optional<net::HttpClient::Id> http_;
  async::TimerId wait_timer_ = 0, reconnect_timer_ = 0, idle_timer_ = 0;
  std::vector<async::Task> waiters_;
  std::shared_ptr<bool> alive_;  // of this stream; asked by what comes later
};

}  // namespace ae::tools::mcp
