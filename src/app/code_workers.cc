#include "app/code_workers.h"

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

routines::RemoteLimits& changeable_limits() {
  static routines::RemoteLimits limits;
  return limits;
}

}  // namespace

void set_worker_limits(const routines::RemoteLimits& limits) { changeable_limits() = limits; }
const routines::RemoteLimits& worker_limits() { return changeable_limits(); }

CodeWorkers::CodeWorkers(Parts parts) : parts_(std::move(parts)), clock_(parts_.store) {}

void CodeWorkers::add_native(std::vector<routines::NativeAgent> agents,
                             std::vector<routines::NativeFunction> functions,
                             routines::FunctionObserver observer) {
  function_threads_.emplace();
  native_.emplace(routines::NativeRoutines::Parts{.loop = parts_.loop,
                                                  .clock = clock_,
                                                  .steady_clock = parts_.steady,
                                                  .random = parts_.random,
                                                  .executor = &*function_threads_,
                                                  .observer = std::move(observer)});
  for (routines::NativeAgent& agent : agents) native_->add(std::move(agent));
  for (routines::NativeFunction& function : functions) native_->add(std::move(function));
  all_.add(*native_);
}

void CodeWorkers::accept_workers(WorkerCallbacks callbacks) {
  callbacks_ = std::move(callbacks);
  remote_.emplace(
      routines::RemoteRoutines::Parts{
          .loop = parts_.loop,
          .clock = clock_,
          .steady_clock = parts_.steady,
          .random = parts_.random,
          .earlier = this,
          .on_hello = [this](const routines::Definitions& offered) { return faults_of(offered); },
          .rank = callbacks_.rank,
          .on_change = callbacks_.on_change},
      worker_limits());
  all_.add(*remote_);
}

void CodeWorkers::on_left(std::string_view principal, std::string_view worker,
                          const routines::LeftCalls& left) {
  callbacks_.on_left({.key = std::string(principal), .name = std::string(worker)}, left);
}

void CodeWorkers::on_late(std::string_view principal, std::string_view worker,
                          const routines::CallName& call, const Outcome& outcome) {
  callbacks_.on_late({.key = std::string(principal), .name = std::string(worker)}, call, outcome);
}

// All or nothing of what a worker offers is accepted.
std::vector<routines::AgentFault> CodeWorkers::faults_of(
    const routines::Definitions& offered) const {
  const std::vector<agents::Diagnostic> diagnostics = callbacks_.on_worker(offered);
  std::vector<routines::AgentFault> faults;
  if (diagnostics.empty()) return faults;
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

Value CodeWorkers::workers_json() const {
  std::vector<Value> list;
  if (remote_) {
    for (const routines::WorkerSummary& one : remote_->workers()) list.push_back(to_json(one));
  }
  return Value::array(std::move(list));
}

}  // namespace ae::app
