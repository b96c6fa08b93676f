// What a method of MCP works with: a message and what it says of itself. Only for the .cc files of Mcp.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/mcp.h"
#include "mcp/message.h"
#include "mcp/revision.h"

namespace ae::api {

struct Mcp::Call {
  ApiRequest caller;  // as which the routes are asked: without its body and headers
  mcp::Message message;
  mcp::Revision revision = mcp::kAssumedRevision;
  bool over_http = false;
  Value progress_token;           // null = no progress is to be told
  double reported_progress = -1;  // the progress that was told last
  Duration until{};         // of the steady clock: then the call is answered, whatever there is
  Duration last_read_at{};  // … when the job was looked at last
  // What the message says of its client, by read_client().
  bool supports_tasks = false;
  bool supports_elicitation = false;  // its user can be asked, in a form
  bool requests_task = false;         // 2025-11-25: this very call is to be a task
  async::Done<ApiResponse> done;

  bool modern() const { return mcp::is_modern(revision); }
  const Value& params() const { return message.params; }
  const Value& meta() const { return message.params["_meta"]; }
  const Value& client() const { return meta()[mcp::kClientCapabilities]; }
  void read_client();
  // Before it waits: it keeps neither the params of its message nor their share of the room for bodies.
  void drop_params();
  bool is_disconnected() const { return caller.disconnected && *caller.disconnected; }

  void refuse(mcp::RpcError error, int status = 0);
  void refuse_params(std::string what) {
    refuse(mcp::RpcError{.code = mcp::kInvalidParams, .message = std::move(what)});
  }
  // What a route refused, as an error of the protocol.
  void refuse(const ApiResponse& refused);
};

// A result that says what went wrong with a tool, so that a model can do better.
Value tool_error(mcp::Revision revision, const Value& problem);
// {content, structuredContent?, isError?, _meta} of a text and a value.
Value tool_result(mcp::Revision revision, std::string text, const Value& structured, bool failed,
                  const std::string& job = {});
// What a job came to, or stands at, as the result of the call that made it.
Value job_result(mcp::Revision revision, const Value& job);

// As a route reads a time.
std::string in_milliseconds(Duration time);
// Of a list; of anything else none, so that nothing that a route leaves out can stop us.
std::span<const Value> items_of(const Value& list);
bool has_ended(const Value& job);
// It has ended, or does not go on without somebody.
bool is_idle(const Value& job);
// What it waits for, one a line, each with what answers it.
std::string waits_text(const Value& job);
// What must be an id of a job in `value`; nullopt: it can be none.
std::optional<std::string> job_of(const Value& value);

}  // namespace ae::api
