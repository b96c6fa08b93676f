// Agents: those of our file, and registered ones from the audit log (store/registry.h). Which of
// the latter can run here depends on the tools of our file.
#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <utility>

#include "api/authenticator.h"
#include "api/request_context.h"
#include "api/stuck.h"
#include "api/views.h"
#include "json/json.h"
#include "log/field_names.h"
#include "plan/plan.h"
#include "store/rules.h"

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

// ---------------------------------------------------------------- offered agents

const agents::Agent* Api::find_agent(std::string_view name) const {
  const auto found = offered_agents_.find(name);
  return found == offered_agents_.end() ? nullptr : found->second.agent.get();
}

Error Api::missing_agent_error(std::string_view name) const {
  std::string names;
  for (const auto& [known, offer] : offered_agents_) {
    if (offer.agent) names.append(names.empty() ? "; there is " : ", ").append(known);
  }
  return {Code::not_found,
          fmt::format("there is no agent \"{}\" here{}", name.substr(0, 64), names)};
}

Status Api::compile(OfferedAgent& offer) {
  if (!offer.plan) {
    AE_ASSIGN(offer.plan, engine::Plan::compile(offer.agent->task_graph));
  }
  return {};
}

Result<Api::OfferedAgent*> Api::find_offered_agent(std::string_view name) {
  const auto found = offered_agents_.find(name);
  if (found == offered_agents_.end()) return std::unexpected(missing_agent_error(name));
  OfferedAgent& offer = found->second;
  if (!offer.agent) {
    return fail(Code::needs_version, "version {} of agent \"{}\" is not available here: {}",
                offer.version, name, offer.refusal_reason);
  }
  AE_TRY(compile(offer));
  return &offer;
}

// The file's agents, overridden by the newest registered versions. Unchanged offers are taken from
// `before`.
Api::OfferedAgents Api::build_offered_agents(const Source& source, bool registered,
                                             const OfferedAgents& before) const {
  OfferedAgents offered_agents;
  if (source.agents) {
    for (const auto& [name, agent] : source.agents->agents) {
      // The first file is borrowed and outlives us.
      const std::shared_ptr<const agents::Agent> ours(source.owner, &agent);
      offered_agents[name] = {.agent = ours, .refusal_reason = {}, .version = 0, .plan = nullptr};
    }
  }
  if (!registered) return offered_agents;
  for (const auto& [name, versions] : registry_.registry().agents()) {
    const store::AgentVersion& newest = versions.back();
    OfferedAgent& offer = offered_agents[name];
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
  return offered_agents;
}

void Api::update_offered_agents() {
  OfferedAgents offered_agents = build_offered_agents(source(), registers_agents_, offered_agents_);
  // An agent that a reload adds uses the tools of the edited file: it is offered when the reload is
  // complete.
  for (const auto& [name, version] : reloading_) {
    if (!offered_agents_.contains(name)) offered_agents.erase(name);
  }
  set_offered_agents(std::move(offered_agents));
}

void Api::set_offered_agents(OfferedAgents offered_agents) {
  offered_agents_ = std::move(offered_agents);
  if (!registers_agents_ || !options_.runs) return;
  std::vector<std::string> names;
  std::map<std::string, std::string, std::less<>> versions;
  for (const auto& [name, offer] : offered_agents_) {
    // Jobs of the file's agents continue under their older versions.
    const bool in_file = options_.agents->agents.contains(name);
    if (!offer.agent && !in_file) continue;
    names.push_back(name);
    const agents::Agent& agent =
        offer.agent ? *offer.agent : options_.agents->agents.find(name)->second;
    versions[name] = agent.execution_version.empty() ? options_.version : agent.execution_version;
  }
  runtime_.offer(std::move(names), std::move(versions));
}

void Api::with_fresh_agents(async::Task then) {
  registry_.refresh_if_older(kKeyCacheTtl,
                             [alive = alive_.watch(), then = std::move(then)](Status) mutable {
                               if (alive) then();
                             });
}

std::shared_ptr<const store::Registry> Api::registry_copy() {
  const store::Registry& now = registry_.registry();
  if (!registry_copy_ || registry_copy_->seq() != now.seq()) {
    registry_copy_ = std::make_shared<const store::Registry>(now);
  }
  return registry_copy_;
}

JobFacts Api::job_facts(const JobId& job) {
  JobFacts facts{.now = store_.now(),
                 .registry = registry_copy(),
                 .has_no_owner = has_no_owner(),
                 .runs = options_.runs,
                 .offered = runtime_.offered()};
  if (store_.owned() && options_.runs && runtime_.options().may_claim) {
    facts.only_offer = WorkerOffer{runtime_.options().agents, runtime_.offered()};
  }
  const Error* const why = runtime_.refusal_of(job);
  if (why != nullptr &&
      (why->code == Code::needs_version || why->code == Code::execution_version_mismatch)) {
    facts.refusal = why->message;
  }
  return facts;
}

// ---------------------------------------------------------------- registering

void Api::register_agents(async::Done<Status> done) {
  AE_CHECK(options_.read_agent, "a server with agents has read_agent");
  registry_.refresh_if_older(
      Duration(0), [this, alive = alive_.watch(), done = std::move(done)](Status read) mutable {
        if (!read) return done(std::move(read));
        if (!alive) return;
        // At startup the file takes precedence.
        auto found = agents_to_register(source(), [](const std::string&) { return true; });
        if (!found) return done(std::unexpected(std::move(found).error()));
        registers_agents_ = true;
        set_offered_agents(build_offered_agents(source(), true, {}));
        auto fresh = std::make_shared<std::vector<store::AgentVersion>>(*std::move(found));
        registry_.on_change([this] { update_offered_agents(); });
        if (!store_.owned()) poll_registry();
        std::ranges::reverse(*fresh);
        register_next(std::move(fresh), std::move(done));
      });
}

Result<std::vector<store::AgentVersion>> Api::agents_to_register(
    const Source& source, const std::function<bool(const std::string&)>& is_ours) const {
  std::vector<store::AgentVersion> fresh;
  for (const bool registered : {false, true}) {
    for (auto& [name, offer] : build_offered_agents(source, registered, {})) {
      const bool of_file = source.agents->agents.contains(name) && is_ours(name);
      if (!offer.agent || of_file == registered) continue;
      AE_TRY(compile(offer));
      const std::string plan_hash = to_hex(offer.plan->hash);
      const store::AgentVersion* const newest = registry_.registry().newest(name);
      const bool same = newest != nullptr && newest->plan_hash == plan_hash &&
                        newest->definition == offer.agent->definition;
      if (same) continue;
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
std::set<std::string> Api::changed_agents(const agents::AgentsFile& file) const {
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

void Api::reload(AgentsReload edited, async::Done<Result<std::vector<AgentChange>>> done) {
  AE_CHECK(registers_agents_, "agents are not registered here");
  registry_.refresh_if_older(Duration(0), [this, alive = alive_.watch(), edited = std::move(edited),
                                           done = std::move(done)](Status read) mutable {
    if (!read) return done(std::unexpected(read.error()));
    if (!alive) return;
    const Source source{edited.file.get(), edited.file, edited.read_agent};
    const std::set<std::string> changed = changed_agents(*edited.file);
    auto fresh =
        agents_to_register(source, [&](const std::string& name) { return changed.contains(name); });
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

std::vector<Api::AgentChange> Api::apply_reload(AgentsReload edited) {
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
  set_offered_agents(build_offered_agents(source(), true, {}));
  return changes;
}

void Api::follow_registry(async::Done<Status> done) {
  AE_CHECK(options_.read_agent, "a server with agents has read_agent");
  registry_.refresh_if_older(
      Duration(0), [this, alive = alive_.watch(), done = std::move(done)](Status read) mutable {
        if (!read) return done(std::move(read));
        if (!alive) return;
        registers_agents_ = true;
        update_offered_agents();
        registry_.on_change([this] { update_offered_agents(); });
        if (!store_.owned()) poll_registry();
        done({});
      });
}

void Api::register_next(std::shared_ptr<std::vector<store::AgentVersion>> versions,
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

void Api::poll_registry() {
  registry_timer_ = loop_.after(kRegistryPoll, [this] {
    registry_timer_.reset();
    registry_.refresh_if_older(kRegistryPoll, [](Status) {});
    poll_registry();
  });
}

void Api::put_agent(ContextPtr ctx) {
  if (!registers_agents_) {
    return ctx->refuse(
        {Code::unsupported,
         "this process has no agents file: send the request to a server that has one"});
  }
  auto agent = std::make_shared<agents::Agent>();
  const auto diagnostics = options_.read_agent(ctx->id, ctx->request.body, *agent);
  if (!diagnostics.empty()) {
    const Error error{Code::plan_invalid, "the agent has errors; nothing was registered"};
    return ctx->answer(
        http_status(error.code),
        problem(error).with("faults", agents::diagnostics_json(diagnostics)["faults"]));
  }
  const auto plan = engine::Plan::compile(agent->task_graph);
  if (!plan) return ctx->refuse(plan.error());
  const store::AgentVersion version{.name = ctx->id,
                                    .version = 0,
                                    .plan_hash = to_hex((*plan)->hash),
                                    .definition = agent->definition,
                                    .registered_at = store_.now(),
                                    .by = ctx->request.by};
  registry_.refresh_if_older(
      Duration(0), [this, alive = alive_.watch(), ctx, version](Status read) {
        if (!read) return ctx->refuse(read.error());
        const auto answer = [this, ctx](int status) {
          const auto offer = offered_agents_.find(ctx->id);
          AE_CHECK(offer != offered_agents_.end(), fmt::format("it was registered: {}", ctx->id));
          ctx->answer(status, agent_json(offer->first, offer->second),
                      target({"api", "agents", ctx->id}, {}));
        };
        const store::AgentVersion* const newest = registry_.registry().newest(ctx->id);
        if (newest != nullptr && newest->plan_hash == version.plan_hash &&
            newest->definition == version.definition) {
          // A failed reload may have registered it; now that a client registers it, it is offered.
          if (reloading_.erase(ctx->id) > 0) update_offered_agents();
          return answer(200);
        }
        const std::size_t agents = registry_.registry().agents().size();
        if (auto room = check_capacity(registry_.registry(), agents, ctx->id); !room) {
          return ctx->refuse(room.error());
        }
        store_.append_audit_entry(
            store::agent_registered(version), [this, alive, ctx, answer](Result<void> written) {
              if (!written) return ctx->refuse(written.error());
              if (!alive) return;
              reloading_.erase(ctx->id);
              registry_.refresh_if_older(Duration(0), [ctx, answer](Status seen) {
                if (!seen) return ctx->refuse(seen.error());
                answer(201);
              });
            });
      });
}

// ---------------------------------------------------------------- reading

Value Api::agent_json(const std::string& name, const OfferedAgent& offer) {
  const store::AgentVersion* const newest =
      offer.version == 0 ? nullptr : registry_.registry().newest(name);
  const Value description = offer.agent ? offer.agent->definition["description"] : Value();
  std::vector<Member> members{
      {"description", description},
      {field::execution_version, runtime_.options().version_of(name)},
      {"name", name},
      {"runs_here", options_.runs && offer.agent != nullptr},
      {field::version, offer.version == 0 ? Value() : Value(offer.version)}};
  if (newest != nullptr) {
    members.emplace_back(field::by, newest->by);
    members.emplace_back("registered_at", to_text(newest->registered_at));
  }
  members.emplace_back(field::plan_hash, offer.plan          ? Value(to_hex(offer.plan->hash))
                                         : newest != nullptr ? Value(newest->plan_hash)
                                                             : Value());
  if (offer.agent && offer.agent->input_schema) {
    members.emplace_back("input_schema", *offer.agent->input_schema);
  }
  if (!offer.agent) members.emplace_back("refused", offer.refusal_reason);
  return Value::object(std::move(members));
}

void Api::agents(ContextPtr ctx) {
  with_fresh_agents([this, ctx] {
    std::vector<Value> all;
    for (auto& [name, offer] : offered_agents_) {
      if (offer.agent) {
        if (auto compiled = compile(offer); !compiled) return ctx->refuse(compiled.error());
      }
      all.push_back(agent_json(name, offer));
    }
    answer_large(ctx, Value::object({{"agents", Value::array(std::move(all))}}));
  });
}

void Api::agent(ContextPtr ctx) {
  const auto version = ctx->query.number(field::version);
  if (!version) return ctx->refuse(version.error());
  with_fresh_agents([this, ctx, version = *version] {
    const auto found = offered_agents_.find(ctx->id);
    if (found == offered_agents_.end()) return ctx->refuse(missing_agent_error(ctx->id));
    OfferedAgent& offer = found->second;
    if (version && *version != offer.version) {
      const auto of = registry_.registry().agents().find(ctx->id);
      const bool is_there = of != registry_.registry().agents().end() && *version >= 1 &&
                            *version <= of->second.size();
      if (!is_there) {
        return ctx->refuse(
            {Code::not_found, fmt::format("agent \"{}\" has no version {}", ctx->id, *version)});
      }
      const store::AgentVersion& one = of->second[*version - 1];
      return ctx->answer(200, Value::object({{field::by, one.by},
                                             {"name", one.name},
                                             {field::plan_hash, one.plan_hash},
                                             {"registered_at", to_text(one.registered_at)},
                                             {field::source, one.definition},
                                             {field::version, one.version}}));
    }
    if (!offer.agent) {
      return ctx->answer(
          200, agent_json(found->first, offer)
                   .with(field::source, registry_.registry().newest(ctx->id)->definition));
    }
    if (auto compiled = compile(offer); !compiled) return ctx->refuse(compiled.error());
    const Value body = agent_json(found->first, offer)
                           .with("plan", offer.agent->task_graph)
                           .with(field::source, offer.agent->definition);
    ctx->answer(200, body);
  });
}

// A shortcut: creates a job whose input is the message.
void Api::message_agent(ContextPtr ctx) {
  with_fresh_agents([this, ctx] { create_job_from_message(ctx); });
}

void Api::create_job_from_message(ContextPtr ctx) {
  auto params = [&]() -> Result<runtime::NewJobRequest> {
    const Fields fields = std::move(ctx->fields);
    const Value* message = fields.find("message");
    if (message == nullptr) return fail(Code::input_invalid, "\"message\" is missing");
    return new_job(*ctx, Value::object({{field::agent, ctx->id},
                                        {field::input, Value::object({{"message", *message}})}}));
  }();
  if (!params) return ctx->refuse(params.error());
  runtime_.create(*std::move(params), [ctx](Result<runtime::CreateResult> made) {
    if (!made) return ctx->refuse(made.error());
    ctx->answer(202, Value::object({{"job_id", made->job.text}}),
                target({"api", "jobs", made->job.text}, {}));
  });
}

}  // namespace ae::api
