// The calls in flight of a Server, shared by server.cc and server_elicitation.cc. Threads: the
// loop's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "mcp/client/server.h"

namespace ae::mcp::client {

// A tools/call on the wire. An InFlightCall waits for it, except while it is suspended.
struct Server::OpenCall {
  Tool tool;
  Key key;  // of the InFlightCall; suspended: of the try that asked
  std::int64_t request = 0;
  bool is_suspended = false;
  bool is_orphaned = false;             // cancelled or lost
  Value question = {};                  // id of the server's request; null: no answer is due
  std::optional<Outcome> outcome = {};  // the reply, if it came while suspended
  std::size_t bytes = 0;                // of that reply
  async::TimerId timer = 0;             // drops the suspended call
};

// A try whose caller waits for an outcome.
struct Server::InFlightCall {
  tools::Permit permit;
  tools::Call call;
  Tool tool;
  async::Done<Outcome> done;
  Duration send_by{}, started_at{};
  std::shared_ptr<OpenCall> open = nullptr;  // set once it is sent
  std::int64_t answer_ticket = 0;            // of a user's answer that is being sent; 0: none
  enum class EndReason { none, timeout, abandoned } end_reason = EndReason::none;
  async::TimerId timer = 0;
  bool is_warned = false;  // a declined question was reported
};

// The try that suspended the call, if these inputs belong to a suspended call.
std::optional<std::uint32_t> suspended_try_of(const Value& inputs);

// `server.tool`, with the server's name in the agents file.
std::string qualified_name(const Server::Tool& tool);

}  // namespace ae::mcp::client
