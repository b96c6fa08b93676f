// JobCreator::fork: creates a job from the log of another job.
#include <algorithm>
#include <utility>

#include "inspect/fork_preview.h"
#include "log/field_names.h"
#include "plan/plan_changes.h"
#include "runtime/service/create.h"

namespace ae::runtime {
namespace {

bool may_repeat(const ForkRequest& request, const Value& effect) {
  if (request.repeat_all) return true;
  return std::ranges::any_of(request.repeat, [&](const std::string& name) {
    return name == effect.text(field::step_id) || name == effect.text(field::idempotency_key) ||
           name == effect.text(field::node_id);
  });
}

// Where a fork starts.
struct ForkPoint {
  std::uint64_t at = 0;
  engine::Fork fork;
};

// What the fork would do. Fails with plan_invalid.
Result<ForkResult> dry_run(const ForkRequest& request, const ForkPoint& point) {
  ForkResult result;
  result.preview = engine::fork_preview(point.fork, point.at);
  if (!request.task_graph.is_null()) {
    AE_TRY(engine::Plan::compile(request.task_graph));
    result.changes = engine::plan_changes(point.fork.plan->task_graph, request.task_graph);
  }
  return result;
}

}  // namespace

void JobCreator::fork(ForkRequest request, async::Done<Result<ForkResult>> done) {
  const JobId origin = request.origin;
  auto find_fork = [at = request.at](JobSnapshot& read) mutable -> Result<ForkPoint> {
    if (at == 0) {
      AE_ASSIGN(at, engine::retry_point(read.state, read.events));
    }
    AE_ASSIGN(engine::Fork fork,
              engine::fork_at(read.state, read.events, at, engine::uncached_plan_source()));
    return ForkPoint{at, std::move(fork)};
  };
  reader_.read<ForkPoint>(
      origin, {}, std::move(find_fork),
      [this, request = std::move(request),
       done = std::move(done)](Result<ForkPoint> point) mutable {
        if (!point) return done(std::unexpected(point.error()));
        request.at = point->at;
        if (request.dry_run) return done(dry_run(request, *point));
        engine::Fork* const fork = &point->fork;
        ForkResult result;
        for (const Value& effect : fork->effects) {
          if (!may_repeat(request, effect)) result.repeated.push_back(effect);
        }
        if (!result.repeated.empty()) return done(std::move(result));
        if (request.input) {
          fork->input = std::move(*request.input);
        } else if (fork->input_erased) {
          return done(fail(Code::input_invalid,
                           "the origin's input has been erased from its log; give the fork one"));
        }
        std::optional<PlanReplacement> replacement;
        if (!request.task_graph.is_null()) {
          auto plan = engine::Plan::compile(request.task_graph);
          if (!plan) return done(std::unexpected(plan.error()));
          result.changes = engine::plan_changes(fork->plan->task_graph, request.task_graph);
          replacement = PlanReplacement{
              .plan = *std::move(plan), .drop = std::move(request.drop), .by = request.by};
        }
        if (request.job.empty()) request.job = JobId(new_uuid(world_));
        NewJobRequest new_job{
            .job = std::move(request.job),
            .agent = fork->agent,
            .plan = fork->plan,
            .input = fork->input,
            .labels = labels_of(fork->labels),
            .idempotency_key = std::move(request.idempotency_key),
            .priority = fork->priority,
            .queue = fork->queue,
            .required_capabilities = fork->required_capabilities,
            .deadline = {},
            .budget = fork->budget,
            .explicit_options =
                replacement ? Value::object({{field::plan_hash, to_hex(replacement->plan->hash)}})
                            : Value(),
            .start_here = false,
            .fork = nullptr,
            .plan_replacement = std::move(replacement),
            .audit = std::nullopt,
            .traceparent = std::move(request.traceparent),
            .tracestate = std::move(request.tracestate)};
        // The audit entry: values of one job are copied into the log of another.
        new_job.audit = store::AuditEntry{
            .at = world_.store.now(),
            .by = request.by,
            .act = "fork",
            .job = request.origin,
            .detail = Value::object({{field::at, request.at}, {"fork", new_job.job.text}})};
        new_job.fork = std::make_shared<const engine::Fork>(std::move(*fork));
        create(std::move(new_job), [done = std::move(done), result = std::move(result)](
                                       Result<CreateResult> created) mutable {
          if (!created) return done(std::unexpected(created.error()));
          result.created = std::move(*created);
          done(std::move(result));
        });
      });
}

}  // namespace ae::runtime
