// ApiOptions: what an Api may do in this process, and what it gets from there.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "agents/agents_file.h"
#include "api/api_request.h"
#include "async/loop.h"
#include "base/error.h"
#include "base/ids.h"
#include "json/value.h"
#include "runtime/service/prune.h"
#include "store/measured_store.h"

namespace ae::api {

// Parses an agent, given as JSON.
using ReadAgent = std::function<std::vector<agents::Diagnostic>(
    std::string_view name, std::string_view json, agents::Agent& out)>;

// A call of a tool of our file, to show what it would send.
struct PreviewedCall {
  std::string_view tool;
  JobId job;
  StepId step;
  Value arguments;
  std::string_view blind;
  std::string_view version;  // of the tool
  // "" = the call is not declared yet.
  IdempotencyKey key = {};
  ExternalKey external_key = {};
  InvocationId invocation = {};
};

struct ApiOptions {
  const agents::AgentsFile* agents = nullptr;  // of which jobs can be created here; nullptr = none
  bool runs = false;                           // created jobs start here at once
  bool receives_commits = true;                // on_events is called for each commit to this store
  ReadAgent read_agent{};  // with the tools of `agents`; empty = no agents are registered here
  const store::MeasuredStore* measured = nullptr;  // source of latencies; nullptr = none
  // Opens a folder of this machine as the archive of deleted jobs; empty = no archiving here.
  std::function<Result<std::shared_ptr<runtime::Archive>>(const std::string& folder)> archive{};
  bool health_only = false;  // serve health, ready and metrics only
  // Called for each refused request: method and path, status, code. May be empty.
  std::function<void(const ApiRequest&, int, std::string_view)> on_refused = {};
  std::string version;
  std::string store;  // for health
  // What a call would send (tools::Tool::preview); empty = unavailable here.
  std::function<Result<Value>(const PreviewedCall&)> preview = {};
  async::RandomSource* random_source = nullptr;  // generates keys; nullptr = none are created here
  // The connected workers of code, an array of objects. Empty: none can connect.
  std::function<Value()> code_workers = {};
  std::function<void(const std::string&)> warn{};  // about invalid entries of the store; or empty
};

}  // namespace ae::api
