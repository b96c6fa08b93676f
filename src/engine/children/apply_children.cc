// How events of child jobs change the state of their parent.
#include "engine/children/children.h"
#include "engine/state/applier.h"

namespace ae::engine {

// Its try has created a child that is awaited, or found it.
void Applier::note_child(const Step& step) {
  if (s_.awaits_child(step) && step.call->questions->rounds == 1) s_.child_calls.push_back(step.id);
}

void Applier::note_detached_child(const Step& step) {
  const auto& child = s_.tool_of(step).child;
  if (step.role != Role::node || !child || !child->detached) return;
  s_.child_calls.push_back(step.id);
  s_.child_counts["detached"]++;
}

Status Applier::child_created(Step& step, std::string_view key, Wait& wait) {
  Questions& questions = *step.call->questions;
  if (s_.has_ended_child(step)) return corrupt_event("the child job has ended");
  if (key != child_wait_key(s_, step)) return corrupt_event("not the wait for its child job");
  questions.number++;
  wait.resolve = false;
  s_.open_children++;
  count_asking(step, 1);
  set_phase(step, StepPhase::questioned);
  return {};
}

Status Applier::child_ended(Step& step, const Wait& wait, const WaitCompleted& event,
                            const Value& payload) {
  if (event.outcome != "signalled") return corrupt_event("a child job ends in one way");
  Questions& questions = *step.call->questions;
  questions.answers = questions.answers.with(kChildAnswer, payload);
  s_.child_counts[std::string(payload.text("status", "ended"))]++;  // erased: ended
  s_.open_children--;
  if (!wait.child_cancelled) count_asking(step, -1);
  if (!event.children_in_doubt.is_null()) {
    auto in_doubt = event.children_in_doubt.read();
    if (!in_doubt) return corrupt_event(in_doubt.error().message);
    for (ChildInDoubt& one : *in_doubt) s_.children_in_doubt.push_back(std::move(one));
  }
  settle_child(step, event.child_use);
  set_phase(step, StepPhase::settled);
  if (step.is_part()) update_work_sets(step.node);
  return {};
}

Status Applier::apply(const ChildCancelRequested& event) {
  Step* const step = this->step(event.step_id);
  const auto wait = step ? s_.waits.find(or_empty(step->wait_key)) : s_.waits.end();
  if (wait == s_.waits.end() || wait->second.type != WaitType::job ||
      wait->second.child_cancelled || event.child_job_id != child_of(s_, *step).text.view()) {
    return corrupt_event("no such child job is awaited");
  }
  wait->second.child_cancelled = true;
  count_asking(*step, -1);
  if (step->is_part()) update_work_sets(step->node);
  return {};
}

}  // namespace ae::engine
