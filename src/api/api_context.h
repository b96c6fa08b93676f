// ApiContext: what the handlers of all routes share. Only for the .cc files of this module.
//
// A handler is a free function of this and of a request (api/operations.h). A callback that may run
// after the Api is destroyed checks `alive` before it uses the context.
// Threads: the loop's.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "api/api.h"
#include "api/api_options.h"
#include "api/mcp.h"
#include "api/metrics.h"
#include "api/offered_agents.h"
#include "api/read_limiter.h"
#include "api/registry_cache.h"
#include "api/waiting_requests.h"
#include "async/alive.h"
#include "async/loop.h"
#include "json/value.h"
#include "runtime/scheduler/runtime.h"
#include "runtime/service/history.h"
#include "store/store.h"

namespace ae::api {

struct JobGauges;

// The response to a request for counts.
struct KeptCounts {
  Value body;
  Duration taken_at{};  // by the steady clock
};

// The OpenAPI document as it is sent. It does not change while the process runs.
struct OpenapiResponses {
  std::string etag;                                              // "" until the first request
  std::map<bool, std::shared_ptr<const RenderedBody>> rendered;  // by ApiRequest::accepts_gzip
};

struct ApiContext {
  // Borrows all references. `handle`: Api::handle, for the routes that MCP uses.
  ApiContext(async::Loop& loop_in, async::SteadyClock& steady_in, store::Store& store_in,
             runtime::Runtime& runtime_in, ApiOptions options_in, Mcp::RequestHandler handle)
      : loop(loop_in),
        steady(steady_in),
        store(store_in),
        runtime(runtime_in),
        options(std::move(options_in)),
        waiting(loop, steady, options.receives_commits),
        read_limiter(loop, kConcurrentReadsMax),
        history(loop, store, steady, runtime.reader().executor()),
        registry(steady, store, options.warn),
        agents(loop, store, runtime, registry, options),
        mcp(loop, steady, std::move(handle), options.version) {}
  ApiContext(const ApiContext&) = delete;
  ApiContext& operator=(const ApiContext&) = delete;

  bool has_no_owner() const { return is_owner_alive && !is_owner_alive(); }

  async::Loop& loop;
  async::SteadyClock& steady;
  store::Store& store;
  runtime::Runtime& runtime;
  ApiOptions options;  // a reload changes its agents and their parser
  WaitingRequests waiting;
  ReadLimiter read_limiter;
  runtime::History history;
  Metrics metrics;
  RegistryCache registry;
  OfferedAgents agents;
  Mcp mcp;
  std::shared_ptr<const JobGauges> gauges;   // at most a few seconds old
  std::map<std::string, KeptCounts> counts;  // by query
  OpenapiResponses openapi;
  std::size_t redactions = 0;            // in progress
  bool shutting_down = false;            // `/api/ready` fails
  std::function<bool()> is_owner_alive;  // empty: we own the store, or it is shared
  async::Alive alive;
};

}  // namespace ae::api
