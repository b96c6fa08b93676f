#include "app/toolbox.h"

#include <fmt/core.h>
#include <unistd.h>

#include <chrono>
#include <set>
#include <tuple>
#include <utility>

#include "app/instance.h"
#include "app/secret_names.h"
#include "json/json.h"
#include "llm/provider.h"
#include "mcp/client/mcp_tool.h"
#include "net/http_client.h"
#include "tools/command/command_tool.h"
#include "tools/command/processes.h"
#include "tools/command/sandbox.h"
#include "tools/command/stdio_processes.h"
#include "tools/http/http_tool.h"
#include "tools/native/native_pool.h"
#include "tools/secrets.h"
#include "tools/verify/verify.h"

namespace ae::app {
namespace {

tools::NativeFunctions& natives() {
  static tools::NativeFunctions functions = tools::built_in_functions();
  return functions;
}

class DriverToolbox final : public Toolbox {
 public:
  DriverToolbox(async::Loop& loop, async::SteadyClock& steady, const std::string& secrets_file,
                std::vector<std::string> closed, std::size_t descriptors, Warn warn)
      : loop_(loop),
        steady_(steady),
        warn_(std::move(warn)),
        secrets_(secrets_file),
        client_(loop),
        processes_(loop, "/proc/self/exe", descriptors, std::move(closed)),
        stdio_processes_(processes_, secrets_),
        reader_(loop) {}

  Status add(const agents::ToolDefinition& tool, const std::string& folder) {
    if (!has_transport(tool)) return {};
    AE_ASSIGN(auto entry, entry_of(tool, folder));
    install_tool(tool, folder, std::move(entry), false);
    return {};
  }

  Result<async::Task> update_tools(const agents::AgentsFile& file,
                                   const ToolFolders& folders) override {
    std::vector<NewTool> fresh;
    std::set<std::string> used;  // servers
    for (const auto* offered : {&file.tools, &file.models}) {
      for (const auto& [name, tool] : *offered) {
        const std::string& folder = folders.of(name);
        if (!has_transport(tool)) continue;
        if (tool.kind == "mcp") used.insert(server_key(tool.definition, folder));
        if (is_known(tool, folder)) continue;
        if (tool_registry_.all(name).size() >= kVersionsMax) {
          return fail(Code::input_invalid,
                      "tool {} has {} versions since the start, the maximum: restart the server",
                      name, kVersionsMax);
        }
        auto entry = entry_of(tool, folder);
        if (!entry)
          return std::unexpected(
              std::move(entry).error().with_context(fmt::format("tool {}", name)));
        fresh.push_back({tool, folder, *std::move(entry)});
      }
    }
    return [this, fresh = std::move(fresh), used = std::move(used)]() mutable {
      for (NewTool& one : fresh) install_tool(one.tool, one.folder, std::move(one.entry), true);
      std::erase_if(servers_, [](const auto& entry) { return entry.second.expired(); });
      for (const auto& [key, weak] : servers_) {
        const bool old = !used.contains(key);
        weak.lock()->set_idle_timeout(old ? std::optional(kOldServerIdle) : std::nullopt);
      }
    };
  }
  runtime::ToolRegistry& tool_registry() override { return tool_registry_; }

  std::vector<std::string> short_secrets() override {
    std::vector<std::string> names;
    for (const std::string& name : secret_names_) {
      const auto secret = secrets_.get(name);
      // A missing secret is reported when it is needed.
      if (secret && secret->reveal().size() < tools::kSecretHiddenMin) names.push_back(name);
    }
    return names;
  }

 private:
  // False: the engine computes its value, or a worker or the runtime performs it.
  static bool has_transport(const agents::ToolDefinition& tool) {
    return tool.policy.makes_call() && !tool.policy.function && !tool.policy.is_of_runtime();
  }

  // Idle time after which a server that only older versions of tools use is stopped; a call
  // restarts it.
  static constexpr Duration kOldServerIdle = std::chrono::seconds(2);

  struct KnownTool {
    agents::ToolDefinition tool;
    std::string folder;
  };
  struct NewTool {
    agents::ToolDefinition tool;
    std::string folder;
    runtime::ToolRegistry::Entry entry;
  };

  static std::string server_key(const Value& definition, const std::string& folder) {
    return canonical(Value::array({Value(folder), definition["server"], definition["connection"]}));
  }

  bool is_known(const agents::ToolDefinition& tool, const std::string& folder) const {
    const auto known = known_.find(tool.name);
    return known != known_.end() && known->second.folder == folder &&
           known->second.tool.kind == tool.kind &&
           known->second.tool.definition == tool.definition &&
           known->second.tool.verify == tool.verify &&
           known->second.tool.policy.version == tool.policy.version &&
           known->second.tool.policy.effect == tool.policy.effect;
  }

  Result<runtime::ToolRegistry::Entry> entry_of(const agents::ToolDefinition& tool,
                                                const std::string& folder) {
    AE_ASSIGN(auto made, make(tool, folder));
    std::unique_ptr<tools::Verifier> verifier;
    if (!tool.verify.is_null()) {
      auto made_verifier =
          tools::make_verifier(tool.verify, {.loop = loop_,
                                             .client = client_,
                                             .secrets = secrets_,
                                             .reader = reader_,
                                             .folder = folder,
                                             .denied_paths = processes_.denied_paths()});
      if (!made_verifier)
        return std::unexpected(std::move(made_verifier).error().with_context("verify"));
      verifier = *std::move(made_verifier);
    }
    return runtime::ToolRegistry::Entry{std::move(made), tool.policy.version, std::move(verifier)};
  }

  void install_tool(const agents::ToolDefinition& tool, const std::string& folder,
                    runtime::ToolRegistry::Entry entry, bool replaces) {
    if (replaces) {
      tool_registry_.renew(tool.name, std::move(entry));
    } else {
      tool_registry_.add(tool.name, std::move(entry));
    }
    known_.insert_or_assign(tool.name, KnownTool{tool, folder});
    for (std::string& name : secret_names_of(tool)) {
      // Registered before the first call, so that it is redacted from the output of other tools,
      // too.
      std::ignore = secrets_.get(name);
      secret_names_.insert(std::move(name));
    }
  }

  Result<std::unique_ptr<tools::Tool>> make(const agents::ToolDefinition& tool,
                                            const std::string& folder) {
    if (tool.kind == "http") {
      return tools::HttpTool::make(
          tool.definition, {.loop = loop_,
                            .client = client_,
                            .secrets = secrets_,
                            .is_read_only = tool.policy.effect == engine::EffectClass::read});
    }
    if (tool.kind == "command") {
      return tools::CommandTool::make(
          tool.definition, {.loop = loop_, .processes = processes_, .secrets = secrets_}, folder);
    }
    if (auto provider = llm::provider_of(tool.kind, tool.definition)) {
      return make_model(*std::move(provider));
    }
    if (tool.kind == "mcp") return make_mcp_tool(tool.definition, folder);
    const auto found = natives().find(tool.definition.text("function"));
    if (tool.kind != "native" || found == natives().end()) {
      return fail(Code::plan_invalid, "this program has no such function");
    }
    tools::NativeTool::Options options;
    if (!found->second.runs_inline) options.executor = &functions_;
    if (const Value* timeout = tool.definition.find("heartbeat_timeout")) {
      AE_ASSIGN(options.heartbeat, duration_from_text(timeout->as_string()));
    }
    return std::make_unique<tools::NativeTool>(loop_, steady_, found->second.function, options);
  }

  // All tools of a server share its connection.
  Result<std::unique_ptr<tools::Tool>> make_mcp_tool(const Value& definition,
                                                     const std::string& folder) {
    const Value& connection = definition["connection"];
    std::weak_ptr<mcp::client::Server>& known = servers_[server_key(definition, folder)];
    std::shared_ptr<mcp::client::Server> server = known.lock();
    if (!server) {
      known = server = mcp::client::Server::make(connection, folder,
                                                 {.loop = loop_,
                                                  .stdio_processes = stdio_processes_,
                                                  .client = client_,
                                                  .secrets = secrets_,
                                                  .version = std::string(kVersion),
                                                  .warn = warn_});
    }
    return mcp::client::McpTool::make(definition, server);
  }

  Result<std::unique_ptr<tools::Tool>> make_model(llm::Provider provider) {
    // A new connection for each call: a kept one that the provider has closed would look like a
    // lost response.
    AE_ASSIGN(auto http,
              tools::HttpTool::make(
                  provider.transport,
                  {.loop = loop_, .client = client_, .secrets = secrets_, .is_read_only = false}));
    return std::make_unique<llm::ModelTool>(loop_, std::move(http), std::move(provider.codec));
  }

  async::Loop& loop_;
  async::SteadyClock& steady_;
  Warn warn_;
  tools::EnvironmentSecrets secrets_;
  net::HttpClient client_;
  tools::Processes processes_;
  tools::SupervisedStdioProcesses stdio_processes_;
  tools::BlockingReader reader_;
  tools::NativeThreadPool functions_;
  std::set<std::string> secret_names_;
  std::map<std::string, KnownTool, std::less<>> known_;                // as last read
  std::map<std::string, std::weak_ptr<mcp::client::Server>> servers_;  // owned by their tools
  runtime::ToolRegistry tool_registry_;  // last: destroyed before what tools borrow
};

}  // namespace

Result<std::unique_ptr<Toolbox>> Toolbox::make(async::Loop& loop, async::SteadyClock& steady,
                                               const agents::AgentsFile& file,
                                               const ToolFolders& folders,
                                               const std::string& secrets_file,
                                               std::vector<std::string> closed,
                                               std::size_t descriptors, Warn warn) {
  auto drivers = std::make_unique<DriverToolbox>(loop, steady, secrets_file, std::move(closed),
                                                 descriptors, std::move(warn));
  for (const auto& [name, tool] : file.tools) {
    if (auto added = drivers->add(tool, folders.of(name)); !added) {
      return std::unexpected(std::move(added).error().with_context(fmt::format("tool {}", name)));
    }
  }
  for (const auto& [name, model] : file.models) {
    if (auto added = drivers->add(model, folders.of(name)); !added) {
      return std::unexpected(std::move(added).error().with_context(name));
    }
  }
  return drivers;
}

Status check_usable(const agents::ToolDefinition& tool, const std::string& folder) {
  if (tool.kind == "command") return tools::CommandTool::check(tool.definition, folder);
  if (tool.kind == "mcp" && tool.definition["connection"].find("command") != nullptr) {
    auto can = tools::SupervisedStdioProcesses::check(tool.definition["connection"], folder);
    return can ? Status() : std::unexpected(std::move(can).error().with_context("mcp"));
  }
  const auto found = natives().find(tool.definition.text("function"));
  const bool runs_inline =
      tool.kind == "native" && found != natives().end() && found->second.runs_inline;
  if (runs_inline && tool.definition.find("heartbeat_timeout") != nullptr) {
    return fail(
        Code::plan_invalid,
        "heartbeat_timeout: the function {} returns at once and reports nothing: leave it out",
        found->first);
  }
  return {};
}

SandboxFeatures sandbox_features() {
  const tools::SandboxSupport& can = tools::sandbox_support();
  return {.landlock = can.landlock,
          .files = can.landlock >= tools::kLandlockForFiles,
          .tracing = can.landlock >= tools::kLandlockForTracing,
          .signals = can.landlock >= tools::kLandlockForSignals,
          .network = can.network_namespaces,
          .processes = can.user_namespaces && ::geteuid() != 0,
          .root = ::geteuid() == 0};
}

bool has_running_functions() { return tools::NativeThreadPool::abandoned_threads() > 0; }

void set_native_functions(tools::NativeFunctions functions) { natives() = std::move(functions); }

bool has_native(std::string_view name) { return natives().contains(name); }

}  // namespace ae::app
