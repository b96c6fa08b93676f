// GET /api/jobs/{id}/timeline: the events that a client marks on a scale of a log, from the index
// of the job's steps.
#include <utility>

#include "api/operations.h"
#include "api/steps_read.h"

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

void operations::timeline(ApiContext& api, RequestPtr ctx) {
  const auto query = timeline_query(ctx->query);
  if (!query) return ctx->refuse(query.error());
  read_steps(api, ctx, [&api, ctx, query = *query](const StepsRead& read) {
    compute_from<ApiResponse>(
        api, read,
        [query, maker = read.maker](const engine::IndexedState& from) -> Result<ApiResponse> {
          return maker.make(from.index().timeline().page(query.after, query.limit));
        },
        respond(ctx));
  });
}

}  // namespace ae::api
