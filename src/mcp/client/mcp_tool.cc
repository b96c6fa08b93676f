#include "mcp/client/mcp_tool.h"

namespace ae::mcp::client {

Result<std::unique_ptr<McpTool>> McpTool::make(const Value& definition,
                                               std::shared_ptr<Server> server) {
  Server::Tool tool{.server = std::string(definition.text("server")),
                    .name = std::string(definition.text("tool")),
                    .digest = std::string(definition.text("digest"))};
  if (tool.name.empty() || tool.digest.empty()) {
    return fail(Code::plan_invalid, "an MCP tool is an object with at least tool and digest");
  }
  if (const Value* most = definition.find("output_max")) {
    if (!most->is_integer() || most->as_int() < 1 ||
        most->as_int() > static_cast<std::int64_t>(kMessageMax)) {
      return fail(Code::plan_invalid, "output_max: it must be a size of 1 to 4MiB");
    }
    tool.output_max = static_cast<std::size_t>(most->as_int());
  }
  return std::unique_ptr<McpTool>(
      new McpTool(std::move(server), std::move(tool), std::string(definition.text("server"))));
}

}  // namespace ae::mcp::client
