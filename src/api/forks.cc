// Forks: a new job that starts at an event of another. Re-plans: a running job gets another plan.
#include <fmt/core.h>

#include <utility>

#include "api/control_requests.h"
#include "api/jobs.h"
#include "api/operations.h"
#include "api/read.h"
#include "base/trace_context.h"
#include "inspect/fork_preview.h"
#include "log/field_names.h"
#include "schema/schema.h"

namespace ae::api {
namespace {

constexpr std::size_t kEffectsNamedMax = 5;  // effects named in a sentence; the list has all

// The nodes whose committed effects the new plan may abandon.
Result<std::vector<std::string>> drop_of(const Fields& fields) {
  std::vector<std::string> nodes;
  const Value& drop = fields[field::drop];
  if (drop.is_null()) return nodes;
  if (fields[field::task_graph].is_null()) {
    return fail(Code::input_invalid, "\"drop\" needs a \"task_graph\"");
  }
  if (!drop.is_array()) return fail(Code::input_invalid, "\"drop\" must be a list of node ids");
  for (const Value& node : drop.items()) {
    if (!node.is_string()) return fail(Code::input_invalid, "\"drop\" must be a list of node ids");
    nodes.push_back(node.as_string());
  }
  return nodes;
}

Result<runtime::ForkRequest> parse_fork_params(const ApiRequest& request, const Fields& fields) {
  runtime::ForkRequest params;
  if (const auto context = trace_context(request.traceparent, request.tracestate)) {
    params.traceparent = traceparent(context->trace_id, context->parent_id, context->flags);
    params.tracestate = context->state;
  }
  AE_ASSIGN(const std::string id, fields.text("id"));
  if (!fields["id"].is_null()) {
    auto job = job_id_from_text(id);
    if (!job) return std::unexpected(std::move(job).error().with_context("\"id\""));
    params.job = *std::move(job);
  }
  AE_TRY(fields.text(field::idempotency_key));
  AE_ASSIGN(params.idempotency_key, idempotency_key(request, fields.object()));
  params.task_graph = fields[field::task_graph];
  if (!params.task_graph.is_null() && request.role != Role::admin) {
    // A plan contains the policies of its tools.
    return std::unexpected(missing_role_error(request.role, {Role::admin}));
  }
  AE_ASSIGN(params.drop, drop_of(fields));
  if (const Value& dry_run = fields["dry_run"]; !dry_run.is_null()) {
    if (!dry_run.is_bool()) return fail(Code::input_invalid, "\"dry_run\" must be true or false");
    params.dry_run = dry_run.as_bool();
  }
  const Value& repeat = fields["repeat_effects"];
  bool fits = repeat.is_null() || repeat.is_bool() || repeat.is_array();
  if (repeat.is_bool()) params.repeat_all = repeat.as_bool();
  if (repeat.is_array()) {
    for (const Value& name : repeat.items()) {
      fits = fits && name.is_string();
      if (fits) params.repeat.push_back(name.as_string());
    }
  }
  if (!fits) {
    return fail(
        Code::input_invalid,
        "\"repeat_effects\" must be true, or a list of idempotency keys, step ids or node ids");
  }
  return params;
}

// `instead`: an alternative to repeating them.
Error effects_repeated_error(const std::string& origin, const std::vector<Value>& effects,
                             std::string_view instead) {
  std::string names;
  for (std::size_t i = 0; i < effects.size() && i < kEffectsNamedMax; ++i) {
    const Value& item = effects[i]["item"];
    const std::string index = item.is_integer() ? fmt::format("[{}]", item.as_int()) : "";
    names += fmt::format("{}{}{} ({}, {})", i == 0 ? "" : ", ", effects[i].text(field::node_id),
                         index, effects[i].text("tool"),
                         engine::effect_outcome_text(effects[i].text(field::state)));
  }
  if (effects.size() > kEffectsNamedMax) names += ", …";
  return {
      Code::effects_repeated,
      fmt::format(
          "job {} has effects that the new job would repeat: {}; allow it with repeat_effects{}",
          origin, names, instead)};
}

// Is the existing job the one that the request creates? Fails with already_exists: it is another
// one; plan_invalid.
Result<bool> is_this_fork(const runtime::ForkRequest& params, const engine::State& state) {
  const auto& from = state.forked_from;
  const bool same = from && from->job_id == params.origin.text &&
                    (params.at == 0 || std::cmp_equal(from->seq, params.at)) &&
                    (!params.input || *params.input == state.input);
  if (same && !params.task_graph.is_null() && state.plan) {
    AE_ASSIGN(const auto plan, engine::Plan::compile(params.task_graph));
    if (plan->hash != state.plan->hash) {
      return fail(Code::already_exists, "the job {} exists with another plan; use another id",
                  params.job.text);
    }
  }
  if (same) return true;
  return fail(Code::already_exists, "the job {} exists and is not this fork; use another id",
              params.job.text);
}

// Fails with needs_version: this process runs jobs of the agent, but without the tools of this
// plan.
Status check_plan_runs_here(ApiContext& api, const std::string& agent, const Value& task_graph) {
  if (!api.options.runs || task_graph.is_null()) return {};
  AE_ASSIGN(const auto plan, engine::Plan::compile(task_graph));
  return api.runtime.check_can_run(agent, *plan);
}

Status check_fork(ApiContext& api, const runtime::ForkRequest& params,
                  const std::string& agent_name) {
  const agents::Agent* const agent = api.agents.find_agent(agent_name);
  if (params.input && agent != nullptr && agent->input_schema) {
    AE_ASSIGN(const auto schema, Schema::compile(*agent->input_schema));
    AE_TRY(schema.check(*params.input));
  }
  return check_plan_runs_here(api, agent_name, params.task_graph);
}

void find_or_fork(ApiContext& api, RequestPtr ctx, runtime::ForkRequest params);

void make_fork(ApiContext& api, RequestPtr ctx, runtime::ForkRequest params) {
  const bool named = !params.job.empty();
  runtime::ForkRequest retry_params = params;
  api.runtime.fork(std::move(params), [&api, alive = api.alive.watch(), ctx, named,
                                       retry_params = std::move(retry_params)](
                                          Result<runtime::ForkResult> made) mutable {
    if (!alive) return;
    if (!made && made.error().code == Code::not_found) {
      return ctx->refuse(missing_job_error(ctx->id));
    }
    if (!made && made.error().code == Code::already_exists && named) {
      return find_or_fork(api, ctx, std::move(retry_params));  // a concurrent request created it
    }
    if (!made) return ctx->refuse(made.error());
    if (made->preview.is_object()) {
      const Value& preview = made->preview;
      return ctx->answer(
          200, made->changes.is_array() ? preview.with("plan_changes", made->changes) : preview);
    }
    if (!made->repeated.empty()) {
      const Error error = effects_repeated_error(
          ctx->id, made->repeated, retry_params.at == 0 ? "" : ", or fork at a later event");
      return ctx->answer(http_status(error.code),
                         problem(error).with("effects", Value::array(made->repeated)));
    }
    std::vector<Member> more;
    if (made->changes.is_array()) more.emplace_back("plan_changes", made->changes);
    answer_created(api, ctx, made->created.job, made->created.existing ? 200 : 201,
                   std::move(more));
  });
}

void fork_new(ApiContext& api, RequestPtr ctx, runtime::ForkRequest params) {
  if (!api.options.agents || (!params.input && params.task_graph.is_null())) {
    return make_fork(api, ctx, std::move(params));
  }
  const JobId origin = params.origin;
  compute_state<std::string>(
      api, ctx, origin, [](Snapshot& read) -> Result<std::string> { return read.state.agent; },
      [&api, ctx, params = std::move(params)](Result<std::string> agent) mutable {
        if (!agent) return ctx->refuse(agent.error());
        if (auto may = check_fork(api, params, *agent); !may) return ctx->refuse(may.error());
        make_fork(api, ctx, std::move(params));
      });
}

// Forking with a chosen id is idempotent, also when the origin has progressed.
void find_or_fork(ApiContext& api, RequestPtr ctx, runtime::ForkRequest params) {
  const auto origin = job_id_from_text(ctx->id);
  if (!origin) return ctx->refuse({Code::not_found, origin.error().message});
  params.origin = *origin;
  params.by = ctx->request.by;
  if (params.job.empty() || params.dry_run) return fork_new(api, ctx, std::move(params));
  const JobId job = params.job;
  auto is_same = [params](Snapshot& read) { return is_this_fork(params, read.state); };
  compute_state<bool>(api, ctx, job, std::move(is_same),
                      [&api, ctx, params = std::move(params)](Result<bool> same) mutable {
                        if (!same && same.error().code == Code::not_found)
                          return fork_new(api, ctx, std::move(params));
                        if (!same) return ctx->refuse(same.error());
                        answer_created(api, ctx, params.job, 200);
                      });
}

}  // namespace

void operations::fork(ApiContext& api, RequestPtr ctx) {
  auto params = [&]() -> Result<runtime::ForkRequest> {
    AE_TRY(wait_parameter(ctx->query));
    const Fields fields = std::move(ctx->fields);
    AE_ASSIGN(runtime::ForkRequest made, parse_fork_params(ctx->request, fields));
    const Value& at = fields["at_seq"];
    if (!at.is_integer() || at.as_int() < 1) {
      return fail(Code::input_invalid,
                  at.is_null()
                      ? "\"at_seq\" is missing: set the number of the event to fork at"
                      : "\"at_seq\" must be at least 1: the number of the event to fork at");
    }
    made.at = static_cast<std::uint64_t>(at.as_int());
    if (const Value* input = fields.find(field::input)) made.input = *input;
    return made;
  }();
  if (!params) return ctx->refuse(params.error());
  find_or_fork(api, ctx, std::move(*params));
}

void operations::retry(ApiContext& api, RequestPtr ctx) {
  auto params = [&]() -> Result<runtime::ForkRequest> {
    AE_TRY(wait_parameter(ctx->query));
    const Fields fields = std::move(ctx->fields);
    return parse_fork_params(ctx->request, fields);
  }();
  if (!params) return ctx->refuse(params.error());
  find_or_fork(api, ctx, std::move(*params));
}

// The plan is in the request, or is the current one of the job's agent in this process' agents
// file.
void operations::plan(ApiContext& api, RequestPtr ctx) {
  auto plan = [&]() -> Result<engine::PlanRequest> {
    const Fields fields = std::move(ctx->fields);
    engine::PlanRequest params{.task_graph = fields[field::task_graph],
                               .drop = fields[field::drop]};
    AE_ASSIGN(params.reason, fields.text(field::reason));
    return params;
  }();
  if (!plan) return ctx->refuse(plan.error());
  // A plan contains the policies of its tools, including which calls need approval.
  if (!plan->task_graph.is_null() && ctx->request.role != Role::admin) {
    return ctx->refuse(missing_role_error(ctx->request.role, {Role::admin}));
  }
  const auto job = job_id_of(ctx->id);
  if (!job) return ctx->refuse(job.error());
  struct Current {
    std::string agent;
    bool ended = false;  // then that is the refusal
  };
  compute_state<Current>(
      api, ctx, *job,
      [](Snapshot& read) -> Result<Current> {
        return Current{read.state.agent, engine::is_terminal(read.state.status)};
      },
      [&api, ctx, plan = *std::move(plan)](Result<Current> now) mutable {
        if (!now) return ctx->refuse(now.error());
        if (!plan.task_graph.is_null()) {
          const Status may =
              now->ended ? Status{} : check_plan_runs_here(api, now->agent, plan.task_graph);
          if (!may) return ctx->refuse(may.error());
          return submit_request(api, ctx, {.body = std::move(plan)}, 202);
        }
        const agents::Agent* const agent = api.agents.find_agent(now->agent);
        if (agent == nullptr) {
          return ctx->refuse(
              {Code::plan_invalid, fmt::format("the agent \"{}\" is in no agents file of this "
                                               "process; replace the plan instead",
                                               now->agent)});
        }
        plan.task_graph = agent->task_graph;
        submit_request(api, ctx, {.body = std::move(plan)}, 202);
      });
}

}  // namespace ae::api
