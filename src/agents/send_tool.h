// job:send (engine::kSendTool): the tool that sends a message or a signal to another job. The server performs its calls
// (runtime/service/job_messages.h).
//
// Threads: pure functions.
#pragma once

#include "agents/checks.h"

namespace ae::agents {

CheckedTool send_tool();

}  // namespace ae::agents
