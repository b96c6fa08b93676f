// Reads of jobs and lists through the API, for commands that only read.
//
// Threads: one.
#pragma once

#include <memory>
#include <string>

#include "api/api.h"
#include "app/api_client.h"
#include "app/store_url.h"
#include "base/error.h"
#include "cli/command.h"
#include "json/value.h"

namespace ae::cli {

// The body of a GET request, without the empty members of `query`.
Result<Value> get(app::ApiClient& client, api::Path path, api::QueryPairs query);
// Opens an existing store. If there is none, the job `id` is reported as not found; "" = no job.
Result<std::unique_ptr<app::ApiClient>> open_to_read(const app::StoreUrl& store,
                                                     const std::string& id);
// GET /api/jobs/ID/WHAT; `what` "" = the job itself.
Result<Value> get_job_view(const CommonOptions& options, const std::string& id,
                           const std::string& what, api::QueryPairs query = {});
// A page of the items in the member `list`. A server may return a short page although there are
// more items: requests more until it is full.
Result<Value> full_page(app::ApiClient& client, const api::Path& path, api::QueryPairs query,
                        const std::string& list, const std::string& limit);
// "a=1 b=2"
std::string labels_text(const Value& labels);

}  // namespace ae::cli
