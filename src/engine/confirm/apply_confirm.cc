// How events of changed resources and their verification change the state.
#include <algorithm>

#include "engine/confirm/confirm.h"
#include "engine/state/applier.h"

namespace ae::engine {

Status Applier::apply(const StateChanged& event) {
  Step* step = this->step(event.step_id);
  if (!step || !step->call || step->call->open || step->committed ||
      step->phase == StepPhase::done) {
    return corrupt_event("no call that is about to be committed has changed it");
  }
  const ToolPolicy& tool = s_.tool_of(*step);
  if (step->changed >= tool.changes.size()) return corrupt_event("its tool names no such change");
  step->changed++;
  std::string key = resource_key(event.resource_type, event.resource_id);
  // A change by the current attempt needs no verification.
  const bool own = s_.status == JobStatus::running && step->call->attempt == s_.attempt;
  if (own) s_.to_confirm.erase(key);
  if (!own && s_.status == JobStatus::running) s_.to_confirm.insert(key);
  Change& change = s_.changes[std::move(key)];
  if (change.escalated) s_.escalated--;
  change = Change{.resource_type = event.resource_type,
                  .resource_id = event.resource_id,
                  .operation = event.operation,
                  .version = or_empty(event.version),
                  .etag = or_empty(event.etag),
                  .external_ref = or_empty(event.external_ref),
                  .tool = tool.name,
                  .step = index_of(*step),
                  .seq = s_.seq + 1,
                  .attempt = step->call->attempt,
                  .verdict = {},
                  .escalated = {},
                  .accepted = {}};
  return {};
}

// A new attempt has not seen what happened to earlier changes since.
void Applier::restart_confirmation() {
  withdraw_escalations();
  for (const auto& [key, change] : s_.changes) s_.to_confirm.insert(key);
}

void Applier::withdraw_escalations() {
  if (s_.escalated == 0) return;
  for (auto& [key, change] : s_.changes) change.escalated.reset();
  s_.escalated = 0;
}

Status Applier::apply_confirmation_decision(const DecisionRecorded& event, Step* step) {
  const std::string& decision = or_empty(event.state);
  const Value& resources = event.payload.value["resources"];
  const auto each = [&](auto&& of) {
    if (!resources.is_array()) return;
    for (const Value& resource : resources.items()) {
      auto it = s_.changes.find(
          resource_key(resource.text("resource_type"), resource.text("resource_id")));
      if (it != s_.changes.end()) of(it->first, it->second, resource);
    }
  };
  if (decision == "checked") {
    if (s_.status != JobStatus::running || s_.to_confirm.empty()) {
      return corrupt_event("nothing is to be confirmed");
    }
    each([&](const std::string& key, Change& change, const Value& resource) {
      change.verdict = resource.text("verdict");
      s_.to_confirm.erase(key);
    });
    if (!resources.is_array()) s_.to_confirm.clear();  // redacted
    return {};
  }
  if (!step) return corrupt_event("no such step");
  if (decision == "requested") {
    if (s_.status != JobStatus::running) return corrupt_event("no worker has checked it");
    const auto raise = [this](Change& change, const Value& resource) {
      if (!change.escalated) s_.escalated++;
      change.escalated =
          Deviation{std::string(resource.text("verdict")), std::string(resource.text("observed"))};
    };
    each([&](const std::string&, Change& change, const Value& resource) {
      raise(change, resource);
    });
    if (resources.is_array()) return {};
    for (auto& [key, change] : s_.changes) {  // redacted: all changes of the step
      if (change.step == index_of(*step)) raise(change, resources);
    }
    return {};
  }
  if (decision == "failed") {
    if (s_.ending) return corrupt_event("it ends already");
    return confirmation_failed(*step, std::string(event.payload.value.text("message")));
  }
  return confirmation_answered(event, *step);
}

// An operator accepts the changes of a step as they are, or fails the job.
Status Applier::confirmation_answered(const DecisionRecorded& event, Step& step) {
  const std::string& answer = or_empty(event.state);
  if (answer != "accept" && answer != "fail") return corrupt_event("an unknown answer");
  const std::uint32_t index = index_of(step);
  bool found = false;
  for (auto& [key, change] : s_.changes) {
    if (change.step != index || !change.escalated) continue;
    found = true;
    s_.escalated--;
    if (answer == "accept") change.accepted = std::move(change.escalated);
    change.escalated.reset();
  }
  if (!found || s_.ending) return corrupt_event("no confirmation was requested");
  if (answer == "accept") return {};
  const std::string &by = or_empty(event.by), &note = or_empty(event.reason);
  return confirmation_failed(step, "what \"" + s_.node_of(step).id + "\" changed was not accepted" +
                                       (by.empty() ? "" : " by " + by) +
                                       (note.empty() ? "" : ": " + note));
}

Status Applier::confirmation_failed(const Step& step, std::string message) {
  begin_ending({.cancelled = false,
                .code = std::string(code_name(Code::confirmation_failed)),
                .message = std::move(message),
                .node_id = s_.node_of(step).id,
                .by = {}});
  note_progress();
  return {};
}

// Does a resume end this park?
bool Applier::may_resume() const {
  if (s_.parked_until == "resume" || s_.parked_until == "version") return true;
  if (s_.parked_until == "budget") return !s_.budget.exceeded || s_.ending;
  // The unknown outcome does not block the end of the job: its resolve wait stays open meanwhile.
  if (s_.parked_until == "resolve") return s_.ending && !s_.awaits_operator_before_end();
  return s_.parked_until == "confirmation" &&
         (s_.escalated == 0 || s_.ending || s_.parked_reason == kVerifierUnreachable);
}

}  // namespace ae::engine
