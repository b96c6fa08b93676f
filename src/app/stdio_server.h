// StdioServer: MCP on standard input and output, one message per line.
//
// The parent process is the only client; it disconnects by closing our input. Unread output is
// buffered up to a limit; then the client counts as lost. Threads: two own threads read and write;
// everything else runs on the loop's.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "api/mcp.h"
#include "async/loop.h"
#include "mcp/protocol/revision.h"

namespace ae::app {

constexpr std::size_t kStdioOpenMax = 64;          // concurrent requests
constexpr std::size_t kStdioUnreadMax = 64 << 20;  // bytes that the client has not read

class StdioServer {
 public:
  struct Options {
    int in = 0, out = 1;  // borrowed
    std::string by;       // the client, for the audit log and events
    // Called once: after the client closed the input and all requests are answered or `grace` has
    // expired; or when it is lost (`lost`).
    std::function<void(bool lost)> on_ended;
    // Time left for open requests after the end of the input.
    Duration grace = std::chrono::seconds(10);
    // The input has ended: waiting requests are to be answered with the current state. May be
    // empty.
    std::function<void()> on_input_end;
  };

  // Borrows the loop and the Mcp; both outlive this.
  StdioServer(async::Loop& loop, api::Mcp& mcp, Options options);
  ~StdioServer();
  StdioServer(const StdioServer&) = delete;
  StdioServer& operator=(const StdioServer&) = delete;

  void begin();

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;  // shared with open requests
};

}  // namespace ae::app
