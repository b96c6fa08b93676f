// The transcript route: a job as a conversation, page by page.
#include <memory>
#include <utility>

#include "api/operations.h"
#include "api/read.h"
#include "api/views.h"

namespace ae::api {
namespace {

// The minimum interval between two reads of the whole log, for a waiting request.
constexpr Duration kReadInterval = std::chrono::milliseconds(500);

struct TranscriptRead {
  std::optional<ApiResponse> response;  // nullopt: no entry was found, and the request waits
  std::uint64_t last_seq = 0;
};

struct TranscriptParams {
  JobId job;
  engine::TranscriptPage page;
  Duration wait{};
};

void read_transcript(ApiContext& api, const RequestPtr& ctx,
                     std::shared_ptr<const TranscriptParams> params, LongPollPtr long_poll) {
  const bool waits = params->wait.count() > 0 && !long_poll->last;
  compute_loaded<TranscriptRead>(
      api, ctx, params->job, 1,
      [params, waits, maker = response_maker(api, ctx)](
          store::LoadedJob&& loaded, const async::Interrupt& interrupt) -> Result<TranscriptRead> {
        AE_ASSIGN(Value page, transcript_body(params->job, loaded, params->page, interrupt));
        TranscriptRead read{.response = {}, .last_seq = loaded.row.last_seq};
        const bool is_empty = page["entries"].size() == 0 && page["ended"] != Value(true);
        if (!is_empty || !waits) read.response = maker.make(&loaded.row, std::move(page));
        return read;
      },
      [&api, ctx, long_poll](Result<TranscriptRead> read) {
        if (!read) {
          long_poll->is_done = true;
          return ctx->refuse(read.error());
        }
        long_poll->seen = read->last_seq;
        if (!read->response) {
          long_poll->not_before = api.steady.since_start() + kReadInterval;
          return long_poll->keep_waiting();
        }
        long_poll->is_done = true;
        ctx->done(*std::move(read->response));
      });
}

}  // namespace

// With ?wait the response is delayed until there is an entry after `after`, or the job has ended.
void operations::transcript(ApiContext& api, RequestPtr ctx) {
  auto params = [&]() -> Result<TranscriptParams> {
    TranscriptParams read;
    AE_ASSIGN(const auto after, ctx->query.number("after"));
    read.page.after = after.value_or(0);
    AE_ASSIGN(read.page.limit, ctx->query.limit(kEventsDefault, kEventsMax));
    AE_ASSIGN(read.wait, wait_parameter(ctx->query));
    return read;
  }();
  if (!params) return ctx->refuse(params.error());
  const auto job = job_id_from_text(ctx->id);
  if (!job) return ctx->refuse({Code::not_found, job.error().message});
  params->job = *job;
  const auto shared = std::make_shared<const TranscriptParams>(*std::move(params));
  if_changed(api, ctx, *job, [&api, ctx, shared] {
    api.waiting.wait(ctx, shared->job, shared->wait,
                     [&api, ctx, shared](const LongPollPtr& long_poll) {
                       when_progressed(api, ctx, long_poll, [&api, ctx, shared, long_poll] {
                         read_transcript(api, ctx, shared, long_poll);
                       });
                     });
  });
}

}  // namespace ae::api
