// The open requests of jobs, as responses show them.
//
// Threads: pure functions; `call_preview` the loop's, because tools make previews there.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "api/api_context.h"
#include "base/ids.h"
#include "base/time.h"
#include "engine/state/state.h"
#include "inspect/request_kind.h"
#include "json/value.h"

namespace ae::api {

// requests_view with commands in the place of actions. Expired requests are left out, also when
// their expiry is not recorded yet.
std::vector<Value> open_requests(const engine::State& state, Instant now);
// The same from requests_view.
std::vector<Value> open_requests(std::vector<Value> requests, Instant now);

bool is_kind(const Value& request, engine::RequestKind kind);

// What the preview of a call needs of its job.
struct PreviewedJob {
  JobId job;
  std::string blind;
  std::shared_ptr<const engine::Plan> plan;

  static PreviewedJob of(const engine::State& state);
};

// What the call of a request would send with these arguments; of an unknown outcome, what it sent.
// null: the request has no call, its arguments were erased, or this process does not have the tool.
// {error}: it cannot be sent.
Value call_preview(const ApiContext& api, const PreviewedJob& job, const Value& request,
                   const Value& arguments);

}  // namespace ae::api
