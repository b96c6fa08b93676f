#include "sim/small_job_requests.h"

#include <utility>
#include <variant>

#include "base/error.h"
#include "engine/loop/thread.h"
#include "json/json.h"
#include "sim/task_graph.h"

namespace ae::sim::requests {

using namespace std::chrono_literals;

engine::ControlRequest signal(std::string key, Value payload) {
  return {.id = "signal-" + key,
          .by = "someone",
          .body = engine::SignalRequest{.correlation_key = std::move(key),
                                        .payload = std::move(payload)}};
}
engine::ControlRequest buffered_signal(std::string key) {
  engine::ControlRequest request = signal(std::move(key));
  std::get<engine::SignalRequest>(request.body).buffer = true;
  return request;
}
engine::ControlRequest decision_signal(std::string key, std::string_view decision) {
  return signal(std::move(key), Value::object({{"decision", decision}}));
}
engine::ControlRequest message(std::string id) {
  return {.id = id,
          .by = "someone",
          .body = engine::MessageRequest{.channel = "news",
                                         .payload = Value::object({{"message", id}})}};
}
engine::ControlRequest thread_message(std::string id) {
  return {.id = id,
          .by = "someone",
          .body = engine::MessageRequest{.channel = std::string(engine::kThreadChannel),
                                         .payload = "text of " + id}};
}
engine::ControlRequest thread_end(std::string id) {
  return {.id = std::move(id),
          .by = "someone",
          .body = engine::MessageRequest{.channel = std::string(engine::kThreadChannel),
                                         .control = "end"}};
}
engine::ControlRequest cancel(std::optional<bool> compensate) {
  return {.id = "cancel", .by = "someone", .body = engine::CancelRequest{.compensate = compensate}};
}
engine::ControlRequest pause(std::string id) {
  return {.id = id, .by = id, .body = engine::PauseRequest{.reason = id}};
}
engine::ControlRequest resume(std::string id) {
  return {.id = id, .by = id, .body = engine::ResumeRequest{}};
}

engine::ControlRequest raise(std::string_view limits) {
  const auto stored = parse_json(limits);
  AE_CHECK(stored.has_value(), std::string(limits));
  const auto read = engine::limits_of(*stored);
  AE_CHECK(read.has_value(), std::string(limits));
  return {.id = "raise", .by = "raise", .body = engine::BudgetRequest{.limits = *read}};
}

engine::ControlRequest plan(std::string_view nodes, std::vector<Value> drop) {
  auto graph = parse_json(nodes);
  AE_CHECK(graph.has_value(), std::string(nodes));
  return {.id = "plan",
          .by = "plan",
          .body = engine::PlanRequest{.task_graph = with_tools(*graph),
                                      .drop = Value::array(std::move(drop))}};
}

Action mutate() { return {.after = 100ms, .when = kWaiting, .kind = Action::Kind::mutate}; }
Action signal_go() { return {.after = 100ms, .request = signal("go"), .when = kWaiting}; }

}  // namespace ae::sim::requests
