// Session: one connection to one MCP server, from its first word to its last, in both eras of the protocol.
//
//   start ─▶ probing ──server/discover answered──▶ open (2026-07-28: nothing is agreed, each request says it all)
//               └──any other error, or silence──▶ initialize ─▶ open (2024-11-05 … 2025-11-25)
//
// It also answers what a server asks of its client: `ping`. What the new era asks of people comes as the result of a call
// (classify_response.h), what the old one asks while a call is open is its owner's to answer (server.h). Threads: the loop's.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "async/loop.h"
#include "base/error.h"
#include "tools/mcp/transport.h"

namespace ae::tools::mcp {

inline constexpr std::string_view kModern = "2026-07-28";
inline constexpr std::string_view kLegacy[] = {"2025-11-25", "2025-06-18", "2025-03-26",
                                               "2024-11-05"};

constexpr Duration kProbeTimeout =
    std::chrono::seconds(5);  // then a program is asked in the old way, too
constexpr Duration kRequestTimeout = std::chrono::seconds(30);  // for each request but calls

class Session : public std::enable_shared_from_this<Session> {
 public:
  struct Callbacks {
    std::function<void(std::string why)>
        on_close;                            // at most once; the session is of no use any more
    std::function<void()> on_tools_changed;  // it says that its list is another one now
    // Old era: it asks a person something, and wants an `answer`; empty: it is declined.
    std::function<void(const Message& request)> on_question;
    // It answers a request that was given up.
    std::function<void(std::int64_t id)> on_late_reply;
    std::function<void(const Value& id)> on_request_cancelled;  // of a request of its own
  };
  struct Dependencies {
    async::Loop& loop;
    std::string version;  // ours, for the server's logs
    bool legacy = false;  // do not probe: it ended when it was
  };
  static std::shared_ptr<Session> make(std::unique_ptr<Transport> transport, Dependencies deps,
                                       Callbacks callbacks);

  // Agrees with the server on how to talk. Fails with unavailable, plan_invalid, secret_missing, forbidden.
  void start(async::Done<Status> ready);
  // Every tool, page by page, as `pinned` has them, by name. What is no tool is left out; `rejected` of them were.
  struct ToolList {
    std::map<std::string, Value, std::less<>> tools;
    std::size_t rejected = 0;
  };
  void list(async::Done<Result<ToolList>> done);

  struct RequestSpec {
    std::string method;
    Value params;  // an object; `_meta` of it is kept and added to
    std::string name = {};
    // Of a call: no two tries have one id, also when another process makes the later one.
    std::uint32_t try_no = 1;
    std::vector<std::pair<std::string, std::string>> header_params = {};
    Duration send_within{};
    Duration timeout = kRequestTimeout;
    async::Done<Value> progress = {};  // may be empty
  };
  // Gives the id by which it can be given up.
  std::int64_t send_request(RequestSpec spec, async::Done<Reply> done);
  // The reply comes soon. The server is told.
  void cancel_request(std::int64_t id, std::string_view why);
  // Before a call is sent, so that what its server asks meanwhile is heard: as Transport::listen.
  bool listen(async::Task ready) { return modern_ || transport_->listen(std::move(ready)); }
  // Somebody else hears from now on how far this request is; empty: nobody.
  void set_progress_callback(std::int64_t id, async::Done<Value> progress);
  // Says something of a request to whoever follows it.
  void report_message(std::int64_t id, std::string_view what);
  // What the server asked is answered.
  struct AnswerSpec {
    Value id, result;
    Duration send_within = {};  // zero: as long as it takes
    Duration timeout = kRequestTimeout;
    async::Done<Reply> on_sent = {};  // what became of it; may be empty
  };
  // Gives what `withdraw_answer` takes.
  std::int64_t send_answer(AnswerSpec spec);
  // `on_sent` comes soon: not_sent, lost, or what it was.
  void withdraw_answer(std::int64_t ticket) { transport_->cancel_request(ticket); }

  bool modern() const { return modern_; }
  // It was lost over our first word: some programs end when they hear one that they do not know.
  bool is_lost_in_probe() const { return is_lost_in_probe_; }
  const std::vector<UsedSecret>& used() const { return transport_->used(); }
  // Silence: nothing that was asked is answered any more.
  void close();
  // As close. A program is asked to stop first.
  void stop() {
    transport_->stop();
    close();
  }

 private:
  enum class Phase { fresh, probing, initializing, open, closed };

  Session(std::unique_ptr<Transport> transport, Dependencies deps, Callbacks callbacks);
  void on_message(const Message& message);
  void probe();
  void on_probe_reply(const Reply& reply);
  void initialize();
  void on_initialize_reply(const Reply& reply);
  void on_ready(std::string version);
  void finish_start(Status status);
  void next_page(std::shared_ptr<ToolList> listed, std::string cursor, std::size_t pages,
                 async::Done<Result<ToolList>> done);
  void report_progress(std::int64_t id, const Value& what);
  void send_notification(std::string_view method, Value params);
  Value client_meta() const;

  Dependencies deps_;
  Callbacks callbacks_;
  Phase phase_ = Phase::fresh;
  bool modern_ = false, has_tools_ = true;
  bool is_probed_again_ = false, is_initialize_sent_ = false, is_lost_in_probe_ = false;
  async::TimerId probe_timer_ = 0;
  std::string probe_error_;  // the probe's last word
  std::int64_t last_id_ = 0;
  std::map<std::int64_t, async::Done<Value>> progress_;
  async::Done<Status> ready_;
  std::unique_ptr<Transport> transport_;
};

}  // namespace ae::tools::mcp
