// Pages of steps: the steps below a step, one step, and the state of a job at an earlier event.
#include <algorithm>
#include <iterator>
#include <utility>

#include "api/command_line.h"
#include "api/steps_read.h"
#include "inspect/step_list.h"
#include "inspect/trace.h"
#include "inspect/trace_record.h"
#include "inspect/view.h"
#include "log/field_names.h"

namespace ae::api {
namespace {

constexpr std::size_t kStepsDefault = 100, kStepsMax = 500;  // in one page

bool is_step_status(std::string_view text) {
  using enum engine::StepStatus;
  return std::ranges::any_of(
      std::array{pending, running, backoff, waiting, in_doubt, done, skipped, failed, not_run},
      [&](engine::StepStatus status) { return to_text(status) == text; });
}

Result<engine::StepQuery> step_query(const Query& query) {
  engine::StepQuery wanted;
  if (const auto* parent = query.find(field::parent); parent && *parent != "root") {
    wanted.parent = *parent;
  }
  for (const std::string& status : query.all("status")) {
    if (!is_step_status(status)) {
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

void Api::read_steps(ContextPtr ctx,
                     std::move_only_function<void(StepsReadPtr, ReadLimiter::Slot)> then) {
  const auto job = job_id_of(ctx->id);
  if (!job) return ctx->refuse(job.error());
  const auto refuse = [ctx](const Error& error) {
    ctx->refuse(error.code == Code::not_found ? missing_job_error(ctx->id) : error);
  };
  with_slot(ctx, [this, ctx, job = *job, refuse,
                  then = std::move(then)](Result<ReadLimiter::Slot> slot) mutable {
    if (!slot) return refuse(slot.error());
    history_.step_index(
        job, [this, alive = alive_.watch(), ctx, job, refuse, slot = *std::move(slot),
              then = std::move(then)](Result<runtime::History::IndexPtr> index) mutable {
          if (!alive) return;
          if (!index) return refuse(index.error());
          history_.state_at(
              job, runtime::History::kLastEvent, ctx->request.disconnected,
              [alive, refuse, index = *std::move(index), slot = std::move(slot),
               then = std::move(then)](Result<runtime::History::PastState> newest) mutable {
                if (!alive) return;
                if (!newest) return refuse(newest.error());
                then(std::make_shared<const StepsRead>(
                         StepsRead{*std::move(newest->state), std::move(index)}),
                     std::move(slot));
              });
        });
  });
}

void Api::steps(ContextPtr ctx) {
  auto query = step_query(ctx->query);
  if (!query) return ctx->refuse(query.error());
  read_steps(
      ctx, [this, ctx, query = *std::move(query)](StepsReadPtr read, ReadLimiter::Slot slot) {
        compute_from<ApiResponse>(
            std::move(read), std::move(slot),
            [query, maker = response_maker(ctx)](const StepsRead& from) -> Result<ApiResponse> {
              AE_ASSIGN(Value page, engine::list_steps(from.state, *from.index, query));
              return maker.make(nullptr, std::move(page));
            },
            respond(ctx));
      });
}

void Api::step(ContextPtr ctx) {
  using Seqs = std::vector<std::uint64_t>;
  read_steps(ctx, [this, ctx](const StepsReadPtr& read, const ReadLimiter::Slot& slot) {
    compute_from<Seqs>(
        read, slot,
        [id = ctx->step](const StepsRead& from) -> Result<Seqs> {
          AE_ASSIGN(const engine::Step* const step, engine::find_step(from.state, id));
          return engine::seqs_of(engine::StepTree(from.state), *from.index, *step);
        },
        [this, ctx, read, slot](Result<Seqs> seqs) {
          if (!seqs) return ctx->refuse(seqs.error());
          history_.events(
              read->state.job, *std::move(seqs), ctx->request.disconnected,
              [this, alive = alive_.watch(), ctx, read, slot](Result<std::vector<Event>> events) {
                if (!alive) return;
                if (!events) return ctx->refuse(events.error());
                compute_from<ApiResponse>(
                    read, slot,
                    [id = ctx->step, events = *std::move(events),
                     maker = response_maker(ctx)](const StepsRead& from) -> Result<ApiResponse> {
                      AE_ASSIGN(const engine::Step* const step, engine::find_step(from.state, id));
                      engine::TraceRecord record;
                      for (const Event& event : events) record.add(event);
                      const engine::StepTree tree(from.state);
                      const auto world = engine::world_of(from.state, *from.index, tree, *step);
                      return maker.make(nullptr,
                                        engine::step_trace_view(from.state, record, *step, world));
                    },
                    respond(ctx));
              });
        });
  });
}

// ---------------------------------------------------------------- earlier states

namespace {

Result<Value> replay_body(const runtime::History::PastState& past, const std::string& fields) {
  if (!past.state || past.state->seq == 0) {
    return fail(Code::input_invalid, "\"at\" must be from 1 to {}, the last event of this job",
                past.row.last_seq);
  }
  const engine::State& state = *past.state;
  if (fields == "summary") return engine::job_view(state).with(field::at, state.seq);
  if (fields == "steps") {
    AE_ASSIGN(const Value steps, engine::list_steps(state, {}, {.limit = kStepsMax}));
    return steps.with(field::at, state.seq);
  }
  return with_wait_commands(engine::state_view(state)).with(field::at, state.seq);
}

}  // namespace

void Api::replay(ContextPtr ctx) {
  const auto at = ctx->query.number(field::at);
  if (!at) return ctx->refuse(at.error());
  const auto* fields = ctx->query.find("fields");
  if (fields != nullptr && *fields != "summary" && *fields != "steps") {
    return ctx->refuse({Code::input_invalid, "\"fields\" must be summary or steps"});
  }
  const auto job = job_id_of(ctx->id);
  if (!job) return ctx->refuse(job.error());
  if_changed(
      ctx, *job,
      [this, ctx, job = *job, seq = at->value_or(runtime::History::kLastEvent),
       shown = fields != nullptr ? *fields : std::string()] {
        with_slot(ctx, [this, ctx, job, seq, shown](Result<ReadLimiter::Slot> slot) {
          if (!slot) return ctx->refuse(slot.error());
          ResponseMaker maker = response_maker(ctx);
          // A kept state may be older than a redaction by another process.
          if (!store_.owned()) maker.view.clear();
          history_.state_at(
              job, seq, ctx->request.disconnected,
              [this, alive = alive_.watch(), ctx, shown, slot = *slot,
               maker = std::move(maker)](Result<runtime::History::PastState> past) mutable {
                if (!alive) return;
                if (!past && past.error().code == Code::not_found) {
                  return ctx->refuse(missing_job_error(ctx->id));
                }
                if (!past) return ctx->refuse(past.error());
                async::compute<Result<ApiResponse>>(
                    runtime_.reader().executor(),
                    [shown, past = *std::move(past),
                     maker = std::move(maker)](const std::stop_token&) -> Result<ApiResponse> {
                      AE_ASSIGN(Value body, replay_body(past, shown));
                      return maker.make(&past.row, std::move(body));
                    },
                    [slot = std::move(slot), then = respond(ctx)](
                        Result<ApiResponse> response) mutable { then(std::move(response)); });
              });
        });
      });
}

}  // namespace ae::api
