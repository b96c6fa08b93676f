#include "app/code_workers.h"

#include <fmt/core.h>

#include <utility>

namespace ae::app {
namespace {

// A function, for calls that no code requests.
class BorrowedTool final : public tools::Tool {
 public:
  explicit BorrowedTool(tools::Tool& tool) : tool_(tool) {}
  void perform(tools::Permit permit, tools::Call call, async::Done<Outcome> done) override {
    tool_.perform(std::move(permit), std::move(call), std::move(done));
  }
  void abandon(const InvocationId& invocation, std::uint32_t try_no) override {
    tool_.abandon(invocation, try_no);
  }

 private:
  tools::Tool& tool_;
};

}  // namespace

CodeWorkers::CodeWorkers(Parts parts) : parts_(std::move(parts)), clock_(parts_.store) {}

void CodeWorkers::add_native(std::vector<routines::NativeAgent> agents,
                             std::vector<routines::NativeFunction> functions) {
  function_threads_.emplace();
  native_.emplace(routines::NativeRoutines::Parts{.loop = parts_.loop,
                                                  .clock = clock_,
                                                  .steady_clock = parts_.steady,
                                                  .random = parts_.random,
                                                  .executor = &*function_threads_});
  for (routines::NativeAgent& agent : agents) native_->add(std::move(agent));
  for (routines::NativeFunction& function : functions) native_->add(std::move(function));
  all_.add(*native_);
}

void CodeWorkers::accept_workers(OnWorker on_worker, std::function<void()> on_change) {
  remote_.emplace(routines::RemoteRoutines::Parts{
      .loop = parts_.loop,
      .clock = clock_,
      .steady_clock = parts_.steady,
      .random = parts_.random,
      .on_hello =
          [this, on_worker = std::move(on_worker)](const routines::Definitions& offered) {
            return faults_of(on_worker, offered);
          },
      .on_change = std::move(on_change)});
  all_.add(*remote_);
}

// All or nothing of what a worker offers is accepted.
std::vector<routines::AgentFault> CodeWorkers::faults_of(
    const OnWorker& on_worker, const routines::Definitions& offered) const {
  const std::vector<agents::Diagnostic> diagnostics = on_worker(offered);
  std::vector<routines::AgentFault> faults;
  if (diagnostics.empty()) return faults;
  parts_.warn(fmt::format("the agents of the worker {} are not accepted: {}", offered.worker,
                          agents::diagnostics_text(diagnostics)));
  const Value all = agents::diagnostics_json(diagnostics)["faults"];
  for (const routines::WorkerAgent& agent : offered.agents) {
    faults.push_back({.name = agent.name, .version = agent.version, .faults = all});
  }
  return faults;
}

void CodeWorkers::add_functions(const agents::AgentsFile& file, runtime::ToolRegistry& registry) {
  for (const auto& [name, tool] : file.tools) {
    if (!tool.policy.function) continue;
    tools::Tool* function = native_ ? native_->tool(name) : nullptr;
    if (function == nullptr && remote_) function = remote_->tool(name);
    if (function == nullptr) continue;
    const auto* const known = registry.find(name, tool.policy.version);
    if (known != nullptr && known->version == tool.policy.version) continue;
    registry.renew(name, {std::make_unique<BorrowedTool>(*function), tool.policy.version});
  }
}

}  // namespace ae::app
