// How a decision runs a loop: call the model, record its requested calls, make them, call it again.
#include <fmt/core.h>

#include "engine/heart/decider.h"
#include "engine/loop/loop.h"
#include "engine/loop/thread.h"

namespace ae::engine {

void Decider::decide_loop(const Step& step) {
  const LoopProgress& loop = *step.loop;
  if (loop.failure) {
    if (loop.asking > 0) return withdraw_requests(step);
    if (loop.active == 0) fail_step(step, loop.failure->code, loop.failure->message);
    return;
  }
  if (may_begin_turn(s_, step)) return ask_model(step);
  if (loop.turns.empty() || !loop.turns.back().chosen) return record_tool_choice(step);
  const LoopTurn& newest = loop.turns.back();
  if (may_await_message(s_, step)) return await_message(step);
  if (newest.calls.empty() || (loop.ended && is_exchange_over(step))) return finish_loop(step);
  if (loop.interrupted) return refuse_calls(step);
  if (loop.turn_count() >= turns_max(s_, step)) {
    return fail_step(step, code_name(Code::turns_limit),
                     fmt::format("after {} turns, the most that it may take, the model still asks "
                                 "for tools; what it asked for last was not done",
                                 loop.turn_count()));
  }
  start_calls(step);
}

// May a requested pause let this happen? It starts nothing.
bool Decider::can_only_conclude(const Step& step) const {
  const LoopProgress& loop = *step.loop;
  if (loop.failure) return true;
  if (loop.turns.empty() || loop.active > 0) return false;
  const LoopTurn& newest = loop.turns.back();
  if (!newest.chosen) return true;
  if (may_await_message(s_, step)) return false;  // a kept message would begin the next turn
  if (loop.ended) return true;
  return newest.calls.empty() && !newest.repair && !newest.message;
}

// True: the part has ended with it.
bool Decider::start_part(Declaration&& part) {
  emit(NodeStarted{.node_id = part.node.id, .step_id = part.step, .try_no = 1});
  return begin_call(std::move(part));
}

void Decider::ask_model(const Step& step) {
  const Node& node = s_.node_of(step);
  if (!has_room() || !may_fit_budget(s_.plan->tools[node.tool])) return;
  const std::uint32_t turn = step.loop->turn_count();
  auto next_turn = next_turn_of(s_, step, turn, &work_);
  if (!next_turn) return fail_step(step, next_turn.error());
  if (next_turn->summarize > 0) return request_summary(step, turn, next_turn->summarize);
  auto args = turn_arguments_of(s_, step, turn, next_turn->extras, &work_);
  if (args && canonical_exceeds(*args, kValueMax)) args = too_large("the prompt");
  if (!args) return fail_step(step, args.error());
  Declaration next{.step = s_.part_step_id(step, turn, kNoTurn),
                   .node = node,
                   .tool = node.tool,
                   .args = std::move(*args),
                   .path = s_.part_path(step, turn, kNoTurn),
                   .turn = turn};
  if (fits_budget(next, next.args)) start_part(std::move(next));
}

// The call of a model that summarizes what the next turn leaves out.
void Decider::request_summary(const Step& step, std::uint32_t turn, std::uint32_t from) {
  const Node& node = s_.node_of(step);
  const std::uint32_t tool = node.loop->context->summary_tool;
  if (!may_fit_budget(s_.plan->tools[tool])) return;
  Declaration next{.step = s_.part_step_id(step, turn, kSummary),
                   .node = node,
                   .tool = tool,
                   .args = summary_arguments_of(s_, step, turn, from),
                   .path = s_.part_path(step, turn, kSummary),
                   .turn = turn};
  if (fits_budget(next, next.args)) start_part(std::move(next));
}

// The requested calls are in the log before any of them is made.
void Decider::record_tool_choice(const Step& step) {
  auto choice = tool_choice_of(s_, step, &work_);
  if (!choice) return fail_step(step, choice.error());
  const std::string turn = fmt::format("turn{}", step.loop->turn_count() - 1);
  emit_of(step, decision_event(ToolChosen{.choice = *std::move(choice)},
                               {.decision_id = decision_id_of(step, turn)}));
}

void Decider::start_calls(const Step& step) {
  const LoopProgress& loop = *step.loop;
  const Node& node = s_.node_of(step);
  const std::uint32_t turn = loop.turn_count() - 1;
  const auto& calls = loop.turns.back().calls;
  std::uint32_t active = loop.active;
  for (std::uint32_t nth = loop.next; nth < calls.size(); ++nth) {
    if (calls[nth].refused || calls[nth].step != kNoStep) continue;
    if (active >= node.loop->parallel_tools) return;
    if (!has_room() || !may_fit_budget(s_.plan->tools[calls[nth].tool])) return;
    if (is_full()) {
      limit_reached_ = true;
      return;
    }
    Declaration next{.step = s_.part_step_id(step, turn, nth),
                     .node = node,
                     .tool = calls[nth].tool,
                     .args = requested_arguments_of(s_, step, turn, nth),
                     .path = s_.part_path(step, turn, nth),
                     .chosen = true};
    if (!fits_budget(next, next.args)) return;
    if (!start_part(std::move(next))) active++;
  }
}

void Decider::finish_loop(const Step& step) {
  auto result = loop_result_of(s_, step, &work_);
  if (!result) return fail_step(step, result.error());
  const Step& last = s_.steps[step.loop->turns.back().step];
  emit_of(step,
          NodeFinished{.result_of = answer_of(last).text, .result_type = "pure", .try_no = 1});
}

// The calls of an interrupted exchange that were not made: the model gets an error as their results.
void Decider::refuse_calls(const Step& step) {
  const LoopProgress& loop = *step.loop;
  const std::uint32_t turn = loop.turn_count() - 1;
  const auto& calls = loop.turns.back().calls;
  for (std::uint32_t nth = loop.next; nth < calls.size(); ++nth) {
    if (calls[nth].refused || calls[nth].step != kNoStep) continue;
    if (is_full()) {
      limit_reached_ = true;
      return;
    }
    const StepId id = s_.part_step_id(step, turn, nth);
    const std::string& node = s_.node_of(step).id;
    emit(NodeStarted{.node_id = node, .step_id = id, .try_no = 1});
    emit(NodeFinished{.error = {{"interrupted", Value("the user interrupted; it was not done")}},
                      .node_id = node,
                      .result_type = "permanent_failure",
                      .step_id = id,
                      .try_no = 1});
  }
}

// An answer that could not be the result fails the loop, as without a thread.
void Decider::await_message(const Step& step) {
  if (auto answer = loop_result_of(s_, step, &work_); !answer) {
    return fail_step(step, answer.error());
  }
  const std::string key = thread_wait_key(step);
  emit_of(step, WaitOpened{.channel = std::string(kThreadChannel),
                           .correlation_key = key,
                           .wait_type = std::string(to_text(WaitType::message))});
  deliver_early_answer({.node_id = s_.node_of(step).id, .step_id = step.id},
                       {.type = WaitType::message}, key, kThreadChannel);
}

}  // namespace ae::engine
