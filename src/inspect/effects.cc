// EffectKinds: classifies events.
#include "inspect/effects.h"

#include <fmt/core.h>

#include <string>

#include "base/ids.h"
#include "engine/state/view_values.h"
#include "engine/values/recorded_value.h"
#include "log/decisions.h"
#include "log/field_names.h"
#include "log/outcome.h"

namespace ae::engine {
namespace {

// The waits of an unknown outcome and of an approval end with a decision, which is the record. A
// tool's question has only a wait.
bool has_decision(std::string_view key) {
  return key.starts_with("resolve/") || key.starts_with("approval/");
}

bool is_human_decision(const DecisionRecorded& event) {
  return is_decision<ApprovalAnswered>(event) || is_decision<ArgumentsEdited>(event) ||
         is_decision<ConfirmationAnswered>(event) ||
         (is_decision<OutcomeDecided>(event) && event.by != "probe");
}

bool is_human_answer(const WaitCompleted& event) {
  return event.wait_type == "human" && !has_decision(event.correlation_key) &&
         (event.outcome == "approved" || event.outcome == "rejected");
}

// The id of the effect, under the name that it has in its event.
std::string_view effect_id_of(const ToolInvocationFinished& event) {
  return event.invocation_id.text;
}
std::string_view effect_id_of(const WaitCompleted& event) { return event.correlation_key; }
std::string_view effect_id_of(const DecisionRecorded& event) { return event.decision_id.text; }
std::string_view effect_id_of(const auto& event) {
  if constexpr (requires { event.effect_id; }) return event.effect_id;
  return {};
}

}  // namespace

std::optional<StepId> recorded_step_of(const Event& event) {
  const RecordedKind kind = recorded_kind_of(event.type);
  if (kind == RecordedKind::nothing) return std::nullopt;
  const std::string_view id =
      std::visit([](const auto& body) { return effect_id_of(body); }, event.body);
  if (auto step = step_of_effect(id, kind)) return step;
  // Of code: "<step>:time:<scope>/<n>". A random number with more parts is the jitter of a back-off.
  const std::size_t colon = id.find(':');
  const std::string of_code = fmt::format(":{}:", to_text(kind));
  if (kind == RecordedKind::random || colon == id.npos || !id.substr(colon).starts_with(of_code)) {
    return std::nullopt;
  }
  return StepId(id.substr(0, colon));
}

std::string_view EffectKinds::kind_of(const Event& event) {
  if (const auto* started = as<ToolInvocationStarted>(event)) {
    if (started->tool_name.starts_with(kModelToolPrefix)) of_models_.insert(started->invocation_id);
    return "";
  }
  if (const auto* finished = as<ToolInvocationFinished>(event)) {
    if (finished->outcome == to_text(OutcomeKind::unknown) && !finished->error)
      return "";  // closed without observation
    return of_models_.contains(finished->invocation_id) ? "llm" : "tool";
  }
  if (const auto* wait = as<WaitCompleted>(event)) return is_human_answer(*wait) ? "human" : "";
  if (const auto* decision = as<DecisionRecorded>(event)) {
    return is_human_decision(*decision) ? "human" : "";
  }
  switch (event.type) {
    case EventType::timer_fired:
    case EventType::time_recorded:
      return "time";
    case EventType::random_recorded:
      return "random";
    case EventType::uuid_recorded:
      return "uuid";
    case EventType::http_recorded:
      return "http";
    default:
      return "";
  }
}

Value effect_entry(const Event& event, std::string_view kind) {
  const std::string_view id =
      std::visit([](const auto& body) { return effect_id_of(body); }, event.body);
  std::string step(step_of(event));
  if (const auto of = recorded_step_of(event)) step = of->text;
  const auto* finished = as<ToolInvocationFinished>(event);
  return Value::object({{field::at, to_text(event.created_at)},
                        {field::effect_id, or_null(id)},
                        {field::kind, kind},
                        {field::node_id, or_null(node_of(event))},
                        {"seq", event.seq},
                        {field::step_id, or_null(step)},
                        {field::try_, finished != nullptr ? Value(finished->try_no) : Value()},
                        {"type", event_name(event)}});
}

}  // namespace ae::engine
