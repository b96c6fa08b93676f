// The actions of errors as JSON, and the reverse.
#include "engine/state/action.h"

#include <string>

namespace ae::engine {
namespace {

constexpr std::string_view kJobId = "job_id";

}  // namespace

Value action_json(const Action& next) {
  std::vector<Member> arguments;
  if (!next.job.empty()) arguments.emplace_back(kJobId, next.job);
  for (const auto& [name, value] : next.arguments) arguments.emplace_back(name, value);
  return action(next.act, std::move(arguments));
}

std::optional<Action> action_from_json(const Value& json) {
  if (json.text("act").empty()) return std::nullopt;
  Action next{.act = std::string(json.text("act"))};
  for (const auto& [name, value] : json[field::arguments].members()) {
    if (!value.is_string()) continue;
    if (name == kJobId) {
      next.job = value.as_string();
    } else {
      next.arguments.emplace_back(name, value.as_string());
    }
  }
  return next;
}

}  // namespace ae::engine
