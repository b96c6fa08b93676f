// Server: one MCP server of an agents file, over all connections that there will be to it.
//
// It is reached when the first call needs it, and again after it was lost, later each time when it does not stay. Before
// a call goes out, what its tool says of itself now is held against what is pinned. Calls wait for all that, within their
// time to be sent; a call that was sent is never sent again.
//
// A server of the old era asks people while its call is open. Then the try ends `input_required`, and the call is kept:
//
//   sent ──elicitation/create──▶ kept ──the next try has the answer──▶ told, and awaited as before
//                                 │   └─ for sure not told: kept, and the next try tells it
//                                 │ its reply comes: the next try has it
//                                 └─ the connection is lost, nobody comes in time, its job ends: given up
//
// The state of such a try names it. The first try that brings it back and finds no kept call is `unknown`: nobody knows what
// became of the call. A later one was declared in spite of that, and is a call of its own, without answers.
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
#include "net/http_client.h"
#include "tools/mcp/session.h"
#include "tools/output.h"
#include "tools/secrets.h"
#include "tools/stdio_process.h"
#include "tools/tool.h"

namespace ae::tools::mcp {

constexpr Duration kConnectMax = std::chrono::seconds(60);  // from the first word to the last tool
constexpr Duration kBackoffMin = std::chrono::milliseconds(100);
constexpr Duration kBackoffMax = std::chrono::seconds(30);
constexpr Duration kStableAfter =
    std::chrono::seconds(10);  // who stays so long is reached at once again

constexpr std::size_t kSuspendedMax =
    256;  // calls that wait for people; over HTTP each is a connection
constexpr std::size_t kOrphanedMax = 1'000;            // given up, and not answered since
constexpr std::size_t kSuspendedBytesMax = 64u << 20;  // of what they have answered meanwhile
constexpr Duration kSuspendedGrace =
    std::chrono::minutes(10);  // after its question has expired, or its answer did not get out
// Of a call that may ask, below the timers of tries and of kept calls, which are the ones that end it.
constexpr Duration kOpenCallMax = std::chrono::hours(24 * 400);

class Server : public std::enable_shared_from_this<Server> {
 public:
  // What whoever runs us should know.
  using Warn = std::function<void(const JobId& job, const std::string& what)>;
  // All borrowed but the version.
  struct Dependencies {
    async::Loop& loop;
    StdioProcesses& stdio_processes;
    net::HttpClient& client;
    SecretSource& secrets;
    std::string version;  // ours
    Warn warn = {};       // may be empty
  };
  // `connection`: {command, env, env_allow, cwd} or {url, headers}; `folder`: where relative paths start.
  static std::shared_ptr<Server> make(Value connection, std::string folder, Dependencies deps);
  // What is in flight is answered: unknown when it was sent.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  void close();

  // Ends the connection once no call has been open or kept for this long; the next call connects again. A stdio server is
  // asked to stop, then killed. nullopt (at first): it stays connected.
  void set_idle_timeout(std::optional<Duration> timeout);

  // What it lists now. Fails with unavailable, plan_invalid, secret_missing, forbidden.
  void list(async::Done<Result<Session::ToolList>> done);

  struct Tool {
    std::string server = {};  // as the agents file calls it
    std::string name;         // as the server knows it
    std::string digest;       // as it is pinned
    std::size_t output_max = kOutputMax;
  };
  void perform(Permit permit, Call call, const Tool& tool, async::Done<Outcome> done);
  // Also gives up the call that is kept since this try has asked.
  void abandon(const InvocationId& invocation, std::uint32_t try_no);

  // For tests: how the server is reached.
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

  // People (server_elicitation.cc).
  void on_question(const Message& request);
  std::shared_ptr<OpenCall> find_asking_call(const Message& request,
                                             std::string& refusal_reason) const;
  void suspend(const std::shared_ptr<OpenCall>& open, const Value& question, Outcome outcome);
  void suspend(const std::shared_ptr<OpenCall>& open, const Key& key, Duration time);
  void store_suspended_reply(OpenCall& open, const Reply& reply);
  void resume_call(Permit permit, Call call, std::uint32_t suspended_try,
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
  std::map<std::string, Value, std::less<>> tools_;  // as it listed them last
  std::size_t rejected_ = 0;
  std::size_t answered_ = 0;  // calls of this session
  std::uint32_t failures_ = 0;
  Duration ready_at_{}, reconnect_at_{};  // boot time
  bool list_is_stale_ = false;
  async::TimerId connect_timer_ = 0, reconnect_timer_ = 0, idle_timer_ = 0;
  std::optional<Duration> idle_timeout_;
  std::map<Key, InFlightCall> in_flight_;
  std::map<Key, std::shared_ptr<OpenCall>> suspended_;  // by the try that asked
  std::size_t suspended_bytes_ = 0;
  // Of this session: calls that were given up, or lost, and may still ask. 0 = more of them than are counted.
  std::set<std::int64_t> orphaned_;
  Warn warn_;
  std::set<std::string, std::less<>> warned_tools_;  // tools of which it was said
  std::vector<async::Done<Result<Session::ToolList>>> list_waiters_;
};

}  // namespace ae::tools::mcp
