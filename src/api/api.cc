// Who answers what, reading a job for an answer, and waiting for one to go on.
#include "api/api.h"

#include <utility>

#include "api/asked.h"
#include "core/json.h"

namespace ae::api {
namespace {

// The floor under every hint; when nobody tells of commits, the store is asked this often.
constexpr Duration kPoll = std::chrono::seconds(1);
constexpr Duration kPollUnheard = std::chrono::milliseconds(200);

Error no_route(const Path& path) {
  return {Code::not_found, "there is no route " + target(path, {})};
}

}  // namespace

// "{id}" stands for one segment, whatever it is.
struct Api::Route {
  std::string_view method;
  std::vector<std::string> path;
  void (Api::*handle)(Ask);
};

const Api::Route Api::kRoutes[] = {
    {"GET", {"api", "health"}, &Api::health},
    {"GET", {"api", "ready"}, &Api::ready},
    {"GET", {"metrics"}, &Api::metrics},
    {"GET", {"openapi.json"}, &Api::openapi},
    {"GET", {"api", "workers"}, &Api::workers},
    {"GET", {"api", "tools"}, &Api::tools},
    {"GET", {"api", "agents"}, &Api::agents},
    {"GET", {"api", "agents", "{id}"}, &Api::agent},
    {"POST", {"api", "agents", "{id}", "message"}, &Api::message_agent},
    {"GET", {"api", "jobs"}, &Api::jobs},
    {"POST", {"api", "jobs"}, &Api::create},
    {"GET", {"api", "jobs", "{id}"}, &Api::job},
    {"GET", {"api", "jobs", "{id}", "events"}, &Api::events},
    {"GET", {"api", "jobs", "{id}", "trace"}, &Api::trace},
    {"GET", {"api", "jobs", "{id}", "replay"}, &Api::replay},
    {"GET", {"api", "jobs", "{id}", "verify"}, &Api::verify},
    {"POST", {"api", "jobs", "{id}", "signal"}, &Api::signal},
    {"POST", {"api", "jobs", "{id}", "cancel"}, &Api::cancel},
    {"POST", {"api", "jobs", "{id}", "resolve"}, &Api::resolve},
    {"POST", {"api", "jobs", "{id}", "message"}, &Api::message},
    {"POST", {"api", "jobs", "{id}", "pause"}, &Api::pause},
    {"POST", {"api", "jobs", "{id}", "resume"}, &Api::resume},
    {"POST", {"api", "jobs", "{id}", "fork"}, &Api::fork},
    {"POST", {"api", "jobs", "{id}", "retry"}, &Api::retry},
    {"POST", {"api", "jobs", "{id}", "plan"}, &Api::plan},
    {"POST", {"api", "jobs", "{id}", "redact"}, &Api::redact},
    {"GET", {"api", "audit"}, &Api::audit},
    {"GET", {"api", "audit", "verify"}, &Api::verify_audit},
    {"GET", {"api", "approvals"}, &Api::approvals},
    {"POST", {"api", "approvals", "{id}"}, &Api::answer_approval},
    // What comes later says so.
    {"PUT", {"api", "agents", "{id}"}, &Api::later},
};

std::vector<std::pair<std::string, std::string>> Api::routes() {
  std::vector<std::pair<std::string, std::string>> all;
  for (const Route& route : kRoutes) {
    std::string path;
    for (const std::string& segment : route.path) path += "/" + segment;
    all.emplace_back(route.method, std::move(path));
  }
  return all;
}

Api::Api(async::Loop& loop, async::SteadyClock& steady, store::Store& store,
         runtime::Runtime& runtime, ApiOptions options)
    : loop_(loop),
      steady_(steady),
      store_(store),
      runtime_(runtime),
      options_(std::move(options)) {}

Api::~Api() {
  for (const auto& waiting : waiting_) {
    if (waiting->timer) loop_.forget(*waiting->timer);
  }
}

void Api::handle(ApiRequest request, async::Done<ApiResponse> done) {
  auto ask = std::make_shared<Asked>();
  ask->request = std::move(request);
  ask->done = std::move(done);
  const auto refuse = [&](int status, Error error) {
    loop_.post([ask, status, error = std::move(error)] {
      ask->answer(status == 0 ? http_status(error.code) : status, problem(error));
    });
  };
  const Path& path = ask->request.path;
  ask->query = Query(ask->request.query);
  bool other_method = false;
  for (const Route& route : kRoutes) {
    if (route.path.size() != path.size()) continue;
    bool fits = true;
    for (std::size_t i = 0; i < path.size() && fits; ++i) {
      fits = route.path[i] == "{id}" || route.path[i] == path[i];
    }
    if (!fits) continue;
    if (route.method != ask->request.method) {
      other_method = true;
      continue;
    }
    for (std::size_t i = 0; i < path.size(); ++i) {
      if (route.path[i] == "{id}") ask->id = path[i];
    }
    return loop_.post([this, alive = std::weak_ptr(alive_), ask, act = route.handle] {
      if (alive.lock()) (this->*act)(ask);
    });
  }
  if (other_method) {
    return refuse(
        405, {Code::unsupported, ask->request.method + " does not go with " + target(path, {})});
  }
  refuse(0, no_route(path));
}

void Api::later(Ask ask) {
  ask->refuse({Code::unsupported, ask->request.method + " " + target(ask->request.path, {}) +
                                      " comes with a later version of Aetheris"});
}

// ---------------------------------------------------------------- reading

void Api::read(Ask ask, std::move_only_function<void(runtime::Runtime::Read&)> then) {
  const auto job = job_id_from_text(ask->id);
  if (!job) {
    return ask->refuse({Code::not_found, "there is no job with the id \"" + ask->id.substr(0, 64) +
                                             "\": " + job.error().message});
  }
  runtime_.read(*job, [ask, then = std::move(then)](Result<runtime::Runtime::Read> read) mutable {
    if (!read) {
      if (read.error().code == Code::not_found) {
        return ask->refuse({Code::not_found, "there is no job " + ask->id +
                                                 " in this store; `aetheris jobs` lists them"});
      }
      return ask->refuse(read.error());
    }
    then(*read);
  });
}

// ---------------------------------------------------------------- waiting

void Api::wait(const JobId& job, Duration most, Look look_once) {
  auto waiting = std::make_shared<Waiting>();
  waiting->job = job;
  waiting->until = steady_.since_start() + std::min(most, kWaitMax);
  waiting->look = std::move(look_once);
  waiting->last = waiting_.size() >= kWaitingMax;
  waiting->not_yet = [this, alive = std::weak_ptr(alive_), weak = std::weak_ptr(waiting)] {
    const auto self = weak.lock();
    if (!self || !alive.lock()) return;
    self->looking = false;
    if (std::exchange(self->grew, false) || self->last) {
      return loop_.post([this, alive, self] {
        if (alive.lock()) look(self);
      });
    }
    const Duration left = self->until - steady_.since_start();
    const Duration poll = options_.hears ? kPoll : kPollUnheard;
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
  if (waiting->timer) loop_.forget(*std::exchange(waiting->timer, std::nullopt));
  waiting->looking = true;
  std::erase_if(waiting_, [](const auto& other) { return other->over; });
  waiting->look(waiting);
}

void Api::on_events(const JobId& job, const std::vector<Event>& events) {
  metrics_.on_events(job, events);
  const auto copy = waiting_;
  for (const auto& waiting : copy) {
    if (waiting->over || waiting->job != job) continue;
    waiting->grew = true;
    if (!waiting->looking) look(waiting);
  }
}

void Api::stop_waiting() {
  const auto copy = waiting_;
  for (const auto& waiting : copy) {
    if (waiting->over) continue;
    waiting->last = true;
    if (!waiting->looking) look(waiting);
  }
}

}  // namespace ae::api
