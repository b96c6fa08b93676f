// Finds the route of a request, checks it, and counts open requests.
#include "api/api.h"

#include <fmt/core.h>

#include <utility>

#include "api/api_context.h"
#include "api/jobs.h"
#include "api/metrics.h"
#include "api/request_context.h"
#include "api/routes.h"
#include "log/field_names.h"

namespace ae::api {
namespace {

bool is_process_route(const Route& route) {
  return route.operation == "health" || route.operation == "ready" || route.operation == "metrics";
}

Error missing_route_error(const Path& path) {
  return {Code::not_found, fmt::format("there is no route {}; /openapi.json lists what there is",
                                       path.empty() ? "/" : target(path, {}))};
}

}  // namespace

Error missing_role_error(Role role, const std::vector<Role>& needed) {
  return {Code::forbidden,
          fmt::format("this request needs a key with the role {}; this key has the role {}",
                      roles_text(needed), to_text(role))};
}

Api::Api(async::Loop& loop, async::SteadyClock& steady, store::Store& store,
         runtime::Runtime& runtime, ApiOptions options)
    : context_(
          std::make_unique<ApiContext>(loop, steady, store, runtime, std::move(options),
                                       [this](ApiRequest request, async::Done<ApiResponse> done) {
                                         handle(std::move(request), std::move(done));
                                       })) {}

Api::~Api() = default;

void Api::handle(ApiRequest request, async::Done<ApiResponse> done) {
  auto ctx = std::make_shared<RequestContext>();
  ctx->request = std::move(request);
  ctx->done = std::move(done);
  ++open_requests_;
  if (context_->options.on_refused) {
    ctx->done = [this, alive = context_->alive.watch(),
                 requested = ApiRequest{.method = ctx->request.method, .path = ctx->request.path},
                 done = std::move(ctx->done)](ApiResponse answer) mutable {
      if (answer.status >= 400 && alive)
        context_->options.on_refused(requested, answer.status, answer.body.text(field::code));
      done(std::move(answer));
    };
  }
  ctx->done = [this, alive = context_->alive.watch(),
               done = std::move(ctx->done)](ApiResponse answer) mutable {
    done(std::move(answer));
    if (alive) request_answered();
  };
  ctx->query = Query(ctx->request.query);
  const auto route = route_of(ctx->request.method, ctx->request.path, ctx->request.role);
  if (!route) {
    return context_->loop.post([ctx, refused = route.error()] { ctx->done(refused); });
  }
  ctx->route = *route;
  for (std::size_t i = 0; i < ctx->request.path.size(); ++i) {
    if (ctx->route->segments[i] == "{id}") ctx->id = ctx->request.path[i];
    if (ctx->route->segments[i] == "{step}") ctx->step = ctx->request.path[i];
  }
  context_->loop.post([this, alive = context_->alive.watch(), ctx] {
    if (!alive) return;
    if (const Status parsed = ctx->parse(); !parsed) return ctx->refuse(parsed.error());
    ctx->route->handle(*context_, ctx);
  });
}

std::expected<const Route*, ApiResponse> Api::route_of(std::string_view method, const Path& path,
                                                       Role role) const {
  const auto refuse = [](const Error& error, int status, std::string allow = {}) {
    ApiResponse response;
    response.status = status;
    response.body = problem(error, status);
    response.allow = std::move(allow);
    return std::unexpected(std::move(response));
  };
  const auto route = find_route(method, path);
  if (!route) {
    const std::string& allow = route.error();
    if (allow.empty()) return refuse(missing_route_error(path), 404);
    return refuse({Code::method_not_allowed, fmt::format("method not allowed; allowed: {}", allow)},
                  405, allow);
  }
  if (context_->options.health_only && !is_process_route(**route)) {
    return refuse({Code::not_found,
                   "this process is a worker and serves /api/health, /api/ready and /metrics "
                   "only; use a server of the same store"},
                  404);
  }
  if (has_access(role, (*route)->access)) return *route;
  const Error missing = missing_role_error(role, roles_with((*route)->access));
  return refuse(missing, http_status(missing.code));
}

std::optional<ApiResponse> Api::refuse_before_body(std::string_view method, const Path& path,
                                                   Role role) const {
  auto route = route_of(method, path, role);
  if (route) return std::nullopt;
  if (context_->options.on_refused) {
    context_->options.on_refused(ApiRequest{.method = std::string(method), .path = path},
                                 route.error().status, route.error().body.text(field::code));
  }
  return std::move(route.error());
}

// ---------------------------------------------------------------- waiting

void Api::on_events(const JobId& job, const std::vector<Event>& events) {
  context_->metrics.on_events(job, events);
  on_idle(job);
}

bool Api::reads(EventType type) { return Metrics::reads(type); }

void Api::on_idle(const JobId& job) { context_->waiting.wake(job); }

void Api::stop_waiting(async::Task answered) {
  all_answered_ = std::move(answered);
  context_->mcp.stop_waiting();
  context_->waiting.stop();
  if (open_requests_ == 0 && all_answered_) context_->loop.post(std::exchange(all_answered_, {}));
}

// Called after the response, so that a caller that continues with another request keeps it open.
void Api::request_answered() {
  AE_CHECK(open_requests_ > 0);
  --open_requests_;
  if (open_requests_ == 0 && all_answered_) context_->loop.post(std::exchange(all_answered_, {}));
}

// ---------------------------------------------------------------- the context

void Api::count_rejection(std::string_view type) { context_->metrics.count_rejection(type); }

void Api::set_owner_probe(std::function<bool()> is_owner_alive) {
  context_->is_owner_alive = std::move(is_owner_alive);
}

void Api::begin_shutdown() { context_->shutting_down = true; }

void Api::make_child_request(const runtime::ChildJobSpec& spec,
                             async::Done<Result<runtime::NewJobRequest>> done) {
  Value body = Value::object({{field::agent, spec.agent},
                              {"id", spec.id.text},
                              {field::input, spec.input},
                              {field::labels, spec.labels},
                              {field::priority, spec.priority}});
  if (spec.queue) body = body.with(field::queue, *spec.queue);
  auto then = std::make_shared<async::Done<Result<runtime::NewJobRequest>>>(std::move(done));
  context_->agents.when_fresh(
      [this, body = std::move(body), then] { (*then)(new_job(*context_, ApiRequest(), body)); });
}

RegistryCache& Api::registry() { return context_->registry; }

OfferedAgents& Api::agents() { return context_->agents; }

}  // namespace ae::api
