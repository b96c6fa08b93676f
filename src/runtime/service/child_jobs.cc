#include "runtime/service/child_jobs.h"

#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "engine/children/children.h"
#include "log/records.h"
#include "runtime/row.h"
#include "runtime/service/call_outcomes.h"

namespace ae::runtime {
namespace {

// The child may exist: it is looked for, also before the job ends.
Outcome may_exist(std::string why) {
  return {.kind = OutcomeKind::unknown,
          .error_code = std::string(code_name(Code::unknown_outcome)),
          .error_message = std::move(why)};
}

Outcome outcome_of(const Error& error) {
  if (error.code == Code::unavailable || error.code == Code::unknown_outcome) {
    return not_sent(error.message);
  }
  return definite_failure(std::string(code_name(error.code)), error.message);
}

// The outcome of a call whose child has ended.
Outcome outcome_of(const JobId& child, const ChildEnd& end) {
  if (end.failure) {
    Outcome failed = definite_failure(
        end.failure->code, fmt::format("job {}: {}", child.text, or_empty(end.failure->message)));
    failed.external_id = child.text.string();
    return failed;
  }
  return {.kind = OutcomeKind::success, .result = end.result, .external_id = child.text.string()};
}

// The step of the call in its job; nullptr: the job does not run here.
const engine::Step* step_of(const engine::State* state, const InvocationId& invocation) {
  if (state == nullptr) return nullptr;
  for (const std::uint32_t index : state->calling) {
    if (state->steps[index].call->id == invocation) return &state->steps[index];
  }
  return nullptr;
}

Value labels_of_child(const engine::State& parent, const engine::ChildPolicy& policy) {
  Value labels = parent.labels.is_object() ? parent.labels : Value::object({});
  for (const auto& [name, value] : policy.labels) labels = labels.with(name, value);
  return labels;
}

// The limits of the child: those of its agent, and what the call has reserved.
engine::Limits budget_of_child(const engine::Plan& plan, const engine::State& parent,
                               const engine::Step& step, Instant now) {
  engine::Limits limits = plan.budget;
  const auto lower = [](auto& most, const auto& other) {
    most = most ? std::min(*most, other) : other;
  };
  const engine::Budget& budget = parent.budget;
  const engine::Usage reserved = engine::child_use(step.call->reserved);
  for (const engine::Limit limit : engine::kCountedLimits) {
    if (!budget.limits.max_of(limit)) continue;
    std::uint64_t left = engine::amount_of(reserved, limit);
    if (limit == engine::Limit::tool_calls) left -= 1;  // the call itself
    lower(limits.max_of(limit), left);
  }
  const auto& policy = *parent.tool_of(step).child;
  for (const engine::Limit limit : engine::kCountedLimits) {
    if (const auto& own = policy.budget.max_of(limit)) lower(limits.max_of(limit), *own);
  }
  if (policy.budget.wall) lower(limits.wall, *policy.budget.wall);
  if (budget.wall_until) {
    lower(limits.wall, std::max(*budget.wall_until - now, Duration(std::chrono::milliseconds(1))));
  }
  return limits;
}

// What a child has of its parent, whatever its agent is.
NewJobRequest inherited(const engine::State& parent, const engine::Step& step,
                        const tools::Call& call, Instant now) {
  const engine::ChildPolicy& policy = *parent.tool_of(step).child;
  NewJobRequest request{.queue = parent.queue,
                        .parent = JobParent{.command_id = step.id,
                                            .job_id = call.job.text.string(),
                                            .tree_depth = engine::tree_depth(parent) + 1}};
  if (policy.detached) request.parent->detached = true;
  // A detached child may outlive its parent.
  if (!policy.detached) request.deadline = parent.deadline;
  if (policy.deadline) {
    const Instant own = now + *policy.deadline;
    request.deadline = std::min(request.deadline.value_or(own), own);
  }
  tools::TraceHeaders trace = call.trace_headers();
  request.traceparent = std::move(trace.traceparent);
  request.tracestate = std::move(trace.tracestate);
  return request;
}

// Fails with input_invalid: its budget cannot be applied.
Result<NewJobRequest> with_inherited(NewJobRequest request, const NewJobRequest& inherited,
                                     const engine::State& parent, const engine::Step& step,
                                     Instant now) {
  const engine::ChildPolicy& policy = *parent.tool_of(step).child;
  if (request.queue.empty()) request.queue = inherited.queue;
  request.deadline = inherited.deadline;
  request.parent = inherited.parent;
  request.traceparent = inherited.traceparent;
  request.tracestate = inherited.tracestate;
  request.explicit_options = Value();
  if (parent.budget.is_tracked() && !policy.detached) {
    request.budget = budget_of_child(*request.plan, parent, step, now);
  } else if (policy.budget.any()) {
    AE_ASSIGN(request.budget, engine::lower_limits(request.plan->budget, policy.budget));
  }
  if (request.budget.cost_micros && !request.plan->all_models_priced()) {
    return fail(Code::input_invalid,
                "the job has a cost limit: agent {} needs a `price` for every model", policy.agent);
  }
  return request;
}

constexpr const char* kGone = "its job does not run here any more";

}  // namespace

struct ChildJobs::Creation {
  JobId parent, child;
  InvocationId invocation;
  NewJobRequest request;
  Duration send_until{};  // steady: it is not created later
  bool detached = false;
  bool has_ended = false;               // and its end was erased from the log of the parent
  std::optional<Outcome> refusal = {};  // unless the child exists
  async::Done<Outcome> done;

  Outcome created() const {
    if (detached) {
      return {.kind = OutcomeKind::success,
              .result = Value::object({{"job", child.text}}),
              .external_id = child.text.string()};
    }
    const Value question = Value::object({{"job", child.text}, {"mode", "job"}});
    return {.kind = OutcomeKind::input_required,
            .definite = true,
            .result = Value::object(
                {{"requests", Value::object({{std::string(engine::kChildAnswer), question}})}}),
            .external_id = child.text.string()};
  }
};

void ChildJobs::perform(tools::Permit, tools::Call call, async::Done<Outcome> done) {
  // Never inside of this call.
  done = [&loop = world_.loop, done = std::move(done)](Outcome outcome) mutable {
    loop.post([done = std::move(done), outcome = std::move(outcome)]() mutable {
      done(std::move(outcome));
    });
  };
  const engine::State* const state = host_.state_of(call.job);
  const engine::Step* const step = step_of(state, call.invocation);
  if (step == nullptr) return done(not_sent(kGone));
  const engine::ChildPolicy& policy = *state->tool_of(*step).child;
  auto creation = std::make_shared<Creation>();
  creation->parent = call.job;
  creation->child = engine::child_of(*state, *step);
  creation->invocation = call.invocation;
  creation->send_until = world_.steady.since_start() + call.send_within;
  creation->detached = policy.detached;
  if (const Value* answer = call.inputs["answers"].find(engine::kChildAnswer)) {
    if (const auto end = record_from_json<ChildEnd>(*answer)) {
      return done(outcome_of(creation->child, *end));
    }
    creation->has_ended = true;
  }
  creation->done = std::move(done);
  // No child begins in a job that ends; one that exists is awaited.
  if (state->ending || creation->has_ended) return find(std::move(creation));
  if (engine::tree_depth(*state) >= engine::kTreeDepthMax) {
    return creation->done(definite_failure(
        "tree_too_deep", fmt::format("a job has at most {} ancestors: a job of agent {} would have "
                                     "one more",
                                     engine::kTreeDepthMax, policy.agent)));
  }
  if (world_.new_jobs == nullptr) {
    return refuse(std::move(creation), definite_failure(std::string(code_name(Code::unsupported)),
                                                        "no agents are offered here"));
  }
  creation->request = inherited(*state, *step, call, world_.store.now());
  ChildJobSpec spec{.id = creation->child,
                    .agent = policy.agent,
                    .input = std::move(call.args),
                    .labels = labels_of_child(*state, policy),
                    .priority = policy.priority.value_or(state->priority),
                    .queue = policy.queue};
  world_.new_jobs->make_child_request(std::move(spec), [this, alive = alive_.watch(), creation](
                                                           Result<NewJobRequest> made) mutable {
    if (alive) on_made(std::move(creation), std::move(made));
  });
}

void ChildJobs::on_made(std::shared_ptr<Creation> creation, Result<NewJobRequest> made) {
  const engine::State* const parent = host_.state_of(creation->parent);
  const engine::Step* const caller = step_of(parent, creation->invocation);
  if (caller == nullptr) return creation->done(not_sent(kGone));
  if (parent->ending) return find(std::move(creation));  // since `perform`
  if (made) {
    made =
        with_inherited(*std::move(made), creation->request, *parent, *caller, world_.store.now());
  }
  if (!made) return refuse(std::move(creation), outcome_of(made.error()));
  creation->request = *std::move(made);
  creation->request.creator = store::HeldJob{creation->parent, {parent->attempt, parent->epoch}};
  // The process was suspended. Another one may run the parent, and has not found the child.
  if (world_.steady.since_start() > creation->send_until) {
    return creation->done(not_sent("the child was not created in time"));
  }
  create(std::move(creation));
}

// An earlier try whose outcome is unknown may have created the child.
void ChildJobs::refuse(std::shared_ptr<Creation> creation, Outcome refusal) {
  creation->refusal = std::move(refusal);
  find(std::move(creation));
}

void ChildJobs::create(std::shared_ptr<Creation> creation) {
  host_.create(creation->request,
               [this, alive = alive_.watch(), creation](Result<CreateResult> created) {
                 if (!alive) return;
                 if (created) return creation->done(creation->created());
                 if (created.error().code == Code::already_exists) return find(creation);
                 if (created.error().code == Code::stale_attempt)
                   return creation->done(not_sent(kGone));
                 const bool is_unknown = created.error().code == Code::unknown_outcome;
                 if (is_unknown && !creation->detached) {
                   return creation->done(may_exist(created.error().message));
                 }
                 creation->done(outcome_of(created.error()));
               });
}

// The child exists: an earlier try has created it, and its outcome was lost. If it has ended, its
// request to the parent is in the inbox of the parent, or in its log.
void ChildJobs::find(std::shared_ptr<Creation> creation) {
  const JobId child = creation->child;
  reader_.read_state<Outcome>(
      child,
      [creation](JobSnapshot& read) -> Result<Outcome> {
        const auto& parent = read.state.parent;
        if (!parent || parent->job_id != creation->parent.text.view()) {
          return definite_failure(
              std::string(code_name(Code::already_exists)),
              fmt::format("job {} exists and is not a child of this job", creation->child.text));
        }
        if (creation->has_ended && engine::is_terminal(read.state.status)) {
          return outcome_of(creation->child, engine::end_of_child(read.state));
        }
        return creation->created();
      },
      [creation](Result<Outcome> found) {
        if (found) return creation->done(*std::move(found));
        if (found.error().code == Code::not_found) {
          return creation->done(creation->refusal.value_or(
              definite_failure("cancelled", "the child job does not exist")));
        }
        creation->done(outcome_of(found.error()));
      });
}

}  // namespace ae::runtime
