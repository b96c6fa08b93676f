#include "runtime/service/create.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "engine/heart/decide.h"
#include "json/json.h"
#include "runtime/log.h"
#include "runtime/log_writer.h"
#include "runtime/row.h"

namespace ae::runtime {
namespace {

engine::ControlRequest plan_request(const PlanReplacement& replacement) {
  std::vector<Value> drop(replacement.drop.begin(), replacement.drop.end());
  return {.by = replacement.by,
          .body = engine::PlanRequest{.task_graph = replacement.plan->task_graph,
                                      .drop = Value::array(std::move(drop))}};
}

// The plan that the job follows.
const std::shared_ptr<const engine::Plan>& effective_plan(const NewJobRequest& request) {
  return request.plan_replacement ? request.plan_replacement->plan : request.plan;
}

std::string draw_blind(async::RandomSource& random) {
  std::string bytes;
  put_big_endian64(random.next(), bytes);
  put_big_endian64(random.next(), bytes);
  return to_hex(bytes);
}

// What the first events of the job contain.
engine::NewJobEvents new_job_events(const NewJobRequest& request,
                                    const std::string& execution_version, Instant now,
                                    async::RandomSource& random) {
  engine::NewJobEvents fresh{.agent = request.agent,
                             .input = request.input,
                             .labels = labels_value(request.labels),
                             .idempotency_key = request.idempotency_key,
                             .execution_version = execution_version,
                             .priority = request.priority,
                             .queue = request.queue,
                             .required_capabilities = request.required_capabilities,
                             .deadline = request.deadline,
                             .explicit_options = request.explicit_options,
                             .plan = request.plan.get()};
  if (request.fork) {
    fresh.execution_version = request.fork->execution_version;
    fresh.planner_version = request.fork->planner_version;
    fresh.forked_from = request.fork->forked_from;
    fresh.imported = request.fork->imported;
    fresh.spent = request.fork->spent;
    fresh.blind = request.fork->blind;
  }
  fresh.parent = request.parent;
  if (!request.fork || request.fork->blind_erased) fresh.blind = draw_blind(random);
  fresh.budget = request.budget;
  fresh.now = now;
  fresh.traceparent = request.traceparent;
  fresh.tracestate = request.tracestate;
  if (const auto& plan = effective_plan(request); plan->deadline) {
    const Instant of_agent = now + *plan->deadline;
    fresh.deadline = std::min(fresh.deadline.value_or(of_agent), of_agent);
  }
  return fresh;
}

// The state after `events`. With a plan replacement, its events are applied and appended. Fails as
// engine::apply_request.
Result<std::shared_ptr<engine::State>> first_state(const JobId& job, const NewJobRequest& request,
                                                   Instant now, std::vector<EventBody>& events) {
  const engine::PlanSource plan =
      [&](const Value& graph, std::string_view) -> Result<std::shared_ptr<const engine::Plan>> {
    return graph == request.plan->task_graph ? request.plan : effective_plan(request);
  };
  auto state = std::make_shared<engine::State>();
  state->job = job;
  for (const EventBody& draft : events) {
    Status applied = engine::apply(*state, draft, now, plan);
    AE_CHECK(applied, applied.error().message);
  }
  if (!request.plan_replacement) return state;
  AE_ASSIGN(auto replaced, engine::apply_request(*state, plan_request(*request.plan_replacement),
                                                 {.now = now, .lease_until = now}));
  for (EventBody& draft : replaced.events) {
    Status applied = engine::apply(*state, draft, now, plan);
    AE_CHECK(applied, applied.error().message);
    events.push_back(std::move(draft));
  }
  return state;
}

JobRequest job_request_of(const NewJobRequest& request, const engine::NewJobEvents& fresh) {
  return {.agent = request.agent,
          .input = request.input,
          .labels = fresh.labels,
          .forked_from = fresh.forked_from ? record_json(*fresh.forked_from) : Value(),
          .explicit_options = request.explicit_options};
}

// The job's row, without a claim.
store::NewJob new_row(const NewJobRequest& request, const engine::NewJobEvents& fresh) {
  store::NewJob row;
  if (!request.queue.empty()) row.queue = request.queue;
  row.agent = request.agent;
  row.idempotency_key = request.idempotency_key;
  row.request_hash = request_hash(fresh.blind, job_request_of(request, fresh));
  row.labels = labels_of(fresh.labels);
  row.priority = request.priority;
  row.capabilities = needed_capabilities(request.required_capabilities, request.agent,
                                         fresh.execution_version, effective_plan(request).get());
  if (fresh.forked_from) row.forked_from = fresh.forked_from->job_id;
  return row;
}

}  // namespace

void JobCreator::create(NewJobRequest request, async::Done<Result<CreateResult>> done) {
  const Instant now = world_.store.now();
  JobId job = request.job;
  if (job.empty()) job = JobId(new_uuid(world_));
  const engine::NewJobEvents fresh =
      new_job_events(request, options_.version_of(request.agent), now, world_.random);
  std::vector<EventBody> events = engine::job_events(fresh);
  const AttemptId attempt = AttemptId(new_uuid(world_));
  store::NewJob row = new_row(request, fresh);
  const bool start_here = request.start_here && host_.can_start(row);
  if (start_here) {
    events.push_back(engine::running_event(attempt, 1, options_.worker, world_.store.opened_at()));
    row.claim = store::InitialClaimParams{options_.worker, attempt, options_.lease};
  }
  const auto refuse = [&](const Error& error) {
    world_.loop.post([done = std::move(done), error]() mutable { done(std::unexpected(error)); });
  };
  const auto state = first_state(job, request, now, events);
  if (!state) return refuse(state.error());
  LogWriter writer(world_, job, {}, now, start_here ? std::optional(attempt) : std::nullopt);
  store::Batch batch;
  auto sealed_events = writer.append(std::move(events), row_of(**state), batch,
                                     {.value = &request.plan->task_graph,
                                      .text = request.plan->task_graph_text,
                                      .hash = request.plan->hash});
  if (!sealed_events) return refuse(sealed_events.error());
  CreatedJob created{.job = job,
                     .state = *state,
                     .plan = request.plan,
                     .events = host_.observed_events(*std::move(sealed_events)),
                     .head = writer.end().head,
                     .bytes = bytes_of(*batch.sealed),
                     .request = job_request_of(request, fresh),
                     .request_hash = row.request_hash,
                     .may_claim_here = host_.may_claim(row.agent, row.capabilities),
                     .done = std::move(done)};
  batch.authority = store::Batch::Create{std::move(row)};
  batch.sender = request.creator;
  batch.audit = request.audit;
  batch.summary = summary_of(**state);
  if (!start_here) sign_head(world_, writer.end(), now, batch);
  commit_until_known(
      world_, alive_.watch(), std::make_shared<store::Batch>(std::move(batch)),
      [this, created = std::move(created)](Result<store::CommitResult> result) mutable {
        on_created(std::move(created), std::move(result));
      });
}

// Reports the job, or the existing one with the same idempotency key. Runs the job if it was
// created with a lease.
void JobCreator::on_created(CreatedJob created, Result<store::CommitResult> result) {
  if (!result) return created.done(std::unexpected(result.error()));
  if (result->existing) {
    if (result->existing_request == created.request_hash) {
      return created.done(CreateResult{*result->existing, true});
    }
    return compare_with_existing(*result->existing, *result->existing_request,
                                 std::move(created.request), std::move(created.done));
  }
  host_.on_committed_events(created.job, created.events);
  if (result->lease) return host_.start_created(std::move(created), *std::move(result->lease));
  created.done(CreateResult{created.job, false});
  if (created.may_claim_here) host_.on_claimable();
}

// A request whose idempotency key exists. The hash of a request is blinded with the secret of its
// own job, so the hash of this request is computed with the secret in the existing job's first
// event. The rest of its log is not read.
void JobCreator::compare_with_existing(JobId job, Hash known, JobRequest job_request,
                                       async::Done<Result<CreateResult>> done) {
  world_.store.load(
      job, store::kFirstCommit,
      [job, known, job_request = std::move(job_request),
       done = std::move(done)](Result<store::LoadedJob> loaded) mutable {
        if (!loaded) return done(std::unexpected(loaded.error()));
        const auto created = open_job_created(job, *loaded);
        if (!created) return done(std::unexpected(created.error()));
        switch (same_request(*created, known, job_request)) {
          case SameRequest::yes:
            return done(CreateResult{.job = job, .existing = true});
          case SameRequest::input_erased:
            return done(CreateResult{.job = job, .existing = true, .input_erased = true});
          case SameRequest::no:
            break;
        }
        done(fail(Code::idempotency_conflict,
                  "the idempotency key was used for another request (job {}); use a new key",
                  job.text));
      });
}

}  // namespace ae::runtime
