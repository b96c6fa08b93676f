// Transcript: decisions, resolutions, failed and skipped nodes, waits and messages.
#include <fmt/core.h>

#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "engine/state/view_values.h"
#include "inspect/field_json.h"
#include "inspect/transcript_internal.h"
#include "log/decisions.h"
#include "log/field_names.h"

namespace ae::engine {

template <class Approval>
  requires(Approval::kKind == ApprovalRequested::kKind)
void Transcript::add_decision(const DecisionRecorded& event, const Approval& approval) {
  if (approval.erased) redacted_.emplace_back(field::arguments);
  Value arguments, expires_at;
  if constexpr (requires { approval.arguments; }) arguments = approval.arguments;
  if constexpr (requires { approval.expires_at; }) expires_at = field_json(approval.expires_at);
  add("approval", step_of(*event_),
      {{field::arguments, arguments},
       {field::by, field_json(event.by)},
       {field::expires_at, expires_at},
       {field::note, field_json(event.reason)},
       {field::state, or_empty(event.state)},
       {"tool", or_null(approval.tool)}});
}

void Transcript::add_approval_end(const WaitCompleted& event, ApprovalState state) {
  add("approval", event.step_id.text,
      {{field::arguments, Value()},
       {field::by, field_json(event.by)},
       {field::expires_at, Value()},
       {field::note, Value()},
       {field::state, to_text(state)},
       {"tool", Value()}});
}

void Transcript::add_entries(const DecisionRecorded& event) {
  const auto decision = decision_body(event);
  if (!decision) return;
  std::visit([&](const auto& body) { add_decision(event, body); }, *decision);
}

// The loop's decision about the answer of a turn.
void Transcript::add_decision(const DecisionRecorded&, const ToolChosen& chosen) {
  const auto call = calls_.find(chosen.choice.of.text);
  if (call != calls_.end()) add_tool_choice(call->second.step_id, chosen.choice);
}

void Transcript::add_budget(const DecisionRecorded& event) {
  const Value payload = value(event.payload, field::payload);
  add(field::budget, step_of(*event_),
      {{field::by, field_json(event.by)},
       {field::note, field_json(event.reason)},
       {field::payload, payload},
       {field::state, field_json(event.state)}});
}

void Transcript::add_outcome(const DecisionRecorded& event) {
  const std::string id(step_of(*event_));
  add(field::resolution, id,
      {{field::by, field_json(event.by)},
       {field::note, field_json(event.reason)},
       {field::resolution, field_json(event.state)},
       {field::result, Value()}});
  if (event.state == "happened") resolved_[id] = {added_, {}};
}

void Transcript::add_entries(const OutcomeNoted& event) {
  const Value result = value(event.result, field::result);
  const Value note = value(event.note, field::note);
  add(field::resolution, event.step_id.text,
      {{field::result, result},
       {field::by, field_json(event.by)},
       {field::note, note},
       {field::resolution, event.resolution}});
}

void Transcript::add_entries(const ValueEmitted& event) {
  const Value emitted = value(event.value, field::value);
  add("emitted", event.step_id.text,
      {{"name", event.value_name},
       {field::published, event.published == true},
       {field::scope, field_json(event.scope)},
       {field::value, emitted}});
}

void Transcript::note_error(std::string_view step_id, const std::string& node_id,
                            std::string_view code) {
  errors_[std::string(step_id)] = code;
  errors_[fmt::format("/{}", node_id)] = code;
}

void Transcript::add_entries(const NodeFinished& event) {
  const std::string& id = event.step_id.text;
  if (event.skipped == true) return add(field::skipped, id, {});
  if (!event.error) return;
  // Maps, loops and code fail with the error of a part.
  const Step* of = step(id);
  const bool part = of != nullptr && of->is_part();
  const std::string known = errors_[part ? id : fmt::format("/{}", event.node_id)];
  note_error(id, event.node_id, event.error->code);
  if (known == event.error->code) return;
  const Value failure = error(event.error);
  add("failed", id, {{field::error, failure}});
}

void Transcript::add_entries(const WaitOpened& event) {
  const std::string& key = event.correlation_key;
  for (const char* ours : {"approval/", "resolve/", "input/"}) {
    if (key.starts_with(ours)) return;  // covered by other entries
  }
  if (event.wait_type == to_text(WaitType::job)) return;
  add("wait", event.step_id.text,
      {{field::channel, field_json(event.channel)},
       {field::correlation_key, key},
       {field::due_at, field_json(event.due_at)},
       {field::expires_at, field_json(event.expires_at)},
       {field::wait_type, event.wait_type}});
}

void Transcript::add_entries(const WaitCompleted& event) {
  const std::string& key = event.correlation_key;
  if (key.starts_with("resolve/") || event.wait_type == to_text(WaitType::job)) return;
  if (key.starts_with("approval/")) {
    if (event.outcome == "timed_out") return add_approval_end(event, ApprovalState::expired);
    if (event.outcome == "cancelled") return add_approval_end(event, ApprovalState::withdrawn);
    return;
  }
  const Value payload = value(event.payload, field::payload);
  add("reply", event.step_id.text,
      {{field::by, field_json(event.by)},
       {field::correlation_key, key},
       {field::outcome, event.outcome},
       {field::payload, payload},
       {field::wait_type, event.wait_type}});
}

void Transcript::add_entries(const AgentMessage& event) {
  if (or_empty(event.wait_type) == to_text(WaitType::job)) return;  // the end of a child
  const Value payload = value(event.payload, field::payload);
  add("received", {},
      {{field::payload, payload},
       {field::by, field_json(event.by)},
       {field::channel, or_null(event.channel)},
       {field::correlation_key, field_json(event.correlation_key)}});
}

}  // namespace ae::engine
