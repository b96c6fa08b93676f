// How events of changed resources and their verification change the state.
#include <fmt/core.h>

#include <algorithm>

#include "engine/confirm/confirm.h"
#include "engine/state/applier.h"
#include "log/park_until.h"

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

// The job's change of this resource; nullptr: none.
Change* Applier::find_change(const std::string& type, const std::string& id) {
  const auto found = s_.changes.find(resource_key(type, id));
  return found == s_.changes.end() ? nullptr : &found->second;
}

Status Applier::apply(const ChangesChecked& checked, const DecisionRecorded&, Step*) {
  if (s_.status != JobStatus::running || s_.to_confirm.empty()) {
    return corrupt_event("nothing is to be confirmed");
  }
  for (const CheckedResource& resource : checked.resources) {
    Change* const change = find_change(resource.resource_type, resource.resource_id);
    if (change == nullptr) continue;
    change->verdict = resource.verdict;
    s_.to_confirm.erase(resource_key(resource.resource_type, resource.resource_id));
  }
  if (checked.erased) s_.to_confirm.clear();
  return {};
}

void Applier::escalate(Change& change, Deviation deviation) {
  if (!change.escalated) s_.escalated++;
  change.escalated = std::move(deviation);
}

Status Applier::apply(const ConfirmationRequested& request, const DecisionRecorded&, Step* step) {
  if (!step) return corrupt_event("no such step");
  if (s_.status != JobStatus::running) return corrupt_event("no worker has checked it");
  for (const DeviatingResource& resource : request.resources) {
    Change* const change = find_change(resource.resource_type, resource.resource_id);
    if (change == nullptr) continue;
    const bool known = resource.observed.is_string();
    escalate(*change, {resource.verdict, known ? resource.observed.as_string() : std::string()});
  }
  if (!request.erased) return {};
  for (auto& [key, change] : s_.changes) {
    if (change.step == index_of(*step)) escalate(change, {});
  }
  return {};
}

Status Applier::apply(const ConfirmationFailed& failure, const DecisionRecorded&, Step* step) {
  if (!step) return corrupt_event("no such step");
  if (s_.ending) return corrupt_event("it ends already");
  return confirmation_failed(*step, failure.message);
}

// An operator accepts the changes of a step as they are, or fails the job.
Status Applier::apply(const ConfirmationAnswered&, const DecisionRecorded& event, Step* step) {
  if (!step) return corrupt_event("no such step");
  const bool accepted = event.state == "accept";
  const std::uint32_t index = index_of(*step);
  bool found = false;
  for (auto& [key, change] : s_.changes) {
    if (change.step != index || !change.escalated) continue;
    found = true;
    s_.escalated--;
    if (accepted) change.accepted = std::move(change.escalated);
    change.escalated.reset();
  }
  if (!found || s_.ending) return corrupt_event("no confirmation was requested");
  if (accepted) return {};
  const std::string &by = or_empty(event.by), &note = or_empty(event.reason);
  const std::string by_text = by.empty() ? "" : " by " + by, why = note.empty() ? "" : ": " + note;
  return confirmation_failed(*step, fmt::format("what \"{}\" changed was not accepted{}{}",
                                                s_.node_of(*step).id, by_text, why));
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
  if (s_.parked_until == park_until::kResume || s_.parked_until == park_until::kVersion)
    return true;
  if (s_.parked_until == park_until::kBudget) return !s_.budget.exceeded || s_.ending;
  // The unknown outcome does not block the end of the job: its resolve wait stays open meanwhile.
  if (s_.parked_until == park_until::kResolve) return s_.ending && !s_.awaits_operator_before_end();
  return s_.parked_until == park_until::kConfirmation &&
         (s_.escalated == 0 || s_.ending || s_.parked_reason == kVerifierUnreachable);
}

}  // namespace ae::engine
