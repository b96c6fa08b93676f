// A request with the versions that a process offers: resumes jobs that wait
// for them (SPEC §12, §6).
#include <fmt/core.h>

#include "engine/heart/request.h"
#include "engine/version/code_version.h"
#include "log/park_until.h"

namespace ae::engine {

// Also for a job that waits for no version: then there is nothing to write.
Result<AppliedRequest> apply_request(const State& state, const ControlRequest& request,
                                     const VersionRequest&, const DecisionContext& context) {
  AppliedRequest applied;
  applied.answer = Value::object({{"resumed", false}});
  if (state.status != JobStatus::parked || has_wrong_version(state, context)) return applied;
  const std::string by = request.by.empty() ? std::string(kRuntimeActor) : request.by;
  const bool is_code_there =
      context.code_offers != nullptr && state.awaits_code() && may_fit(state, *context.code_offers);
  if (is_code_there) {
    applied.events.emplace_back(JobResumed{.by = std::string(kRuntimeActor)});
  } else if (state.awaits_version() && !state.awaits_code()) {
    applied.events.emplace_back(JobResumed{.by = by});
  } else if (state.parked_until == park_until::kResolve) {
    for (const std::string& key : unknown_calls_to_resend(state, context)) {
      const Wait& wait = state.waits.at(key);
      const Step& step = state.steps[wait.step];
      applied.events.emplace_back(decision_event(
          ResendDecided{.idempotency_key = state.key_of(step), .resolution = "resend"},
          {.at = context.now,
           .by = by,
           .decision_id = decision_at(state, fmt::format("{}#{}", state.path_of(step), key)),
           .node_id = state.node_of(step).id,
           .reason =
               fmt::format("its tool is offered again as it was ({})", step.call->tool_version),
           .step_id = step.id}));
      applied.events.emplace_back(wait_completed_event(state, key, wait, "cancelled"));
    }
  }
  if (!applied.events.empty()) applied.answer = Value::object({{"resumed", true}});
  return applied;
}

}  // namespace ae::engine
