// Which agents are offered here, their registration, and reloads of the agents file.
#include "api/offered_agents.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "api/authenticator.h"
#include "api/command_line.h"
#include "json/json.h"
#include "log/field_names.h"

namespace ae::api {
namespace {

constexpr Duration kRegistryPoll = std::chrono::seconds(1);  // for new registrations
constexpr std::size_t kAgentsMax = 1'000;
constexpr std::size_t kVersionsMax = 1'000;  // per agent: each is applied at every start
constexpr std::string_view kRegisteredByServe = "serve";

// Can a version of this agent be added to a store with `agents` agents? Fails with input_invalid.
Status check_capacity(const store::Registry& registry, std::size_t agents, std::string_view name) {
  const auto of = registry.agents().find(name);
  if (of == registry.agents().end() && agents >= kAgentsMax) {
    return fail(Code::input_invalid,
                "a store can have at most {} agents: use a registered name for agent {}",
                kAgentsMax, name.substr(0, 64));
  }
  if (of != registry.agents().end() && of->second.size() >= kVersionsMax) {
    return fail(Code::input_invalid,
                "agent {} has {} versions, the maximum: use another name for it",
                name.substr(0, 64), kVersionsMax);
  }
  return {};
}

std::string first_diagnostic_text(const std::vector<agents::Diagnostic>& diagnostics) {
  const agents::Diagnostic& first = diagnostics.front();
  const std::string place = first.path.empty() ? "" : fmt::format("{}: ", first.path);
  const std::size_t more = diagnostics.size() - 1;
  return more == 0 ? place + first.message
                   : fmt::format("{}{} (and {} more)", place, first.message, more);
}

}  // namespace

std::optional<std::size_t> rank_of(const store::Registry& registry, std::string_view agent,
                                   std::string_view code_version) {
  const auto found = registry.agents().find(agent);
  if (code_version.empty() || found == registry.agents().end()) return std::nullopt;
  const auto& versions = found->second;
  for (std::size_t place = versions.size(); place-- > 0;) {
    if (versions[place].definition[field::code].text(field::version) == code_version) return place;
  }
  return std::nullopt;
}

bool is_superseded(const store::Registry& registry, std::string_view agent,
                   std::string_view code_version) {
  const auto place = rank_of(registry, agent, code_version);
  return place && *place + 1 < registry.agents().find(agent)->second.size();
}

OfferedAgents::OfferedAgents(async::Loop& loop, store::Store& store, runtime::Runtime& runtime,
                             RegistryCache& registry, ApiOptions& options)
    : loop_(loop), store_(store), runtime_(runtime), registry_(registry), options_(options) {
  update();
}

OfferedAgents::~OfferedAgents() {
  if (registry_timer_) loop_.cancel(*registry_timer_);
}

const agents::Agent* OfferedAgents::find_agent(std::string_view name) const {
  const auto found = offered_.find(name);
  return found == offered_.end() ? nullptr : found->second.agent.get();
}

Error OfferedAgents::missing_error(std::string_view name) const {
  std::string names;
  for (const auto& [known, offer] : offered_) {
    if (offer.agent) names.append(names.empty() ? "; there is " : ", ").append(known);
  }
  return {
      Code::not_found,
      fmt::format("there is no agent \"{}\" here{}. An agent of code is here once a worker that "
                  "offers it has connected",
                  name.substr(0, 64), names),
      Action{.act = act::kWorkers}};
}

Status OfferedAgent::compile() {
  if (!plan) {
    AE_ASSIGN(plan, engine::Plan::compile(agent->task_graph));
  }
  return {};
}

Result<OfferedAgent*> OfferedAgents::find(std::string_view name) {
  const auto found = offered_.find(name);
  if (found == offered_.end()) return std::unexpected(missing_error(name));
  OfferedAgent& offer = found->second;
  if (!offer.agent) {
    return fail(Code::needs_version, "version {} of agent \"{}\" is not available here: {}",
                offer.version, name, offer.refusal_reason);
  }
  AE_TRY(offer.compile());
  return &offer;
}

// The file's agents, overridden by the newest registered versions. Unchanged offers are taken from
// `before`.
OfferedAgents::ByName OfferedAgents::build(const Source& source, bool registered,
                                           const ByName& before) const {
  ByName offered;
  if (source.agents) {
    for (const auto& [name, agent] : source.agents->agents) {
      // The first file is borrowed and outlives us.
      const std::shared_ptr<const agents::Agent> ours(source.owner, &agent);
      offered[name] = {.agent = ours, .refusal_reason = {}, .version = 0, .plan = nullptr};
    }
  }
  if (!registered) return offered;
  for (const auto& [name, versions] : registry_.registry().agents()) {
    const store::AgentVersion& newest = versions.back();
    OfferedAgent& offer = offered[name];
    const auto known = before.find(name);
    const bool kept = known != before.end() &&
                      (known->second.version == newest.version || reloading_.contains(name));
    if (kept) {
      offer = known->second;
      continue;
    }
    offer.version = newest.version;
    if (offer.agent && offer.agent->definition == newest.definition) continue;
    auto agent = std::make_shared<agents::Agent>();
    const auto diagnostics = source.read_agent(name, canonical(newest.definition), *agent);
    offer.agent = diagnostics.empty() ? std::move(agent) : nullptr;
    if (!diagnostics.empty()) offer.refusal_reason = first_diagnostic_text(diagnostics);
  }
  return offered;
}

void OfferedAgents::update() {
  ByName offered = build(source(), registers_, offered_);
  // An agent that a reload adds uses the tools of the edited file: it is offered when the reload is
  // complete.
  for (const auto& [name, version] : reloading_) {
    if (!offered_.contains(name)) offered.erase(name);
  }
  set(std::move(offered));
}

void OfferedAgents::set(ByName offered) {
  offered_ = std::move(offered);
  if (!registers_ || !options_.runs) return;
  std::vector<std::string> names;
  std::map<std::string, std::string, std::less<>> versions;
  std::set<std::string, std::less<>> code;
  for (const auto& [name, offer] : offered_) {
    // Jobs of the file's agents continue under their older versions.
    const bool in_file = options_.agents->agents.contains(name);
    if (!offer.agent && !in_file) continue;
    names.push_back(name);
    const agents::Agent& agent =
        offer.agent ? *offer.agent : options_.agents->agents.find(name)->second;
    versions[name] = agent.execution_version.empty() ? options_.version : agent.execution_version;
    if (agent.is_code()) code.insert(name);
  }
  runtime_.offer(std::move(names), std::move(versions), std::move(code));
}

void OfferedAgents::when_fresh(async::Task then) {
  registry_.refresh_if_older(kKeyCacheTtl,
                             [alive = alive_.watch(), then = std::move(then)](Status) mutable {
                               if (alive) then();
                             });
}

// ---------------------------------------------------------------- registering

void OfferedAgents::register_all(async::Done<Status> done) {
  AE_CHECK(options_.read_agent, "a server with agents has read_agent");
  registry_.refresh_if_older(
      Duration(0), [this, alive = alive_.watch(), done = std::move(done)](Status read) mutable {
        if (!read) return done(std::move(read));
        if (!alive) return;
        // At startup the file takes precedence.
        auto found = versions_to_register(source(), [](const std::string&) { return true; });
        if (!found) return done(std::unexpected(std::move(found).error()));
        registers_ = true;
        set(build(source(), true, {}));
        auto fresh = std::make_shared<std::vector<store::AgentVersion>>(*std::move(found));
        registry_.on_change([this] { update(); });
        if (!store_.owned()) poll_registry();
        std::ranges::reverse(*fresh);
        register_next(std::move(fresh), std::move(done));
      });
}

Result<std::vector<store::AgentVersion>> OfferedAgents::versions_to_register(
    const Source& source, const std::function<bool(const std::string&)>& is_ours) const {
  std::vector<store::AgentVersion> fresh;
  for (const bool registered : {false, true}) {
    for (auto& [name, offer] : build(source, registered, {})) {
      const bool of_file = source.agents->agents.contains(name) && is_ours(name);
      if (!offer.agent || of_file == registered) continue;
      AE_TRY(offer.compile());
      const std::string plan_hash = to_hex(offer.plan->hash);
      const store::AgentVersion* const newest = registry_.registry().newest(name);
      const bool same = newest != nullptr && newest->plan_hash == plan_hash &&
                        newest->definition == offer.agent->definition;
      if (same) continue;
      // An older worker of code has connected: new jobs stay with the newest version.
      if (of_file && is_superseded(registry_.registry(), name,
                                   offer.agent->definition[field::code].text(field::version))) {
        continue;
      }
      fresh.push_back({.name = name,
                       .version = 0,
                       .plan_hash = plan_hash,
                       .definition = offer.agent->definition,
                       .registered_at = store_.now(),
                       .by = std::string(kRegisteredByServe)});
    }
  }
  return fresh;
}

// ---------------------------------------------------------------- reloading

// Agents that differ from the previous file, or whose last reload did not finish.
std::set<std::string> OfferedAgents::changed_agents(const agents::AgentsFile& file) const {
  std::set<std::string> changed;
  for (const auto& [name, agent] : file.agents) {
    const auto before = options_.agents->agents.find(name);
    const bool same = before != options_.agents->agents.end() &&
                      before->second.definition == agent.definition &&
                      before->second.task_graph == agent.task_graph;
    if (!same || reloading_.contains(name)) changed.insert(name);
  }
  return changed;
}

void OfferedAgents::reload(AgentsReload edited,
                           async::Done<Result<std::vector<AgentChange>>> done) {
  AE_CHECK(registers_, "agents are not registered here");
  registry_.refresh_if_older(Duration(0), [this, alive = alive_.watch(), edited = std::move(edited),
                                           done = std::move(done)](Status read) mutable {
    if (!read) return done(std::unexpected(read.error()));
    if (!alive) return;
    const Source source{edited.file.get(), edited.file, edited.read_agent};
    const std::set<std::string> changed = changed_agents(*edited.file);
    auto fresh = versions_to_register(
        source, [&](const std::string& name) { return changed.contains(name); });
    if (!fresh) return done(std::unexpected(std::move(fresh).error()));
    std::size_t agents = registry_.registry().agents().size();
    for (const store::AgentVersion& one : *fresh) {
      if (auto room = check_capacity(registry_.registry(), agents, one.name); !room) {
        return done(std::unexpected(std::move(room).error()));
      }
      if (registry_.registry().newest(one.name) == nullptr) ++agents;
    }
    // Until all are registered, new jobs use the versions that were offered before.
    for (const store::AgentVersion& one : *fresh) {
      const store::AgentVersion* const newest = registry_.registry().newest(one.name);
      reloading_.emplace(one.name, newest == nullptr ? 0 : newest->version);
    }
    std::ranges::reverse(*fresh);
    auto versions = std::make_shared<std::vector<store::AgentVersion>>(*std::move(fresh));
    register_next(std::move(versions), [this, alive, edited = std::move(edited),
                                        done = std::move(done)](Status written) mutable {
      if (!written) return done(std::unexpected(written.error()));
      if (alive) done(apply_reload(std::move(edited)));
    });
  });
}

std::vector<AgentChange> OfferedAgents::apply_reload(AgentsReload edited) {
  edited.begin();
  const auto old = std::exchange(file_, std::move(edited.file));
  options_.agents = file_.get();
  options_.read_agent = std::move(edited.read_agent);
  std::vector<AgentChange> changes;
  for (const auto& [name, from] : std::exchange(reloading_, {})) {
    const store::AgentVersion* const newest = registry_.registry().newest(name);
    const std::uint64_t to = newest == nullptr ? 0 : newest->version;
    if (to != from) changes.push_back({name, from, to});
  }
  set(build(source(), true, {}));
  return changes;
}

void OfferedAgents::follow_registry(async::Done<Status> done) {
  AE_CHECK(options_.read_agent, "a server with agents has read_agent");
  registry_.refresh_if_older(
      Duration(0), [this, alive = alive_.watch(), done = std::move(done)](Status read) mutable {
        if (!read) return done(std::move(read));
        if (!alive) return;
        registers_ = true;
        update();
        registry_.on_change([this] { update(); });
        if (!store_.owned()) poll_registry();
        done({});
      });
}

void OfferedAgents::register_next(std::shared_ptr<std::vector<store::AgentVersion>> versions,
                                  async::Done<Status> done) {
  if (versions->empty()) return registry_.refresh_if_older(Duration(0), std::move(done));
  const store::AgentVersion version = std::move(versions->back());
  versions->pop_back();
  store_.append_audit_entry(store::agent_registered(version),
                            [this, alive = alive_.watch(), versions,
                             done = std::move(done)](Result<void> written) mutable {
                              if (!written) return done(std::unexpected(written.error()));
                              if (alive) register_next(std::move(versions), std::move(done));
                            });
}

void OfferedAgents::poll_registry() {
  registry_timer_ = loop_.after(kRegistryPoll, [this] {
    registry_timer_.reset();
    registry_.refresh_if_older(kRegistryPoll, [](Status) {});
    poll_registry();
  });
}

void OfferedAgents::register_version(store::AgentVersion version, async::Done<Result<bool>> done) {
  registry_.refresh_if_older(Duration(0), [this, alive = alive_.watch(),
                                           version = std::move(version),
                                           done = std::move(done)](Status read) mutable {
    if (!read) return done(std::unexpected(std::move(read).error()));
    if (!alive) return;
    const store::AgentVersion* const newest = registry_.registry().newest(version.name);
    if (newest != nullptr && newest->plan_hash == version.plan_hash &&
        newest->definition == version.definition) {
      // A failed reload may have registered it; now that a client registers it, it is offered.
      if (reloading_.erase(version.name) > 0) update();
      return done(false);
    }
    const std::size_t agents = registry_.registry().agents().size();
    if (auto room = check_capacity(registry_.registry(), agents, version.name); !room) {
      return done(std::unexpected(std::move(room).error()));
    }
    store_.append_audit_entry(
        store::agent_registered(version),
        [this, alive, name = version.name, done = std::move(done)](Result<void> written) mutable {
          if (!written) return done(std::unexpected(std::move(written).error()));
          if (!alive) return;
          reloading_.erase(name);
          registry_.refresh_if_older(Duration(0), [done = std::move(done)](Status seen) mutable {
            if (!seen) return done(std::unexpected(std::move(seen).error()));
            done(true);
          });
        });
  });
}

}  // namespace ae::api
