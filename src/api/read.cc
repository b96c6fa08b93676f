// Reads of a job for a response: slots, ETags and rendering.
#include "api/read.h"

#include <fmt/core.h>

#include <utility>

#include "api/authenticator.h"
#include "api/etag.h"
#include "async/executor.h"
#include "json/json.h"
#include "runtime/log_opener.h"

namespace ae::api {
namespace {

// Part of each ETag. A change of the form of a view changes it.
constexpr std::string_view kViewVersion = "aetheris.view.2";

// `response`: with its ETag, if it has one.
ApiResponse render_unless_matched(ApiResponse response, std::string_view if_none_match,
                                  const Render& render, Value body) {
  if (!response.etag.empty() && matches_etag(if_none_match, response.etag)) {
    return not_modified(std::move(response.etag));
  }
  if (render) {
    response.rendered = render(body);
  } else {
    response.body = std::move(body);
  }
  return response;
}

}  // namespace

Result<JobId> job_id_of(const std::string& id) {
  auto job = job_id_from_text(id);
  if (job) return *std::move(job);
  return fail(Code::not_found, "there is no job with the id \"{}\": {}", id.substr(0, 64),
              job.error().message);
}

ApiResponse ResponseMaker::make(const store::JobRow* row, Value body) const {
  ApiResponse response;
  if (row != nullptr && !view.empty()) response.etag = etag_of(view, *row, now);
  return render_unless_matched(std::move(response), if_none_match, render, std::move(body));
}

ApiResponse not_modified(std::string etag) {
  ApiResponse response;
  response.status = 304;
  response.etag = std::move(etag);
  return response;
}

void with_slot(ApiContext& api, const RequestPtr& ctx,
               async::Done<Result<ReadLimiter::Slot>> then) {
  api.read_limiter.acquire(ctx->request.by,
                           [ctx, then = std::move(then)](ReadLimiter::Slot slot) mutable {
                             if (ctx->request.disconnected.stop_requested()) {
                               return then(std::unexpected(runtime::read_interrupted_error()));
                             }
                             if (auto may = ctx->check_response_room(); !may)
                               return then(std::unexpected(may.error()));
                             then(std::move(slot));
                           });
}

// A redaction changes no row, but is in the audit log. Its position is taken before the read, so a
// tag never names a body that is older than its position.
ResponseMaker response_maker(ApiContext& api, const RequestPtr& ctx) {
  ResponseMaker maker{.render = ctx->request.render, .view = {}, .now = api.store.now()};
  if (ctx->request.method != "GET" || ctx->query.find("wait") != nullptr) return maker;
  maker.view = fmt::format("{}\n{}\n{}\n{}\n{}", kViewVersion, api.options.version,
                           target(ctx->request.path, ctx->request.query),
                           api.registry.registry().seq(), ctx->view_facts);
  maker.if_none_match = ctx->request.if_none_match;
  return maker;
}

// A kept state is dropped after a redaction by this process. Another process does not report one.
ResponseMaker kept_state_response_maker(ApiContext& api, const RequestPtr& ctx) {
  ResponseMaker maker = response_maker(api, ctx);
  if (!api.store.owned() || api.redactions > 0) maker.view.clear();
  return maker;
}

async::Done<Result<ApiResponse>> respond(RequestPtr ctx) {
  return [ctx = std::move(ctx)](Result<ApiResponse> response) {
    if (!response) return ctx->refuse(response.error());
    ctx->done(*std::move(response));
  };
}

namespace {

using ResponseRead = void (*)(ApiContext&, const RequestPtr&, const JobId&, Work<ApiResponse>,
                              async::Done<Result<ApiResponse>>);

void read_job_by(ResponseRead read, ApiContext& api, RequestPtr ctx, Work<Value> work) {
  const auto job = job_id_of(ctx->id);
  if (!job) return ctx->refuse(job.error());
  if_changed(api, ctx, *job, [read, &api, ctx, job = *job, work = std::move(work)]() mutable {
    read(
        api, ctx, job,
        [maker = response_maker(api, ctx),
         work = std::move(work)](Snapshot& snapshot) mutable -> Result<ApiResponse> {
          AE_ASSIGN(Value body, work(snapshot));
          return maker.make(&snapshot.row, std::move(body));
        },
        respond(ctx));
  });
}

}  // namespace

void read_job(ApiContext& api, RequestPtr ctx, Work<Value> work) {
  read_job_by(&compute<ApiResponse>, api, std::move(ctx), std::move(work));
}

void read_job_view(ApiContext& api, RequestPtr ctx, Work<Value> work) {
  read_job_by(&compute_view<ApiResponse>, api, std::move(ctx), std::move(work));
}

void if_changed(ApiContext& api, const RequestPtr& ctx, const JobId& job, async::Task then) {
  const std::string& header = ctx->request.if_none_match;
  if (header.empty() || header.contains('*')) return then();
  api.registry.refresh_if_older(
      kKeyCacheTtl, [&api, alive = api.alive.watch(), ctx, job,
                     then = std::move(then)](const Status& fresh) mutable {
        if (!alive) return;
        if (!fresh) return then();
        api.store.load(
            job, store::kNoCommits,
            [&api, alive, ctx, then = std::move(then)](Result<store::LoadedJob> loaded) mutable {
              if (!alive) return;
              if (!loaded) return then();  // the read has the same error
              const ResponseMaker maker = response_maker(api, ctx);
              if (maker.view.empty()) return then();
              std::string etag = etag_of(maker.view, loaded->row, maker.now);
              if (etag.empty() || !matches_etag(ctx->request.if_none_match, etag)) {
                return then();
              }
              ctx->done(not_modified(std::move(etag)));
            });
      });
}

void when_progressed(ApiContext& api, const RequestPtr& ctx, const LongPollPtr& long_poll,
                     async::Task then) {
  if (long_poll->seen == 0 || long_poll->last) return then();
  api.store.load(long_poll->job, store::kNoCommits,
                 [alive = api.alive.watch(), ctx, long_poll,
                  then = std::move(then)](Result<store::LoadedJob> loaded) mutable {
                   if (!alive) return;
                   if (!loaded) {
                     long_poll->is_done = true;
                     return ctx->refuse(loaded.error().code == Code::not_found
                                            ? missing_job_error(long_poll->job.text)
                                            : loaded.error());
                   }
                   if (loaded->row.last_seq == long_poll->seen) return long_poll->keep_waiting();
                   then();
                 });
}

void answer_large(ApiContext& api, const RequestPtr& ctx, BodyWork make_body) {
  async::compute<ApiResponse>(
      api.runtime.reader().executor(),
      [render = ctx->request.render,
       make_body = std::move(make_body)](const std::stop_token&) mutable {
        return render_unless_matched({}, {}, render, make_body());
      },
      [ctx](ApiResponse response) { ctx->done(std::move(response)); });
}

void answer_large(ApiContext& api, const RequestPtr& ctx, Value body) {
  answer_large(api, ctx, [body = std::move(body)] { return body; });
}

void answer_tagged(ApiContext& api, const RequestPtr& ctx, Value body) {
  async::compute<ApiResponse>(
      api.runtime.reader().executor(),
      [render = ctx->request.render, if_none_match = ctx->request.if_none_match,
       body = std::move(body)](const std::stop_token&) mutable {
        ApiResponse response;
        response.etag = etag_of_text(canonical(body));
        return render_unless_matched(std::move(response), if_none_match, render, std::move(body));
      },
      [ctx](ApiResponse response) { ctx->done(std::move(response)); });
}

}  // namespace ae::api
