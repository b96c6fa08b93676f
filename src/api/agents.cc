// Agents: those of our file, and those that are registered. What stands of the latter stands in the audit log
// (store/registry.h); which of them can be run here depends on the tools of our file.
#include <algorithm>
#include <set>
#include <utility>

#include "api/asked.h"
#include "api/gate.h"
#include "api/stuck.h"
#include "api/views.h"
#include "core/json.h"
#include "engine/plan.h"
#include "store/rules.h"

namespace ae::api {
namespace {

constexpr Duration kLook = std::chrono::seconds(1);  // for what other processes register
constexpr std::size_t kAgentsMax = 1'000;
constexpr std::size_t kVersionsMax = 1'000;  // of one agent: each is folded at every start
constexpr std::string_view kServe = "serve";

// May a version of this agent be added to a store with so many agents? Fails with input_invalid.
Status check_room(const store::Registry& registry, std::size_t agents, std::string_view name) {
  const auto of = registry.agents().find(name);
  if (of == registry.agents().end() && agents >= kAgentsMax) {
    return fail(Code::input_invalid, "a store can have at most " + std::to_string(kAgentsMax) +
                                         " agents: use a registered name for agent " +
                                         std::string(name.substr(0, 64)));
  }
  if (of != registry.agents().end() && of->second.size() >= kVersionsMax) {
    return fail(Code::input_invalid, "agent " + std::string(name.substr(0, 64)) + " has " +
                                         std::to_string(kVersionsMax) +
                                         " versions, the maximum: use another name for it");
  }
  return {};
}

std::string first_of(const std::vector<agents::Fault>& faults) {
  const agents::Fault& first = faults.front();
  return (first.path.empty() ? "" : first.path + ": ") + first.message +
         (faults.size() > 1 ? " (and " + std::to_string(faults.size() - 1) + " more)" : "");
}

}  // namespace

// ---------------------------------------------------------------- which there are

const agents::Agent* Api::find_agent(std::string_view name) const {
  const auto found = offers_.find(name);
  return found == offers_.end() ? nullptr : found->second.agent.get();
}

Error Api::no_agent(std::string_view name) const {
  std::string names;
  for (const auto& [known, offer] : offers_) {
    if (offer.agent) names += (names.empty() ? "; there is " : ", ") + known;
  }
  return {Code::not_found,
          "there is no agent \"" + std::string(name.substr(0, 64)) + "\" here" + names};
}

Status Api::compile(Offer& offer) {
  if (!offer.plan) {
    AE_ASSIGN(offer.plan, engine::Plan::compile(offer.agent->task_graph));
  }
  return {};
}

Result<Api::Offer*> Api::offer_of(std::string_view name) {
  const auto found = offers_.find(name);
  if (found == offers_.end()) return std::unexpected(no_agent(name));
  Offer& offer = found->second;
  if (!offer.agent) {
    return fail(Code::needs_version, "version " + std::to_string(offer.version) + " of agent \"" +
                                         std::string(name) +
                                         "\" is not available here: " + offer.refused);
  }
  AE_TRY(compile(offer));
  return &offer;
}

// The file's agents, and over them the newest registered versions. Of one that is as it was `before`, its offer.
Api::Offers Api::offers_of(const Source& source, bool registered, const Offers& before) const {
  Offers offers;
  if (source.agents) {
    for (const auto& [name, agent] : source.agents->agents) {
      // The first file is borrowed and outlives us.
      const std::shared_ptr<const agents::Agent> ours(source.owner, &agent);
      offers[name] = {.agent = ours, .refused = {}, .version = 0, .plan = nullptr};
    }
  }
  if (!registered) return offers;
  for (const auto& [name, versions] : registry_.registry().agents()) {
    const store::AgentVersion& newest = versions.back();
    Offer& offer = offers[name];
    const auto known = before.find(name);
    const bool kept = known != before.end() &&
                      (known->second.version == newest.version || renewing_.contains(name));
    if (kept) {
      offer = known->second;
      continue;
    }
    offer.version = newest.version;
    if (offer.agent && offer.agent->definition == newest.definition) continue;
    auto agent = std::make_shared<agents::Agent>();
    const auto faults = source.read_agent(name, canonical(newest.definition), *agent);
    offer.agent = faults.empty() ? std::move(agent) : nullptr;
    if (!faults.empty()) offer.refused = first_of(faults);
  }
  return offers;
}

void Api::note_agents() {
  Offers offers = offers_of(source(), registers_, offers_);
  // An agent that a reload adds uses the tools of the edited file: it is offered once the reload is complete.
  for (const auto& [name, version] : renewing_) {
    if (!offers_.contains(name)) offers.erase(name);
  }
  offer(std::move(offers));
}

void Api::offer(Offers offers) {
  offers_ = std::move(offers);
  if (!registers_ || !options_.runs) return;
  std::vector<std::string> names;
  std::map<std::string, std::string, std::less<>> versions;
  for (const auto& [name, offer] : offers_) {
    // Of the file's own agents older versions are run still.
    const bool in_file = options_.agents->agents.contains(name);
    if (!offer.agent && !in_file) continue;
    names.push_back(name);
    const agents::Agent& agent =
        offer.agent ? *offer.agent : options_.agents->agents.find(name)->second;
    versions[name] = agent.execution_version.empty() ? options_.version : agent.execution_version;
  }
  runtime_.offer(std::move(names), std::move(versions));
}

void Api::with_agents(async::Task then) {
  registry_.within(kKeysAge,
                   [alive = std::weak_ptr(alive_), then = std::move(then)](Status) mutable {
                     if (alive.lock()) then();
                   });
}

Value Api::job_json(const runtime::Runtime::Read& read) {
  const Value body = job_body(read, store_.now());
  const store::AgentVersion* const version =
      registry_.registry().with_plan(body.text("agent"), body.text("plan_hash"));
  std::optional<Value> unattended;
  if (store::may_run(read.row.status)) {
    if (nobody_is_there()) {
      unattended = unattended_json(read.row);
    } else if (store_.owned() && options_.runs && runtime_.options().claims && !read.row.claim) {
      unattended = not_offered_json(read.row, worker_offers({}));
    }
  }
  return body.with("agent_version", version == nullptr ? Value() : Value(version->version))
      .with("unattended", unattended.value_or(Value()));
}

// ---------------------------------------------------------------- registering

void Api::keep_registry(async::Done<Status> done) {
  AE_CHECK(options_.read_agent, "a server with agents has read_agent");
  registry_.within(Duration(0), [this, alive = std::weak_ptr(alive_),
                                 done = std::move(done)](Status read) mutable {
    if (!read) return done(std::move(read));
    if (!alive.lock()) return;
    // At a start the file counts.
    auto found = unregistered(source(), [](const std::string&) { return true; });
    if (!found) return done(std::unexpected(std::move(found).error()));
    registers_ = true;
    offer(offers_of(source(), true, {}));
    auto fresh = std::make_shared<std::vector<store::AgentVersion>>(*std::move(found));
    registry_.on_change([this] { note_agents(); });
    if (!store_.owned()) look_for_agents();
    std::ranges::reverse(*fresh);
    register_next(std::move(fresh), std::move(done));
  });
}

Result<std::vector<store::AgentVersion>> Api::unregistered(
    const Source& source, const std::function<bool(const std::string&)>& ours) const {
  std::vector<store::AgentVersion> fresh;
  for (const bool registered : {false, true}) {
    for (auto& [name, offer] : offers_of(source, registered, {})) {
      const bool of_file = source.agents->agents.contains(name) && ours(name);
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
                       .by = std::string(kServe)});
    }
  }
  return fresh;
}

// ---------------------------------------------------------------- reloading

// Agents of the file that are not those of the file before, or that a reload before this one did not finish.
std::set<std::string> Api::changed_agents(const agents::AgentsFile& file) const {
  std::set<std::string> changed;
  for (const auto& [name, agent] : file.agents) {
    const auto before = options_.agents->agents.find(name);
    const bool same = before != options_.agents->agents.end() &&
                      before->second.definition == agent.definition &&
                      before->second.task_graph == agent.task_graph;
    if (!same || renewing_.contains(name)) changed.insert(name);
  }
  return changed;
}

void Api::reload(Edited edited, async::Done<Result<std::vector<AgentChange>>> done) {
  AE_CHECK(registers_, "agents are not registered here");
  registry_.within(Duration(0), [this, alive = std::weak_ptr(alive_), edited = std::move(edited),
                                 done = std::move(done)](Status read) mutable {
    if (!read) return done(std::unexpected(read.error()));
    if (!alive.lock()) return;
    const Source source{edited.file.get(), edited.file, edited.read_agent};
    const std::set<std::string> changed = changed_agents(*edited.file);
    auto fresh =
        unregistered(source, [&](const std::string& name) { return changed.contains(name); });
    if (!fresh) return done(std::unexpected(std::move(fresh).error()));
    std::size_t agents = registry_.registry().agents().size();
    for (const store::AgentVersion& one : *fresh) {
      if (auto room = check_room(registry_.registry(), agents, one.name); !room) {
        return done(std::unexpected(std::move(room).error()));
      }
      if (registry_.registry().newest(one.name) == nullptr) ++agents;
    }
    // Until all are registered, jobs are made of the versions that were offered before.
    for (const store::AgentVersion& one : *fresh) {
      const store::AgentVersion* const newest = registry_.registry().newest(one.name);
      renewing_.emplace(one.name, newest == nullptr ? 0 : newest->version);
    }
    std::ranges::reverse(*fresh);
    auto versions = std::make_shared<std::vector<store::AgentVersion>>(*std::move(fresh));
    register_next(std::move(versions), [this, alive, edited = std::move(edited),
                                        done = std::move(done)](Status written) mutable {
      if (!written) return done(std::unexpected(written.error()));
      if (alive.lock()) done(take(std::move(edited)));
    });
  });
}

std::vector<Api::AgentChange> Api::take(Edited edited) {
  edited.begin();
  const auto old = std::exchange(file_, std::move(edited.file));
  options_.agents = file_.get();
  options_.read_agent = std::move(edited.read_agent);
  std::vector<AgentChange> changes;
  for (const auto& [name, from] : std::exchange(renewing_, {})) {
    const store::AgentVersion* const newest = registry_.registry().newest(name);
    const std::uint64_t to = newest == nullptr ? 0 : newest->version;
    if (to != from) changes.push_back({name, from, to});
  }
  offer(offers_of(source(), true, {}));
  return changes;
}

void Api::follow_registry(async::Done<Status> done) {
  AE_CHECK(options_.read_agent, "a server with agents has read_agent");
  registry_.within(Duration(0), [this, alive = std::weak_ptr(alive_),
                                 done = std::move(done)](Status read) mutable {
    if (!read) return done(std::move(read));
    if (!alive.lock()) return;
    registers_ = true;
    note_agents();
    registry_.on_change([this] { note_agents(); });
    if (!store_.owned()) look_for_agents();
    done({});
  });
}

void Api::register_next(std::shared_ptr<std::vector<store::AgentVersion>> versions,
                        async::Done<Status> done) {
  if (versions->empty()) return registry_.within(Duration(0), std::move(done));
  const store::AgentVersion version = std::move(versions->back());
  versions->pop_back();
  store_.record(store::agent_registered(version),
                [this, alive = std::weak_ptr(alive_), versions,
                 done = std::move(done)](Result<void> written) mutable {
                  if (!written) return done(std::unexpected(written.error()));
                  if (alive.lock()) register_next(std::move(versions), std::move(done));
                });
}

void Api::look_for_agents() {
  look_timer_ = loop_.after(kLook, [this] {
    look_timer_.reset();
    registry_.within(kLook, [](Status) {});
    look_for_agents();
  });
}

void Api::put_agent(Ask ask) {
  if (auto known = ask->query.only({}); !known) return ask->refuse(known.error());
  if (!registers_) {
    return ask->refuse(
        {Code::unsupported,
         "this process has no agents file: send the request to a server that has one"});
  }
  auto agent = std::make_shared<agents::Agent>();
  const auto faults = options_.read_agent(ask->id, ask->request.body, *agent);
  if (!faults.empty()) {
    const Error error{Code::plan_invalid, "the agent has errors; nothing was registered"};
    return ask->answer(http_status(error.code),
                       problem(error).with("faults", agents::faults_json(faults)["faults"]));
  }
  const auto plan = engine::Plan::compile(agent->task_graph);
  if (!plan) return ask->refuse(plan.error());
  const store::AgentVersion version{.name = ask->id,
                                    .version = 0,
                                    .plan_hash = to_hex((*plan)->hash),
                                    .definition = agent->definition,
                                    .registered_at = store_.now(),
                                    .by = ask->request.by};
  registry_.within(Duration(0), [this, alive = std::weak_ptr(alive_), ask, version](Status read) {
    if (!read) return ask->refuse(read.error());
    const auto answer = [this, ask](int status) {
      const auto offer = offers_.find(ask->id);
      AE_CHECK(offer != offers_.end(), "it was registered: " + ask->id);
      ask->answer(status, agent_json(offer->first, offer->second),
                  target({"api", "agents", ask->id}, {}));
    };
    const store::AgentVersion* const newest = registry_.registry().newest(ask->id);
    if (newest != nullptr && newest->plan_hash == version.plan_hash &&
        newest->definition == version.definition) {
      // A reload that failed may have registered it: now a client has, and it is offered.
      if (renewing_.erase(ask->id) > 0) note_agents();
      return answer(200);
    }
    const std::size_t agents = registry_.registry().agents().size();
    if (auto room = check_room(registry_.registry(), agents, ask->id); !room) {
      return ask->refuse(room.error());
    }
    store_.record(store::agent_registered(version),
                  [this, alive, ask, answer](Result<void> written) {
                    if (!written) return ask->refuse(written.error());
                    if (!alive.lock()) return;
                    renewing_.erase(ask->id);
                    registry_.within(Duration(0), [ask, answer](Status seen) {
                      if (!seen) return ask->refuse(seen.error());
                      answer(201);
                    });
                  });
  });
}

// ---------------------------------------------------------------- looking

Value Api::agent_json(const std::string& name, const Offer& offer) {
  const store::AgentVersion* const newest =
      offer.version == 0 ? nullptr : registry_.registry().newest(name);
  const Value description = offer.agent ? offer.agent->definition["description"] : Value();
  std::vector<Member> members{{"description", description},
                              {"execution_version", runtime_.options().version_of(name)},
                              {"name", name},
                              {"runs_here", options_.runs && offer.agent != nullptr},
                              {"version", offer.version == 0 ? Value() : Value(offer.version)}};
  if (newest != nullptr) {
    members.emplace_back("by", newest->by);
    members.emplace_back("registered_at", to_text(newest->registered_at));
  }
  members.emplace_back("plan_hash", offer.plan          ? Value(to_hex(offer.plan->hash))
                                    : newest != nullptr ? Value(newest->plan_hash)
                                                        : Value());
  if (offer.agent && offer.agent->input_schema) {
    members.emplace_back("input_schema", *offer.agent->input_schema);
  }
  if (!offer.agent) members.emplace_back("refused", offer.refused);
  return Value::object(std::move(members));
}

void Api::agents(Ask ask) {
  if (auto known = ask->query.only({}); !known) return ask->refuse(known.error());
  with_agents([this, ask] {
    std::vector<Value> all;
    for (auto& [name, offer] : offers_) {
      if (offer.agent) {
        if (auto compiled = compile(offer); !compiled) return ask->refuse(compiled.error());
      }
      all.push_back(agent_json(name, offer));
    }
    ask->answer(200, Value::object({{"agents", Value::array(std::move(all))}}));
  });
}

void Api::agent(Ask ask) {
  const auto version = [&]() -> Result<std::optional<std::uint64_t>> {
    AE_TRY(ask->query.only({"version"}));
    return ask->query.number("version");
  }();
  if (!version) return ask->refuse(version.error());
  with_agents([this, ask, version = *version] {
    const auto found = offers_.find(ask->id);
    if (found == offers_.end()) return ask->refuse(no_agent(ask->id));
    Offer& offer = found->second;
    if (version && *version != offer.version) {
      const auto of = registry_.registry().agents().find(ask->id);
      const bool is_there = of != registry_.registry().agents().end() && *version >= 1 &&
                            *version <= of->second.size();
      if (!is_there) {
        return ask->refuse({Code::not_found, "agent \"" + ask->id + "\" has no version " +
                                                 std::to_string(*version)});
      }
      const store::AgentVersion& one = of->second[*version - 1];
      return ask->answer(200, Value::object({{"by", one.by},
                                             {"name", one.name},
                                             {"plan_hash", one.plan_hash},
                                             {"registered_at", to_text(one.registered_at)},
                                             {"source", one.definition},
                                             {"version", one.version}}));
    }
    if (!offer.agent) {
      return ask->answer(200,
                         agent_json(found->first, offer)
                             .with("source", registry_.registry().newest(ask->id)->definition));
    }
    if (auto compiled = compile(offer); !compiled) return ask->refuse(compiled.error());
    const Value body = agent_json(found->first, offer)
                           .with("plan", offer.agent->task_graph)
                           .with("source", offer.agent->definition);
    ask->answer(200, body);
  });
}

// The short way to begin: a job whose input is the message.
void Api::message_agent(Ask ask) {
  with_agents([this, ask] { make_of_message(ask); });
}

void Api::make_of_message(Ask ask) {
  auto wish = [&]() -> Result<runtime::NewJobRequest> {
    AE_TRY(ask->query.only({}));
    AE_ASSIGN(const Fields fields, Fields::parse(ask->request.body, {"message"}));
    const Value* message = fields.find("message");
    if (message == nullptr) return fail(Code::input_invalid, "\"message\" is missing");
    return new_job(*ask, Value::object({{"agent", ask->id},
                                        {"input", Value::object({{"message", *message}})}}));
  }();
  if (!wish) return ask->refuse(wish.error());
  runtime_.create(*std::move(wish), [ask](Result<runtime::Created> made) {
    if (!made) return ask->refuse(made.error());
    ask->answer(202, Value::object({{"job_id", made->job.text}}),
                target({"api", "jobs", made->job.text}, {}));
  });
}

}  // namespace ae::api
