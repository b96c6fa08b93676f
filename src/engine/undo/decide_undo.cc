// How a decision undoes committed steps before the job ends (SPEC §7: compensation).
//
//   calls in flight are awaited → unknown outcomes are resolved → waits are closed → committed
//   steps whose tools name a compensation are undone, one at a time, the last committed one first →
//   the terminal event (decide_end.cc)
//
// A call with an unknown outcome whose tool names a compensation is resolved even if there is
// nothing else to undo: it is probed, or an idempotent call is resent under its key, as in a
// job that continues; otherwise an operator decides. Other unknown outcomes are resolved only
// if a step must be undone.
//
// A compensation is a separate command with its own path, keys and tries. If it fails or its
// outcome is unknown, the job parks, and an operator decides: happened (it is undone), not_happened
// (try again) or fail (it stays done, and is listed).
#include <fmt/core.h>

#include "engine/heart/decider.h"
#include "log/park_until.h"

namespace ae::engine {

void Decider::decide_undo() {
  if (s_.status != JobStatus::running) return requeue_for_claim();
  if (settle_unknown_calls()) return park_before_end();
  for (const auto& [key, wait] : s_.waits) {
    if (!wait.resolve) cancel_wait(key, wait);
  }
  if (decision_.events.empty()) undo_newest();
  park_before_end();
}

// Only the lease holder may undo.
void Decider::requeue_for_claim() {
  if (s_.status == JobStatus::waiting) {
    for (const auto& [key, wait] : s_.waits) {
      if (!wait.resolve) cancel_wait(key, wait);
    }
    return;
  }
  if (s_.status == JobStatus::parked && !s_.awaits_operator_before_end())
    emit(JobResumed{.by = "runtime"});
}

// Nothing is undone while a call may still take effect. True: an outcome is unknown.
bool Decider::settle_unknown_calls() {
  bool has_unknown = false;
  const auto settle = [&](const Step& step) {
    const bool matters =
        s_.must_settle_before_end(step.role == Role::probe ? s_.steps[step.of] : step);
    if (step.role == Role::probe) {
      if (!matters) return;
      has_unknown = true;
      return decide_probe(step);
    }
    const bool over = step.phase == StepPhase::refused ||
                      (step.phase == StepPhase::redo && step.role == Role::node) ||
                      (step.phase == StepPhase::calling && !s_.may_have_happened(step));
    // An operator gave it up or decided that it did not happen, or it only reads: its
    // outcome does not matter.
    if (over) {
      if (step.call && step.call->open) finish_as_unknown(step);
      return;
    }
    if (step.role == Role::undo || !matters || !s_.may_have_happened(step)) return;
    has_unknown = true;
    settle_unknown_call(step);
  };
  for (std::uint32_t index : s_.calling) {
    if (is_full()) return true;
    if (!s_.todo.contains(index)) settle(s_.steps[index]);
  }
  for (std::uint32_t index : s_.todo) {
    if (is_full()) return true;
    settle(s_.steps[index]);
  }
  for (const auto& [key, wait] : s_.waits) {
    const Step& step = s_.steps[wait.step];
    has_unknown =
        has_unknown || (wait.resolve && step.role == Role::node && s_.must_settle_before_end(step));
  }
  return has_unknown || !decision_.events.empty();
}

void Decider::settle_unknown_call(const Step& step) {
  const std::string_view code = step.call->open ? "" : std::string_view(step.call->error().code);
  if (s_.on_in_doubt_of(step) == OnInDoubt::fail) {
    if (step.call->open) finish_as_unknown(step);
    return fail_step(step, code_name(Code::invocation_in_doubt),
                     "the call may have happened; the tool says on_in_doubt: fail");
  }
  if (may_probe(step)) return start_probe(step);
  // It is resent or left to an operator, by the same rules as in a job that continues.
  if (s_.blocks_ending(step) && !attempts_exhausted()) {
    decide_call(step);
    return !exceeded_limits_.empty() ? open_resolve_wait(step, code_name(Code::budget_exceeded))
                                     : void();
  }
  if (!code.empty()) return open_resolve_wait(step, code);
  open_resolve_wait(step, step.call->open ? "the runtime stopped during the call"
                                          : to_text(OutcomeKind::unknown));
}

// REQUIRES: a step must be undone, and no call has an unknown outcome.
void Decider::undo_newest() {
  AE_CHECK(!s_.undoable.empty(), s_.job.text);
  const Step& newest = s_.steps[s_.undoable.back()];
  if (newest.undo != kNoStep) return decide_undo_step(s_.steps[newest.undo]);
  if (s_.calling.size() >= limits_.parallel_max) {
    limit_reached_ = true;
    return;
  }
  const StepId id = s_.side_step_id(newest, Role::undo);
  Declaration d{.step = id,
                .node = s_.node_of(newest),
                .tool = s_.tool_of(newest).compensate->tool,
                .args = {},
                .of = &newest};
  auto args = side_arguments_of(s_, newest, Role::undo, &work_);
  if (args && canonical_exceeds(*args, kValueMax)) args = too_large("the arguments");
  if (!args) return emit_command(d, id.text);  // an operator is asked once this is in the log
  d.args = std::move(*args);
  begin_call(std::move(d));
}

void Decider::decide_undo_step(const Step& undo) {
  const Step& undone = s_.steps[undo.of];
  switch (undo.phase) {
    case StepPhase::ready: {
      auto args = side_arguments_of(s_, undone, Role::undo, &work_);
      if (args && canonical_exceeds(*args, kValueMax)) args = too_large("the arguments");
      if (!args) {
        return open_resolve_wait(
            undo, fmt::format("it could not be called ({})", code_name(args.error().code)));
      }
      begin_call({.step = undo.id,
                  .node = s_.node_of(undo),
                  .tool = s_.tool_index(undo),
                  .args = std::move(*args),
                  .known = &undo,
                  .of = &undone,
                  .emitted = true});
      return;
    }
    case StepPhase::calling:
      if (s_.is_live(undo)) return;
      if (attempts_exhausted()) return open_resolve_wait(undo, code_name(Code::max_attempts));
      return decide_call(undo);
    case StepPhase::settled:
    case StepPhase::backoff:
    case StepPhase::redo:
      return decide_call(undo);
    case StepPhase::committed:
      emit_of(undone, StepCompensated{.compensation_invocation_id =
                                          invocation_id(s_.job, undo.id, s_.key_of(undo))});
      return;
    default:
      return;
  }
}

// Nothing can progress now: waits for a back-off, a call or an operator.
void Decider::park_before_end() {
  if (!decision_.events.empty() || limit_reached_) return;
  std::optional<Instant> backoff = revisit_at_;
  for (std::uint32_t index : s_.todo) {
    const Step& step = s_.steps[index];
    if (step.phase != StepPhase::backoff || (step.role == Role::node && !s_.blocks_ending(step))) {
      continue;
    }
    if (!backoff || step.not_before < *backoff) backoff = step.not_before;
  }
  if (s_.has_live_call() || release_until(backoff)) return;
  if (!s_.awaits_operator_before_end()) return;
  emit(JobParked{.reason = std::string(code_name(Code::invocation_in_doubt)),
                 .until = park_until::kResolve});
  decision_.release = true;
}

}  // namespace ae::engine
