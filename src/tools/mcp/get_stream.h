// GetStream: the stream of GET, on which a server of the old era says over HTTP what belongs to no answer of its own. One
// for each session.
//
//   off ─listen─▶ opening ─▶ open ─it ends─▶ resting ─a pause─▶ opening, while it is wanted
//    ▲               └─the server has none─▶ none: never asked for again
//    └── nothing is open for kHearAfter
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
#include "json/event_stream.h"
#include "net/http_client.h"

namespace ae::tools::mcp {

constexpr Duration kTakeUpAfter = std::chrono::seconds(1);         // unless the server says when
constexpr Duration kTakeUpLeast = std::chrono::milliseconds(100);  // … whatever it says
constexpr Duration kTakeUpMost = std::chrono::seconds(30);  // after streams that were of no use
constexpr Duration kHearWithin = std::chrono::seconds(2);   // a call waits so long for it, once
constexpr Duration kHearAfter = std::chrono::seconds(30);   // it stays after the last request
constexpr Duration kHearMost = std::chrono::hours(1);  // one connection; it may have died unseen

class GetStream {
 public:
  // Borrows loop and client.
  struct Needs {
    async::Loop& loop;
    net::HttpClient& client;
    std::function<net::HttpCall()> call;               // with its URL and headers
    std::function<bool()> wanted;                      // is anything open that it may be about?
    std::function<void(std::string_view data)> heard;  // of one event; may close it
    Duration stays = kHearAfter;
  };
  explicit GetStream(Needs needs) : needs_(std::move(needs)) {}
  ~GetStream() { close(); }
  GetStream(const GetStream&) = delete;
  GetStream& operator=(const GetStream&) = delete;

  // As Transport::listen.
  bool listen(async::Task heard);
  // Silence, until it is wanted again.
  void close();

 private:
  enum class Phase { off, opening, open, resting, none };

  void start();
  void stop(Phase phase);
  void hear(std::string_view bytes);
  void end(const net::HttpAnswer& answer);
  void rest();
  void keep_while_wanted();
  void settle();
  void forget(async::TimerId& timer);

  Needs needs_;
  Phase phase_ = Phase::off;
  bool slow_ = false;   // it was waited for in vain
  bool spoke_ = false;  // this stream
  std::uint32_t failures_ = 0;
  std::optional<EventStream> events_;
  std::string last_id_;
  std::optional<net::HttpClient::Id> http_;
  async::TimerId wait_timer_ = 0, rest_timer_ = 0, idle_timer_ = 0;
  std::vector<async::Task> waiting_;
  std::shared_ptr<bool> alive_;  // of this stream; asked by what comes later
};

}  // namespace ae::tools::mcp
