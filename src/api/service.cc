// Routes about this process and its store: health, readiness, workers, tools, metrics.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "api/etag.h"
#include "api/job_gauges.h"
#include "api/operations.h"
#include "api/read.h"
#include "json/json.h"
#include "log/field_names.h"

namespace ae::api {
namespace {

Value tool_json(const agents::ToolDefinition& tool) {
  std::vector<Member> members{{"name", tool.name},
                              {field::kind, tool.kind},
                              {"effect", std::string(to_text(tool.policy.effect))},
                              {field::version, tool.policy.version}};
  return Value::object(std::move(members));
}

Value openapi_document(const std::string& version) {
  const auto document = parse_json(openapi_json(), {.depth_max = 100});
  AE_CHECK(document.has_value(), "docs/openapi.json is valid JSON");
  return document->with("info", (*document)["info"].with(field::version, version));
}

ApiResponse document_response(const std::string& etag, RenderedBody body) {
  ApiResponse response;
  response.rendered = std::move(body);
  response.etag = etag;
  return response;
}

// nullptr: the numbers of jobs are not available.
void answer_metrics(ApiContext& api, const RequestPtr& ctx, const JobGauges* gauges) {
  const runtime::RuntimeOptions& us = api.runtime.options();
  const runtime::Counters& counted = api.runtime.counters();
  std::vector<std::pair<std::string, std::uint64_t>> now{
      {labelled("aetheris_worker_busy", field::worker_id, us.worker), api.runtime.leased_jobs()},
      {"aetheris_requests_waiting", api.waiting.count()},
      {"aetheris_confirmation_replay_warn_total", counted.aetheris_confirmation_replay_warn_total},
      {"aetheris_job_reload_total", counted.aetheris_job_reload_total},
      {"aetheris_lease_acquire_total{ok=\"true\"}", counted.aetheris_lease_acquired},
      {"aetheris_lease_acquire_total{ok=\"false\"}", counted.aetheris_lease_acquire_failed},
      {"aetheris_lease_conflict_total", counted.aetheris_lease_conflict_total},
      {"aetheris_store_hint_total", counted.aetheris_store_hint_total},
      {"aetheris_store_up", gauges != nullptr ? 1 : 0}};
  if (gauges != nullptr) {
    for (const auto& [status, jobs] : gauges->job_stats.statuses) {
      now.emplace_back(labelled("aetheris_job_state", "state", status), jobs);
    }
    // An empty queue is reported as 0 if it is the default or has a limit here.
    std::map<std::string, std::uint64_t> queues = gauges->job_stats.ready;
    queues.try_emplace(std::string(store::kDefaultQueue), 0);
    for (const store::QueueLimit& limit : us.queues) queues.try_emplace(limit.queue, 0);
    for (const auto& [queue, jobs] : queues) {
      now.emplace_back(labelled("aetheris_queue_backlog", field::queue, queue), jobs);
    }
    now.emplace_back("aetheris_stalled_job_count", gauges->stuck);
    now.emplace_back("aetheris_stuck_job_count", gauges->stuck);
    now.emplace_back("aetheris_workers", gauges->offers.size());
  }
  std::string text = api.metrics.text(now);
  if (api.options.measured != nullptr) text += storage_text(api.options.measured->latencies());
  ctx->done({.status = 200, .body = {}, .location = {}, .text = std::move(text)});
}

}  // namespace

// An overview; the same for every client.
void operations::index(ApiContext&, RequestPtr ctx) {
  ctx->answer(200, Value::object({{"docs", "docs/api.md"},
                                  {"health", "/api/health"},
                                  {"name", "aetheris"},
                                  {"openapi", "/openapi.json"}}));
}

void operations::health(ApiContext& api, RequestPtr ctx) {
  // Without a key only the liveness is reported.
  if (ctx->request.role == Role::none) {
    return ctx->answer(200, Value::object({{"status", "ok"}}));
  }
  ctx->answer(200, Value::object({{"held", static_cast<std::uint64_t>(api.runtime.leased_jobs())},
                                  {"status", "ok"},
                                  {"store", api.options.store},
                                  {field::version, api.options.version}}));
}

// Can a job be created and run here now? If not, load balancers send no requests here.
void operations::ready(ApiContext& api, RequestPtr ctx) {
  if (api.shutting_down) {
    return ctx->refuse({Code::unavailable, "this process is shutting down; use another one"});
  }
  if (api.options.measured != nullptr && api.options.measured->is_failing_writes()) {
    return ctx->refuse({Code::unavailable,
                        "the last write to the store failed (disk full or database read-only?); "
                        "see the log of this process"});
  }
  api.store.next_due([ctx](Result<std::optional<Instant>> due) {
    if (!due) {
      const bool stranger = ctx->request.role == Role::none;
      return ctx->refuse(
          {Code::unavailable, stranger ? "the store is not available"
                                       : fmt::format("the store: {}", due.error().message)});
    }
    ctx->answer(200, Value::object({{"status", "ready"}}));
  });
}

void operations::metrics(ApiContext& api, RequestPtr ctx) {
  with_gauges(api, [&api, ctx](const JobGauges* gauges) { answer_metrics(api, ctx, gauges); });
}

void operations::openapi(ApiContext& api, RequestPtr ctx) {
  OpenapiResponses& responses = api.openapi;
  if (responses.etag.empty()) {
    responses.etag = etag_of_text(fmt::format("{}\n{}", api.options.version, openapi_json()));
  }
  if (matches_etag(ctx->request.if_none_match, responses.etag)) {
    return ctx->done(not_modified(responses.etag));
  }
  const auto kept = responses.rendered.find(ctx->request.accepts_gzip);
  if (ctx->request.render && kept != responses.rendered.end()) {
    return ctx->done(document_response(responses.etag, *kept->second));
  }
  async::compute<ApiResponse>(
      api.runtime.reader().executor(),
      [etag = responses.etag, version = api.options.version,
       render = ctx->request.render](const std::stop_token&) {
        Value document = openapi_document(version);
        if (render) return document_response(etag, render(document));
        ApiResponse response;
        response.body = std::move(document);
        response.etag = etag;
        return response;
      },
      [&api, alive = api.alive.watch(), ctx](ApiResponse response) {
        if (alive && response.rendered) {
          api.openapi.rendered[ctx->request.accepts_gzip] =
              std::make_shared<const RenderedBody>(*response.rendered);
        }
        ctx->done(std::move(response));
      });
}

// The workers that hold jobs of this store, or announce that they accept some.
void operations::workers(ApiContext& api, RequestPtr ctx) {
  api.store.count_jobs([&api, alive = api.alive.watch(), ctx](Result<store::JobStats> job_stats) {
    if (!job_stats) return ctx->refuse(job_stats.error());
    if (!alive) return;
    const runtime::RuntimeOptions& us = api.runtime.options();
    job_stats->workers.try_emplace(us.worker);
    std::vector<Value> workers;
    for (const auto& [name, worker] : job_stats->workers) {
      Value one =
          Value::object({{"expired", worker.expired}, {"held", worker.live}, {"worker", name}});
      const auto announcement = parse_json(worker.announcement);
      if (announcement && announcement->is_object()) {
        for (const char* word : {"agents", "capabilities", "jobs_max", field::version}) {
          one = one.with(word, (*announcement)[word]);
        }
      }
      if (name == us.worker) {
        one = one.with("held", std::uint64_t{api.runtime.leased_jobs()})
                  .with("this", true)
                  .with("agents", texts(us.agents))
                  .with("capabilities", texts(us.capabilities))
                  .with("jobs_max", std::uint64_t{us.leased_max})
                  .with(field::version, api.options.version);
      }
      workers.push_back(std::move(one));
    }
    Value code = api.options.code_workers ? api.options.code_workers() : Value::array({});
    ctx->answer(200, Value::object({{"code_workers", std::move(code)},
                                    {"workers", Value::array(std::move(workers))}}));
  });
}

void operations::tools(ApiContext& api, RequestPtr ctx) {
  std::vector<Value> tools;
  if (api.options.agents) {
    for (const auto& [name, tool] : api.options.agents->tools) tools.push_back(tool_json(tool));
  }
  answer_tagged(api, ctx, Value::object({{"tools", Value::array(std::move(tools))}}));
}

}  // namespace ae::api
