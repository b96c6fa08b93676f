#include "engine/state/retained_value.h"

#include "log/decisions.h"
#include "log/sealed_form.h"

namespace ae::engine {
namespace {

// The decision whose value this field is; nullptr: another event or field.
const DecisionRecorded* decision_of(const Event& event, std::string_view field) {
  return may_retain_value(event.type, field) ? as<DecisionRecorded>(event) : nullptr;
}

}  // namespace

std::string_view retention_reason(const Event& event, std::string_view field) {
  const DecisionRecorded* decision = decision_of(event, field);
  return decision != nullptr && is_decision<BranchTaken>(*decision)
             ? "it is true or false, and records which branch the job took"
             : "";
}

Value retained_value(const Event& event, std::string_view field, bool blinded) {
  const DecisionRecorded* decision = decision_of(event, field);
  if (decision == nullptr) return {};
  const auto body = decision_body(*decision);
  return body ? retained_payload(*body, blinded) : Value();
}

}  // namespace ae::engine
