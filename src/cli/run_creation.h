// The job of a run: found by its id, or created.
//
// Threads: one.
#pragma once

#include <functional>
#include <string>

#include "agents/agents_file.h"
#include "api/api.h"
#include "base/error.h"
#include "cli/run_params.h"
#include "cli/terminal.h"
#include "json/value.h"

namespace ae::cli {

using SendRequest = std::function<Result<api::ApiResponse>(const api::ApiRequest&)>;

// The id of a new job: a UUID, version 7.
std::string new_job_id();
// GET /api/jobs/ID
api::ApiRequest get_job(const std::string& id);
// It has ended, or is blocked on something other than a timer.
bool is_idle(const Value& job);
// Finds the job of this run by its id, or creates it. `plan_hash`: of the plan that it must have;
// "" = any. `runs_here`: this process runs it. Fails with already_exists (the job has another agent
// or input), usage (a new job without an agent), and the errors of the API.
Result<Value> find_or_create_job(const RunParams& params, const RunOptions& options,
                                 const agents::AgentsFile& file, const std::string& plan_hash,
                                 const SendRequest& send, bool runs_here, Terminal& terminal);

}  // namespace ae::cli
