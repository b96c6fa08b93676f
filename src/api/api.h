// Api: the routes of docs/openapi.json, without a transport.
//
// A socket, a command or a test passes in a request and gets one response; the response does not
// depend on the transport. Everything a route knows about a job comes from its log, through the
// views of engine.
// Threads: the loop's.
// Long: the class declares one handler for each operation of docs/openapi.json.
#pragma once

#include <expected>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agents/agents_file.h"
#include "api/api_options.h"
#include "api/api_request.h"
#include "api/metrics.h"
#include "api/read_limiter.h"
#include "api/registry_cache.h"
#include "api/routes.h"
#include "api/stuck.h"
#include "async/alive.h"
#include "async/loop.h"
#include "json/value.h"
#include "log/event.h"
#include "runtime/scheduler/runtime.h"
#include "runtime/service/history.h"
#include "store/store.h"

namespace ae::api {

constexpr std::size_t kEventsMax = 1'000'000;  // in one response
constexpr std::size_t kEventsDefault = 1'000;  // without ?limit
constexpr std::size_t kJobsMax = 1'000;        // in one page
constexpr std::size_t kSearchMax = 10'000;     // jobs examined for one page of a text search
constexpr std::size_t kLogsMax = 2'000;  // logs read for one page, when the rows are not enough
constexpr std::size_t kConcurrentReadsMax = 2;  // concurrent reads of whole logs
constexpr Duration kWaitMax = std::chrono::minutes(5);

// The OpenAPI 3.1 document that `aetheris` ships (docs/openapi.json).
std::string_view openapi_json();

class Mcp;
struct JobFacts;

class Api {
 public:
  // Borrows all arguments. The runtime need not be started.
  Api(async::Loop& loop, async::SteadyClock& steady, store::Store& store, runtime::Runtime& runtime,
      ApiOptions options);
  ~Api();
  Api(const Api&) = delete;
  Api& operator=(const Api&) = delete;

  // Responds exactly once, on the loop; never inside this call.
  void handle(ApiRequest request, async::Done<ApiResponse> done);

  // These events were committed to the job's log: counts them and wakes requests that wait for the
  // job.
  void on_events(const JobId& job, const std::vector<Event>& events);
  // Does on_events read events of this type?
  static bool reads(EventType type) { return Metrics::reads(type); }
  // Another process ended the job or left it blocked: wakes requests that wait for the job.
  void on_idle(const JobId& job);
  // Answers waiting requests, and those that come, with the current state, so that the process can
  // end. Calls `answered` on the loop when no request is open.
  void stop_waiting(async::Task answered = {});
  // Registers the agents of our file. Agents then come from the registry, and new jobs use the
  // newest version of each. Fails with unavailable, unknown_outcome.
  void register_agents(async::Done<Status> done);
  // After an edit of the file: registers each agent that differs from the previous file. When all
  // are registered, `begin` is called and new jobs use the new versions; a failure before that
  // leaves the current versions in use. Returns the registered agents, by name. REQUIRES:
  // register_agents; one reload at a time. Fails with plan_invalid, unavailable, unknown_outcome.
  using ReadAgent = std::function<std::vector<agents::Diagnostic>(
      std::string_view name, std::string_view json, agents::Agent&)>;
  struct AgentsReload {
    std::shared_ptr<const agents::AgentsFile> file;
    ReadAgent read_agent;
    async::Task begin;  // adds the tools of the file
  };
  struct AgentChange {
    std::string name;
    std::uint64_t from = 0, to = 0;  // versions; from 0: a new agent
  };
  void reload(AgentsReload edited, async::Done<Result<std::vector<AgentChange>>> done);
  // As register_agents, but registers nothing: for a process that only runs agents of the registry.
  void follow_registry(async::Done<Status> done);
  // Counts a rate-limited request.
  void count_rejection(std::string_view type) { metrics_.count_rejection(type); }
  // For a read-only process without the lock of a single-owner store: tests whether an owner is
  // running. If not, jobs are shown as unattended.
  void set_owner_probe(std::function<bool()> is_owner_alive) {
    is_owner_alive_ = std::move(is_owner_alive);
  }
  // The process is shutting down: `/api/ready` fails.
  void begin_shutdown() { shutting_down_ = true; }

  // The response that can be sent before the body of a request is read: 404, 405, or 403 for a role
  // without the access. nullopt: the route accepts the request.
  std::optional<ApiResponse> refuse_before_body(std::string_view method, const Path& path,
                                                Role role) const;

  // Keys and agents, as cached by this process.
  RegistryCache& registry() { return registry_; }

 private:
  struct RequestContext;
  struct ResponseMaker;
  struct LongPoll;
  struct Search;
  using ContextPtr = std::shared_ptr<RequestContext>;
  using Handler = void (Api::*)(ContextPtr);
  struct Operation;
  static const Operation kOperations[];
  static Handler handler_of(const Route& route);
  using ReadAttempt = std::function<void(const std::shared_ptr<LongPoll>&)>;
  // The route, or the refusal.
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
  void list_jobs(ContextPtr ctx);
  // A job as in lists.
  Value listed_job(const store::JobRow& row);
  void search_jobs(ContextPtr ctx, std::shared_ptr<Search> search);
  struct JobWalk;
  void stuck_jobs(ContextPtr ctx);
  void in_doubt_jobs(ContextPtr ctx);
  void begin_walk(ContextPtr ctx, std::shared_ptr<JobWalk> walk);
  void next_page(ContextPtr ctx, std::shared_ptr<JobWalk> walk);
  void next_row(ContextPtr ctx, std::shared_ptr<JobWalk> walk);
  void read_row(const ContextPtr& ctx, const std::shared_ptr<JobWalk>& walk, const JobId& job,
                Value shown);
  struct JobGauges;
  void gauges(std::move_only_function<void(const JobGauges*)> then);
  void job_counts(ContextPtr ctx);
  // The running and queued jobs that are stalled.
  void count_stuck_matching(const store::CountFilter& filter,
                            async::Done<Result<store::JobCount>> then);
  struct StuckCount;
  // Adds the stalled jobs with the status number `status`, of running and queued, and those after
  // it. `after`: a cursor.
  void count_stuck(std::shared_ptr<StuckCount> count, std::size_t status, std::string after,
                   async::Done<Status> then);
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
  void read_transcript(const ContextPtr& ctx, std::shared_ptr<const TranscriptParams> params,
                       std::shared_ptr<LongPoll> long_poll);
  struct EventsRead;
  struct EventsScan;
  void read_events(const ContextPtr& ctx, std::shared_ptr<EventsRead> read,
                   std::shared_ptr<LongPoll> long_poll);
  runtime::LogSource events_source(const ContextPtr& ctx, const EventsRead& read);
  // Fills the page. `done`: the row that the page shows.
  void scan_events(const ContextPtr& ctx, const std::shared_ptr<EventsRead>& read,
                   const std::shared_ptr<EventsScan>& scan,
                   async::Done<Result<store::JobRow>> done);
  void scan_log(const ContextPtr& ctx, const std::shared_ptr<EventsRead>& read,
                const std::shared_ptr<EventsScan>& scan, async::Done<Result<store::JobRow>> done);
  void find_step_events(const ContextPtr& ctx, const std::shared_ptr<EventsRead>& read,
                        const std::shared_ptr<EventsScan>& scan,
                        async::Done<Result<store::JobRow>> done);
  void read_step_events(const ContextPtr& ctx, const std::shared_ptr<EventsRead>& read,
                        const std::shared_ptr<EventsScan>& scan,
                        async::Done<Result<store::JobRow>> done);
  // The newest state of a job and the index of its steps (runtime/service/history.h).
  using StepsReadPtr = std::shared_ptr<const engine::IndexedState>;
  void replay(ContextPtr ctx);
  struct ReplayRead;
  void replay_at(const ContextPtr& ctx, const std::shared_ptr<ReplayRead>& read);
  // The state of a job after event `seq` (steps_read.h).
  struct ShownState;
  void read_state(const ContextPtr& ctx, const JobId& job, std::uint64_t seq,
                  std::move_only_function<void(ShownState)> then);
  void read_past_state(const ContextPtr& ctx, const JobId& job, std::uint64_t seq,
                       std::move_only_function<void(ShownState)> then);
  void timeline(ContextPtr ctx);
  void steps(ContextPtr ctx);
  void step(ContextPtr ctx);
  void conversation(ContextPtr ctx);
  void answer_sent_turn(const ContextPtr& ctx, const StepsReadPtr& read,
                        const ReadLimiter::Slot& slot, const std::string& step, std::uint64_t turn);
  void forks(ContextPtr ctx);
  void list_forks(ContextPtr ctx);
  void read_steps(ContextPtr ctx,
                  std::move_only_function<void(StepsReadPtr, ReadLimiter::Slot)> then);
  template <class T>
  void compute_from(StepsReadPtr read, ReadLimiter::Slot slot,
                    std::move_only_function<Result<T>(const engine::IndexedState&)> work,
                    async::Done<Result<T>> then);
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
  void requests(ContextPtr ctx);
  void answer_approval(ContextPtr ctx);
  struct RequestWalk;
  void begin_walk(ContextPtr ctx, RequestWalk walk);
  void read_next_page(ContextPtr ctx, std::shared_ptr<RequestWalk> walk);
  void read_next_log(ContextPtr ctx, std::shared_ptr<RequestWalk> walk);
  struct OpenRequests;
  // What a call to approve would send; null for other requests.
  Value preview_of(const OpenRequests& open, const Value& approval) const;
  std::vector<Value> with_previews(OpenRequests open, bool approvals_only) const;
  void read_requests(const ContextPtr& ctx, const JobId& job, std::shared_ptr<RequestWalk> walk,
                     async::Done<Status> then);
  void mcp(ContextPtr ctx);

  // An agent of which jobs can be created here: from our file or the registry.
  struct OfferedAgent {
    std::shared_ptr<const agents::Agent>
        agent;  // nullptr: `refusal_reason` is the reason that it cannot run here
    std::string refusal_reason;
    std::uint64_t version = 0;                 // 0 = not registered
    std::shared_ptr<const engine::Plan> plan;  // compiled on first use
  };
  using OfferedAgents = std::map<std::string, OfferedAgent, std::less<>>;  // by name
  // Agents of a file, and the parser of registered ones.
  struct Source {
    const agents::AgentsFile* agents;
    std::shared_ptr<const agents::AgentsFile> owner;  // nullptr: borrowed
    ReadAgent read_agent;
  };
  Source source() const { return {options_.agents, file_, options_.read_agent}; }
  // Fails with not_found, needs_version (it cannot be run here), plan_invalid.
  Result<OfferedAgent*> find_offered_agent(std::string_view name);
  // nullptr: not offered here.
  const agents::Agent* find_agent(std::string_view name) const;
  Error missing_agent_error(std::string_view name) const;
  static Status compile(OfferedAgent& offer);
  Value agent_json(const std::string& name, const OfferedAgent& offer);
  // Continues when the registry is fresh, or when it cannot be read.
  void with_fresh_agents(async::Task then);
  void update_offered_agents();
  void request_answered();
  OfferedAgents build_offered_agents(const Source& source, bool registered,
                                     const OfferedAgents& before) const;
  void set_offered_agents(OfferedAgents offered_agents);
  // The agent versions to register: first the agents of the file that `is_ours` accepts, then the
  // registered ones whose plan changes with the rules of these tools. Fails with plan_invalid.
  Result<std::vector<store::AgentVersion>> agents_to_register(
      const Source& source, const std::function<bool(const std::string&)>& is_ours) const;
  std::set<std::string> changed_agents(const agents::AgentsFile& file) const;
  std::vector<AgentChange> apply_reload(AgentsReload edited);
  void register_next(std::shared_ptr<std::vector<store::AgentVersion>> versions,
                     async::Done<Status> done);
  void poll_registry();
  JobFacts job_facts(const JobId& job);
  bool has_no_owner() const { return is_owner_alive_ && !is_owner_alive_(); }
  Result<runtime::NewJobRequest> new_job(const RequestContext& ctx, const Value& body);
  // `more`: additional members of the body.
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
  void signal_as_operator(ContextPtr ctx, std::string id, engine::SignalRequest signal);
  // Reads of a job. The work runs on a reader thread: it uses its arguments and what it owns, never
  // the Api, the runtime or the request. What it needs of them is copied before (job_facts). Each
  // read has one of kConcurrentReadsMax slots until its result is on the loop. It is skipped, or
  // ends early, if the client disconnects.
  using Snapshot = runtime::JobSnapshot;
  template <class T>
  using Work = runtime::JobReader::Work<T>;
  template <class T>
  using LoadedWork = runtime::JobReader::LoadedWork<T>;
  // Responds with the body that `work` makes of the job in the path, rendered on the reader thread.
  // Has an ETag and handles If-None-Match: the body depends only on the log, the request and
  // RequestContext::view_facts.
  void read(ContextPtr ctx, Work<Value> work);
  // Passes the result of `work` to `then`. Fails as JobReader::read, and with unavailable when
  // there is no memory for another response. Defined in request_context.h.
  template <class T>
  void compute(const ContextPtr& ctx, const JobId& job, Work<T> work, async::Done<Result<T>> then);
  // The same with the stored bytes from event `from_seq` on.
  template <class T>
  void compute_loaded(const ContextPtr& ctx, const JobId& job, std::uint64_t from_seq,
                      LoadedWork<T> work, async::Done<Result<T>> then);
  template <class T>
  async::Done<Result<T>> hold_slot(const JobId& job, ReadLimiter::Slot slot,
                                   async::Done<Result<T>> then);
  void with_slot(const ContextPtr& ctx, async::Done<Result<ReadLimiter::Slot>> then);
  ResponseMaker response_maker(const ContextPtr& ctx);
  static async::Done<Result<ApiResponse>> respond(ContextPtr ctx);
  // Responds with 304 if the job's row shows that the client has the current view.
  void if_changed(const ContextPtr& ctx, const JobId& job, async::Task then);
  // Continues unless the job's row shows no event since the last read; then the request keeps
  // waiting.
  void when_progressed(const ContextPtr& ctx, const std::shared_ptr<LongPoll>& long_poll,
                       async::Task then);
  // Responds with a list, rendered on a reader thread.
  void answer_large(const ContextPtr& ctx, Value body);
  // The number of waiting requests is limited at admission (Authenticator, connections).
  void wait(const ContextPtr& ctx, const JobId& job, Duration most, ReadAttempt try_answer);
  void check_long_poll(const std::shared_ptr<LongPoll>& long_poll);
  std::shared_ptr<const store::Registry> registry_copy();

  async::Loop& loop_;
  async::SteadyClock& steady_;
  store::Store& store_;
  runtime::Runtime& runtime_;
  ApiOptions options_;  // its agents and their reader change with a reload
  OfferedAgents offered_agents_;
  std::shared_ptr<const agents::AgentsFile> file_;  // ours, after a reload; else borrowed
  // Agents of an unfinished reload, with their versions before it.
  std::map<std::string, std::uint64_t, std::less<>> reloading_;
  bool registers_agents_ = false;
  std::optional<async::TimerId> registry_timer_;
  std::list<std::shared_ptr<LongPoll>> long_polls_;
  std::size_t open_requests_ = 0;
  bool waits_stopped_ = false;
  async::Task all_answered_;  // set while `stop_waiting` waits for open requests
  ReadLimiter read_limiter_;
  runtime::History history_;
  Metrics metrics_;
  RegistryCache registry_;
  std::unique_ptr<Mcp> mcp_;
  std::shared_ptr<const JobGauges> gauges_;  // at most a few seconds old
  struct KeptCounts {
    Value body;
    Duration taken_at{};  // by the steady clock
  };
  std::map<std::string, KeptCounts> counts_;  // by query
  bool shutting_down_ = false;
  std::function<bool()> is_owner_alive_;  // empty: we own the store, or it is shared
  std::shared_ptr<const store::Registry> registry_copy_;  // for reader threads; may be outdated
  async::Alive alive_;
};

}  // namespace ae::api
