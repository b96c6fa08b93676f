// Reads of a job for a response. Only for the .cc files of this module.
//
// The work runs on a reader thread: it uses its arguments and what it owns, never the context, the
// runtime or the request. What it needs of them is copied before. Each read has one of
// kConcurrentReadsMax slots until its result is on the loop. It is skipped, or ends early, if the
// client disconnects. Decision: 0083-reader-threads.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "api/api_context.h"
#include "api/request_context.h"
#include "inspect/code_end.h"
#include "runtime/service/job_reader.h"

namespace ae::api {

using Snapshot = runtime::JobSnapshot;
template <class T>
using Work = runtime::JobReader::Work<T>;
template <class T>
using LoadedWork = runtime::JobReader::LoadedWork<T>;

// Makes the response of a read. On a reader thread: it owns what it uses.
struct ResponseMaker {
  Render render;
  std::string view;  // as for etag_of; "" = no ETag
  Instant now;
  std::string if_none_match = {};  // this header

  // `row`: of the job as it was read; nullptr = no ETag. 304 if the client has the ETag.
  ApiResponse make(const store::JobRow* row, Value body) const;
};
ResponseMaker response_maker(ApiContext& api, const RequestPtr& ctx);
// The same for a body of a state that History keeps. No ETag if the state may have a value that the
// newest audit log reports as erased.
ResponseMaker kept_state_response_maker(ApiContext& api, const RequestPtr& ctx);
ApiResponse not_modified(std::string etag);
async::Done<Result<ApiResponse>> respond(RequestPtr ctx);

// Responds with the body that `work` makes of the job in the path, rendered on the reader thread.
// Has an ETag and handles If-None-Match: the body depends only on the log, the request and
// RequestContext::view_facts.
void read_job(ApiContext& api, RequestPtr ctx, Work<Value> work);
// The same, as compute_view.
void read_job_view(ApiContext& api, RequestPtr ctx, Work<Value> work);
// Responds with the body that `make_body` returns. It runs on a reader thread.
using BodyWork = std::move_only_function<Value()>;
void answer_large(ApiContext& api, const RequestPtr& ctx, BodyWork make_body);
void answer_large(ApiContext& api, const RequestPtr& ctx, Value body);
// The same with an ETag of the body's text: 304 if the client has it.
void answer_tagged(ApiContext& api, const RequestPtr& ctx, Value body);
// Responds with 304 if the job's row shows that the client has the current view. `*` is left to
// ResponseMaker::make: a row does not tell whether the view exists.
void if_changed(ApiContext& api, const RequestPtr& ctx, const JobId& job, async::Task then);
// Continues unless the job's row shows no event since the last read; then the request keeps
// waiting.
void when_progressed(ApiContext& api, const RequestPtr& ctx, const LongPollPtr& long_poll,
                     async::Task then);

// Fails with unavailable: interrupted, or there is no memory for another response.
void with_slot(ApiContext& api, const RequestPtr& ctx, async::Done<Result<ReadLimiter::Slot>> then);

// `then`, on the loop, with the slot until it is called.
template <class T>
async::Done<Result<T>> hold_slot(ApiContext& api, const JobId& job, ReadLimiter::Slot slot,
                                 async::Done<Result<T>> then) {
  return [alive = api.alive.watch(), job, slot = std::move(slot),
          then = std::move(then)](Result<T> result) mutable {
    if (!alive) return;
    if (!result && result.error().code == Code::not_found) {
      return then(std::unexpected(missing_job_error(job.text)));
    }
    then(std::move(result));
  };
}

// Passes the result of `work` to `then`. Fails as JobReader::read and with_slot.
template <class T>
void compute(ApiContext& api, const RequestPtr& ctx, const JobId& job, Work<T> work,
             async::Done<Result<T>> then) {
  with_slot(api, ctx,
            [&api, job, gone = ctx->request.disconnected, work = std::move(work),
             then = std::move(then)](Result<ReadLimiter::Slot> slot) mutable {
              if (!slot) return then(std::unexpected(std::move(slot).error()));
              api.runtime.reader().read<T>(job, std::move(gone), std::move(work),
                                           hold_slot(api, job, *std::move(slot), std::move(then)));
            });
}

// The same without events, from the job's checkpoint: the cost does not grow with the log.
template <class T>
void compute_state(ApiContext& api, const RequestPtr& ctx, const JobId& job, Work<T> work,
                   async::Done<Result<T>> then) {
  with_slot(api, ctx,
            [&api, job, gone = ctx->request.disconnected, work = std::move(work),
             then = std::move(then)](Result<ReadLimiter::Slot> slot) mutable {
              if (!slot) return then(std::unexpected(std::move(slot).error()));
              api.runtime.reader().read_state<T>(
                  job, std::move(gone), std::move(work),
                  hold_slot(api, job, *std::move(slot), std::move(then)));
            });
}

// The same, for job_body: from the whole log if it needs events (needs_events).
template <class T>
void compute_view(ApiContext& api, const RequestPtr& ctx, const JobId& job, Work<T> work,
                  async::Done<Result<T>> then) {
  auto shared = std::make_shared<Work<T>>(std::move(work));
  compute_state<std::optional<T>>(
      api, ctx, job,
      [shared](Snapshot& read) -> Result<std::optional<T>> {
        if (engine::needs_events(read.state)) return std::nullopt;
        return (*shared)(read);
      },
      [&api, ctx, job, shared, then = std::move(then)](Result<std::optional<T>> made) mutable {
        if (!made) return then(std::unexpected(std::move(made).error()));
        if (*made) return then(**std::move(made));
        compute<T>(
            api, ctx, job, [shared](Snapshot& read) { return (*shared)(read); }, std::move(then));
      });
}

// As `compute`, with the stored bytes from event `from_seq` on.
template <class T>
void compute_loaded(ApiContext& api, const RequestPtr& ctx, const JobId& job,
                    std::uint64_t from_seq, LoadedWork<T> work, async::Done<Result<T>> then) {
  with_slot(api, ctx,
            [&api, job, from_seq, gone = ctx->request.disconnected, work = std::move(work),
             then = std::move(then)](Result<ReadLimiter::Slot> slot) mutable {
              if (!slot) return then(std::unexpected(std::move(slot).error()));
              api.runtime.reader().load<T>(job, from_seq, std::move(gone), std::move(work),
                                           hold_slot(api, job, *std::move(slot), std::move(then)));
            });
}

}  // namespace ae::api
