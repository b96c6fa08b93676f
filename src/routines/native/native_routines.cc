#include "routines/native/native_routines.h"

#include <fmt/core.h>

#include <algorithm>

#include "routines/missing_function.h"
#include "routines/native/execution.h"
#include "tools/output.h"

namespace ae::routines {
namespace {

constexpr std::string_view kRunPrefix = "run:";

}  // namespace

// A registered function, for calls of any origin.
class NativeRoutines::FunctionTool final : public tools::Tool {
 public:
  FunctionTool(Functions& calls, Function function)
      : calls_(calls), function_(std::make_shared<const Function>(std::move(function))) {}
  void perform(tools::Permit permit, tools::Call call, async::Done<Outcome> done) override {
    calls_.perform(function_, std::move(permit), std::move(call), std::move(done));
  }
  void abandon(const InvocationId& invocation, std::uint32_t try_no) override {
    calls_.abandon(invocation, try_no);
  }
  const std::shared_ptr<const Function>& function() const { return function_; }

 private:
  Functions& calls_;
  const std::shared_ptr<const Function> function_;
};

// One routine, and the tool that performs the calls of its functions.
class NativeRoutines::NativeRoutine final : public Routine, private tools::Tool {
 public:
  NativeRoutine(NativeRoutines& provider, Execution::Setup setup)
      : provider_(provider),
        place_(setup.place),
        execution_(std::make_shared<Execution>(std::move(setup))) {}
  ~NativeRoutine() override {
    execution_->drop();
    if (begun_) provider_.on_dropped(place_);
  }
  bool begin() { return begun_ = execution_->begin(); }

  void deliver(std::vector<engine::Delivery> outcomes) override {
    execution_->deliver(std::move(outcomes), provider_.parts_.clock.now());
  }
  tools::Tool& functions() override { return *this; }

 private:
  void perform(tools::Permit permit, tools::Call call, async::Done<Outcome> done) override;
  void abandon(const InvocationId& invocation, std::uint32_t try_no) override {
    provider_.calls_.abandon(invocation, try_no);
  }
  std::shared_ptr<const Function> function_for(const tools::Call& call) const;

  NativeRoutines& provider_;
  const std::shared_ptr<RoutineThreads::Place> place_;
  const std::shared_ptr<Execution> execution_;
  bool begun_ = false;
};

std::shared_ptr<const Function> NativeRoutines::NativeRoutine::function_for(
    const tools::Call& call) const {
  if (call.tool.starts_with(kRunPrefix)) return execution_->function_of(call.position);
  const auto found = provider_.tools_.find(call.tool);
  return found == provider_.tools_.end() ? nullptr : found->second->function();
}

void NativeRoutines::NativeRoutine::perform(tools::Permit permit, tools::Call call,
                                            async::Done<Outcome> done) {
  auto function = function_for(call);
  if (function == nullptr) {
    return provider_.parts_.loop.post([done = std::move(done), tool = call.tool]() mutable {
      done(tools::make_outcome(OutcomeKind::failure, true, true, "not_sent",
                               fmt::format("this routine has no function for \"{}\"", tool)));
    });
  }
  std::string position = call.position;
  provider_.calls_.perform(
      std::move(function), std::move(permit), std::move(call),
      [weak = std::weak_ptr(execution_), position = std::move(position),
       &clock = provider_.parts_.clock, done = std::move(done)](Outcome outcome) mutable {
        FunctionEnd end{.done = std::move(done), .outcome = std::move(outcome)};
        if (const auto execution = weak.lock()) {
          return execution->on_function_end(position, std::move(end), clock.now());
        }
        end.done(std::move(end.outcome));
      });
}

NativeRoutines::NativeRoutines(const Parts& parts)
    : parts_(parts),
      calls_(parts.loop, parts.steady_clock, parts.executor, parts.observer),
      threads_(parts.limits) {}

NativeRoutines::~NativeRoutines() = default;

void NativeRoutines::add(NativeAgent agent) {
  AE_CHECK(agent.body != nullptr, agent.name);
  AE_CHECK(std::ranges::none_of(agents_,
                                [&](const NativeAgent& one) {
                                  return one.name == agent.name && one.version == agent.version;
                                }),
           agent.name);
  agents_.push_back(std::move(agent));
}

void NativeRoutines::add(NativeFunction function) {
  AE_CHECK(function.function != nullptr && !function.name.starts_with(kRunPrefix), function.name);
  const bool is_new =
      tools_.emplace(function.name, std::make_unique<FunctionTool>(calls_, function.function))
          .second;
  AE_CHECK(is_new, function.name);
  functions_.push_back(std::move(function));
}

tools::Tool* NativeRoutines::tool(std::string_view name) const {
  const auto found = tools_.find(name);
  return found == tools_.end() ? nullptr : found->second.get();
}

// Are all functions that the plan grants the agent registered here?
bool NativeRoutines::has_functions(const engine::Plan& plan, std::uint32_t node) const {
  return first_missing_function(plan, node,
                                [&](const std::string& name) { return tools_.contains(name); })
      .empty();
}

std::optional<MissingFunction> NativeRoutines::missing_function(const engine::Plan& plan,
                                                                std::uint32_t node) const {
  const auto agent = std::ranges::find(agents_, plan.nodes[node].code->agent, &NativeAgent::name);
  if (agent == agents_.end()) return std::nullopt;
  std::string name = first_missing_function(
      plan, node, [&](const std::string& one) { return tools_.contains(one); });
  if (name.empty()) return std::nullopt;
  return MissingFunction{.version = agent->version, .name = std::move(name)};
}

engine::OfferedCode NativeRoutines::offered(const engine::Plan& plan, std::uint32_t node,
                                            std::string_view) const {
  engine::OfferedCode offered{.versions = {}, .own_missing_for = Duration::max()};
  if (!has_functions(plan, node)) return offered;
  for (const NativeAgent& agent : agents_) {
    if (agent.name == plan.nodes[node].code->agent) offered.versions.push_back(agent.version);
  }
  return offered;
}

std::vector<AgentVersion> NativeRoutines::agent_versions() const {
  std::vector<AgentVersion> all;
  all.reserve(agents_.size());
  for (const NativeAgent& agent : agents_) all.push_back({agent.name, agent.version});
  return all;
}

std::unique_ptr<Routine> NativeRoutines::start(RoutineStart start) {
  const auto agent = std::ranges::find_if(agents_, [&](const NativeAgent& one) {
    return one.name == start.plan->nodes[start.node].code->agent && one.version == start.version;
  });
  if (agent == agents_.end() || !has_functions(*start.plan, start.node)) return nullptr;
  auto place = threads_.reserve();
  if (place == nullptr) return nullptr;
  std::array<std::uint64_t, 4> entropy{};
  for (std::uint64_t& word : entropy) word = parts_.random.next();
  auto routine =
      std::make_unique<NativeRoutine>(*this, Execution::Setup{.start = std::move(start),
                                                              .body = agent->body,
                                                              .loop = parts_.loop,
                                                              .clock = parts_.steady_clock,
                                                              .now = parts_.clock.now(),
                                                              .entropy = entropy,
                                                              .threads = threads_,
                                                              .place = std::move(place)});
  if (!routine->begin()) return nullptr;
  return routine;
}

// Its threads return soon. Those that do not are counted.
void NativeRoutines::on_dropped(const std::shared_ptr<RoutineThreads::Place>& place) {
  if (place->threads() == 0) return;
  parts_.loop.after(kReturnGrace, [this, alive = alive_.watch(), weak = std::weak_ptr(place)] {
    if (!alive || weak.expired()) return;
    std::erase_if(abandoned_, [](const auto& one) { return one.expired(); });
    abandoned_.push_back(weak);
  });
}

std::size_t NativeRoutines::abandoned_threads() const {
  std::size_t threads = 0;
  for (const auto& weak : abandoned_) {
    if (const auto place = weak.lock()) threads += place->threads();
  }
  return threads;
}

}  // namespace ae::routines
