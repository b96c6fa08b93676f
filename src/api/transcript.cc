// The transcript route: a job as a conversation, page by page.
#include <memory>
#include <utility>

#include "api/request_context.h"
#include "api/views.h"
#include "async/time_slices.h"

namespace ae::api {
namespace {

// The minimum interval between two reads of the whole log, for a waiting request.
constexpr Duration kReadInterval = std::chrono::milliseconds(500);

}  // namespace

struct Api::TranscriptParams {
  JobId job;
  engine::TranscriptPage page;
  bool waits = false;
  std::uint64_t seen = 0;  // the last event read; 0 = none
};

// With ?wait the response is delayed until there is an entry after `after`, or the job has ended.
void Api::transcript(ContextPtr ctx) {
  Duration most{};
  auto params = [&]() -> Result<TranscriptParams> {
    TranscriptParams read;
    AE_ASSIGN(const auto after, ctx->query.number("after"));
    read.page.after = after.value_or(0);
    AE_ASSIGN(read.page.limit, ctx->query.limit(kEventsDefault, kEventsMax));
    AE_ASSIGN(most, wait_parameter(ctx->query));
    read.waits = most.count() > 0;
    return read;
  }();
  if (!params) return ctx->refuse(params.error());
  const auto job = job_id_from_text(ctx->id);
  if (!job) return ctx->refuse({Code::not_found, job.error().message});
  params->job = *job;
  wait(ctx, *job, most,
       [this, ctx, params = std::make_shared<TranscriptParams>(std::move(*params))](
           const std::shared_ptr<LongPoll>& long_poll) {
         read_limiter_.acquire(ctx->request.by,
                               [this, ctx, params, long_poll](ReadLimiter::Slot slot) {
                                 load_transcript(ctx, params, long_poll, std::move(slot));
                               });
       });
}

// The whole log is loaded again only if it has grown, or for the final response.
void Api::load_transcript(const ContextPtr& ctx, std::shared_ptr<TranscriptParams> params,
                          std::shared_ptr<LongPoll> long_poll, ReadLimiter::Slot slot) {
  if (auto may = ctx->check_response_room(); !may) {
    long_poll->is_done = true;
    return ctx->refuse(may.error());
  }
  const bool whole = params->seen == 0 || long_poll->last;
  store_.load(params->job, whole ? 1 : params->seen + 1,
              [this, alive = alive_.watch(), ctx, params, long_poll, whole,
               slot = std::move(slot)](Result<store::LoadedJob> loaded) mutable {
                if (!alive) return;
                if (!loaded) {
                  long_poll->is_done = true;
                  if (loaded.error().code != Code::not_found) return ctx->refuse(loaded.error());
                  return ctx->refuse(missing_job_error(ctx->id));
                }
                if (whole) return make_transcript(ctx, params, long_poll, *loaded, std::move(slot));
                if (loaded->row.last_seq == params->seen) return long_poll->keep_waiting();
                params->seen = 0;
                load_transcript(ctx, params, long_poll, std::move(slot));
              });
}

void Api::make_transcript(const ContextPtr& ctx, std::shared_ptr<TranscriptParams> params,
                          std::shared_ptr<LongPoll> long_poll, store::LoadedJob& loaded,
                          ReadLimiter::Slot slot) {
  const auto body = std::make_shared<TranscriptBody>(params->job, std::move(loaded), params->page);
  async::run_in_slices(
      loop_, steady_, [body] { return body->next(); },
      [this, alive = alive_.watch(), ctx, params, long_poll, body, slot = std::move(slot)] {
        if (!alive) return;
        const auto page = body->take();
        if (!page) {
          long_poll->is_done = true;
          return ctx->refuse(page.error());
        }
        const bool answers = (*page)["entries"].size() > 0 || (*page)["ended"] == Value(true) ||
                             !params->waits || long_poll->last;
        if (!answers) {
          params->seen = static_cast<std::uint64_t>((*page)["seq"].as_int());
          long_poll->not_before = steady_.since_start() + kReadInterval;
          return long_poll->keep_waiting();
        }
        long_poll->is_done = true;
        ctx->answer(200, *page);
      });
}

}  // namespace ae::api
