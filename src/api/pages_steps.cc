// Pages of steps: the steps below a step, one step, and the state of a job at an earlier event.
#include <set>
#include <utility>

#include "api/command_line.h"
#include "api/steps_read.h"
#include "inspect/step_list.h"
#include "inspect/trace.h"
#include "inspect/trace_record.h"
#include "inspect/view.h"

namespace ae::api {
namespace {

constexpr std::size_t kStepsDefault = 100, kStepsMax = 500;  // in one page
constexpr std::string_view kStepStatuses[] = {
    "pending", "running", "backoff", "waiting", "in_doubt", "done", "skipped", "failed", "not_run"};

Result<engine::StepQuery> step_query(const Query& query) {
  engine::StepQuery wanted;
  AE_TRY(query.check_names({"parent", "status", "after", "limit", "changed_since"}));
  if (const auto* parent = query.find("parent"); parent && *parent != "root") {
    wanted.parent = *parent;
  }
  for (const std::string& status : query.all("status")) {
    if (std::ranges::find(kStepStatuses, std::string_view(status)) == std::end(kStepStatuses)) {
      return fail(Code::input_invalid,
                  "\"status\" must be pending, running, backoff, waiting, in_doubt, done, skipped, "
                  "failed or not_run");
    }
    wanted.statuses.insert(status);
  }
  if (const auto* after = query.find("after")) wanted.after = *after;
  AE_ASSIGN(const auto changed_since, query.number("changed_since"));
  wanted.changed_since = changed_since.value_or(0);
  AE_ASSIGN(wanted.limit, query.limit(kStepsDefault, kStepsMax));
  return wanted;
}

}  // namespace

void Api::read_steps(ContextPtr ctx, std::move_only_function<void(StepsReadPtr)> then) {
  const auto job = job_id_from_text(ctx->id);
  if (!job) return ctx->refuse({Code::not_found, job.error().message});
  const auto refuse = [ctx](const Error& error) {
    ctx->refuse(error.code == Code::not_found ? missing_job_error(ctx->id) : error);
  };
  read_limiter_.acquire(ctx->request.by, [this, ctx, job = *job, refuse,
                                          then = std::move(then)](ReadLimiter::Slot slot) mutable {
    if (auto may = ctx->check_response_room(); !may) return ctx->refuse(may.error());
    history_.step_index(
        job, [this, alive = alive_.watch(), job, refuse, slot = std::move(slot),
              then = std::move(then)](Result<runtime::History::IndexPtr> index) mutable {
          if (!index) return refuse(index.error());
          if (!alive) return;
          runtime_.read_state(job, [refuse, index = *std::move(index), slot = std::move(slot),
                                    then = std::move(then)](
                                       Result<runtime::Runtime::JobSnapshot> snapshot) mutable {
            if (!snapshot) return refuse(snapshot.error());
            then(std::make_shared<StepsRead>(
                StepsRead{*std::move(snapshot), std::move(index), std::move(slot)}));
          });
        });
  });
}

void Api::steps(ContextPtr ctx) {
  auto query = step_query(ctx->query);
  if (!query) return ctx->refuse(query.error());
  read_steps(ctx, [ctx, query = *std::move(query)](const StepsReadPtr& read) {
    const auto page = engine::list_steps(read->snapshot.state, *read->index, query);
    if (!page) return ctx->refuse(page.error());
    ctx->answer(200, *page);
  });
}

void Api::step(ContextPtr ctx) {
  if (auto known = ctx->query.check_names({}); !known) return ctx->refuse(known.error());
  read_steps(ctx, [this, alive = alive_.watch(), ctx](const StepsReadPtr& read) {
    if (!alive) return;
    const engine::State& state = read->snapshot.state;
    const auto step = engine::find_step(state, ctx->step);
    if (!step) return ctx->refuse(step.error());
    const auto tree = std::make_shared<const engine::StepTree>(state);
    history_.events(
        state.job, engine::seqs_of(*tree, *read->index, **step),
        [ctx, read, tree, step = *step](Result<std::vector<Event>> events) {
          if (!events) return ctx->refuse(events.error());
          const engine::State& now = read->snapshot.state;
          engine::TraceRecord record;
          for (const Event& event : *events) record.add(event);
          const auto world = engine::world_of(now, *read->index, *tree, *step);
          ctx->answer(200, engine::step_trace_view(now, record, *step, world));
        });
  });
}

// ---------------------------------------------------------------- earlier states

void Api::replay(ContextPtr ctx) {
  auto at = [&]() -> Result<std::optional<std::uint64_t>> {
    AE_TRY(ctx->query.check_names({"at", "fields"}));
    const auto* fields = ctx->query.find("fields");
    if (fields != nullptr && *fields != "summary" && *fields != "steps") {
      return fail(Code::input_invalid, "\"fields\" must be summary or steps");
    }
    return ctx->query.number("at");
  }();
  if (!at) return ctx->refuse(at.error());
  const auto job = job_id_from_text(ctx->id);
  if (!job) return ctx->refuse({Code::not_found, job.error().message});
  read_limiter_.acquire(ctx->request.by, [this, ctx, job = *job, at = *at](ReadLimiter::Slot slot) {
    if (auto may = ctx->check_response_room(); !may) return ctx->refuse(may.error());
    const std::uint64_t seq = at.value_or(runtime::History::kLastEvent);
    history_.state_at(
        job, seq, [ctx, slot = std::move(slot)](Result<runtime::History::PastState> past) {
          if (!past && past.error().code == Code::not_found) {
            return ctx->refuse(missing_job_error(ctx->id));
          }
          if (!past) return ctx->refuse(past.error());
          if (!past->state || past->state->seq == 0) {
            return ctx->refuse({Code::input_invalid, "\"at\" must be from 1 to " +
                                                         std::to_string(past->row.last_seq) +
                                                         ", the last event of this job"});
          }
          const engine::State& state = *past->state;
          const auto* fields = ctx->query.find("fields");
          if (fields == nullptr) {
            return ctx->answer(200,
                               with_wait_commands(engine::state_view(state)).with("at", state.seq));
          }
          if (*fields == "summary") {
            return ctx->answer(200, engine::job_view(state).with("at", state.seq));
          }
          const auto steps = engine::list_steps(state, {}, {.limit = kStepsMax});
          if (!steps) return ctx->refuse(steps.error());
          ctx->answer(200, steps->with("at", state.seq));
        });
  });
}

}  // namespace ae::api
