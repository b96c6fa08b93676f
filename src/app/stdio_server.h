// StdioServer: MCP on standard input and output, one message a line.
//
// Whoever started this process is the one client; when they close our input they are done. What they do not read is kept up
// to a bound, and then they are taken for gone. Threads: two of its own read and write; everything else on the loop's.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "api/mcp.h"
#include "async/loop.h"
#include "mcp/revision.h"

namespace ae::app {

constexpr std::size_t kStdioOpenMax = 64;          // requests at once
constexpr std::size_t kStdioUnreadMax = 64 << 20;  // bytes that the client has not read

class StdioServer {
 public:
  struct Options {
    int in = 0, out = 1;  // borrowed
    std::string by;       // who asks, for the record
    // Called once: the client is done, and all that it asked is answered; or it is gone (`lost`), or our time is over.
    std::function<void(bool lost)> on_ended;
    // How long what is asked when the input ends has still.
    Duration grace = std::chrono::seconds(10);
    // The input has ended: who waits is to be answered with what there is. May be empty.
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
  std::shared_ptr<Impl> impl_;  // shared with answers under way
};

}  // namespace ae::app
