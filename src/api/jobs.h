// Jobs in lists, and new jobs: what several resources use. Only for the .cc files of this module.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "api/api_context.h"
#include "api/request_context.h"

namespace ae::api {

// A job's row and summary (inspect/summary.h), as in lists. The summary of a job that runs here is
// that of its state, which is newer than the stored one.
Value listed_job(ApiContext& api, const store::JobRow& row);

// The cursor of a list: `ID@NUMBER`, or the id alone. The number stays valid after that job is
// deleted.
std::string cursor_of(const store::JobRow& row);
void apply_cursor(std::string_view cursor, store::Filter& filter);

// GET /api/jobs?stuck=true and ?in_doubt=true.
void list_stuck_jobs(ApiContext& api, RequestPtr ctx);
void list_in_doubt_jobs(ApiContext& api, RequestPtr ctx);

// Checks the values of `body`, and the input against the schema of the agent. Fails with
// input_invalid, not_found, needs_version, plan_invalid, unsupported.
Result<runtime::NewJobRequest> new_job(ApiContext& api, const RequestContext& ctx,
                                       const Value& body);
// Responds with the job, after ?wait. `more`: additional members of the body.
void answer_created(ApiContext& api, RequestPtr ctx, const JobId& job, int status,
                    std::vector<Member> more = {});

}  // namespace ae::api
