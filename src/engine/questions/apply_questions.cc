// How events of questions change the state: what a tool asks during its
// call, and the user's answers.
#include "engine/questions/questions.h"
#include "engine/state/applier.h"

namespace ae::engine {

// A try has ended with questions.
void Applier::await_answers(Step& step, const Erasable& result) {
  Invocation& call = *step.call;
  if (!call.questions) call.questions = std::make_unique<Questions>();
  call.questions->input_required = result.value;
  call.questions->erased = result.erased;
  call.questions->answers = Value::object({});
  call.questions->rounds++;
  note_child(step);
}

// Is this event about a wait for a question of the step's tool?
bool Applier::is_question(const Step& step) const {
  return step.role == Role::node && step.call && !step.call->open && step.call->questions &&
         step.call->outcome == OutcomeKind::input_required && step.phase == StepPhase::settled;
}

Status Applier::question_opened(Step& step, std::string_view key, Wait& wait) {
  Questions& questions = *step.call->questions;
  if (s_.ending) return corrupt_event("no question opens in a job that ends");
  if (!open_question(*step.call) && !questions.erased) {
    return corrupt_event("its tool has no open question");
  }
  if (wait.type != WaitType::human || key != question_wait_key(step, questions.number + 1)) {
    return corrupt_event("not the wait of its tool's question");
  }
  questions.number++;
  wait.resolve = false;
  wait.question = true;
  count_asking(step, 1);
  set_phase(step, StepPhase::questioned);
  return {};
}

Status Applier::question_closed(Step& step, std::string_view outcome, const Value& payload) {
  if (!step.call || !step.call->questions) return corrupt_event("its tool has no open question");
  const Member* question = open_question(*step.call);
  const bool answered = outcome == "approved" || outcome == "rejected";
  if (!answered && outcome != "timed_out" && outcome != "cancelled")
    return corrupt_event("an unknown answer");
  if (question != nullptr && outcome != "cancelled") {
    const Value silence = Value::object({{"action", "cancel"}});
    Questions& questions = *step.call->questions;
    questions.answers = questions.answers.with(question->first, answered ? payload : silence);
  }
  count_asking(step, -1);
  set_phase(step, StepPhase::settled);
  if (step.is_part()) update_work_sets(step.node);
  return {};
}

}  // namespace ae::engine
