// Pages of steps: the steps below a step, one step, and the state of a job at an earlier event.
#include <algorithm>
#include <iterator>
#include <utility>

#include "api/command_line.h"
#include "api/operations.h"
#include "api/steps_read.h"
#include "inspect/json_patch.h"
#include "inspect/step_list.h"
#include "inspect/trace.h"
#include "inspect/trace_record.h"
#include "inspect/view.h"
#include "log/field_names.h"
#include "runtime/log_opener.h"

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

void read_newest(ApiContext& api, const RequestPtr& ctx, const JobId& job,
                 std::move_only_function<void(StepsRead)> then) {
  const auto refuse = [ctx](const Error& error) {
    ctx->refuse(error.code == Code::not_found ? missing_job_error(ctx->id) : error);
  };
  with_slot(
      api, ctx,
      [&api, ctx, job, refuse, then = std::move(then)](Result<ReadLimiter::Slot> slot) mutable {
        if (!slot) return refuse(slot.error());
        api.history.newest(
            job, [alive = api.alive.watch(), ctx, refuse, slot = *std::move(slot),
                  then = std::move(then), maker = kept_state_response_maker(api, ctx)](
                     Result<runtime::History::NewestState> newest) mutable {
              if (!alive) return;
              if (!newest) return refuse(newest.error());
              if (ctx->request.disconnected.stop_requested()) {
                return ctx->refuse(runtime::read_interrupted_error());
              }
              // A commit after the state: the next read has it, and another tag.
              if (newest->row.last_seq != newest->indexed->state().seq) maker.view.clear();
              auto row = std::make_shared<const store::JobRow>(std::move(newest->row));
              then({.indexed = std::move(newest->indexed),
                    .slot = std::move(slot),
                    .maker = {std::move(maker), std::move(row)}});
            });
      });
}

}  // namespace

void read_steps(ApiContext& api, RequestPtr ctx, std::move_only_function<void(StepsRead)> then) {
  const auto job = job_id_of(ctx->id);
  if (!job) return ctx->refuse(job.error());
  if_changed(api, ctx, *job, [&api, ctx, job = *job, then = std::move(then)]() mutable {
    read_newest(api, ctx, job, std::move(then));
  });
}

void operations::steps(ApiContext& api, RequestPtr ctx) {
  auto query = step_query(ctx->query);
  if (!query) return ctx->refuse(query.error());
  read_steps(api, ctx, [&api, ctx, query = *std::move(query)](const StepsRead& read) {
    compute_from<ApiResponse>(
        api, read,
        [query, maker = read.maker](const engine::IndexedState& from) -> Result<ApiResponse> {
          AE_ASSIGN(Value page, engine::list_steps(from.tree(), from.index(), query));
          return maker.make(std::move(page));
        },
        respond(ctx));
  });
}

void operations::step(ApiContext& api, RequestPtr ctx) {
  using Seqs = std::vector<std::uint64_t>;
  read_steps(api, ctx, [&api, ctx](const StepsRead& read) {
    compute_from<Seqs>(
        api, read,
        [id = ctx->step](const engine::IndexedState& from) -> Result<Seqs> {
          AE_ASSIGN(const engine::Step* const step, engine::find_step(from.state(), id));
          return engine::seqs_of(from.tree(), from.index(), *step);
        },
        [&api, ctx, read](Result<Seqs> seqs) {
          if (!seqs) return ctx->refuse(seqs.error());
          api.history.events(
              read.indexed->state().job, *std::move(seqs), ctx->request.disconnected,
              [&api, alive = api.alive.watch(), ctx, read](Result<std::vector<Event>> events) {
                if (!alive) return;
                if (!events) return ctx->refuse(events.error());
                compute_from<ApiResponse>(
                    api, read,
                    [id = ctx->step, events = *std::move(events),
                     maker = read.maker](const engine::IndexedState& from) -> Result<ApiResponse> {
                      AE_ASSIGN(const engine::Step* const step,
                                engine::find_step(from.state(), id));
                      engine::TraceRecord record;
                      for (const Event& event : events) record.add(event);
                      const auto world = engine::world_of(from.tree(), from.index(), *step);
                      return maker.make(
                          engine::step_trace_view(from.state(), record, *step, world));
                    },
                    respond(ctx));
              });
        });
  });
}

// ---------------------------------------------------------------- earlier states

namespace {

// The parameters of the request.
struct ReplayQuery {
  std::uint64_t at = runtime::History::kLastEvent;
  std::optional<std::uint64_t> diff_from;
  std::string fields;  // summary steps; "" = the whole state
};

Result<ReplayQuery> replay_query(const Query& query) {
  ReplayQuery wanted;
  AE_ASSIGN(const auto at, query.number(field::at));
  wanted.at = at.value_or(runtime::History::kLastEvent);
  AE_ASSIGN(wanted.diff_from, query.number("diff_from"));
  if (const auto* fields = query.find("fields")) {
    if (*fields != "summary" && *fields != "steps") {
      return fail(Code::input_invalid, "\"fields\" must be summary or steps");
    }
    wanted.fields = *fields;
  }
  return wanted;
}

// `name`: the parameter that names the event.
Result<const engine::State*> checked(const engine::State* state, const store::JobRow& row,
                                     std::string_view name) {
  if (state != nullptr && state->seq > 0) return state;
  return fail(Code::input_invalid, "\"" + std::string(name) + "\" must be from 1 to " +
                                       std::to_string(row.last_seq) +
                                       ", the last event of this job");
}

Result<Value> state_body(const engine::State& state, const std::string& fields) {
  if (fields == "summary") return engine::job_view(state);
  if (fields == "steps") {
    return engine::list_steps(engine::StepTree(state), {}, {.limit = kStepsMax});
  }
  return with_wait_commands(engine::state_view(state));
}

// `earlier`: of `diff_from`, if it is requested.
Result<Value> replay_body(const engine::State* past, const engine::State* earlier,
                          const store::JobRow& row, const ReplayQuery& query) {
  AE_ASSIGN(const engine::State* const state, checked(past, row, field::at));
  AE_ASSIGN(const Value body, state_body(*state, query.fields));
  if (!query.diff_from) return body.with(field::at, state->seq);
  AE_ASSIGN(const engine::State* const from, checked(earlier, row, "diff_from"));
  AE_ASSIGN(const Value before, state_body(*from, query.fields));
  return engine::json_patch(before, body).with(field::at, state->seq).with("diff_from", from->seq);
}

// The state of a job after an event.
struct ShownState {
  runtime::History::PastState past;
  IndexedStatePtr newest = nullptr;  // instead: the kept state at the end of the log

  const engine::State* state() const {
    return newest ? &newest->state() : past.state ? &*past.state : nullptr;
  }
};

// One request.
struct ReplayRead {
  JobId job;
  ReplayQuery query;
  ReadLimiter::Slot slot;
  ResponseMaker maker;
  ShownState earlier = {};  // of `diff_from`
};

void read_past_state(ApiContext& api, const RequestPtr& ctx, const JobId& job, std::uint64_t seq,
                     std::move_only_function<void(ShownState)> then) {
  api.history.state_at(job, seq, ctx->request.disconnected,
                       [alive = api.alive.watch(), ctx,
                        then = std::move(then)](Result<runtime::History::PastState> past) mutable {
                         if (!alive) return;
                         if (!past && past.error().code == Code::not_found) {
                           return ctx->refuse(missing_job_error(ctx->id));
                         }
                         if (!past) return ctx->refuse(past.error());
                         then({.past = *std::move(past)});
                       });
}

void read_state(ApiContext& api, const RequestPtr& ctx, const JobId& job, std::uint64_t seq,
                std::move_only_function<void(ShownState)> then) {
  const std::uint64_t kept_seq = api.history.kept_seq(job);
  const bool is_kept = kept_seq > 0 && (seq == runtime::History::kLastEvent || seq == kept_seq);
  if (!is_kept) return read_past_state(api, ctx, job, seq, std::move(then));
  api.history.newest(job, [&api, alive = api.alive.watch(), ctx, job, seq, then = std::move(then)](
                              Result<runtime::History::NewestState> newest) mutable {
    if (!alive) return;
    const bool is_last =
        newest && (seq == runtime::History::kLastEvent || seq == newest->indexed->state().seq);
    if (!is_last) return read_past_state(api, ctx, job, seq, std::move(then));
    then({.past = {.row = std::move(newest->row), .state = {}},
          .newest = std::move(newest->indexed)});
  });
}

void replay_at(ApiContext& api, const RequestPtr& ctx, const std::shared_ptr<ReplayRead>& read) {
  read_state(api, ctx, read->job, read->query.at, [&api, ctx, read](ShownState shown) {
    // The work frees the states, and the loop releases those that are kept.
    std::pair kept{shown.newest, read->earlier.newest};
    async::compute<Result<ApiResponse>>(
        api.runtime.reader().executor(),
        [query = read->query, maker = std::move(read->maker), shown = std::move(shown),
         earlier = std::move(read->earlier)](const std::stop_token&) -> Result<ApiResponse> {
          const store::JobRow& row = shown.past.row;
          AE_ASSIGN(Value body, replay_body(shown.state(), earlier.state(), row, query));
          return maker.make(&row, std::move(body));
        },
        [slot = read->slot, kept = std::move(kept),
         then = respond(ctx)](Result<ApiResponse> response) mutable { then(std::move(response)); });
  });
}

}  // namespace

void operations::replay(ApiContext& api, RequestPtr ctx) {
  auto query = replay_query(ctx->query);
  if (!query) return ctx->refuse(query.error());
  const auto job = job_id_of(ctx->id);
  if (!job) return ctx->refuse(job.error());
  if_changed(api, ctx, *job, [&api, ctx, job = *job, query = *std::move(query)] {
    with_slot(api, ctx, [&api, ctx, job, query](Result<ReadLimiter::Slot> slot) {
      if (!slot) return ctx->refuse(slot.error());
      auto read =
          std::make_shared<ReplayRead>(ReplayRead{.job = job,
                                                  .query = query,
                                                  .slot = *std::move(slot),
                                                  .maker = kept_state_response_maker(api, ctx)});
      if (!query.diff_from) return replay_at(api, ctx, read);
      read_state(api, ctx, job, *query.diff_from, [&api, ctx, read](ShownState earlier) {
        read->earlier = std::move(earlier);
        replay_at(api, ctx, read);
      });
    });
  });
}

}  // namespace ae::api
