// GET /api/jobs/{id}/timeline: the events that a client marks on a scale of a log, from the index of the
// job's steps.
#include <utility>

#include "api/request_context.h"
#include "inspect/step_list.h"
#include "runtime/log_opener.h"

namespace ae::api {
namespace {

constexpr std::size_t kTimelineMax = 2'000;  // in one page; also the default

struct TimelineQuery {
  std::uint64_t after = 0;
  std::size_t limit = kTimelineMax;
};

Result<TimelineQuery> timeline_query(const Query& query) {
  TimelineQuery wanted;
  AE_ASSIGN(const auto after, query.number("after"));
  wanted.after = after.value_or(0);
  AE_ASSIGN(wanted.limit, query.limit(kTimelineMax, kTimelineMax));
  return wanted;
}

}  // namespace

void Api::timeline(ContextPtr ctx) {
  const auto query = timeline_query(ctx->query);
  if (!query) return ctx->refuse(query.error());
  const auto job = job_id_of(ctx->id);
  if (!job) return ctx->refuse(job.error());
  with_slot(ctx, [this, ctx, job = *job, query = *query](Result<ReadLimiter::Slot> slot) {
    if (!slot) return ctx->refuse(slot.error());
    history_.step_index(job, [this, alive = alive_.watch(), ctx, query, slot = *std::move(slot)](
                                 Result<runtime::History::IndexPtr> index) mutable {
      if (!alive) return;
      if (!index) {
        const bool is_missing = index.error().code == Code::not_found;
        return ctx->refuse(is_missing ? missing_job_error(ctx->id) : index.error());
      }
      if (ctx->request.disconnected.stop_requested()) {
        return ctx->refuse(runtime::read_interrupted_error());
      }
      // `then` keeps the index from being changed in place while it is read.
      async::compute<ApiResponse>(
          runtime_.reader().executor(),
          [index = *index, query, maker = response_maker(ctx)](const std::stop_token&) {
            return maker.make(nullptr, index->timeline().page(query.after, query.limit));
          },
          [ctx, index = *index, slot = std::move(slot)](ApiResponse response) {
            ctx->done(std::move(response));
          });
    });
  });
}

}  // namespace ae::api
