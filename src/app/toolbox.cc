#include "app/toolbox.h"

#include <utility>

#include "net/http_client.h"
#include "tools/command/command_tool.h"
#include "tools/command/processes.h"
#include "tools/http/http_tool.h"
#include "tools/native/native.h"
#include "tools/secrets.h"

namespace ae::app {
namespace {

const auto& natives() {
  static const auto functions = tools::native_functions();
  return functions;
}

class Drivers final : public Toolbox {
 public:
  Drivers(async::Loop& loop, async::SteadyClock& steady, const std::string& secrets_file)
      : loop_(loop), steady_(steady), secrets_(secrets_file), client_(loop), processes_(loop) {}

  Status add(const agents::ToolDefinition& tool, const std::string& folder) {
    AE_ASSIGN(auto made, make(tool, folder));
    performers_.add(tool.name, {std::move(made), tool.policy.version});
    return {};
  }
  runtime::Performers& performers() override { return performers_; }

 private:
  Result<std::unique_ptr<tools::Tool>> make(const agents::ToolDefinition& tool,
                                            const std::string& folder) {
    if (tool.kind == "http") {
      return tools::HttpTool::make(tool.definition,
                                   {.loop = loop_,
                                    .client = client_,
                                    .secrets = secrets_,
                                    .reads = tool.policy.effect == engine::EffectClass::read});
    }
    if (tool.kind == "command") {
      return tools::CommandTool::make(
          tool.definition, {.loop = loop_, .processes = processes_, .secrets = secrets_}, folder);
    }
    const auto function = natives().find(tool.definition.text("function"));
    if (tool.kind != "native" || function == natives().end()) {
      return fail(Code::plan_invalid, "this program has no such function");
    }
    return std::make_unique<tools::NativeTool>(loop_, steady_, function->second);
  }

  async::Loop& loop_;
  async::SteadyClock& steady_;
  tools::EnvironmentSecrets secrets_;
  net::HttpClient client_;
  tools::Processes processes_;
  runtime::Performers performers_;  // last: tools go before what they borrow
};

}  // namespace

Result<std::unique_ptr<Toolbox>> Toolbox::make(async::Loop& loop, async::SteadyClock& steady,
                                               const agents::AgentsFile& file,
                                               const std::string& folder,
                                               const std::string& secrets_file) {
  auto drivers = std::make_unique<Drivers>(loop, steady, secrets_file);
  for (const auto& [name, tool] : file.tools) {
    if (auto added = drivers->add(tool, folder); !added) {
      return std::unexpected(std::move(added).error().in("tool " + name));
    }
  }
  return drivers;
}

bool has_native(std::string_view name) { return natives().contains(name); }

}  // namespace ae::app
