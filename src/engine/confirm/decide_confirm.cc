// How a decision verifies the job's external changes, after another attempt has left it (SPEC §8).
//
//   unknown outcomes that may have changed something are resolved first: their changes must not
//   look like external ones
//   check the next resources → all have results → recorded → the job continues
//                            → strict mismatch: the job ends (decide_end.cc)
//                            → an operator is asked: `requested`, and the job parks
//
// Meanwhile nothing else is decided, except what ends or parks the job. An accepted deviation is
// not raised again while it stays the same.
#include <fmt/core.h>

#include "engine/confirm/confirm.h"
#include "engine/heart/decider.h"
#include "engine/state/view_values.h"
#include "log/park_until.h"

namespace ae::engine {
namespace {

bool is_deviation(const CheckResult& check) {
  return check.verdict == CheckVerdict::mismatch || check.verdict == CheckVerdict::unreachable;
}

std::string observed_of(const CheckResult& check) {
  return check.verdict == CheckVerdict::mismatch ? check.observed : std::string();
}

bool is_accepted(const Change& change, const CheckResult& check) {
  return change.accepted && change.accepted->verdict == to_text(check.verdict) &&
         change.accepted->observed == observed_of(check);
}

std::string mismatch_message(const Change& change, const CheckResult& check,
                             const ToolPolicy& verifier) {
  return fmt::format(
      "{} \"{}\" is not as this job left it: \"{}\" was recorded, \"{}\" is there now ({})",
      change.resource_type, change.resource_id, check.expected, check.observed,
      verifier.verified_by);
}

}  // namespace

CheckResult Decider::check_result_of(const std::string& key) const {
  const Change& change = s_.changes.at(key);
  if (verifier_of(s_, change) == nullptr) {
    return {.expected = {}, .observed = {}, .reason = "no verifier"};
  }
  return context_.confirmations->at(key).result;
}

DecisionId Decider::confirmation_id(std::string_view what) const {
  const std::string name = fmt::format("confirmation/{}/{}/{}", s_.epoch, s_.seq, what);
  return decision_at(s_, name);
}

// The changes of a call with this `result`.
void Decider::emit_changes(const Step& step, const Value& result) {
  for (StateChanged& change : changes_of(s_, step, result, &work_).events) {
    emit(std::move(change));
    unconfirmed_ = unconfirmed_ || step.call->attempt != s_.attempt;
  }
}

// Do all of these have a verification? Requests the missing ones.
bool Decider::request_missing_checks(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) {
    const Change& change = s_.changes.at(key);
    if (verifier_of(s_, change) == nullptr) continue;
    const Confirmations* confirmations = context_.confirmations;
    const auto found = confirmations ? confirmations->find(key) : Confirmations::const_iterator();
    if (!confirmations || found == confirmations->end() || found->second.seq != change.seq) {
      decision_.confirm.push_back(key);
    }
  }
  return decision_.confirm.empty();
}

// A change by a call of this job with an unknown outcome would look
// external. True: there may be one.
bool Decider::unsettled_changes() {
  bool unsettled = false;
  for (const std::uint32_t index : s_.todo) {
    if (is_full() || failed_) break;
    if (s_.is_live(s_.steps[index]) || !s_.may_have_changed(s_.steps[index])) continue;
    unsettled = true;
    decide_step(index);
  }
  for (const std::uint32_t index : s_.calling) {  // a probe is running
    const Step& step = s_.steps[index];
    unsettled = unsettled || (step.role == Role::probe && s_.may_have_changed(step));
  }
  for (const auto& [key, wait] : s_.waits) {  // an operator is asked
    unsettled = unsettled || (wait.resolve && s_.may_have_changed(s_.steps[wait.step]));
  }
  settling_ = unsettled;
  if (unsettled && decision_.events.empty() && !s_.has_live_call()) become_idle();
  return unsettled;
}

// Requests or records the next verifications. Always false: nothing else is
// decided in this decision.
bool Decider::confirm_changes() {
  std::vector<std::string> keys;
  for (const std::string& key : s_.to_confirm) {
    if (keys.size() == kConfirmBatchMax) break;
    keys.push_back(key);
  }
  if (!request_missing_checks(keys)) return false;
  // The job may park here, so no call may be in flight.
  const bool deviating = std::ranges::any_of(
      keys, [&](const std::string& key) { return is_deviation(check_result_of(key)); });
  if (!deviating || !s_.has_live_call()) record_checks(keys);
  return false;
}

void Decider::emit_check(const Change& change, const CheckResult& check) {
  const ToolPolicy* verifier = verifier_of(s_, change);
  CheckDetail detail{.expected = none_if_empty(check.expected),
                     .observed = none_if_empty(check.observed),
                     .operation = change.operation,
                     .reason = none_if_empty(check.reason),
                     .tool = change.tool};
  if (verifier) {
    detail.mode = to_text(verifier->confirm);
    detail.verifier = verifier->verified_by;
  }
  if (is_deviation(check) && is_accepted(change, check)) detail.accepted = true;
  emit_of(s_.steps[change.step],
          ConfirmationChecked{.detail = detail,
                              .resource_id = change.resource_id,
                              .resource_type = change.resource_type,
                              .verdict = std::string(to_text(check.verdict))});
}

void Decider::record_checks(const std::vector<std::string>& keys) {
  ChangesChecked checked;
  std::vector<std::pair<const Change*, CheckResult>> broken;
  std::vector<std::string> escalated;
  for (const std::string& key : keys) {
    const Change& change = s_.changes.at(key);
    const CheckResult check = check_result_of(key);
    emit_check(change, check);
    checked.resources.push_back({.resource_id = change.resource_id,
                                 .resource_type = change.resource_type,
                                 .verdict = std::string(to_text(check.verdict))});
    if (!is_deviation(check) || is_accepted(change, check)) continue;
    const ConfirmMode mode = verifier_of(s_, change)->confirm;
    if (check.verdict == CheckVerdict::unreachable || mode == ConfirmMode::human) {
      escalated.push_back(key);
    } else if (mode == ConfirmMode::strict) {
      broken.emplace_back(&change, check);
    }
  }
  emit(decision_event(checked, {.decision_id = confirmation_id("checked")}));
  if (broken.empty()) {
    if (!escalated.empty()) escalate(escalated);
    return;
  }
  const auto& [change, check] = broken.front();
  std::string message = mismatch_message(*change, check, *verifier_of(s_, *change));
  if (broken.size() > 1) message += fmt::format("; and {} more", broken.size() - 1);
  emit_of(s_.steps[change->step],
          decision_event(ConfirmationFailed{.message = std::move(message)},
                         {.decision_id = confirmation_id("failed"),
                          .reason = std::string(code_name(Code::confirmation_failed))}));
}

// Asks an operator, once for each step that made such a change, and parks the job.
void Decider::escalate(const std::vector<std::string>& keys) {
  std::map<std::uint32_t, ConfirmationRequested> of_step;
  bool mismatch = false;
  for (const std::string& key : keys) {
    const Change& change = s_.changes.at(key);
    const CheckResult check = check_result_of(key);
    mismatch = mismatch || check.verdict == CheckVerdict::mismatch;
    of_step[change.step].resources.push_back({.expected = or_null(check.expected),
                                              .observed = or_null(observed_of(check)),
                                              .reason = or_null(check.reason),
                                              .resource_id = change.resource_id,
                                              .resource_type = change.resource_type,
                                              .verdict = std::string(to_text(check.verdict))});
  }
  for (const auto& [index, request] : of_step) {
    const Step& step = s_.steps[index];
    emit_of(step, decision_event(request, {.decision_id = confirmation_id(step.id.text)}));
  }
  // `resume` repeats the checks; a mismatch needs an operator's answer.
  if (mismatch) {
    emit(JobParked{.reason = "replay_verification_human_required",
                   .until = park_until::kConfirmation});
  } else {
    emit(JobParked{.reason = std::string(kVerifierUnreachable), .until = park_until::kResume});
  }
  decision_.release = true;
}

}  // namespace ae::engine
