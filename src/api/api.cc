// Operations and their handlers, and waiting for a job to progress.
#include "api/api.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "api/mcp.h"
#include "api/request_context.h"
#include "api/route_table.inc"
#include "json/json.h"
#include "log/field_names.h"

namespace ae::api {
namespace {

// The poll interval in addition to notifications; and the interval when commits are not notified.
constexpr Duration kPoll = std::chrono::seconds(1);
constexpr Duration kPollWithoutNotify = std::chrono::milliseconds(200);

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

struct Api::Operation {
  std::string_view id;  // the operationId of docs/openapi.json
  Handler handle;
};

constexpr Api::Operation Api::kOperations[] = {
    {"index", &Api::index},
    {"health", &Api::health},
    {"ready", &Api::ready},
    {"metrics", &Api::metrics},
    {"openapi", &Api::openapi},
    {"workers", &Api::workers},
    {"tools", &Api::tools},
    {"agents", &Api::agents},
    {field::agent, &Api::agent},
    {"put_agent", &Api::put_agent},
    {"message_agent", &Api::message_agent},
    {"jobs", &Api::jobs},
    {"job_counts", &Api::job_counts},
    {"create", &Api::create},
    {"job", &Api::job},
    {"events", &Api::events},
    {"trace", &Api::trace},
    {"transcript", &Api::transcript},
    {"replay", &Api::replay},
    {"timeline", &Api::timeline},
    {"steps", &Api::steps},
    {"step", &Api::step},
    {"conversation", &Api::conversation},
    {"forks", &Api::forks},
    {"verify", &Api::verify},
    {"signal", &Api::signal},
    {"cancel", &Api::cancel},
    {"resolve", &Api::resolve},
    {"message", &Api::message},
    {"pause", &Api::pause},
    {"resume", &Api::resume},
    {"raise_budget", &Api::raise_budget},
    {"fork", &Api::fork},
    {"retry", &Api::retry},
    {"plan", &Api::plan},
    {"redact", &Api::redact},
    {"prune", &Api::prune},
    {"audit", &Api::audit},
    {"verify_audit", &Api::verify_audit},
    {"keys", &Api::keys},
    {"create_key", &Api::create_key},
    {"revoke_key", &Api::revoke_key},
    {"requests", &Api::requests},
    {"approvals", &Api::approvals},
    {"answer_approval", &Api::answer_approval},
    {"mcp", &Api::mcp},
};

Api::Handler Api::handler_of(const Route& route) {
  static_assert(
      std::ranges::is_permutation(kOperations, kRoutes, {}, &Operation::id, &Route::operation),
      "kOperations must have exactly the operations of docs/openapi.json");
  return std::ranges::find(kOperations, route.operation, &Operation::id)->handle;
}

Api::Api(async::Loop& loop, async::SteadyClock& steady, store::Store& store,
         runtime::Runtime& runtime, ApiOptions options)
    : loop_(loop),
      steady_(steady),
      store_(store),
      runtime_(runtime),
      options_(std::move(options)),
      read_limiter_(loop, kConcurrentReadsMax),
      history_(loop, store, steady, runtime.reader().executor()),
      registry_(steady, store, options_.warn),
      agents_(loop, store, runtime, registry_, options_),
      mcp_(std::make_unique<Mcp>(
          loop, steady,
          [this](ApiRequest request, async::Done<ApiResponse> done) {
            handle(std::move(request), std::move(done));
          },
          options_.version)) {}

Api::~Api() {
  for (const auto& long_poll : long_polls_) {
    if (long_poll->timer) loop_.cancel(*long_poll->timer);
  }
}

void Api::handle(ApiRequest request, async::Done<ApiResponse> done) {
  auto ctx = std::make_shared<RequestContext>();
  ctx->request = std::move(request);
  ctx->done = std::move(done);
  ++open_requests_;
  if (options_.on_refused) {
    ctx->done = [this, alive = alive_.watch(),
                 requested = ApiRequest{.method = ctx->request.method, .path = ctx->request.path},
                 done = std::move(ctx->done)](ApiResponse answer) mutable {
      if (answer.status >= 400 && alive)
        options_.on_refused(requested, answer.status, answer.body.text(field::code));
      done(std::move(answer));
    };
  }
  ctx->done = [this, alive = alive_.watch(),
               done = std::move(ctx->done)](ApiResponse answer) mutable {
    done(std::move(answer));
    if (alive) request_answered();
  };
  ctx->query = Query(ctx->request.query);
  const auto route = route_of(ctx->request.method, ctx->request.path, ctx->request.role);
  if (!route) {
    return loop_.post([ctx, refused = route.error()] { ctx->done(refused); });
  }
  ctx->route = *route;
  for (std::size_t i = 0; i < ctx->request.path.size(); ++i) {
    if (ctx->route->segments[i] == "{id}") ctx->id = ctx->request.path[i];
    if (ctx->route->segments[i] == "{step}") ctx->step = ctx->request.path[i];
  }
  loop_.post([this, alive = alive_.watch(), ctx] {
    if (!alive) return;
    if (const Status parsed = ctx->parse(); !parsed) return ctx->refuse(parsed.error());
    (this->*handler_of(*ctx->route))(ctx);
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
  if (options_.health_only && !is_process_route(**route)) {
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
  if (options_.on_refused) {
    options_.on_refused(ApiRequest{.method = std::string(method), .path = path},
                        route.error().status, route.error().body.text(field::code));
  }
  return std::move(route.error());
}

// ---------------------------------------------------------------- waiting

void Api::wait(const ContextPtr& ctx, const JobId& job, Duration most, ReadAttempt try_answer) {
  // The body has been parsed; a waiting request releases its memory.
  ctx->request.body = std::string();
  ctx->request.body_quota.reset();
  auto long_poll = std::make_shared<LongPoll>();
  long_poll->job = job;
  long_poll->disconnected = ctx->request.disconnected;
  long_poll->until = steady_.since_start() + std::min(most, kWaitMax);
  long_poll->last = waits_stopped_;
  long_poll->attempt = std::move(try_answer);
  long_poll->keep_waiting = [this, alive = alive_.watch(), weak = std::weak_ptr(long_poll)] {
    const auto self = weak.lock();
    if (!self || !alive) return;
    self->is_reading = false;
    const Duration rest = self->not_before - steady_.since_start();
    const bool has_new_events = std::exchange(self->has_new_events, false);
    if (self->last || (has_new_events && rest.count() <= 0)) {
      return loop_.post([this, alive, self] {
        if (alive) check_long_poll(self);
      });
    }
    const Duration left = self->until - steady_.since_start();
    const Duration poll =
        has_new_events ? rest
                       : std::max(rest, options_.receives_commits ? kPoll : kPollWithoutNotify);
    self->last = left <= poll;
    self->timer = loop_.after(std::max(Duration(0), std::min(left, poll)), [this, alive, self] {
      self->timer.reset();
      if (alive) check_long_poll(self);
    });
  };
  long_polls_.push_back(long_poll);
  check_long_poll(long_poll);
}

void Api::check_long_poll(const std::shared_ptr<LongPoll>& long_poll) {
  if (long_poll->is_reading || long_poll->is_done) return;
  if (const Duration rest = long_poll->not_before - steady_.since_start();
      rest.count() > 0 && !long_poll->last) {
    if (long_poll->timer) loop_.cancel(*long_poll->timer);
    long_poll->timer = loop_.after(rest, [this, alive = alive_.watch(), long_poll] {
      long_poll->timer.reset();
      if (alive) check_long_poll(long_poll);
    });
    return;
  }
  if (long_poll->timer) loop_.cancel(*std::exchange(long_poll->timer, std::nullopt));
  long_poll->is_reading = true;
  long_poll->has_new_events = false;  // the read sees them
  if (long_poll->disconnected.stop_requested()) long_poll->last = true;
  std::erase_if(long_polls_, [](const auto& other) { return other->is_done; });
  long_poll->attempt(long_poll);
}

void Api::on_events(const JobId& job, const std::vector<Event>& events) {
  metrics_.on_events(job, events);
  on_idle(job);
}

void Api::on_idle(const JobId& job) {
  const auto copy = long_polls_;
  for (const auto& long_poll : copy) {
    if (long_poll->is_done || long_poll->job != job) continue;
    long_poll->has_new_events = true;
    if (!long_poll->is_reading) check_long_poll(long_poll);
  }
}

// Each method of a message calls a route with the same principal.
void Api::mcp(ContextPtr ctx) { mcp_->answer(std::move(ctx->request), std::move(ctx->done)); }

void Api::stop_waiting(async::Task answered) {
  waits_stopped_ = true;
  all_answered_ = std::move(answered);
  mcp_->stop_waiting();
  const auto copy = long_polls_;
  for (const auto& long_poll : copy) {
    if (long_poll->is_done) continue;
    long_poll->last = true;
    if (!long_poll->is_reading) check_long_poll(long_poll);
  }
  if (open_requests_ == 0 && all_answered_) loop_.post(std::exchange(all_answered_, {}));
}

// Called after the response, so that a caller that continues with another request keeps it open.
void Api::request_answered() {
  AE_CHECK(open_requests_ > 0);
  --open_requests_;
  if (open_requests_ == 0 && all_answered_) loop_.post(std::exchange(all_answered_, {}));
}

}  // namespace ae::api
