// Runtime::create: creates a job, and runs it here if there is capacity.
#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "engine/heart/decide.h"
#include "json/json.h"
#include "runtime/log.h"
#include "runtime/log_writer.h"
#include "runtime/row.h"
#include "runtime/runtime.h"

namespace ae::runtime {
namespace {

engine::ControlRequest plan_request(const PlanReplacement& replacement) {
  std::vector<Value> drop(replacement.drop.begin(), replacement.drop.end());
  return {.kind = engine::ControlRequest::Kind::plan,
          .by = replacement.by,
          .payload = Value::object({{"drop", Value::array(std::move(drop))},
                                    {"task_graph", replacement.plan->task_graph}})};
}

}  // namespace

void Runtime::create(NewJobRequest request, async::Done<Result<CreateResult>> done) {
  const Instant now = world_.store.now();
  JobId job = request.job;
  if (job.empty()) job = JobId(new_uuid(world_));
  const Value labels = labels_value(request.labels);
  engine::NewJobEvents fresh{.agent = request.agent,
                             .input = request.input,
                             .labels = labels,
                             .idempotency_key = request.idempotency_key,
                             .execution_version = options_.version_of(request.agent),
                             .priority = request.priority,
                             .queue = request.queue,
                             .required_capabilities = request.required_capabilities,
                             .deadline = request.deadline,
                             .asked = request.explicit_options,
                             .plan = request.plan.get()};
  if (request.fork) {
    fresh.execution_version = request.fork->execution_version;
    fresh.planner_version = request.fork->planner_version;
    fresh.forked_from = request.fork->forked_from;
    fresh.imported = request.fork->imported;
    fresh.spent = request.fork->spent;
    fresh.blind = request.fork->blind;
  }
  if (!request.fork || request.fork->blind_erased) {
    std::string blind_bytes;
    put_big_endian64(world_.random.next(), blind_bytes);
    put_big_endian64(world_.random.next(), blind_bytes);
    fresh.blind = to_hex(blind_bytes);
  }
  fresh.budget = request.budget;
  fresh.now = now;
  fresh.traceparent = request.traceparent;
  fresh.tracestate = request.tracestate;
  const std::shared_ptr<const engine::Plan> effective_plan =
      request.plan_replacement ? request.plan_replacement->plan : request.plan;
  if (effective_plan->deadline) {
    const Instant of_agent = now + *effective_plan->deadline;
    fresh.deadline = std::min(fresh.deadline.value_or(of_agent), of_agent);
  }
  std::vector<EventBody> events = engine::job_events(fresh);
  const AttemptId attempt = AttemptId(new_uuid(world_));
  store::JobRow needs;
  needs.capabilities = needed_capabilities(request.required_capabilities, request.agent,
                                           fresh.execution_version, effective_plan->versions);
  store::NewJob row;
  if (!request.queue.empty()) row.queue = request.queue;
  // The limit of a queue is enforced only by a claim.
  const bool limited = std::ranges::find(options_.queues, row.queue, &store::QueueLimit::queue) !=
                       options_.queues.end();
  const bool start_here = request.start_here && !stopping_ && !limited &&
                          drivers_.size() < options_.leased_max &&
                          missing_capabilities(needs).empty();
  if (start_here)
    events.push_back(engine::running_event(attempt, 1, options_.worker, world_.store.opened_at()));

  const engine::PlanSource plan =
      [&](const Value& graph, std::string_view) -> Result<std::shared_ptr<const engine::Plan>> {
    return graph == request.plan->task_graph ? request.plan : effective_plan;
  };
  auto state = std::make_shared<engine::State>();
  state->job = job;
  for (const EventBody& draft : events) {
    Status applied = engine::apply(*state, draft, now, plan);
    AE_CHECK(applied, applied.error().message);
  }
  if (request.plan_replacement) {
    auto replaced = engine::apply_request(*state, plan_request(*request.plan_replacement),
                                          {.now = now, .lease_until = now});
    if (!replaced) {
      return world_.loop.post([done = std::move(done), error = replaced.error()]() mutable {
        done(std::unexpected(error));
      });
    }
    for (EventBody& draft : replaced->events) {
      Status applied = engine::apply(*state, draft, now, plan);
      AE_CHECK(applied, applied.error().message);
      events.push_back(std::move(draft));
    }
  }
  LogWriter writer(world_, job, {}, now, start_here ? std::optional(attempt) : std::nullopt);
  store::Batch batch;
  auto sealed_events = writer.append(std::move(events), row_of(*state), batch,
                                     {.value = &request.plan->task_graph,
                                      .text = request.plan->task_graph_text,
                                      .hash = request.plan->hash});
  if (!sealed_events) {
    return world_.loop.post([done = std::move(done), error = sealed_events.error()]() mutable {
      done(std::unexpected(error));
    });
  }
  row.agent = request.agent;
  row.idempotency_key = request.idempotency_key;
  JobRequest job_request{.agent = request.agent,
                         .input = request.input,
                         .labels = labels,
                         .forked_from = fresh.forked_from,
                         .explicit_options = request.explicit_options};
  row.request_hash = request_hash(fresh.blind, job_request);
  row.labels = labels_of(labels);
  row.priority = request.priority;
  row.capabilities = std::move(needs.capabilities);
  if (start_here) row.claim = store::InitialClaimParams{options_.worker, attempt, options_.lease};
  const Hash new_request_hash = row.request_hash;
  const bool may_claim_here = may_claim(row.agent, row.capabilities);
  batch.authority = store::Batch::Create{std::move(row)};
  batch.audit = request.audit;
  if (!start_here) sign_head(world_, writer.end(), now, batch);
  const std::size_t bytes = bytes_of(*batch.sealed);
  commit_until_known(
      world_, alive_.watch(), std::make_shared<store::Batch>(std::move(batch)),
      [this, job, state, sealed_events = *std::move(sealed_events), head = writer.end().head, bytes,
       new_request_hash, may_claim_here, plan = request.plan, job_request = std::move(job_request),
       done = std::move(done)](Result<store::CommitResult> result) mutable {
        if (!result) return done(std::unexpected(result.error()));
        if (result->existing) {
          if (result->existing_request == new_request_hash) {
            return done(CreateResult{*result->existing, true});
          }
          return compare_with_existing(*result->existing, *result->existing_request,
                                       std::move(job_request), std::move(done));
        }
        on_committed_events(job, sealed_events);
        if (result->lease) {
          plans_.insert(plan);
          const std::shared_ptr<JobDriver> driver = acquire(*result->lease);
          done(CreateResult{job, false});
          if (!driver) return;
          driver->adopt(std::move(*state), head, bytes);
          if (stopping_) driver->drain(grace_);
          return;
        }
        done(CreateResult{job, false});
        if (!may_claim_here) return;
        claimable_ = true;
        claim_more();
      });
}

// A request whose idempotency key exists. The hash of a request is blinded with the secret of its
// own job, so the hash of this request is computed with the secret in the existing job's first
// event. The rest of its log is not read.
void Runtime::compare_with_existing(JobId job, Hash known, JobRequest job_request,
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
                  "the idempotency key was used for another request (job " + job.text +
                      "); use a new key"));
      });
}

}  // namespace ae::runtime
