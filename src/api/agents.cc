// Routes of agents: register, list and show them, and start a job by a message.
#include <fmt/core.h>

#include <utility>

#include "api/request_context.h"
#include "json/json.h"
#include "log/field_names.h"

namespace ae::api {

void Api::put_agent(ContextPtr ctx) {
  if (!agents_.registers()) {
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
  agents_.register_version(version, [this, alive = alive_.watch(), ctx](Result<bool> registered) {
    if (!registered) return ctx->refuse(registered.error());
    if (!alive) return;
    const auto offer = agents_.by_name().find(ctx->id);
    AE_CHECK(offer != agents_.by_name().end(), fmt::format("it was registered: {}", ctx->id));
    ctx->answer(*registered ? 201 : 200, agent_json(offer->first, offer->second),
                target({"api", "agents", ctx->id}, {}));
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
  agents_.when_fresh([this, ctx] {
    std::vector<Value> all;
    for (auto& [name, offer] : agents_.by_name()) {
      if (offer.agent) {
        if (auto compiled = offer.compile(); !compiled) return ctx->refuse(compiled.error());
      }
      all.push_back(agent_json(name, offer));
    }
    answer_large(ctx, Value::object({{"agents", Value::array(std::move(all))}}));
  });
}

void Api::agent(ContextPtr ctx) {
  const auto version = ctx->query.number(field::version);
  if (!version) return ctx->refuse(version.error());
  agents_.when_fresh([this, ctx, version = *version] {
    const auto found = agents_.by_name().find(ctx->id);
    if (found == agents_.by_name().end()) return ctx->refuse(agents_.missing_error(ctx->id));
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
    if (auto compiled = offer.compile(); !compiled) return ctx->refuse(compiled.error());
    const Value body = agent_json(found->first, offer)
                           .with("plan", offer.agent->task_graph)
                           .with(field::source, offer.agent->definition);
    ctx->answer(200, body);
  });
}

// A shortcut: creates a job whose input is the message.
void Api::message_agent(ContextPtr ctx) {
  agents_.when_fresh([this, ctx] { create_job_from_message(ctx); });
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
