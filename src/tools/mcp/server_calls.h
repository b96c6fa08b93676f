// What a Server has under way: server.cc and server_elicitation.cc share it. Threads: the loop's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "tools/mcp/server.h"

namespace ae::tools::mcp {

// A tools/call on the wire. Its flight waits for it; while it is kept, nobody does.
struct Server::OpenCall {
  Tool tool;
  Key key;  // of the flight; kept: of the try that asked
  std::int64_t request = 0;
  bool is_suspended = false;
  bool is_orphaned = false;             // given up, or lost
  Value question = {};                  // the server's request; null: it wants no answer
  std::optional<Outcome> outcome = {};  // … its reply has come
  std::size_t bytes = 0;                // … of that
  async::TimerId timer = 0;             // … until then
};

// A try that somebody waits for.
struct Server::InFlightCall {
  Permit permit;
  Call call;
  Tool tool;
  async::Done<Outcome> done;
  Duration send_by{}, started_at{};
  std::shared_ptr<OpenCall> open = nullptr;  // once it is sent
  std::int64_t answer_ticket = 0;  // the answer of a person that is on its way; 0: none is
  enum class EndReason { none, timeout, abandoned } end_reason = EndReason::none;
  async::TimerId timer = 0;
  bool is_warned = false;  // that what it asked was declined
};

// The try after which a call was kept, if these inputs are for such a one.
std::optional<std::uint32_t> suspended_try_of(const Value& inputs);

// `server` and its tool, as the agents file names them.
std::string qualified_name(const Server::Tool& tool);

}  // namespace ae::tools::mcp
