// Control requests of handlers. Only for the .cc files of this module.
#pragma once

#include "api/api_context.h"
#include "api/request_context.h"
#include "engine/heart/ingest.h"

namespace ae::api {

// Sends the request to the job in the path, and responds: `status`, 202 for a request that the job
// accepted and applies later, 200 for a repeated one.
void submit_request(ApiContext& api, RequestPtr ctx, engine::ControlRequest control, int status);

}  // namespace ae::api
