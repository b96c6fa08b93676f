// Forks: a new job that begins where another one stood. And re-plans: a job that goes on under another plan.
#include <utility>

#include "api/asked.h"
#include "core/schema.h"
#include "core/trace_context.h"

namespace ae::api {
namespace {

constexpr std::size_t kNamedMax = 5;  // effects in a sentence; the list has all

// The nodes whose committed effects another plan need not carry over.
Result<std::vector<std::string>> drop_of(const Fields& fields) {
  std::vector<std::string> nodes;
  const Value& drop = fields["drop"];
  if (drop.is_null()) return nodes;
  if (fields["task_graph"].is_null()) {
    return fail(Code::input_invalid, "\"drop\" needs a \"task_graph\"");
  }
  if (!drop.is_array()) return fail(Code::input_invalid, "\"drop\" must be a list of node ids");
  for (const Value& node : drop.items()) {
    if (!node.is_string()) return fail(Code::input_invalid, "\"drop\" must be a list of node ids");
    nodes.push_back(node.as_string());
  }
  return nodes;
}

Result<runtime::ForkRequest> wish_of(const ApiRequest& request, const Fields& fields) {
  runtime::ForkRequest wish;
  if (const auto context = trace_context(request.traceparent, request.tracestate)) {
    wish.traceparent = traceparent(context->trace_id, context->parent_id, context->flags);
    wish.tracestate = context->state;
  }
  AE_ASSIGN(const std::string id, fields.text("id"));
  if (!fields["id"].is_null()) {
    auto job = job_id_from_text(id);
    if (!job) return std::unexpected(std::move(job).error().in("\"id\""));
    wish.job = *std::move(job);
  }
  AE_TRY(fields.text("idempotency_key"));
  AE_ASSIGN(wish.idempotency_key, idempotency_key(request, fields.object()));
  wish.task_graph = fields["task_graph"];
  if (!wish.task_graph.is_null() && request.role != Role::admin) {
    // A plan brings the rules of its tools along.
    return std::unexpected(role_missing(request.role, {Role::admin}));
  }
  AE_ASSIGN(wish.drop, drop_of(fields));
  const Value& repeat = fields["repeat_effects"];
  bool fits = repeat.is_null() || repeat.is_bool() || repeat.is_array();
  if (repeat.is_bool()) wish.repeat_all = repeat.as_bool();
  if (repeat.is_array()) {
    for (const Value& name : repeat.items()) {
      fits = fits && name.is_string();
      if (fits) wish.repeat.push_back(name.as_string());
    }
  }
  if (!fits) {
    return fail(
        Code::input_invalid,
        "\"repeat_effects\" must be true, or a list of idempotency keys, step ids or node ids");
  }
  return wish;
}

std::string outcome_words(std::string_view state) {
  if (state == "committed") return "applied";
  if (state == "in_doubt") return "outcome unknown";
  return state == "undone" ? "compensated" : std::string(state);
}

// `instead`: what helps other than repeating them.
Error repeats(const std::string& origin, const std::vector<Value>& effects,
              std::string_view instead) {
  std::string names;
  for (std::size_t i = 0; i < effects.size() && i < kNamedMax; ++i) {
    const Value& item = effects[i]["item"];
    names += (i == 0 ? "" : ", ") + std::string(effects[i].text("node_id")) +
             (item.is_integer() ? "[" + std::to_string(item.as_int()) + "]" : "") + " (" +
             std::string(effects[i].text("tool")) + ", " + outcome_words(effects[i].text("state")) +
             ")";
  }
  if (effects.size() > kNamedMax) names += ", …";
  return {Code::effects_repeated, "job " + origin +
                                      " has effects that the new job would repeat: " + names +
                                      "; allow it with repeat_effects" + std::string(instead)};
}

}  // namespace

void Api::fork(Ask ask) {
  auto wish = [&]() -> Result<runtime::ForkRequest> {
    AE_TRY(ask->query.only({"wait"}));
    AE_ASSIGN(const Fields fields,
              Fields::parse(ask->request.body,
                            {"at_seq", "id", "idempotency_key", "input", "repeat_effects"},
                            {{"overrides", "a fork can override the input only"}}));
    AE_ASSIGN(runtime::ForkRequest made, wish_of(ask->request, fields));
    const Value& at = fields["at_seq"];
    if (!at.is_integer() || at.as_int() < 1) {
      const std::string what = at.is_null() ? "is missing: set the" : "must be at least 1: the";
      return fail(Code::input_invalid, "\"at_seq\" " + what + " number of the event to fork at");
    }
    made.at = static_cast<std::uint64_t>(at.as_int());
    if (const Value* input = fields.find("input")) made.input = *input;
    return made;
  }();
  if (!wish) return ask->refuse(wish.error());
  fork_known(ask, std::move(*wish));
}

void Api::retry(Ask ask) {
  auto wish = [&]() -> Result<runtime::ForkRequest> {
    AE_TRY(ask->query.only({"wait"}));
    AE_ASSIGN(const Fields fields,
              Fields::parse(ask->request.body,
                            {"drop", "id", "idempotency_key", "repeat_effects", "task_graph"}));
    return wish_of(ask->request, fields);
  }();
  if (!wish) return ask->refuse(wish.error());
  fork_known(ask, std::move(*wish));
}

// Forking with a chosen id twice is forking once, also when the origin has moved on meanwhile.
void Api::fork_known(Ask ask, runtime::ForkRequest wish) {
  const auto origin = job_id_from_text(ask->id);
  if (!origin) return ask->refuse({Code::not_found, origin.error().message});
  wish.origin = *origin;
  wish.by = ask->request.by;
  if (wish.job.empty()) return fork_new(ask, std::move(wish));
  const JobId job = wish.job;
  read_in_turn(ask, job,
               [this, alive = std::weak_ptr(alive_), ask,
                wish = std::move(wish)](Result<runtime::Runtime::Read> read) mutable {
                 if (!alive.lock()) return;
                 if (!read && read.error().code == Code::not_found)
                   return fork_new(ask, std::move(wish));
                 if (!read) return ask->refuse(read.error());
                 const Value& from = read->state.forked_from;
                 const bool same = from.text("job_id") == wish.origin.text &&
                                   (wish.at == 0 || from["seq"] == Value(wish.at)) &&
                                   (!wish.input || *wish.input == read->state.input);
                 if (same && !wish.task_graph.is_null() && read->state.plan) {
                   const auto plan = engine::Plan::compile(wish.task_graph);
                   if (!plan) return ask->refuse(plan.error());
                   if ((*plan)->hash != read->state.plan->hash) {
                     return ask->refuse(
                         {Code::already_exists, "the job " + wish.job.text +
                                                    " exists with another plan; use another id"});
                   }
                 }
                 if (!same) {
                   return ask->refuse(
                       {Code::already_exists, "the job " + wish.job.text +
                                                  " exists and is not this fork; use another id"});
                 }
                 created(ask, wish.job, 200);
               });
}

// Fails with needs_version: this process runs the jobs of the agent, but not with the tools of this plan.
Status Api::may_plan(const std::string& agent, const Value& task_graph) {
  if (!options_.runs || task_graph.is_null()) return {};
  AE_ASSIGN(const auto plan, engine::Plan::compile(task_graph));
  return runtime_.offers(agent, *plan);
}

Status Api::may_fork(const runtime::ForkRequest& wish, const std::string& agent_name) {
  const agents::Agent* const agent = find_agent(agent_name);
  if (wish.input && agent != nullptr && agent->input_schema) {
    AE_ASSIGN(const auto schema, Schema::compile(*agent->input_schema));
    AE_TRY(schema.check(*wish.input));
  }
  return may_plan(agent_name, wish.task_graph);
}

void Api::fork_new(Ask ask, runtime::ForkRequest wish) {
  if (!options_.agents || (!wish.input && wish.task_graph.is_null())) {
    return make_fork(ask, std::move(wish));
  }
  read(ask, [this, ask, wish = std::move(wish)](runtime::Runtime::Read& read) mutable {
    if (auto may = may_fork(wish, read.state.agent); !may) return ask->refuse(may.error());
    make_fork(ask, std::move(wish));
  });
}

void Api::make_fork(Ask ask, runtime::ForkRequest wish) {
  const bool named = !wish.job.empty();
  runtime::ForkRequest again = wish;
  runtime_.fork(std::move(wish), [this, alive = std::weak_ptr(alive_), ask, named,
                                  again = std::move(again)](Result<runtime::Forked> made) mutable {
    if (!alive.lock()) return;
    if (!made && made.error().code == Code::not_found) {
      return ask->refuse(no_job(ask->id));
    }
    if (!made && made.error().code == Code::already_exists && named) {
      return fork_known(ask, std::move(again));  // somebody was faster
    }
    if (!made) return ask->refuse(made.error());
    if (!made->repeated.empty()) {
      const Error error =
          repeats(ask->id, made->repeated, again.at == 0 ? "" : ", or fork at a later event");
      return ask->answer(http_status(error.code),
                         problem(error).with("effects", Value::array(made->repeated)));
    }
    std::vector<Member> more;
    if (made->changes.is_array()) more.emplace_back("plan_changes", made->changes);
    created(ask, made->created.job, made->created.existing ? 200 : 201, std::move(more));
  });
}

// The plan is in the request, or is that of the job's agent in this process' own agents file.
void Api::plan(Ask ask) {
  auto act = [&]() -> Result<engine::Act> {
    AE_TRY(ask->query.only({}));
    AE_ASSIGN(const Fields fields,
              Fields::parse(ask->request.body, {"drop", "reason", "task_graph"}));
    engine::Act wish{.kind = engine::Act::Kind::plan};
    AE_ASSIGN(wish.reason, fields.text("reason"));
    const Value& drop = fields["drop"];
    wish.payload = Value::object({{"task_graph", fields["task_graph"]}});
    if (!drop.is_null()) wish.payload = wish.payload.with("drop", drop);
    return wish;
  }();
  if (!act) return ask->refuse(act.error());
  // A plan brings the rules of its tools along: which calls people are asked about, too.
  if (!act->payload["task_graph"].is_null() && ask->request.role != Role::admin) {
    return ask->refuse(role_missing(ask->request.role, {Role::admin}));
  }
  read(ask, [this, ask, act = std::move(*act)](runtime::Runtime::Read& read) mutable {
    if (const Value& given = act.payload["task_graph"]; !given.is_null()) {
      const bool ended = engine::is_terminal(read.state.status);  // then it is refused for that
      const Status may = ended ? Status{} : may_plan(read.state.agent, given);
      if (!may) return ask->refuse(may.error());
      return this->act(ask, std::move(act), 202);
    }
    const agents::Agent* const agent = find_agent(read.state.agent);
    if (agent == nullptr) {
      return ask->refuse({Code::plan_invalid,
                          "the agent \"" + read.state.agent +
                              "\" is in no agents file of this process; replace the plan instead"});
    }
    act.payload = act.payload.with("task_graph", agent->task_graph);
    this->act(ask, std::move(act), 202);
  });
}

}  // namespace ae::api
