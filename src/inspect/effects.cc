// Which events are records of effects.
#include "inspect/effects.h"

#include "base/ids.h"
#include "engine/heart/recorded_value.h"

namespace ae::engine {
namespace {

// What is asked about a call in doubt, or one that is to be approved, has a wait and a decision; the decision is the record.
// What a tool asks has a wait alone.
bool has_decision(std::string_view key) {
  return key.starts_with("resolve/") || key.starts_with("approval/");
}

bool a_person_decided(const Value& p) {
  const std::string_view kind = p.text("kind"), state = p.text("state");
  if (kind == "approval") return state == "approved" || state == "rejected" || state == "edited";
  if (kind == "confirmation") return state == "accept" || state == "fail";
  return kind == "in_doubt" && p.text("by") != "probe" && state != "resend";
}

bool a_person_answered(const Value& p) {
  const std::string_view outcome = p.text("outcome");
  return p.text("wait_type") == "human" && !has_decision(p.text("correlation_key")) &&
         (outcome == "approved" || outcome == "rejected");
}

}  // namespace

std::string_view EffectKinds::kind_of(const Event& event) {
  const Value& p = event.payload;
  switch (event.type) {
    case EventType::tool_invocation_started:
      if (p.text("tool_name").starts_with(kModelToolPrefix)) {
        of_models_.emplace(p.text("invocation_id"));
      }
      return "";
    case EventType::tool_invocation_finished:
      if (p.text("outcome") == "unknown" && p["error"].is_null()) return "";  // nobody saw anything
      return of_models_.contains(std::string(p.text("invocation_id"))) ? "llm" : "tool";
    case EventType::timer_fired:
    case EventType::time_recorded:
      return "time";
    case EventType::random_recorded:
      return "random";
    case EventType::uuid_recorded:
      return "uuid";
    case EventType::http_recorded:
      return "http";
    case EventType::wait_completed:
      return a_person_answered(p) ? "human" : "";
    case EventType::decision_recorded:
      return a_person_decided(p) ? "human" : "";
    default:
      return "";
  }
}

Value effect_entry(const Event& event, std::string_view kind) {
  const Value& p = event.payload;
  Value id;
  for (const char* name : {"effect_id", "invocation_id", "correlation_key", "decision_id"}) {
    if (id.is_null()) id = p[name];
  }
  Value step = p["step_id"];
  if (const Records records = records_of(event.type); records != Records::nothing) {
    if (const auto of = step_of_effect(p.text("effect_id"), records)) step = of->text;
  }
  return Value::object({{"at", to_text(event.created_at)},
                        {"effect_id", id},
                        {"kind", kind},
                        {"node_id", p["node_id"]},
                        {"seq", event.seq},
                        {"step_id", step},
                        {"try", p["try"]},
                        {"type", event_name(event)}});
}

}  // namespace ae::engine
