// What a Server has under way: server.cc and server_people.cc share it. Threads: the loop's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "tools/mcp/server.h"

namespace ae::tools::mcp {

// A tools/call on the wire. Its flight waits for it; while it is kept, nobody does.
struct Server::Open {
  Tool tool;
  Key key;  // of the flight; kept: of the try that asked
  std::int64_t request = 0;
  bool kept = false;
  bool astray = false;                  // given up, or lost
  Value question = {};                  // the server's request; null: it wants no answer
  std::optional<Outcome> outcome = {};  // … its reply has come
  std::size_t bytes = 0;                // … of that
  async::TimerId timer = 0;             // … until then
};

// A try that somebody waits for.
struct Server::Flight {
  Permit permit;
  Call call;
  Tool tool;
  async::Done<Outcome> done;
  Duration send_by{}, began{};
  std::shared_ptr<Open> open = nullptr;  // once it is sent
  std::int64_t telling = 0;              // the answer of a person that is on its way; 0: none is
  enum class Ends { by_itself, timeout, abandoned } ends = Ends::by_itself;
  async::TimerId timer = 0;
  bool warned = false;  // that what it asked was declined
};

// The try after which a call was kept, if these inputs are for such a one.
std::optional<std::uint32_t> asked_at_of(const Value& inputs);

// `server` and its tool, as the agents file names them.
std::string named(const Server::Tool& tool);

}  // namespace ae::tools::mcp
