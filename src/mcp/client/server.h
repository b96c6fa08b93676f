// Server: one MCP server of an agents file, across all connections to it.
//
// It connects when the first call needs it, and again after a connection is lost, with a backoff
// while connections do not last. Before a call is sent, the tool's current definition is compared
// with the pinned one. Calls wait for all this within their time to be sent; a sent call is never
// sent again.
//
// A legacy server asks users while its call is open. Then the try ends `input_required`, and the
// call is suspended:
//
//   sent ──elicitation/create──▶ suspended ──next try has the answer──▶ answer sent, awaited again
//                                   │  └─ answer not sent: suspended, the next try sends it
//                                   │ reply arrives: it is the outcome of the next try
//                                   └─ connection lost, not answered in time, job ended: dropped
//
// The question's `state` names the try that asked. The first try with that state that finds no
// suspended call is `unknown`, because the outcome of the call is. A later try was declared in
// spite of that; it is a new call without the answers.
// Threads: the loop's.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "async/loop.h"
#include "base/error.h"
#include "mcp/client/session.h"
#include "net/http_client.h"
#include "tools/output.h"
#include "tools/secrets.h"
#include "tools/stdio_process.h"
#include "tools/tool.h"

namespace ae::mcp::client {

constexpr Duration kConnectMax = std::chrono::seconds(60);  // until the tools are listed
constexpr Duration kBackoffMin = std::chrono::milliseconds(100);
constexpr Duration kBackoffMax = std::chrono::seconds(30);
constexpr Duration kStableAfter =
    std::chrono::seconds(10);  // after this uptime a lost connection is reopened at once

constexpr std::size_t kSuspendedMax = 256;   // suspended calls; over HTTP each needs a connection
constexpr std::size_t kOrphanedMax = 1'000;  // cancelled requests that may still be answered
constexpr std::size_t kSuspendedBytesMax = 64u << 20;  // of replies to suspended calls
constexpr Duration kSuspendedGrace =
    std::chrono::minutes(10);  // after the question expired, or its answer was not sent
// Timeout of a request that may ask; shorter timers of tries and suspended calls end it.
constexpr Duration kOpenCallMax = std::chrono::hours(24 * 400);

class Server : public std::enable_shared_from_this<Server> {
 public:
  // Reports a warning to the operator.
  using Warn = std::function<void(const JobId& job, const std::string& what)>;
  // All borrowed except the version.
  struct Dependencies {
    async::Loop& loop;
    tools::StdioProcesses& stdio_processes;
    net::HttpClient& client;
    tools::SecretSource& secrets;
    std::string version;  // ours
    Warn warn = {};       // may be empty
  };
  // `connection`: {command, env, env_allow, cwd} or {url, headers}. Relative paths
  // start at `folder`.
  static std::shared_ptr<Server> make(Value connection, std::string folder, Dependencies deps);
  // Ends the calls in flight: `unknown` if they were sent.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  void close();

  // Closes the connection after this time without an open or suspended call; the next call connects
  // again. A stdio server gets SIGTERM, then SIGKILL. nullopt (default): stays connected.
  void set_idle_timeout(std::optional<Duration> timeout);

  // The tools that it lists now. Fails with unavailable, plan_invalid, secret_missing, forbidden.
  void list(async::Done<Result<Session::ToolList>> done);

  struct Tool {
    std::string server = {};  // its name in the agents file
    std::string name;         // the tool's name on the server
    std::string digest;       // the pinned one
    std::size_t output_max = tools::kOutputMax;
  };
  void perform(tools::Permit permit, tools::Call call, const Tool& tool, async::Done<Outcome> done);
  // Also drops the call that this try has suspended.
  void abandon(const InvocationId& invocation, std::uint32_t try_no);

  // For tests: a custom transport.
  using TransportFactory = std::function<std::unique_ptr<Transport>()>;
  static std::shared_ptr<Server> make(TransportFactory make_transport, async::Loop& loop,
                                      std::string version, Warn warn = {});

 private:
  using Key = std::pair<InvocationId, std::uint32_t>;
  struct InFlightCall;
  struct OpenCall;
  enum class Phase { idle, connecting, listing, ready };

  Server(TransportFactory make_transport, async::Loop& loop, std::string version, Warn warn);
  void ensure_connected();
  void connect(bool legacy);
  void list_tools();
  void on_listed(Result<Session::ToolList> list);
  void on_connect_failed(const Error& error);
  void on_connection_lost(const std::string& why);
  void drop_session();
  bool is_idle() const { return in_flight_.empty() && suspended_.empty() && list_waiters_.empty(); }
  void watch_idle();
  void send(const Key& key);
  void start_timeout(const Key& key);
  void on_reply(const std::shared_ptr<OpenCall>& open, const Reply& reply);
  void finish_sent_call(const Key& key, const Reply& reply);
  void cancel_request(InFlightCall& flight, std::string_view why);
  void mark_orphaned(OpenCall& open);
  void finish_call(const Key& key, Outcome outcome);

  // Questions to users (server_elicitation.cc).
  void on_question(const IncomingMessage& question);
  std::shared_ptr<OpenCall> find_asking_call(const IncomingMessage& question,
                                             std::string& refusal_reason) const;
  void suspend(const std::shared_ptr<OpenCall>& open, const Value& question, Outcome outcome);
  void suspend(const std::shared_ptr<OpenCall>& open, const Key& key, Duration time);
  void store_suspended_reply(OpenCall& open, const Reply& reply);
  void resume_call(tools::Permit permit, tools::Call call, std::uint32_t suspended_try,
                   async::Done<Outcome> done);
  void send_answer(const Key& key);
  void on_answer_sent(const Key& key, const Reply& reply);
  void report_declined(const Value& params, const std::string& why, const std::vector<Key>& keys);
  void release_suspended(const Key& key, std::string_view why);
  void clear_suspended();

  TransportFactory make_transport_;
  async::Loop& loop_;
  std::string version_;
  Phase phase_ = Phase::idle;
  std::shared_ptr<Session> session_;
  std::map<std::string, Value, std::less<>> tools_;  // the last listing
  std::size_t rejected_ = 0;
  std::size_t answered_ = 0;  // calls of this session with a result
  std::uint32_t failures_ = 0;
  Duration ready_at_{}, reconnect_at_{};  // boot time
  bool list_is_stale_ = false;
  async::TimerId connect_timer_ = 0, reconnect_timer_ = 0, idle_timer_ = 0;
  std::optional<Duration> idle_timeout_;
  std::map<Key, InFlightCall> in_flight_;
  std::map<Key, std::shared_ptr<OpenCall>> suspended_;  // by the try that asked
  std::size_t suspended_bytes_ = 0;
  // Requests of this session that were cancelled or lost and may still ask. 0 stands for those
  // beyond kOrphanedMax.
  std::set<std::int64_t> orphaned_;
  Warn warn_;
  std::set<std::string, std::less<>> warned_tools_;  // tools whose change was reported
  std::vector<async::Done<Result<Session::ToolList>>> list_waiters_;
};

}  // namespace ae::mcp::client
