// How a decision continues a call whose tool has asked a user: one question after the other, then
// the next try, with all answers.
#include <fmt/core.h>

#include "engine/heart/decider.h"
#include "engine/questions/questions.h"

namespace ae::engine {

void Decider::handle_questions(const Step& step) {
  const Invocation& call = *step.call;
  const ToolPolicy& tool = s_.tool_of(step);
  const bool item_failed = step.item != kNoItem &&
                           (s_.steps[step.node].map->failure || failed_maps_.contains(step.node));
  const bool loop_failed = step.turn != kNoTurn && s_.steps[step.node].loop->failure;
  if (item_failed || loop_failed) {
    return fail_step(step, code_name(Code::rejected),
                     fmt::format("\"{}\" asked a person something, and {} had failed", tool.name,
                                 item_failed ? "another item of its map" : "its loop"));
  }
  if (is_cancelled(step) || has_ended_code(step)) return fail_cancelled(step);
  // An answer is valid only for the tool version that asked.
  if (has_changed(step)) {
    return fail_step(
        step, "tool_changed",
        fmt::format("\"{}\" asked a person something, and has changed since", tool.name));
  }
  if (call.questions->rounds > kQuestionRoundsMax) {
    return fail_step(step, to_text(OutcomeKind::input_required),
                     fmt::format("\"{}\" has asked a person {} times, and asks again", tool.name,
                                 kQuestionRoundsMax));
  }
  const Member* question = open_question(call);
  if (question == nullptr) {
    // Without questions the tool only wants to be called again, after a pause.
    const bool only_later = call.questions->input_required["requests"].size() == 0;
    return only_later && step.phase == StepPhase::settled ? schedule_retry(step)
                                                          : declare_try(step, false);
  }
  emit_of(step, WaitOpened{.correlation_key = question_wait_key(step, call.questions->number + 1),
                           .expires_at = cap_at_deadline(context_.now + tool.ask_expires),
                           .reason = std::string(to_text(OutcomeKind::input_required)),
                           .wait_type = std::string(to_text(WaitType::human))});
}

}  // namespace ae::engine
