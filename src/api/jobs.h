// Jobs in lists, and new jobs: what several resources use. Only for the .cc files of this module.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/api_context.h"
#include "api/request_context.h"

namespace ae::api {

// A job of a list: its row, and what only the loop knows of it.
struct ListedJob {
  store::JobRow row;
  std::optional<Value> live_summary;  // of the state of a job that runs here; newer than the row's
};
ListedJob listed_job(ApiContext& api, store::JobRow row);
// The row and summary (inspect/summary.h), as in lists. `registry`: RegistryCache::copy.
// Threads: any.
Value listed_job_json(const ListedJob& job, const store::Registry& registry);

// The cursor of a list: `ID@NUMBER`, or the id alone. The number stays valid after that job is
// deleted.
std::string cursor_of(const store::JobRow& row);
void apply_cursor(std::string_view cursor, store::Filter& filter);

// GET /api/jobs?stalled=true and ?in_doubt=true.
void list_stuck_jobs(ApiContext& api, RequestPtr ctx);
void list_in_doubt_jobs(ApiContext& api, RequestPtr ctx);
// GET /api/jobs?parent=ID.
void list_children(ApiContext& api, RequestPtr ctx);

// Checks the values of `body`, and the input against the schema of the agent. Fails with
// input_invalid, not_found, needs_version, plan_invalid, unsupported.
Result<runtime::NewJobRequest> new_job(ApiContext& api, const ApiRequest& request,
                                       const Value& body);
// Responds with the job, after ?wait. `more`: additional members of the body.
void answer_created(ApiContext& api, RequestPtr ctx, const JobId& job, int status,
                    std::vector<Member> more = {});

}  // namespace ae::api
