// Tests of Toolbox: which tools of an agents file get a transport.
#include "app/toolbox.h"

#include <map>
#include <string>
#include <string_view>

#include "net/asio_loop.h"
#include "net/system.h"
#include "testing/test.h"

namespace ae::app {
namespace {

agents::AgentsFile file_with(std::string_view tools) {
  agents::AgentsFile file;
  const std::string text = "aetheris: 1\ntools: { " + std::string(tools) +
                           " }\nagents: { a: { plan: [ { id: x, tool: score } ] } }\n";
  EXPECT_TRUE(agents::load({.name = "agents.yaml",
                            .text = text,
                            .env = {},
                            .native = {},
                            .usable = [](const auto& tool) { return check_usable(tool, "/"); }},
                           file)
                  .empty())
      << text;
  return file;
}

AE_TEST("toolbox/a tool of a worker has no transport, also after a reload") {
  net::AsioLoop loop;
  net::BootClock steady;
  const std::string folder = "/";
  const std::map<std::string, std::string, std::less<>> others;
  const ToolFolders folders{folder, others};
  auto toolbox = Toolbox::make(loop, steady,
                               file_with("score: { worker: score, heartbeat_timeout: 1s }, "
                                         "echo: { native: echo }, later: { native: echo }"),
                               folders, "");
  ASSERT_TRUE(toolbox.has_value()) << toolbox.error().message;
  runtime::ToolRegistry& registry = (*toolbox)->tool_registry();
  EXPECT_EQ(registry.find("score"), nullptr);
  EXPECT_NE(registry.find("echo"), nullptr);
  auto begin = (*toolbox)->update_tools(
      file_with("score: { worker: other }, echo: { native: echo }, later: { worker: later }"),
      folders);
  ASSERT_TRUE(begin.has_value()) << begin.error().message;
  (*begin)();
  EXPECT_EQ(registry.find("score"), nullptr);
  EXPECT_EQ(registry.all("later").size(), 1u) << "running jobs keep the older version";
}

}  // namespace
}  // namespace ae::app
