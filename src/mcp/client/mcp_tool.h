// McpTool: one tool of an MCP server, as declared in an agents file (docs/mcp.md). Threads: as for
// Tool.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "base/error.h"
#include "log/field_names.h"
#include "mcp/client/server.h"
#include "tools/tool.h"

namespace ae::mcp::client {

class McpTool final : public tools::Tool {
 public:
  // {server, connection, tool, digest, output_max?}. All tools of a server share `server`.
  // Fails with plan_invalid.
  static Result<std::unique_ptr<McpTool>> make(const Value& definition,
                                               std::shared_ptr<Server> server);

  void perform(tools::Permit permit, tools::Call call, async::Done<Outcome> done) override {
    server_->perform(std::move(permit), std::move(call), tool_, std::move(done));
  }
  void abandon(const InvocationId& invocation, std::uint32_t try_no) override {
    server_->abandon(invocation, try_no);
  }
  Result<Value> preview(const tools::Call& call) override {
    return Value::object(
        {{field::arguments, call.args}, {"server", server_name_}, {"tool", tool_.name}});
  }

 private:
  McpTool(std::shared_ptr<Server> server, Server::Tool tool, std::string name)
      : server_(std::move(server)), tool_(std::move(tool)), server_name_(std::move(name)) {}
  std::shared_ptr<Server> server_;
  Server::Tool tool_;
  std::string server_name_;  // its name in the agents file
};

}  // namespace ae::mcp::client
