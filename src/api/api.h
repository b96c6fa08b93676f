// Api: the routes of API.md §2, without any transport.
//
// A socket, a command line or a test hands in a request and gets one answer; who calls makes no difference to what is
// said. Everything that a route knows of a job comes from its log, by way of engine's views.
// Threads: the loop's.
#pragma once

#include <expected>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "agents/agents_file.h"
#include "api/metrics.h"
#include "api/read_limiter.h"
#include "api/registry_cache.h"
#include "api/roles.h"
#include "api/stuck.h"
#include "api/target.h"
#include "async/loop.h"
#include "json/value.h"
#include "log/event.h"
#include "mcp/header.h"
#include "mcp/revision.h"
#include "runtime/prune.h"
#include "runtime/runtime.h"
#include "store/measured_store.h"
#include "store/store.h"

namespace ae::api {

constexpr std::size_t kBodyMax = 4u << 20;     // bytes of a request
constexpr std::size_t kEventsMax = 1'000'000;  // of one answer
constexpr std::size_t kEventsDefault = 1'000;  // without ?limit
constexpr std::size_t kJobsMax = 1'000;        // of one page
constexpr std::size_t kSearchMax = 10'000;     // jobs examined for one page of a text search
constexpr std::size_t kLogsMax = 2'000;        // read for one page of what logs alone tell
constexpr std::size_t kReadsMax = 2;           // whole logs that are read for answers at once
constexpr Duration kWaitMax = std::chrono::minutes(5);

struct ApiRequest {
  std::string method = "GET";
  Path path;  // {"api", "jobs", id}
  QueryPairs query;
  std::string body;  // JSON; "" = none
  std::shared_ptr<void> body_quota =
      {};  // what the body takes of the room for all, while this is kept
  std::optional<std::string> idempotency_key;  // header Idempotency-Key
  std::string traceparent, tracestate;         // these headers, as they came
  std::string by;                              // who asks, for the record
  Role role = Role::admin;                     // what they may; our own user may everything
  bool local = true;                           // our own user, on this machine
  // True once whoever asks has gone, so that nothing waits for them any more; nullptr = nobody tells.
  std::shared_ptr<const bool> disconnected = {};
  // May a large answer be made now? Of a request that only reads; empty = always.
  std::function<bool()> has_capacity = {};
  // Of POST /mcp (mcp.h). What its headers say of the message; nullopt = it came by stdio.
  std::optional<mcp::Headers> mcp_headers = {};
  std::optional<mcp::Revision> mcp_revision = {};  // stdio: what was agreed on
  // Hears what comes before the answer; null = nothing new, the work goes on. Empty = nobody listens.
  std::function<void(const Value&)> on_notification = {};
};

struct ApiResponse {
  int status = 200;
  Value body;               // problem+json when status >= 400
  std::string location;     // of what was made; "" = none
  std::string text;         // plain text instead of the body: /metrics
  Duration retry_after{0};  // when to ask again; 0 = nothing is known of that
  std::string allow = {};   // of 405: the methods that go with this path
  bool rpc = false;         // the body is a message of JSON-RPC, whatever the status; null = none
};

// The OpenAPI 3.1 document, as `aetheris` ships it (docs/openapi.json).
std::string_view openapi_json();

struct ApiOptions {
  const agents::AgentsFile* agents = nullptr;  // whose jobs can be created here; nullptr = none
  bool runs = false;                           // jobs that are created are begun here at once
  bool receives_commits = true;                // on_events is called for every commit to this store
  // Reads an agent, given as JSON, that uses the tools of `agents`; empty = agents are not registered here.
  std::function<std::vector<agents::Diagnostic>(std::string_view name, std::string_view json,
                                                agents::Agent& out)>
      read_agent{};
  const store::MeasuredStore* measured = nullptr;  // whose times are shown; nullptr = nobody's
  // A folder of this machine that jobs are archived in before they are deleted; empty = nobody archives here.
  std::function<Result<std::shared_ptr<runtime::Archive>>(const std::string& folder)> archive{};
  bool health_only = false;  // health, ready and metrics, and nothing else
  // A request was refused: its method and path, the status, the code. May be empty.
  std::function<void(const ApiRequest&, int, std::string_view)> refused = {};
  std::string version;
  std::string store;  // for health
  // What a call of a tool of our file would send (tools::Tool::preview); empty = nobody knows here.
  std::function<Result<Value>(std::string_view tool, const JobId& job, const StepId& step,
                              const Value& arguments, std::string_view blind,
                              std::string_view version)>
      preview = {};
  async::RandomSource* chance = nullptr;           // draws keys; nullptr = none are made here
  std::function<void(const std::string&)> warn{};  // about what stands in the store; may be empty
};

class Mcp;

class Api {
 public:
  // Borrows all; the runtime need not be started.
  Api(async::Loop& loop, async::SteadyClock& steady, store::Store& store, runtime::Runtime& runtime,
      ApiOptions options);
  ~Api();
  Api(const Api&) = delete;
  Api& operator=(const Api&) = delete;

  // Always answers, once, on the loop; never inside this call.
  void handle(ApiRequest request, async::Done<ApiResponse> done);

  // This was committed to the job's log: counts it, and wakes those who wait for the job.
  void on_events(const JobId& job, const std::vector<Event>& events);
  // Another process has committed to it: wakes those who wait for it.
  void on_idle(const JobId& job);
  // Those who wait are answered with what there is, so that the process can end.
  void stop_waiting();
  // From now on agents are those of the registry, where those of our file are registered first; the newest version of each
  // is what jobs are made of. Fails with unavailable, unknown_outcome.
  void register_agents(async::Done<Status> done);
  // The file was edited: agents of it that differ from those of the file before are registered. When all are, `begin` is
  // called, and from then on jobs are made of the new versions; whatever fails before that leaves the versions in use that
  // were. Gives what was registered, by name. REQUIRES: register_agents; one reload at a time. Fails with plan_invalid,
  // unavailable, unknown_outcome.
  using ReadAgent = std::function<std::vector<agents::Diagnostic>(
      std::string_view name, std::string_view json, agents::Agent&)>;
  struct AgentsReload {
    std::shared_ptr<const agents::AgentsFile> file;
    ReadAgent read_agent;
    async::Task begin;  // the tools of the file are there after it
  };
  struct AgentChange {
    std::string name;
    std::uint64_t from = 0, to = 0;  // versions; from 0: it is new
  };
  void reload(AgentsReload edited, async::Done<Result<std::vector<AgentChange>>> done);
  // The same without registering anything: of a process that only runs what others have registered.
  void follow_registry(async::Done<Status> done);
  // Somebody was sent away for asking too much: counted.
  void count_rejection(std::string_view type) { metrics_.count_rejection(type); }
  // We only look at a store that one process alone can run, and are not that one: is there one? Then a job that nobody runs
  // is said to be that.
  void set_owner_probe(std::function<bool()> is_owner_alive) {
    is_owner_alive_ = std::move(is_owner_alive);
  }
  // The process is about to end: it is not ready from now on.
  void begin_shutdown() { shutting_down_ = true; }

  // Every route: its method, its path as OpenAPI writes it, and what it asks of a key.
  struct RouteShape {
    std::string method, path;
    Access access;
  };
  static std::vector<RouteShape> routes();
  // What an answer can tell before the body of a request is read: 404, 405, or 403 for a role that may not do this.
  // nullopt: the route takes it.
  std::optional<ApiResponse> refuse_before_body(std::string_view method, const Path& path,
                                                Role role) const;
  // Does this route ask nobody for a key?
  static bool is_public_route(std::string_view method, const Path& path);

  // Keys and agents, as this process knows them.
  RegistryCache& registry() { return registry_; }

 private:
  struct RequestContext;
  struct LongPoll;
  struct Route;
  struct Search;
  using ContextPtr = std::shared_ptr<RequestContext>;
  using ReadAttempt = std::function<void(const std::shared_ptr<LongPoll>&)>;
  static const Route kRoutes[];
  // The route, or why there is none.
  std::expected<const Route*, ApiResponse> route_of(std::string_view method, const Path& path,
                                                    Role role) const;

  void index(ContextPtr ctx);
  void health(ContextPtr ctx);
  void ready(ContextPtr ctx);
  void metrics(ContextPtr ctx);
  void openapi(ContextPtr ctx);
  void workers(ContextPtr ctx);
  void tools(ContextPtr ctx);
  void agents(ContextPtr ctx);
  void agent(ContextPtr ctx);
  void put_agent(ContextPtr ctx);
  void message_agent(ContextPtr ctx);
  void create_job_from_message(ContextPtr ctx);
  void jobs(ContextPtr ctx);
  void search_jobs(ContextPtr ctx, std::shared_ptr<Search> search);
  struct JobWalk;
  void stuck_jobs(ContextPtr ctx);
  void in_doubt_jobs(ContextPtr ctx);
  void begin_walk(ContextPtr ctx, std::shared_ptr<JobWalk> walk);
  void next_page(ContextPtr ctx, std::shared_ptr<JobWalk> walk);
  void next_row(ContextPtr ctx, std::shared_ptr<JobWalk> walk);
  struct JobGauges;
  void gauges(std::move_only_function<void(const JobGauges*)> then);
  void count_stuck(std::shared_ptr<JobGauges> fresh, std::size_t status, std::string after,
                   std::move_only_function<void(const JobGauges*)> then);
  void answer_metrics(const ContextPtr& ctx, const JobGauges* gauges);
  std::vector<WorkerOffer> worker_offers(const store::JobStats& job_stats) const;
  void create(ContextPtr ctx);
  void make_job(ContextPtr ctx);
  void job(ContextPtr ctx);
  void show_job(ContextPtr ctx);
  void events(ContextPtr ctx);
  void trace(ContextPtr ctx);
  void transcript(ContextPtr ctx);
  struct TranscriptParams;
  void load_transcript(const ContextPtr& ctx, std::shared_ptr<TranscriptParams> params,
                       std::shared_ptr<LongPoll> long_poll, ReadLimiter::Slot slot);
  void make_transcript(const ContextPtr& ctx, std::shared_ptr<TranscriptParams> params,
                       std::shared_ptr<LongPoll> long_poll, store::LoadedJob& loaded,
                       ReadLimiter::Slot slot);
  void replay(ContextPtr ctx);
  void verify(ContextPtr ctx);
  void signal(ContextPtr ctx);
  void cancel(ContextPtr ctx);
  void resolve(ContextPtr ctx);
  void message(ContextPtr ctx);
  void pause(ContextPtr ctx);
  void resume(ContextPtr ctx);
  void raise_budget(ContextPtr ctx);
  void fork(ContextPtr ctx);
  void retry(ContextPtr ctx);
  void plan(ContextPtr ctx);
  void redact(ContextPtr ctx);
  void prune(ContextPtr ctx);
  void audit(ContextPtr ctx);
  void verify_audit(ContextPtr ctx);
  void keys(ContextPtr ctx);
  void create_key(ContextPtr ctx);
  void revoke_key(ContextPtr ctx);
  void approvals(ContextPtr ctx);
  void answer_approval(ContextPtr ctx);
  struct ApprovalWalk;
  void read_next_page(ContextPtr ctx, std::shared_ptr<ApprovalWalk> walk);
  void read_next_log(ContextPtr ctx, std::shared_ptr<ApprovalWalk> walk);
  static void answer_approvals(const ContextPtr& ctx, ApprovalWalk& walk);
  std::vector<Value> open_approvals(const engine::State& state) const;
  void approvals_of_job(ContextPtr ctx);
  void mcp(ContextPtr ctx);

  // An agent that jobs can be made of here: of our file, or of the registry.
  struct OfferedAgent {
    std::shared_ptr<const agents::Agent>
        agent;  // nullptr: `refused` says why it cannot be run here
    std::string refused;
    std::uint64_t version = 0;                 // 0 = it is not registered
    std::shared_ptr<const engine::Plan> plan;  // once somebody asked
  };
  using OfferedAgents = std::map<std::string, OfferedAgent, std::less<>>;  // by name
  // Agents of a file, and how those are read that are registered.
  struct Source {
    const agents::AgentsFile* agents;
    std::shared_ptr<const agents::AgentsFile> owner;  // nullptr: borrowed
    ReadAgent read_agent;
  };
  Source source() const { return {options_.agents, file_, options_.read_agent}; }
  // Fails with not_found, needs_version (it cannot be run here), plan_invalid.
  Result<OfferedAgent*> find_offered_agent(std::string_view name);
  // nullptr: there is none here.
  const agents::Agent* find_agent(std::string_view name) const;
  Error no_agent(std::string_view name) const;
  static Status compile(OfferedAgent& offer);
  Value agent_json(const std::string& name, const OfferedAgent& offer);
  // Goes on when the registry is as it was a moment ago, or cannot be read.
  void with_fresh_agents(async::Task then);
  void update_offered_agents();
  OfferedAgents build_offered_agents(const Source& source, bool registered,
                                     const OfferedAgents& before) const;
  void set_offered_agents(OfferedAgents offered_agents);
  // What is to be registered: first the agents of the file that are `ours`, then what is registered otherwise, under the
  // rules that these tools have. Fails with plan_invalid.
  Result<std::vector<store::AgentVersion>> agents_to_register(
      const Source& source, const std::function<bool(const std::string&)>& ours) const;
  std::set<std::string> changed_agents(const agents::AgentsFile& file) const;
  std::vector<AgentChange> apply_reload(AgentsReload edited);
  void register_next(std::shared_ptr<std::vector<store::AgentVersion>> versions,
                     async::Done<Status> done);
  void poll_registry();
  Value job_json(const runtime::Runtime::JobSnapshot& read);
  bool has_no_owner() const { return is_owner_alive_ && !is_owner_alive_(); }
  Result<runtime::NewJobRequest> new_job(const RequestContext& ctx, const Value& body);
  // `more`: members of the body beside the job's.
  void answer_created(ContextPtr ctx, const JobId& job, int status, std::vector<Member> more = {});
  void answer_existing_job(ContextPtr ctx, runtime::NewJobRequest params);
  void find_or_fork(ContextPtr ctx, runtime::ForkRequest params);
  Status check_plan_runs_here(const std::string& agent, const Value& task_graph);
  Status check_fork(const runtime::ForkRequest& params, const std::string& agent_name);
  void fork_new(ContextPtr ctx, runtime::ForkRequest params);
  void make_fork(ContextPtr ctx, runtime::ForkRequest params);
  void submit_request(ContextPtr ctx, engine::ControlRequest control, int status);
  void on_request_done(const ContextPtr& ctx, const engine::ControlRequest& control, int status,
                       Result<Value> answer);
  void answer_duplicate(const ContextPtr& ctx, const engine::ControlRequest& control,
                        Result<Value> answer);
  void answer_with_shortfall(const ContextPtr& ctx, Result<Value> answer);
  void signal_as_operator(ContextPtr ctx, engine::ControlRequest control);
  // The job's whole log, when it is this caller's turn. Fails with unavailable also when there is no room for the answer.
  void read_with_slot(const ContextPtr& ctx, const JobId& job,
                      async::Done<Result<runtime::Runtime::JobSnapshot>> done);
  void read(ContextPtr ctx, std::move_only_function<void(runtime::Runtime::JobSnapshot&)> then);
  struct Log {
    store::JobRow row;
    std::vector<Event> events;  // after the seq that was asked for, perhaps more
  };
  void read_log(const JobId& job, std::uint64_t after, async::Done<Result<Log>> done);
  // How many wait at once is bounded where they come in (Authenticator, connections).
  void wait(const ContextPtr& ctx, const JobId& job, Duration most, ReadAttempt check_long_poll);
  void check_long_poll(const std::shared_ptr<LongPoll>& long_poll);

  async::Loop& loop_;
  async::SteadyClock& steady_;
  store::Store& store_;
  runtime::Runtime& runtime_;
  ApiOptions options_;  // its agents and their reader change with a reload
  OfferedAgents offered_agents_;
  std::shared_ptr<const agents::AgentsFile> file_;  // ours, once it was reloaded; else borrowed
  // Agents of a reload that has not finished, with their versions before it.
  std::map<std::string, std::uint64_t, std::less<>> reloading_;
  bool registers_agents_ = false;
  std::optional<async::TimerId> registry_timer_;
  std::list<std::shared_ptr<LongPoll>> long_polls_;
  ReadLimiter read_limiter_;
  Metrics metrics_;
  RegistryCache registry_;
  std::unique_ptr<Mcp> mcp_;
  std::shared_ptr<const JobGauges> gauges_;  // as of a few seconds ago
  bool shutting_down_ = false;
  std::function<bool()> is_owner_alive_;  // empty: we own the store, or many processes share it
  // Where a log was read to, so that who follows it does not read it again from the beginning.
  struct ReadPosition {
    std::uint64_t seq = 0;  // the last of a commit
    Hash head;
  };
  std::map<JobId, ReadPosition> read_positions_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace ae::api
