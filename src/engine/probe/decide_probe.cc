// How a decision asks the downstream for the outcome of a call (SPEC §6: probe).
//
// The probe is a separate command with its own path, keys and tries. Its call waits for it in the
// phase `probing`. The probe's answer is recorded as a decision, and the call continues from there.
// Without an answer an operator is asked.
#include <fmt/core.h>

#include "engine/heart/decider.h"
#include "engine/heart/features.h"

namespace ae::engine {

bool Decider::may_probe(const Step& step) const {
  return !attempts_exhausted() && s_.may_probe(step);
}

void Decider::start_probe(const Step& step) {
  if (s_.pause_request) return;
  // The sender may be dead, but its request may still arrive and take effect (SPEC §6).
  if (const auto settles = s_.settles_at(step); settles && context_.now < *settles) {
    return revisit_at(*settles);
  }
  const bool replaces_open_try =
      step.phase == StepPhase::calling;  // an orphan is among the open tries
  if (!has_room(replaces_open_try)) return;
  auto args = side_arguments_of(s_, step, Role::probe, &work_);
  if (args && canonical_exceeds(*args, kValueMax)) args = too_large("the probe's arguments");
  if (!args) {
    return open_resolve_wait(
        step, fmt::format("the probe could not be called ({})", code_name(args.error().code)));
  }
  if (replaces_open_try) open_--;
  begin_call({.step = s_.side_step_id(step, Role::probe),
              .node = s_.node_of(step),
              .tool = s_.tool_of(step).probe->tool,
              .args = std::move(*args),
              .of = &step});
}

void Decider::decide_probe(const Step& probe) {
  const Step& probed = s_.steps[probe.of];
  if (probed.phase != StepPhase::probing) {  // its answer is not needed any more
    if (probe.call->open && !s_.is_live(probe)) return finish_as_unknown(probe);
    if (probe.phase == StepPhase::settled) commit_command(probe);
    return;
  }
  if (probe.phase == StepPhase::committed) return handle_probe_answer(probe);
  if (probe.phase == StepPhase::calling && attempts_exhausted()) {
    return fail_step(probe, code_name(Code::max_attempts), "");
  }
  decide_call(probe);
}

void Decider::handle_probe_answer(const Step& probe) {
  const Step& probed = s_.steps[probe.of];
  if (probe.failure) return fail_step(probe, probe.failure->code, probe.failure->message);
  auto result = probe_result_of(s_, probed, probe.result, &work_);
  if (result && canonical_exceeds(*result, kValueMax)) result = too_large("what the probe says");
  if (!result) return fail_step(probe, result.error());
  if (!result->is_null()) {
    const auto& schema = s_.tool_of(probed).result_schema;
    if (const auto fits = schema ? schema->check(*result, &work_) : Status(); !fits) {
      return fail_step(probe, code_name(Code::tool_output_invalid), fits.error().message);
    }
    if (auto changes = changes_of(s_, probed, *result, &work_).status; !changes) {
      return fail_step(probe, changes.error());
    }
  }
  record_probe_result(probe, *result);
}

void Decider::record_probe_result(const Step& probe, const Value& result) {
  const Step& probed = s_.steps[probe.of];
  const bool happened = !result.is_null();
  const std::string_view resolution = happened ? "happened" : "not_happened";
  if (happened && probed.call->open) finish_as_unknown(probed, "probe");
  emit_of(probed, decision_event(
                      OutcomeDecided{.idempotency_key = probed.call->key,
                                     .probe = probe.call->id,
                                     .resolution = resolution},
                      {.at = context_.now,
                       .by = "probe",
                       .decision_id = decision_id_of(
                           probed, fmt::format("{}{}", OutcomeDecided::kKind, probed.call->try_no)),
                       .state = resolution}));
  if (!happened) return;
  emit_changes(probed, result);
  emit_of(probed, CommandCommitted{.command_id = probed.id, .result = result});
}

}  // namespace ae::engine
