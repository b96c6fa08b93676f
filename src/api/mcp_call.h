// Mcp::Call: what an MCP method works with: a message and its metadata. Only for the .cc files of
// Mcp.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/mcp.h"
#include "mcp/protocol/message.h"
#include "mcp/protocol/revision.h"

namespace ae::api {

struct Mcp::Call {
  ApiRequest caller;  // principal of route requests: no body, no headers
  mcp::Message message;
  mcp::Revision revision = mcp::kAssumedRevision;
  bool over_http = false;
  Value progress_token;           // null = no progress reports
  double reported_progress = -1;  // the last reported progress
  Duration until{};               // by the steady clock: then the call is answered
  Duration last_read_at{};        // … when the job was last read
  // What the message declares about its client; set by read_client().
  bool supports_tasks = false;
  bool supports_elicitation = false;  // its user can fill in a form
  bool requests_task = false;         // 2025-11-25: this call becomes a task
  async::Done<ApiResponse> done;

  bool modern() const { return mcp::is_modern(revision); }
  const Value& params() const { return message.params; }
  const Value& meta() const { return message.params["_meta"]; }
  const Value& client() const { return meta()[mcp::kClientCapabilities]; }
  void read_client();
  // Before it waits: frees the params of its message and their share of body memory.
  void drop_params();
  bool is_disconnected() const { return caller.disconnected.stop_requested(); }

  void refuse(mcp::RpcError error, int status = 0);
  void refuse_params(std::string what) {
    refuse(mcp::RpcError{.code = mcp::kInvalidParams, .message = std::move(what)});
  }
  // A refusal of a route, as an error of the protocol.
  void refuse(const ApiResponse& refused);
};

// A result with the error of a tool, so that the model can correct its call.
Value tool_error(mcp::Revision revision, const Value& problem);
// {content, structuredContent?, isError?, _meta} from a text and a value.
Value tool_result(mcp::Revision revision, std::string text, const Value& structured, bool failed,
                  const std::string& job = {});
// The result or current state of a job, as the result of the call that created it.
Value job_result(mcp::Revision revision, const Value& job);

// A duration in the format of the routes.
std::string in_milliseconds(Duration time);
// The elements of a list; none for any other value, so that a missing member is no error.
std::span<const Value> items_of(const Value& list);
// It has ended, or is blocked on a user or operator.
bool is_idle(const Value& job);
// An open request to an operator (inspect/requests_view.h), with its answer.
std::string request_text(const Value& request);
// What the job waits for, one per line, each with its answer.
std::string waits_text(const Value& job);
// A valid job id in `value`; nullopt: it is none.
std::optional<std::string> job_of(const Value& value);

}  // namespace ae::api
