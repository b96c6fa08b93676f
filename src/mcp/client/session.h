// Session: one connection to one MCP server, with a legacy or a modern revision.
//
//   start ─▶ probing ──server/discover answered──▶ open (2026-07-28: no handshake)
//               └──any other error, or timeout──▶ initialize ─▶ open (2024-11-05 … 2025-11-25)
//
// It answers the server's `ping`. A modern server asks users in the result of a call
// (classify_response.h); a legacy server asks while the call is open, and the owner of the session
// answers (server.h). Threads: the loop's.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "async/loop.h"
#include "base/error.h"
#include "mcp/client/transport.h"
#include "mcp/protocol/revision.h"

namespace ae::mcp::client {

constexpr Duration kProbeTimeout =
    std::chrono::seconds(5);  // then a stdio server also gets `initialize`
constexpr Duration kRequestTimeout = std::chrono::seconds(30);  // for all requests except calls

class Session : public std::enable_shared_from_this<Session> {
 public:
  struct Callbacks {
    std::function<void(std::string why)>
        on_close;                            // at most once; the session cannot be used afterwards
    std::function<void()> on_tools_changed;  // the server's list of tools has changed
    // Legacy: a question to a user, which needs a send_answer. Empty: questions are declined.
    std::function<void(const IncomingMessage& question)> on_question;
    // A reply to a cancelled request.
    std::function<void(std::int64_t id)> on_late_reply;
    std::function<void(const Value& id)>
        on_request_cancelled;  // by the server, a request of its own
  };
  struct Dependencies {
    async::Loop& loop;
    std::string version;  // ours, as sent to the server
    bool legacy = false;  // no probe: the server exited on it
  };
  static std::shared_ptr<Session> make(std::unique_ptr<Transport> transport, Dependencies deps,
                                       Callbacks callbacks);

  // Negotiates the revision. Fails with unavailable, plan_invalid, secret_missing, forbidden.
  void start(async::Done<Status> ready);
  // Fetches all pages. `tools`: pinned definitions by name; `rejected`: the number of invalid ones.
  struct ToolList {
    std::map<std::string, Value, std::less<>> tools;
    std::size_t rejected = 0;
  };
  void list(async::Done<Result<ToolList>> done);

  struct RequestSpec {
    std::string method;
    Value params;  // an object; its `_meta` is kept and extended
    std::string name = {};
    // Of a call: part of the request id, so that tries never share an id, not even across
    // processes.
    std::uint32_t try_no = 1;
    std::vector<std::pair<std::string, std::string>> header_params = {};
    Duration send_within{};
    Duration timeout = kRequestTimeout;
    async::Done<Value> progress = {};  // may be empty
  };
  // Returns the id for cancel_request.
  std::int64_t send_request(RequestSpec spec, async::Done<Reply> done);
  // Cancels a request and notifies the server. The reply follows soon.
  void cancel_request(std::int64_t id, std::string_view why);
  // Call before a call is sent, to receive the server's questions: see Transport::listen.
  bool listen(async::Task ready) { return modern_ || transport_->listen(std::move(ready)); }
  // Replaces the progress callback of a request; empty: removes it.
  void set_progress_callback(std::int64_t id, async::Done<Value> progress);
  // Passes a message to the progress callback of a request.
  void report_message(std::int64_t id, std::string_view what);
  // The answer to a request of the server.
  struct AnswerSpec {
    Value id, result;
    Duration send_within = {};  // zero: no limit
    Duration timeout = kRequestTimeout;
    async::Done<Reply> on_sent = {};  // the result of the send; may be empty
  };
  // Returns the ticket for withdraw_answer.
  std::int64_t send_answer(AnswerSpec spec);
  // `on_sent` follows soon: not_sent, lost, or the actual result.
  void withdraw_answer(std::int64_t ticket) { transport_->cancel_request(ticket); }

  bool modern() const { return modern_; }
  // The connection was lost during the probe: some programs exit when they receive an unknown
  // method.
  bool is_lost_in_probe() const { return is_lost_in_probe_; }
  const std::vector<tools::UsedSecret>& used() const { return transport_->used(); }
  // No callback runs afterwards, and no request gets a reply.
  void close();
  // Like close, but a program is asked to stop first.
  void stop() {
    transport_->stop();
    close();
  }

 private:
  enum class Phase { fresh, probing, initializing, open, closed };

  Session(std::unique_ptr<Transport> transport, Dependencies deps, Callbacks callbacks);
  void on_message(const IncomingMessage& incoming);
  void probe();
  void on_probe_reply(const Reply& reply);
  void initialize();
  void on_initialize_reply(const Reply& reply);
  void on_ready(Revision revision);
  void finish_start(Status status);
  void next_page(std::shared_ptr<ToolList> listed, std::string cursor, std::size_t pages,
                 async::Done<Result<ToolList>> done);
  void report_progress(std::int64_t id, const Value& what);
  void send_notification(std::string_view method, Value params);
  Value client_info() const;
  Value client_meta() const;

  Dependencies deps_;
  Callbacks callbacks_;
  Phase phase_ = Phase::fresh;
  bool modern_ = false, has_tools_ = true;
  bool is_probed_again_ = false, is_initialize_sent_ = false, is_lost_in_probe_ = false;
  async::TimerId probe_timer_ = 0;
  std::string probe_error_;  // the last error of the probe
  std::int64_t last_id_ = 0;
  std::map<std::int64_t, async::Done<Value>> progress_;
  async::Done<Status> ready_;
  std::unique_ptr<Transport> transport_;
};

}  // namespace ae::mcp::client
