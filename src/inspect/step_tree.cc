#include "inspect/step_tree.h"

#include <algorithm>

#include "inspect/view.h"

namespace ae::engine {

std::string_view to_text(StepStatus status) {
  switch (status) {
    case StepStatus::pending:
      return "pending";
    case StepStatus::running:
      return "running";
    case StepStatus::backoff:
      return "backoff";
    case StepStatus::waiting:
      return "waiting";
    case StepStatus::in_doubt:
      return to_text(StepPhase::in_doubt);
    case StepStatus::done:
      return "done";
    case StepStatus::skipped:
      return "skipped";
    case StepStatus::failed:
      return "failed";
    case StepStatus::not_run:
      return "not_run";
  }
  return {};
}

std::string_view to_text(ExternalEffect effect) {
  switch (effect) {
    case ExternalEffect::unchanged:
      return "unchanged";
    case ExternalEffect::changed:
      return "changed";
    case ExternalEffect::unknown:
      return "unknown";
    case ExternalEffect::rolled_back:
      return "rolled back";
  }
  return {};
}

StepTree::StepTree(const State& state, bool is_dropped) : s_(state), is_dropped_(is_dropped) {
  update();
}

void StepTree::update() {
  // A new plan moves the steps that it takes over.
  if (s_.plan_number != plan_number_) {
    plan_number_ = s_.plan_number;
    steps_ = 0;
    parts_.clear();
    calls_.clear();
    scopes_.clear();
    sides_.clear();
  }
  for (; steps_ < s_.steps.size(); ++steps_) {
    add(s_.steps[steps_], static_cast<std::uint32_t>(steps_));
  }
}

void StepTree::add(const Step& step, std::uint32_t index) {
  if (step.role != Role::node) {
    sides_[step.of].push_back(&step);
  } else if (step.is_loop_call()) {
    calls_[{step.node, step.turn}].push_back(&step);
  } else if (step.request) {
    const std::uint32_t scope = scope_of(step, index);
    parts_[scope == kNoStep ? step.node : scope].push_back(&step);
    if (is_scope(step.request->kind)) {
      scopes_.try_emplace({step.node, step.request->position}, index);
    }
  } else if (step.is_part()) {
    parts_[step.node].push_back(&step);
  }
}

std::uint32_t StepTree::scope_of(const Step& request, std::uint32_t index) const {
  const std::string_view position = request.request->position;
  for (std::size_t slash = position.rfind('/'); slash != position.npos && slash > 0;
       slash = position.rfind('/', slash - 1)) {
    const auto scope = scopes_.find({request.node, position.substr(0, slash)});
    if (scope != scopes_.end() && scope->second < index) return scope->second;
  }
  return kNoStep;
}

const StepTree::Steps& StepTree::parts_of(const Step& step) const {
  static const Steps kNone;
  if (step.role != Role::node || step.item != kNoItem || step.is_loop_call() || step.is_summary()) {
    return kNone;
  }
  if (step.is_turn()) {
    const auto calls = calls_.find({step.node, step.turn});
    return calls == calls_.end() ? kNone : calls->second;
  }
  if (step.request && !is_scope(step.request->kind)) return kNone;
  const auto parts = parts_.find(step.request ? s_.index_of(step) : step.node);
  return parts == parts_.end() ? kNone : parts->second;
}

const Step* StepTree::parent_of(const Step& step) const {
  if (step.role != Role::node) return &s_.steps[step.of];
  if (!step.is_part()) return nullptr;
  std::uint32_t parent = kNoStep;
  if (step.is_loop_call()) {
    parent = s_.index_of(s_.part_step_id(s_.steps[step.node], step.turn, kNoTurn));
  } else if (step.request) {
    parent = scope_of(step, s_.index_of(step));
  }
  return &s_.steps[parent == kNoStep ? step.node : parent];
}

const StepTree::Steps& StepTree::sides_of(const Step& step) const {
  static const Steps kNone;
  if (step.probe == kNoStep && step.undo == kNoStep) return kNone;
  const auto sides = sides_.find(s_.index_of(step));
  return sides == sides_.end() ? kNone : sides->second;
}

bool StepTree::has_unknown_part(const Step& step) const {
  return std::ranges::any_of(parts_of(step), [&](const Step* part) {
    return part->phase == StepPhase::in_doubt || has_unknown_part(*part);
  });
}

StepStatus StepTree::status_of(const Step& step) const {
  using enum StepStatus;
  if (step.role != Role::node && step.phase == StepPhase::done) {
    return step.committed || !step.call ? done : failed;
  }
  if (step.phase == StepPhase::done) {
    if (step.skipped) return skipped;
    return step.failure ? failed : done;
  }
  if (is_dropped_ && s_.kind_of(step) == NodeKind::wait) return not_run;
  if (is_terminal(s_.status) || is_dropped_) {
    if (s_.may_have_happened(step)) return in_doubt;
    return step.started ? failed : not_run;
  }
  switch (step.phase) {
    case StepPhase::blocked:
    case StepPhase::ready:
      return step.started ? running : pending;
    case StepPhase::backoff:
      return backoff;
    case StepPhase::asking:
    case StepPhase::questioned:
    case StepPhase::waiting:
      return waiting;
    case StepPhase::in_doubt:
    case StepPhase::probing:
      return in_doubt;
    case StepPhase::refused:
      return step.role == Role::undo ? failed : running;
    case StepPhase::mapping:
    case StepPhase::looping:
    case StepPhase::running:
      return has_unknown_part(step) ? in_doubt : running;
    default:
      return running;
  }
}

TryOutcome::Resolution resolution_from_text(std::string_view text) {
  using Resolution = TryOutcome::Resolution;
  if (text.empty()) return Resolution::none;
  if (text == "happened") return Resolution::happened;
  return text == "not_happened" ? Resolution::not_happened : Resolution::other;
}

OutcomeKind outcome_from_text(std::string_view text) {
  for (const OutcomeKind kind : {OutcomeKind::success, OutcomeKind::failure, OutcomeKind::timeout,
                                 OutcomeKind::input_required}) {
    if (to_text(kind) == text) return kind;
  }
  return OutcomeKind::unknown;
}

ExternalEffect external_effect_of(EffectClass effect, std::span<const TryOutcome> tries,
                                  const TryOutcome& one) {
  using enum ExternalEffect;
  using Resolution = TryOutcome::Resolution;
  const auto took_effect = [](const TryOutcome& other) {
    return other.outcome == OutcomeKind::success || other.resolution == Resolution::happened;
  };
  if (effect == EffectClass::read) return unchanged;
  if (took_effect(one)) return changed;
  if (one.outcome == OutcomeKind::failure && one.definite) return unchanged;
  if (one.outcome == OutcomeKind::input_required) return unchanged;
  if (one.resolution == Resolution::not_happened) return unchanged;
  // If a later try with the same external key succeeded, the effect of the earlier try is the same
  // effect.
  return std::ranges::any_of(tries, took_effect) ? changed : unknown;
}

void EffectSum::add(ExternalEffect effect) {
  changed_ |= effect == ExternalEffect::changed;
  unknown_ |= effect == ExternalEffect::unknown;
  rolled_back_ |= effect == ExternalEffect::rolled_back;
}

void EffectSum::add(EffectClass effect, std::span<const TryOutcome> tries) {
  for (const TryOutcome& one : tries) add(external_effect_of(effect, tries, one));
}

ExternalEffect EffectSum::total() const {
  using enum ExternalEffect;
  return unknown_ ? unknown : changed_ ? changed : rolled_back_ ? rolled_back : unchanged;
}

}  // namespace ae::engine
