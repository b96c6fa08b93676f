// Routes of agents: register, list and show them, and start a job by a message.
#include <fmt/core.h>

#include <utility>

#include "api/jobs.h"
#include "api/operations.h"
#include "api/read.h"
#include "json/json.h"
#include "log/field_names.h"

namespace ae::api {
namespace {

Value agent_json(ApiContext& api, const std::string& name, const OfferedAgent& offer) {
  const store::AgentVersion* const newest =
      offer.version == 0 ? nullptr : api.registry.registry().newest(name);
  const Value description = offer.agent ? offer.agent->definition["description"] : Value();
  std::vector<Member> members{
      {"description", description},
      {field::execution_version, api.runtime.options().version_of(name)},
      {"name", name},
      {"runs_here", api.options.runs && offer.agent != nullptr},
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

}  // namespace

void operations::put_agent(ApiContext& api, RequestPtr ctx) {
  if (!api.agents.registers()) {
    return ctx->refuse(
        {Code::unsupported,
         "this process has no agents file: send the request to a server that has one"});
  }
  auto agent = std::make_shared<agents::Agent>();
  const auto diagnostics = api.options.read_agent(ctx->id, ctx->request.body, *agent);
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
                                    .registered_at = api.store.now(),
                                    .by = ctx->request.by};
  api.agents.register_version(version, [&api, alive = api.alive.watch(),
                                        ctx](Result<bool> registered) {
    if (!registered) return ctx->refuse(registered.error());
    if (!alive) return;
    const auto offer = api.agents.by_name().find(ctx->id);
    AE_CHECK(offer != api.agents.by_name().end(), fmt::format("it was registered: {}", ctx->id));
    ctx->answer(*registered ? 201 : 200, agent_json(api, offer->first, offer->second),
                target({"api", "agents", ctx->id}, {}));
  });
}

// ---------------------------------------------------------------- reading

void operations::agents(ApiContext& api, RequestPtr ctx) {
  api.agents.when_fresh([&api, ctx] {
    std::vector<Value> all;
    for (auto& [name, offer] : api.agents.by_name()) {
      if (offer.agent) {
        if (auto compiled = offer.compile(); !compiled) return ctx->refuse(compiled.error());
      }
      all.push_back(agent_json(api, name, offer));
    }
    answer_tagged(api, ctx, Value::object({{"agents", Value::array(std::move(all))}}));
  });
}

void operations::agent(ApiContext& api, RequestPtr ctx) {
  const auto version = ctx->query.number(field::version);
  if (!version) return ctx->refuse(version.error());
  api.agents.when_fresh([&api, ctx, version = *version] {
    const auto found = api.agents.by_name().find(ctx->id);
    if (found == api.agents.by_name().end()) return ctx->refuse(api.agents.missing_error(ctx->id));
    OfferedAgent& offer = found->second;
    if (version && *version != offer.version) {
      const auto of = api.registry.registry().agents().find(ctx->id);
      const bool is_there = of != api.registry.registry().agents().end() && *version >= 1 &&
                            *version <= of->second.size();
      if (!is_there) {
        return ctx->refuse(
            {Code::not_found, fmt::format("agent \"{}\" has no version {}", ctx->id, *version)});
      }
      const store::AgentVersion& one = of->second[*version - 1];
      return answer_tagged(api, ctx,
                           Value::object({{field::by, one.by},
                                          {"name", one.name},
                                          {field::plan_hash, one.plan_hash},
                                          {"registered_at", to_text(one.registered_at)},
                                          {field::source, one.definition},
                                          {field::version, one.version}}));
    }
    if (!offer.agent) {
      return answer_tagged(
          api, ctx,
          agent_json(api, found->first, offer)
              .with(field::source, api.registry.registry().newest(ctx->id)->definition));
    }
    if (auto compiled = offer.compile(); !compiled) return ctx->refuse(compiled.error());
    answer_tagged(api, ctx,
                  agent_json(api, found->first, offer)
                      .with("plan", offer.agent->task_graph)
                      .with(field::source, offer.agent->definition));
  });
}

// A shortcut: creates a job whose input is the message.
void operations::message_agent(ApiContext& api, RequestPtr ctx) {
  api.agents.when_fresh([&api, ctx] {
    auto params = [&]() -> Result<runtime::NewJobRequest> {
      const Fields fields = std::move(ctx->fields);
      const Value* message = fields.find("message");
      if (message == nullptr) return fail(Code::input_invalid, "\"message\" is missing");
      return new_job(api, ctx->request,
                     Value::object({{field::agent, ctx->id},
                                    {field::input, Value::object({{"message", *message}})}}));
    }();
    if (!params) return ctx->refuse(params.error());
    api.runtime.create(*std::move(params), [ctx](Result<runtime::CreateResult> made) {
      if (!made) return ctx->refuse(made.error());
      ctx->answer(202, Value::object({{"job_id", made->job.text}}),
                  target({"api", "jobs", made->job.text}, {}));
    });
  });
}

}  // namespace ae::api
