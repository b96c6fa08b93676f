// How events of probes and compensations change the state: calls that belong to another call.
#include "engine/state/applier.h"

namespace ae::engine {

// No further decision is needed for it.
void Applier::retire(Step& side) {
  side.phase = StepPhase::done;
  side.barrier = true;
  update_work_sets(index_of(side));
}

Status Applier::apply(const CommandEmitted& event) {
  if (!event.of) {
    Step* const step = this->step(event.step_id);
    return step && step->started ? note_options(*step, event.options)
                                 : corrupt_event("no such step");
  }
  if (!event.options.is_null()) return corrupt_event("only a request of code has options");
  const std::uint32_t about = s_.index_of(*event.of);
  if (about == kNoStep) return corrupt_event("it is about no step");
  Step& step = s_.steps[about];
  const auto role = s_.side_role(step, event.step_id);
  if (!role) return corrupt_event("its step has no call to probe or compensate");
  const auto index = static_cast<std::uint32_t>(s_.steps.size());
  Step& new_step = s_.steps.add(event.step_id);
  new_step.node = step.node;
  new_step.start_plan = step.start_plan;
  new_step.start_node = step.start_node;
  new_step.item = step.item;
  new_step.turn = step.turn;
  new_step.nth = step.nth;
  new_step.role = *role;
  new_step.of = about;
  new_step.phase = StepPhase::ready;
  new_step.started = true;
  if (*role == Role::undo) {
    step.undo = index;
    return {};
  }
  new_step.of_try = step.call->try_no;
  step.probe = index;
  set_phase(step, StepPhase::probing);
  return {};
}

// The options of a call are recorded with its first approval, or else with its command.
Status Applier::note_options(Step& step, const Value& recorded) {
  const CallOptions* const known = s_.options_of(step);
  if (recorded.is_null()) {
    return known == nullptr ? Status() : corrupt_event("it has not the options of its approval");
  }
  if (!step.request || !s_.has_tool(step)) {
    return corrupt_event("only a request of code has options");
  }
  const auto options = call_options_of(recorded);
  if (!options || !check_options(*options, s_.tool_of(step)) ||
      (known != nullptr && *known != *options)) {
    return corrupt_event("its options are not within the policy of its tool, or have changed");
  }
  step.request->options = *options;
  return {};
}

// An operator, or the call's probe, resolves its outcome.
Status Applier::apply(const OutcomeDecided&, const DecisionRecorded& event, Step* of) {
  if (!of) return corrupt_event("no call has an unknown outcome");
  Step& step = *of;
  const bool by_probe = step.phase == StepPhase::probing && event.by == "probe";
  if (step.phase != StepPhase::in_doubt && !by_probe)
    return corrupt_event("no call has an unknown outcome");
  if (event.state == "not_happened") {
    if (by_probe) step.call->absent_tries++;
    // The decision was made after every earlier try had settled; the newest one stays
    // open only for its result.
    if (step.call) {
      step.call->outcome_unknown = false;
      step.call->ended_deadline.reset();
      step.call->checkable_from = event.at;
    }
    set_phase(step, step.call ? StepPhase::redo : StepPhase::ready);
  } else if (event.state == "fail") {
    if (step.role == Role::undo) {
      if (s_.undoable.empty() || s_.undoable.back() != step.of)
        return corrupt_event("nothing to undo");
      s_.undoable.pop_back();
      s_.given_up.push_back(step.of);
    }
    set_phase(step, StepPhase::refused);
  } else if (!step.call) {
    set_phase(step, StepPhase::committed);  // done by hand
  }  // happened: the command_committed next to it has the rest
  return {};
}

// The tool's version of that call is offered again: SPEC §6 decides again.
Status Applier::apply(const ResendDecided&, const DecisionRecorded&, Step* step) {
  if (!step || step->phase != StepPhase::in_doubt) {
    return corrupt_event("no call has an unknown outcome");
  }
  if (!step->call) return corrupt_event("no call to send again");
  set_phase(*step, step->call->open ? StepPhase::calling : StepPhase::settled);
  return {};
}

Status Applier::apply(const StepCompensated& event) {
  Step* step = this->step(event.step_id);
  if (!step || s_.undoable.empty() || s_.undoable.back() != index_of(*step) ||
      step->undo == kNoStep || s_.steps[step->undo].phase != StepPhase::committed) {
    return corrupt_event("no such step to compensate: the newest one is undone first");
  }
  Step& undo = s_.steps[step->undo];
  if (event.compensation_invocation_id != invocation_id(s_.job, undo.id, s_.key_of(undo))) {
    return corrupt_event("another call has undone it");
  }
  s_.undoable.pop_back();
  s_.undone.push_back(index_of(*step));
  step->result_type = ResultType::compensated;
  retire(undo);
  if (!step->is_part()) return {};
  step->call.reset();
  if (step->item != kNoItem) step->result = Value();
  return {};
}

// The job must end, for a reason that is in no other event, and must undo something first.
Status Applier::apply(const EndDecided& end, const DecisionRecorded&, Step*) {
  if (s_.ending) return corrupt_event("it ends already");
  begin_ending(
      {.cancelled = false, .code = end.code, .message = end.message, .node_id = {}, .by = {}});
  note_progress();
  return {};
}

}  // namespace ae::engine
