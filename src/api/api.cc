// Routing, reading a job for a response, and waiting for a job to progress.
#include "api/api.h"

#include <algorithm>
#include <utility>

#include "api/mcp.h"
#include "api/request_context.h"
#include "json/json.h"

namespace ae::api {
namespace {

// The poll interval in addition to notifications; and the interval when commits are not notified.
constexpr Duration kPoll = std::chrono::seconds(1);
constexpr Duration kPollWithoutNotify = std::chrono::milliseconds(200);

bool is_process_route(const Path& path) {
  return path == Path{"metrics"} || path == Path{"api", "health"} || path == Path{"api", "ready"};
}

Error missing_route_error(const Path& path) {
  return {Code::not_found, "there is no route " + (path.empty() ? "/" : target(path, {})) +
                               "; /openapi.json lists what there is"};
}

}  // namespace

Error missing_role_error(Role role, const std::vector<Role>& needed) {
  return {Code::forbidden, "this request needs a key with the role " + roles_text(needed) +
                               "; this key has the role " + std::string(to_text(role))};
}

// "{id}" matches any one segment.
struct Api::Route {
  std::string_view method;
  std::vector<std::string> path;
  Access access;
  void (Api::*handle)(ContextPtr);

  bool matches(const Path& requested) const {
    return std::ranges::equal(path, requested,
                              [](const std::string& pattern, const std::string& segment) {
                                return pattern == "{id}" || pattern == segment;
                              });
  }
};

const Api::Route Api::kRoutes[] = {
    {"GET", {}, Access::open, &Api::index},
    {"GET", {"api", "health"}, Access::open, &Api::health},
    {"GET", {"api", "ready"}, Access::open, &Api::ready},
    {"GET", {"metrics"}, Access::view, &Api::metrics},
    {"GET", {"openapi.json"}, Access::view, &Api::openapi},
    {"GET", {"api", "workers"}, Access::offer, &Api::workers},
    {"GET", {"api", "tools"}, Access::offer, &Api::tools},
    {"GET", {"api", "agents"}, Access::offer, &Api::agents},
    {"GET", {"api", "agents", "{id}"}, Access::offer, &Api::agent},
    {"PUT", {"api", "agents", "{id}"}, Access::manage, &Api::put_agent},
    {"POST", {"api", "agents", "{id}", "message"}, Access::operate, &Api::message_agent},
    {"GET", {"api", "jobs"}, Access::view, &Api::jobs},
    {"POST", {"api", "jobs"}, Access::operate, &Api::create},
    {"GET", {"api", "jobs", "{id}"}, Access::view, &Api::job},
    {"GET", {"api", "jobs", "{id}", "events"}, Access::view, &Api::events},
    {"GET", {"api", "jobs", "{id}", "trace"}, Access::view, &Api::trace},
    {"GET", {"api", "jobs", "{id}", "transcript"}, Access::view, &Api::transcript},
    {"GET", {"api", "jobs", "{id}", "replay"}, Access::view, &Api::replay},
    {"GET", {"api", "jobs", "{id}", "verify"}, Access::view, &Api::verify},
    {"POST", {"api", "jobs", "{id}", "signal"}, Access::answer, &Api::signal},
    {"POST", {"api", "jobs", "{id}", "cancel"}, Access::operate, &Api::cancel},
    {"POST", {"api", "jobs", "{id}", "resolve"}, Access::answer, &Api::resolve},
    {"POST", {"api", "jobs", "{id}", "message"}, Access::operate, &Api::message},
    {"POST", {"api", "jobs", "{id}", "pause"}, Access::operate, &Api::pause},
    {"POST", {"api", "jobs", "{id}", "resume"}, Access::operate, &Api::resume},
    {"POST", {"api", "jobs", "{id}", "budget"}, Access::decide, &Api::raise_budget},
    {"POST", {"api", "jobs", "{id}", "fork"}, Access::operate, &Api::fork},
    {"POST", {"api", "jobs", "{id}", "retry"}, Access::operate, &Api::retry},
    {"POST", {"api", "jobs", "{id}", "plan"}, Access::operate, &Api::plan},
    {"POST", {"api", "jobs", "{id}", "redact"}, Access::manage, &Api::redact},
    {"POST", {"api", "prune"}, Access::manage, &Api::prune},
    {"GET", {"api", "audit"}, Access::manage, &Api::audit},
    {"GET", {"api", "audit", "verify"}, Access::manage, &Api::verify_audit},
    {"GET", {"api", "keys"}, Access::manage, &Api::keys},
    {"POST", {"api", "keys"}, Access::manage, &Api::create_key},
    {"DELETE", {"api", "keys", "{id}"}, Access::manage, &Api::revoke_key},
    {"GET", {"api", "requests"}, Access::view, &Api::requests},
    {"GET", {"api", "approvals"}, Access::view, &Api::approvals},
    {"POST", {"api", "approvals", "{id}"}, Access::decide, &Api::answer_approval},
    // Each of its methods calls a route above with the same principal.
    {"POST", {"mcp"}, Access::offer, &Api::mcp},
};

std::vector<Api::RouteShape> Api::routes() {
  std::vector<RouteShape> all;
  for (const Route& route : kRoutes) {
    std::string path;
    for (const std::string& segment : route.path) path += "/" + segment;
    if (path.empty()) path = "/";
    all.push_back({std::string(route.method), std::move(path), route.access});
  }
  return all;
}

bool Api::is_public_route(std::string_view method, const Path& path) {
  return std::ranges::any_of(kRoutes, [&](const Route& route) {
    return route.access == Access::open && route.method == method && route.matches(path);
  });
}

Api::Api(async::Loop& loop, async::SteadyClock& steady, store::Store& store,
         runtime::Runtime& runtime, ApiOptions options)
    : loop_(loop),
      steady_(steady),
      store_(store),
      runtime_(runtime),
      options_(std::move(options)),
      read_limiter_(loop, kConcurrentReadsMax),
      registry_(steady, store, options_.warn),
      mcp_(std::make_unique<Mcp>(
          loop, steady,
          [this](ApiRequest request, async::Done<ApiResponse> done) {
            handle(std::move(request), std::move(done));
          },
          options_.version)) {
  update_offered_agents();
}

Api::~Api() {
  if (registry_timer_) loop_.cancel(*registry_timer_);
  for (const auto& long_poll : long_polls_) {
    if (long_poll->timer) loop_.cancel(*long_poll->timer);
  }
}

void Api::handle(ApiRequest request, async::Done<ApiResponse> done) {
  auto ctx = std::make_shared<RequestContext>();
  ctx->request = std::move(request);
  ctx->done = std::move(done);
  if (options_.on_refused) {
    ctx->done = [this, alive = alive_.watch(),
                 requested = ApiRequest{.method = ctx->request.method, .path = ctx->request.path},
                 done = std::move(ctx->done)](ApiResponse answer) mutable {
      if (answer.status >= 400 && alive)
        options_.on_refused(requested, answer.status, answer.body.text("code"));
      done(std::move(answer));
    };
  }
  ctx->query = Query(ctx->request.query);
  const auto route = route_of(ctx->request.method, ctx->request.path, ctx->request.role);
  if (!route) {
    return loop_.post([ctx, refused = route.error()] { ctx->done(refused); });
  }
  for (std::size_t i = 0; i < ctx->request.path.size(); ++i) {
    if ((*route)->path[i] == "{id}") ctx->id = ctx->request.path[i];
  }
  loop_.post([this, alive = alive_.watch(), ctx, handler = (*route)->handle] {
    if (alive) (this->*handler)(ctx);
  });
}

std::expected<const Api::Route*, ApiResponse> Api::route_of(std::string_view method,
                                                            const Path& path, Role role) const {
  const auto refuse = [](const Error& error, int status, std::string allow = {}) {
    ApiResponse response;
    response.status = status;
    response.body = problem(error, status);
    response.allow = std::move(allow);
    return std::unexpected(std::move(response));
  };
  std::string allow;
  for (const Route& route : kRoutes) {
    if (!route.matches(path)) continue;
    if (route.method != method) {
      allow += (allow.empty() ? "" : ", ") + std::string(route.method);
      if (route.method == "GET") allow += ", HEAD";
      continue;
    }
    if (options_.health_only && !is_process_route(path)) {
      return refuse({Code::not_found,
                     "this process is a worker and serves /api/health, /api/ready and /metrics "
                     "only; use a server of the same store"},
                    404);
    }
    if (has_access(role, route.access)) return &route;
    const Error missing = missing_role_error(role, roles_with(route.access));
    return refuse(missing, http_status(missing.code));
  }
  if (allow.empty()) return refuse(missing_route_error(path), 404);
  return refuse({Code::method_not_allowed, "method not allowed; allowed: " + allow}, 405, allow);
}

std::optional<ApiResponse> Api::refuse_before_body(std::string_view method, const Path& path,
                                                   Role role) const {
  auto route = route_of(method, path, role);
  if (route) return std::nullopt;
  if (options_.on_refused) {
    options_.on_refused(ApiRequest{.method = std::string(method), .path = path},
                        route.error().status, route.error().body.text("code"));
  }
  return std::move(route.error());
}

// ---------------------------------------------------------------- reading

void Api::read_with_slot(const ContextPtr& ctx, const JobId& job,
                         async::Done<Result<runtime::Runtime::JobSnapshot>> done) {
  read_limiter_.acquire(
      ctx->request.by, [this, ctx, job, done = std::move(done)](ReadLimiter::Slot slot) mutable {
        if (auto may = ctx->check_response_room(); !may) return done(std::unexpected(may.error()));
        ctx->slot = slot;
        runtime_.read(job, [slot = std::move(slot), done = std::move(done)](
                               Result<runtime::Runtime::JobSnapshot> read) mutable {
          done(std::move(read));
        });
      });
}

void Api::read(ContextPtr ctx, std::move_only_function<void(runtime::Runtime::JobSnapshot&)> then) {
  const auto job = job_id_from_text(ctx->id);
  if (!job) {
    return ctx->refuse({Code::not_found, "there is no job with the id \"" + ctx->id.substr(0, 64) +
                                             "\": " + job.error().message});
  }
  read_with_slot(ctx, *job,
                 [ctx, then = std::move(then)](Result<runtime::Runtime::JobSnapshot> read) mutable {
                   if (!read) {
                     if (read.error().code == Code::not_found) {
                       return ctx->refuse(missing_job_error(ctx->id));
                     }
                     return ctx->refuse(read.error());
                   }
                   then(*read);
                 });
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
  if (long_poll->disconnected && *long_poll->disconnected) long_poll->last = true;
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

void Api::mcp(ContextPtr ctx) { mcp_->answer(std::move(ctx->request), std::move(ctx->done)); }

void Api::stop_waiting() {
  mcp_->stop_waiting();
  const auto copy = long_polls_;
  for (const auto& long_poll : copy) {
    if (long_poll->is_done) continue;
    long_poll->last = true;
    if (!long_poll->is_reading) check_long_poll(long_poll);
  }
}

}  // namespace ae::api
