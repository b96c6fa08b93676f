// Who answers what, reading a job for an answer, and waiting for one to go on.
#include "api/api.h"

#include <algorithm>
#include <utility>

#include "api/asked.h"
#include "api/mcp.h"
#include "json/json.h"

namespace ae::api {
namespace {

// The floor under every hint; when nobody tells of commits, the store is asked this often.
constexpr Duration kPoll = std::chrono::seconds(1);
constexpr Duration kPollUnheard = std::chrono::milliseconds(200);

bool tells_of_process(const Path& path) {
  return path == Path{"metrics"} || path == Path{"api", "health"} || path == Path{"api", "ready"};
}

Error no_route(const Path& path) {
  return {Code::not_found, "there is no route " + (path.empty() ? "/" : target(path, {})) +
                               "; /openapi.json lists what there is"};
}

}  // namespace

Error role_missing(Role role, const std::vector<Role>& needed) {
  return {Code::forbidden, "this request needs a key with the role " + roles_text(needed) +
                               "; this key has the role " + std::string(to_text(role))};
}

// "{id}" stands for one segment, whatever it is.
struct Api::Route {
  std::string_view method;
  std::vector<std::string> path;
  Access access;
  void (Api::*handle)(Ask);

  bool fits(const Path& asked) const {
    return std::ranges::equal(path, asked, [](const std::string& ours, const std::string& theirs) {
      return ours == "{id}" || ours == theirs;
    });
  }
};

const Api::Route Api::kRoutes[] = {
    {"GET", {}, Access::open, &Api::index},
    {"GET", {"api", "health"}, Access::open, &Api::health},
    {"GET", {"api", "ready"}, Access::open, &Api::ready},
    {"GET", {"metrics"}, Access::look, &Api::metrics},
    {"GET", {"openapi.json"}, Access::look, &Api::openapi},
    {"GET", {"api", "workers"}, Access::offer, &Api::workers},
    {"GET", {"api", "tools"}, Access::offer, &Api::tools},
    {"GET", {"api", "agents"}, Access::offer, &Api::agents},
    {"GET", {"api", "agents", "{id}"}, Access::offer, &Api::agent},
    {"PUT", {"api", "agents", "{id}"}, Access::manage, &Api::put_agent},
    {"POST", {"api", "agents", "{id}", "message"}, Access::operate, &Api::message_agent},
    {"GET", {"api", "jobs"}, Access::look, &Api::jobs},
    {"POST", {"api", "jobs"}, Access::operate, &Api::create},
    {"GET", {"api", "jobs", "{id}"}, Access::look, &Api::job},
    {"GET", {"api", "jobs", "{id}", "events"}, Access::look, &Api::events},
    {"GET", {"api", "jobs", "{id}", "trace"}, Access::look, &Api::trace},
    {"GET", {"api", "jobs", "{id}", "transcript"}, Access::look, &Api::transcript},
    {"GET", {"api", "jobs", "{id}", "replay"}, Access::look, &Api::replay},
    {"GET", {"api", "jobs", "{id}", "verify"}, Access::look, &Api::verify},
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
    {"GET", {"api", "approvals"}, Access::look, &Api::approvals},
    {"POST", {"api", "approvals", "{id}"}, Access::decide, &Api::answer_approval},
    // Each of its methods asks a route above, as whoever sent it.
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

bool Api::is_open(std::string_view method, const Path& path) {
  return std::ranges::any_of(kRoutes, [&](const Route& route) {
    return route.access == Access::open && route.method == method && route.fits(path);
  });
}

Api::Api(async::Loop& loop, async::SteadyClock& steady, store::Store& store,
         runtime::Runtime& runtime, ApiOptions options)
    : loop_(loop),
      steady_(steady),
      store_(store),
      runtime_(runtime),
      options_(std::move(options)),
      turns_(loop, kReadsMax),
      registry_(steady, store, options_.warn),
      mcp_(std::make_unique<Mcp>(
          loop, steady,
          [this](ApiRequest request, async::Done<ApiResponse> done) {
            handle(std::move(request), std::move(done));
          },
          options_.version)) {
  note_agents();
}

Api::~Api() {
  if (look_timer_) loop_.forget(*look_timer_);
  for (const auto& waiting : waiting_) {
    if (waiting->timer) loop_.forget(*waiting->timer);
  }
}

void Api::handle(ApiRequest request, async::Done<ApiResponse> done) {
  auto ask = std::make_shared<Asked>();
  ask->request = std::move(request);
  ask->done = std::move(done);
  if (options_.refused) {
    ask->done = [this, alive = std::weak_ptr(alive_),
                 asked = ApiRequest{.method = ask->request.method, .path = ask->request.path},
                 done = std::move(ask->done)](ApiResponse answer) mutable {
      if (answer.status >= 400 && alive.lock())
        options_.refused(asked, answer.status, answer.body.text("code"));
      done(std::move(answer));
    };
  }
  ask->query = Query(ask->request.query);
  const auto route = route_of(ask->request.method, ask->request.path, ask->request.role);
  if (!route) {
    return loop_.post([ask, refused = route.error()] { ask->done(refused); });
  }
  for (std::size_t i = 0; i < ask->request.path.size(); ++i) {
    if ((*route)->path[i] == "{id}") ask->id = ask->request.path[i];
  }
  loop_.post([this, alive = std::weak_ptr(alive_), ask, act = (*route)->handle] {
    if (alive.lock()) (this->*act)(ask);
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
    if (!route.fits(path)) continue;
    if (route.method != method) {
      allow += (allow.empty() ? "" : ", ") + std::string(route.method);
      if (route.method == "GET") allow += ", HEAD";
      continue;
    }
    if (options_.looks_only && !tells_of_process(path)) {
      return refuse({Code::not_found,
                     "this process is a worker and serves /api/health, /api/ready and /metrics "
                     "only; use a server of the same store"},
                    404);
    }
    if (may(role, route.access)) return &route;
    const Error missing = role_missing(role, roles_with(route.access));
    return refuse(missing, http_status(missing.code));
  }
  if (allow.empty()) return refuse(no_route(path), 404);
  return refuse({Code::method_not_allowed, "method not allowed; allowed: " + allow}, 405, allow);
}

std::optional<ApiResponse> Api::refuse_unread(std::string_view method, const Path& path,
                                              Role role) const {
  auto route = route_of(method, path, role);
  if (route) return std::nullopt;
  if (options_.refused) {
    options_.refused(ApiRequest{.method = std::string(method), .path = path}, route.error().status,
                     route.error().body.text("code"));
  }
  return std::move(route.error());
}

// ---------------------------------------------------------------- reading

void Api::read_in_turn(const Ask& ask, const JobId& job,
                       async::Done<Result<runtime::Runtime::Read>> done) {
  turns_.take(ask->request.by, [this, ask, job,
                                done = std::move(done)](ReadTurns::Turn turn) mutable {
    if (auto may = ask->may_grow_large(); !may) return done(std::unexpected(may.error()));
    ask->turn = turn;
    runtime_.read(job, [turn = std::move(turn), done = std::move(done)](
                           Result<runtime::Runtime::Read> read) mutable { done(std::move(read)); });
  });
}

void Api::read(Ask ask, std::move_only_function<void(runtime::Runtime::Read&)> then) {
  const auto job = job_id_from_text(ask->id);
  if (!job) {
    return ask->refuse({Code::not_found, "there is no job with the id \"" + ask->id.substr(0, 64) +
                                             "\": " + job.error().message});
  }
  read_in_turn(ask, *job,
               [ask, then = std::move(then)](Result<runtime::Runtime::Read> read) mutable {
                 if (!read) {
                   if (read.error().code == Code::not_found) {
                     return ask->refuse(no_job(ask->id));
                   }
                   return ask->refuse(read.error());
                 }
                 then(*read);
               });
}

// ---------------------------------------------------------------- waiting

void Api::wait(const Ask& ask, const JobId& job, Duration most, Look look_once) {
  // It was read; whoever waits keeps nothing of it.
  ask->request.body = std::string();
  ask->request.body_room.reset();
  auto waiting = std::make_shared<Waiting>();
  waiting->job = job;
  waiting->gone = ask->request.gone;
  waiting->until = steady_.since_start() + std::min(most, kWaitMax);
  waiting->look = std::move(look_once);
  waiting->not_yet = [this, alive = std::weak_ptr(alive_), weak = std::weak_ptr(waiting)] {
    const auto self = weak.lock();
    if (!self || !alive.lock()) return;
    self->looking = false;
    const Duration rest = self->rests_until - steady_.since_start();
    const bool grew = std::exchange(self->grew, false);
    if (self->last || (grew && rest.count() <= 0)) {
      return loop_.post([this, alive, self] {
        if (alive.lock()) look(self);
      });
    }
    const Duration left = self->until - steady_.since_start();
    const Duration poll = grew ? rest : std::max(rest, options_.hears ? kPoll : kPollUnheard);
    self->last = left <= poll;
    self->timer = loop_.after(std::max(Duration(0), std::min(left, poll)), [this, alive, self] {
      self->timer.reset();
      if (alive.lock()) look(self);
    });
  };
  waiting_.push_back(waiting);
  look(waiting);
}

void Api::look(const std::shared_ptr<Waiting>& waiting) {
  if (waiting->looking || waiting->over) return;
  if (const Duration rest = waiting->rests_until - steady_.since_start();
      rest.count() > 0 && !waiting->last) {
    if (waiting->timer) loop_.forget(*waiting->timer);
    waiting->timer = loop_.after(rest, [this, alive = std::weak_ptr(alive_), waiting] {
      waiting->timer.reset();
      if (alive.lock()) look(waiting);
    });
    return;
  }
  if (waiting->timer) loop_.forget(*std::exchange(waiting->timer, std::nullopt));
  waiting->looking = true;
  if (waiting->gone && *waiting->gone) waiting->last = true;
  std::erase_if(waiting_, [](const auto& other) { return other->over; });
  waiting->look(waiting);
}

void Api::on_events(const JobId& job, const std::vector<Event>& events) {
  metrics_.on_events(job, events);
  on_rested(job);
}

void Api::on_rested(const JobId& job) {
  const auto copy = waiting_;
  for (const auto& waiting : copy) {
    if (waiting->over || waiting->job != job) continue;
    waiting->grew = true;
    if (!waiting->looking) look(waiting);
  }
}

void Api::mcp(Ask ask) { mcp_->answer(std::move(ask->request), std::move(ask->done)); }

void Api::stop_waiting() {
  mcp_->stop_waiting();
  const auto copy = waiting_;
  for (const auto& waiting : copy) {
    if (waiting->over) continue;
    waiting->last = true;
    if (!waiting->looking) look(waiting);
  }
}

}  // namespace ae::api
