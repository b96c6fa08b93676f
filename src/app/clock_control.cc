#include "app/clock_control.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "api/problem.h"
#include "app/http_mapping.h"
#include "json/json.h"

namespace ae::app {
namespace {

constexpr Duration kPatience = std::chrono::seconds(30);
constexpr Duration kPoll = std::chrono::milliseconds(2);

}  // namespace

struct ClockControl::Request {
  std::optional<Instant> until;  // nullopt: to the next instant that is due
  Duration began{};
  async::Done<Result<Value>> done;
};

void ClockControl::advance(const Value& body, async::Done<Result<Value>> done) {
  auto request = std::make_shared<Request>(
      Request{.until = {}, .began = parts_.steady.since_start(), .done = std::move(done)});
  const auto refuse = [&](std::string why) {
    request->done(fail(Code::input_invalid, "{}", std::move(why)));
  };
  if (!body.is_object()) return refuse("the body is an object");
  for (const auto& [name, value] : body.members()) {
    if (name != "advance" && name != "to_next") {
      return refuse(fmt::format("\"{}\" is not a field of this request", name.substr(0, 64)));
    }
  }
  const Value& to_next = body["to_next"];
  const Value& by = body["advance"];
  if (!to_next.is_null() && !to_next.is_bool()) return refuse("\"to_next\" is true or false");
  if (!by.is_null() && (!by.is_string() || to_next == Value(true))) {
    return refuse("\"advance\" is a duration such as 3d, without \"to_next\"");
  }
  if (by.is_null() && to_next != Value(true)) return answer(*request, false);
  if (!by.is_null()) {
    const auto duration = duration_from_text(by.as_string());
    if (!duration) return refuse("\"advance\": " + duration.error().message);
    request->until = parts_.clock.now() + *duration;
  }
  step(std::move(request));
}

void ClockControl::answer(Request& request, bool advanced) {
  request.done(Value::object({{"advanced", advanced}, {"now", to_text(parts_.clock.now())}}));
}

void ClockControl::advance_to(Instant at) {
  parts_.clock.advance(std::max(Duration(0), at - parts_.clock.now()));
}

void ClockControl::step_later(std::shared_ptr<Request> request) {
  if (parts_.steady.since_start() - request->began > kPatience) {
    return request->done(fail(Code::unavailable,
                              "the clock does not advance while jobs run: {} are running or ready "
                              "since 30 s",
                              std::max<std::size_t>(1, parts_.runtime.leased_jobs())));
  }
  parts_.loop.after(kPoll, [this, alive = alive_.watch(), request = std::move(request)]() mutable {
    if (alive) step(std::move(request));
  });
}

// No job runs if this process holds none, and none can be claimed.
void ClockControl::step(std::shared_ptr<Request> request) {
  if (parts_.runtime.leased_jobs() > 0) return step_later(std::move(request));
  parts_.store.count_jobs([this, alive = alive_.watch(),
                           request = std::move(request)](Result<store::JobStats> stats) mutable {
    if (!alive) return;
    if (!stats) return request->done(std::unexpected(std::move(stats).error()));
    const bool is_ready =
        std::ranges::any_of(stats->ready, [](const auto& queue) { return queue.second > 0; });
    if (is_ready) return step_later(std::move(request));
    parts_.store.next_due([this, alive = std::move(alive), request = std::move(request)](
                              Result<std::optional<Instant>> due) mutable {
      if (!alive) return;
      if (!due) return request->done(std::unexpected(std::move(due).error()));
      on_next_due(std::move(request), *due);
    });
  });
}

void ClockControl::on_next_due(std::shared_ptr<Request> request, std::optional<Instant> due) {
  // What is due is found by the runtime's next poll.
  const bool is_due = due && *due <= parts_.clock.now();
  if (is_due || parts_.runtime.leased_jobs() > 0) return step_later(std::move(request));
  if (!request->until) {
    if (due) advance_to(*due);
    return answer(*request, due.has_value());
  }
  if (!due || *due > *request->until) {
    advance_to(*request->until);
    return answer(*request, true);
  }
  advance_to(*due);
  step_later(std::move(request));
}

bool is_clock_route(const net::HttpRequest& request) {
  return request.path.size() == 2 && request.path[0] == "api" && request.path[1] == "clock";
}

void answer_clock(ClockControl& control, const net::HttpRequest& request, net::Responder responder,
                  const api::Principal& principal) {
  const auto refuse = [&](const Error& why) {
    std::move(responder).answer(to_http_response(problem_response(why)));
  };
  if (principal.role != api::Role::admin) {
    return refuse({Code::forbidden, "the key needs the role admin"});
  }
  if (request.method != "POST") {
    return refuse({Code::method_not_allowed, "use POST"});
  }
  const auto body = parse_json(request.body.empty() ? "{}" : request.body);
  if (!body) return refuse(body.error());
  control.advance(*body, [responder = std::move(responder)](Result<Value> answer) mutable {
    std::move(responder).answer(
        to_http_response(answer ? api::ApiResponse{.status = 200, .body = *std::move(answer)}
                                : problem_response(answer.error())));
  });
}

}  // namespace ae::app
