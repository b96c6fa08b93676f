// Api: the routes of docs/openapi.json, without a transport.
//
// A socket, a command or a test passes in a request and gets one response; the response does not
// depend on the transport. Everything a route knows about a job comes from its log, through the
// views of engine. The Api finds the route and checks role, query and body; the handler of the
// operation does the rest (docs/decisions/0090-handlers.md). Threads: the loop's.
#pragma once

#include <cstddef>
#include <expected>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "api/api_options.h"
#include "api/api_request.h"
#include "api/offered_agents.h"
#include "api/registry_cache.h"
#include "api/routes.h"
#include "async/loop.h"
#include "log/event.h"
#include "runtime/scheduler/runtime.h"
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
  static bool reads(EventType type);
  // Another process ended the job or left it blocked: wakes requests that wait for the job.
  void on_idle(const JobId& job);
  // Answers waiting requests, and those that come, with the current state, so that the process can
  // end. Calls `answered` on the loop when no request is open.
  void stop_waiting(async::Task answered = {});
  // Counts a rate-limited request.
  void count_rejection(std::string_view type);
  // For a read-only process without the lock of a single-owner store: tests whether an owner is
  // running. If not, jobs are shown as unattended.
  void set_owner_probe(std::function<bool()> is_owner_alive);
  // The request for a child job. Fails as POST /api/jobs.
  void make_child_request(const runtime::ChildJobSpec& spec,
                          async::Done<Result<runtime::NewJobRequest>> done);
  // The process is shutting down: `/api/ready` fails.
  void begin_shutdown();

  // The response that can be sent before the body of a request is read: 404, 405, or 403 for a role
  // without the access. nullopt: the route accepts the request.
  std::optional<ApiResponse> refuse_before_body(std::string_view method, const Path& path,
                                                Role role) const;

  // Keys and agents, as cached by this process.
  RegistryCache& registry();
  OfferedAgents& agents();

 private:
  // The route, or the refusal.
  std::expected<const Route*, ApiResponse> route_of(std::string_view method, const Path& path,
                                                    Role role) const;
  void request_answered();

  const std::unique_ptr<ApiContext> context_;  // what the handlers use
  std::size_t open_requests_ = 0;
  async::Task all_answered_;  // set while `stop_waiting` waits for open requests
};

}  // namespace ae::api
