// OfferedAgents: the agents of which jobs can be created here.
//
// They are the agents of our file and the registered ones of the audit log (store/registry.h).
// Which of the latter can run here depends on the tools of our file. Threads: the loop's.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "agents/agents_file.h"
#include "api/api_options.h"
#include "api/registry_cache.h"
#include "async/alive.h"
#include "async/loop.h"
#include "base/error.h"
#include "plan/plan.h"
#include "runtime/scheduler/runtime.h"
#include "store/registry.h"
#include "store/store.h"

namespace ae::api {

struct OfferedAgent {
  std::shared_ptr<const agents::Agent>
      agent;  // nullptr: `refusal_reason` is the reason that it cannot run here
  std::string refusal_reason;
  std::uint64_t version = 0;                 // 0 = not registered
  std::shared_ptr<const engine::Plan> plan;  // compiled on first use

  // REQUIRES: `agent`. Fails with plan_invalid.
  Status compile();
};

// An edited agents file.
struct AgentsReload {
  std::shared_ptr<const agents::AgentsFile> file;
  ReadAgent read_agent;
  async::Task begin;  // adds the tools of the file
};
struct AgentChange {
  std::string name;
  std::uint64_t from = 0, to = 0;  // versions; from 0: a new agent
};

// The place of the agent's code of this version among the registered versions of the agent, the
// newest last; nullopt: it is not registered.
std::optional<std::size_t> rank_of(const store::Registry& registry, std::string_view agent,
                                   std::string_view code_version);
// Does a later version of this agent's code follow the one that was registered?
bool is_superseded(const store::Registry& registry, std::string_view agent,
                   std::string_view code_version);

class OfferedAgents {
 public:
  using ByName = std::map<std::string, OfferedAgent, std::less<>>;

  // Borrows all arguments. A reload changes the agents and their parser in `options`.
  OfferedAgents(async::Loop& loop, store::Store& store, runtime::Runtime& runtime,
                RegistryCache& registry, ApiOptions& options);
  ~OfferedAgents();
  OfferedAgents(const OfferedAgents&) = delete;
  OfferedAgents& operator=(const OfferedAgents&) = delete;

  // Registers the agents of our file. Agents then come from the registry, and new jobs use the
  // newest version of each. Fails with unavailable, unknown_outcome.
  void register_all(async::Done<Status> done);
  // The same without registering: for a process that only runs agents of the registry.
  void follow_registry(async::Done<Status> done);
  // After an edit of the file: registers each agent that differs from the previous file. When all
  // are registered, `begin` is called and new jobs use the new versions; a failure before that
  // leaves the current versions in use. Returns the registered agents, by name. REQUIRES:
  // register_all; one reload at a time. Fails with plan_invalid, unavailable, unknown_outcome.
  void reload(AgentsReload edited, async::Done<Result<std::vector<AgentChange>>> done);
  // Registers one version, and offers it. False: it was the newest version before. Fails with
  // input_invalid (too many agents or versions), unavailable, unknown_outcome.
  void register_version(store::AgentVersion version, async::Done<Result<bool>> done);
  // Are agents registered by this process?
  bool registers() const { return registers_; }

  // Continues when the registry is fresh, or when it cannot be read.
  void when_fresh(async::Task then);
  ByName& by_name() { return offered_; }
  // With its plan. Fails with not_found, needs_version (it cannot be run here), plan_invalid.
  Result<OfferedAgent*> find(std::string_view name);
  // nullptr: not offered here.
  const agents::Agent* find_agent(std::string_view name) const;
  Error missing_error(std::string_view name) const;

 private:
  // Agents of a file, and the parser of registered ones.
  struct Source {
    const agents::AgentsFile* agents;
    std::shared_ptr<const agents::AgentsFile> owner;  // nullptr: borrowed
    ReadAgent read_agent;
  };
  Source source() const { return {options_.agents, file_, options_.read_agent}; }
  ByName build(const Source& source, bool registered, const ByName& before) const;
  void update();
  void set(ByName offered);
  // The agent versions to register: first the agents of the file that `is_ours` accepts, then the
  // registered ones whose plan changes with the rules of these tools. Fails with plan_invalid.
  Result<std::vector<store::AgentVersion>> versions_to_register(
      const Source& source, const std::function<bool(const std::string&)>& is_ours) const;
  std::set<std::string> changed_agents(const agents::AgentsFile& file) const;
  std::vector<AgentChange> apply_reload(AgentsReload edited);
  void register_next(std::shared_ptr<std::vector<store::AgentVersion>> versions,
                     async::Done<Status> done);
  void poll_registry();

  async::Loop& loop_;
  store::Store& store_;
  runtime::Runtime& runtime_;
  RegistryCache& registry_;
  ApiOptions& options_;
  ByName offered_;
  std::shared_ptr<const agents::AgentsFile> file_;  // ours, after a reload; else borrowed
  // Agents of an unfinished reload, with their versions before it.
  std::map<std::string, std::uint64_t, std::less<>> reloading_;
  bool registers_ = false;
  std::optional<async::TimerId> registry_timer_;
  async::Alive alive_;
};

}  // namespace ae::api
