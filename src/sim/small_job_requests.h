// Requests to a small job, and actions on it.
//
// The id of a request is its key or kind, so the same request again is a duplicate.
// Threads: pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/heart/ingest.h"
#include "json/value.h"
#include "sim/small_jobs.h"

namespace ae::sim::requests {

inline constexpr std::string_view kWaiting = "waiting", kParked = "parked";

engine::ControlRequest signal(std::string key, Value payload = Value::object({{"go", true}}));
engine::ControlRequest buffered_signal(std::string key);
engine::ControlRequest decision_signal(std::string key, std::string_view decision);
engine::ControlRequest message(std::string id);
engine::ControlRequest thread_message(std::string id);
engine::ControlRequest thread_end(std::string id);
engine::ControlRequest cancel(std::optional<bool> compensate = std::nullopt);
engine::ControlRequest pause(std::string id);
engine::ControlRequest resume(std::string id);
// Raises the budget; limits as they are stored.
engine::ControlRequest raise(std::string_view limits);
// A re-plan that abandons some nodes.
engine::ControlRequest plan(std::string_view nodes, std::vector<Value> drop = {});

Action mutate();
// Continues the job once no worker holds its lease: the next lease holder has to verify the
// changes.
Action signal_go();

}  // namespace ae::sim::requests
