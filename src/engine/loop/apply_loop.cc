// How events change the state of a loop: its turns, the requested calls, and their results.
#include <algorithm>
#include <utility>

#include "engine/loop/loop.h"
#include "engine/loop/thread.h"
#include "engine/state/applier.h"

namespace ae::engine {

// Refused calls do not start, nor do imported ones.
void Applier::advance_past_answered(LoopProgress& loop) {
  const auto& calls = loop.turns.back().calls;
  while (loop.next < calls.size() &&
         (calls[loop.next].refused || calls[loop.next].step != kNoStep)) {
    loop.next++;
  }
}

Step& Applier::new_loop_part(const Step& loop, std::uint32_t turn, std::uint32_t nth,
                             const StepId& id) {
  Step& new_step = new_part(loop, id);
  new_step.turn = turn;
  new_step.nth = nth;
  return new_step;
}

// The next turn or the summary before it, if the newest turn has all its results; else the next call
// of the newest turn.
Step* Applier::next_loop_part(Step& loop, const StepId& named) {
  LoopProgress& progress = *loop.loop;
  if (progress.failure) return nullptr;
  const auto index = static_cast<std::uint32_t>(s_.steps.size());
  const bool begins_turn = may_begin_turn(s_, loop);
  if (!begins_turn) {
    if (progress.turns.empty() || !progress.turns.back().chosen ||
        progress.next >= progress.turns.back().calls.size() ||
        progress.turn_count() >= turns_max(s_, loop)) {
      return nullptr;
    }
  }
  const std::uint32_t turn = progress.turn_count() - (begins_turn ? 0 : 1);
  std::uint32_t nth = begins_turn ? kNoTurn : progress.next;
  StepId id = s_.part_step_id(loop, turn, nth);
  if (id != named && begins_turn && may_summarize(s_, loop)) {
    nth = kSummary;
    id = s_.part_step_id(loop, turn, nth);
  }
  if (id != named) return nullptr;
  Step& new_step = new_loop_part(loop, turn, nth, id);
  new_step.phase = StepPhase::ready;
  progress.active++;
  if (nth == kSummary) {
    new_step.tool = s_.node_of(loop).loop->context->summary_tool;
    progress.summary = index;
  } else if (begins_turn) {
    progress.turns.push_back({.step = index});
    progress.next = 0;
  } else {
    LoopCall& call = progress.turns.back().calls[nth];
    new_step.tool = call.tool;
    call.step = index;
    progress.next++;
    advance_past_answered(progress);
  }
  update_work_sets(loop.node);
  return &new_step;
}

bool Applier::loop_wants_decision(const Step& step) const {
  const LoopProgress& loop = *step.loop;
  if (loop.failure) return loop.active == 0 || loop.asking > 0;
  if (loop.waiting) return false;
  if (loop.turns.empty() || !loop.turns.back().chosen) return loop.active == 0;
  if (loop.next < loop.turns.back().calls.size()) {
    if (loop.interrupted) return true;
    return loop.active < s_.node_of(step).loop->parallel_tools;
  }
  return loop.active == 0;
}

// The requested calls, recorded before any of them is made.
Status Applier::apply(const ToolChosen& chosen, const DecisionRecorded&, Step* step) {
  if (!step || step->phase != StepPhase::looping) return corrupt_event("no such loop");
  LoopProgress& loop = *step->loop;
  if (loop.turns.empty() || loop.turns.back().chosen || loop.active > 0 || loop.failure) {
    return corrupt_event("no answer of a model to act on");
  }
  AE_TRY(apply_tool_choice(*step, chosen.choice));
  update_work_sets(index_of(*step));
  return {};
}

// REQUIRES: the newest turn has its answer, and its choice is not recorded yet.
Status Applier::apply_tool_choice(Step& step, const ToolChoice& choice) {
  LoopProgress& loop = *step.loop;
  LoopTurn& newest = loop.turns.back();
  const Step& turn_step = s_.steps[newest.step];
  if (choice.turn != std::int64_t{loop.turn_count()} - 1 || choice.of != answer_of(turn_step)) {
    return corrupt_event("it is about another answer");
  }
  const LoopSpec& spec = *s_.node_of(step).loop;
  std::vector<LoopCall> calls;
  for (const ChosenCall& one : choice.calls) {
    LoopCall& call = calls.emplace_back();
    call.id = or_empty(one.id);
    if (one.refused) {
      call.refused = failure_of(*one.refused);
      continue;
    }
    const auto granted = std::ranges::find_if(spec.tools, [&](std::uint32_t tool) {
      return s_.plan->tools[tool].name == or_empty(one.name);
    });
    if (granted == spec.tools.end())
      return corrupt_event("it calls a tool that its loop may not call");
    call.tool = *granted;
  }
  if (choice.repair) {
    if (!calls.empty() || loop.repairs >= spec.repairs)
      return corrupt_event("no repair is allowed");
    if (choice.repair->size() > kRepairMax) {
      return corrupt_event("the reason for the repair has more than 1,024 bytes");
    }
    newest.repair = choice.repair;
    loop.repairs++;
  }
  newest.calls = std::move(calls);
  newest.chosen = true;
  loop.next = 0;
  advance_past_answered(loop);
  return {};
}

// The model requests no more calls.
bool Applier::may_conclude(const NodeFinished& event, const Step& loop) const {
  const LoopProgress& progress = *loop.loop;
  if (progress.failure || progress.active > 0 || progress.turns.empty()) return false;
  const LoopTurn& newest = progress.turns.back();
  if (s_.node_of(loop).loop->thread && !progress.ended) return false;
  return is_exchange_over(loop) && event.result_of == answer_of(s_.steps[newest.step]).text;
}

// A loop ends if its model gives no answer, if a call has an unknown outcome, or if an approver
// rejects a call and the plan ends the loop then. The model receives every other failure. Without a
// summary the loop goes on.
bool Applier::ends_loop(const Step& step) const {
  if (!step.failure || step.is_summary()) return false;
  if (step.is_turn() || s_.may_have_happened(step)) return true;
  const bool unapproved = step.approval && (step.approval->state == ApprovalState::rejected ||
                                            step.approval->state == ApprovalState::expired);
  return unapproved && s_.node_of(step).loop->fail_on_reject;
}

Status Applier::loop_part_finished(Step& step) {
  LoopProgress& loop = *s_.steps[step.node].loop;
  loop.active--;
  if (ends_loop(step) && !loop.failure) loop.failure = step.failure;
  if (step.is_loop_call() && !step.committed && !s_.may_have_happened(step)) {
    step.call.reset();
    step.approval.reset();
  }
  update_work_sets(step.node);
  return {};
}

// A thread waits for its next message.
Status Applier::thread_waits(Step& loop, const std::string& key, const Wait& wait) {
  if (wait.type != WaitType::message || wait.channel != kThreadChannel || wait.due_at ||
      wait.expires_at || key != thread_wait_key(loop)) {
    return corrupt_event("a thread does not wait so");
  }
  loop.loop->waiting = true;
  update_work_sets(loop.node);
  return {};
}

// The wait of a thread has ended. `message`: that it got.
Status Applier::thread_answered(Step& loop, std::string_view outcome,
                                const std::optional<BufferedMessage>& message) {
  LoopProgress& progress = *loop.loop;
  progress.waiting = false;
  if (outcome == "signalled" && message) {
    if (message->ends_thread) {
      progress.ended = true;
    } else {
      begin_exchange(progress, message->payload);
    }
  } else if (outcome != "cancelled" || !s_.ending) {
    return corrupt_event("the wait of a thread does not end so");
  }
  update_work_sets(loop.node);
  return {};
}

void Applier::begin_exchange(LoopProgress& loop, const Value& message) {
  loop.turns.back().message = message;
  loop.exchanges++;
  loop.exchange_turn = loop.turn_count();
  loop.interrupted = false;
  loop.repairs = 0;
}

// The calls that were made are awaited. Nothing happens between two exchanges.
Status Applier::interrupt_thread() {
  const Step* const thread = thread_of(s_);
  if (thread == nullptr) return corrupt_event("the job is not a thread");
  if (!may_interrupt(s_)) return {};
  s_.steps[thread->node].loop->interrupted = true;
  update_work_sets(thread->node);
  return {};
}

// The arguments of the newest turn are recorded.
Status Applier::turn_declared(Step& loop, std::uint32_t turn, const Value& arguments) {
  LoopProgress& progress = *loop.loop;
  progress.conversation = arguments.text("conversation");
  progress.message_count = static_cast<std::uint64_t>(maybe_int(arguments, "said").value_or(0));
  record_notices(progress, arguments);
  const TurnExtras extras = extras_of(arguments);
  if (!may_begin_at(s_, loop, turn, extras)) {
    return corrupt_event("its request leaves out what it may not");
  }
  if (!step_of_turn(s_, loop, turn).imported && !is_given_summary(s_, loop, extras)) {
    return corrupt_event("it has another summary than its model gave");
  }
  if (!s_.node_of(loop).loop->context) return {};
  if (extras.from > 0) {
    progress.context_tokens = request_tokens_of(s_, loop, sent_messages_of(s_, loop, turn));
    leave_out(loop, context_start_of(s_, loop, extras.from, extras.summary));
  } else {
    progress.context_tokens =
        context_tokens_of(s_, loop, turn, arguments["messages"], extras.notice);
  }
  progress.summary = kNoStep;
  return {};
}

// It summarizes what the next turn may leave out.
Status Applier::check_summary(const Step& step) const {
  const Step& loop = s_.steps[step.node];
  const std::uint32_t from = turn_at(maybe_int(step.call->arguments, "summarizes").value_or(0));
  const bool erased = step.call->erased;
  if (erased || (from > 0 && may_begin_at(s_, loop, step.turn, TurnExtras{.from = from})))
    return {};
  return corrupt_event("it summarizes what cannot be left out");
}

// No later request has the turns before this one.
void Applier::leave_out(Step& loop, ContextStart start) {
  LoopProgress& progress = *loop.loop;
  for (std::uint32_t turn = std::max(progress.context.from, progress.first_turn); turn < start.from;
       ++turn) {
    s_.folded_steps += 1 + static_cast<std::uint32_t>(progress.turn(turn).calls.size());
  }
  progress.context = std::move(start);
}

// ---------------------------------------------------------------- imports of a fork

// A running loop; its turns follow.
Status Applier::import_running_loop(Step& loop) {
  if (!s_.node_of(loop).loop || loop.phase != StepPhase::ready || loop.loop) {
    return corrupt_event("no such loop");
  }
  if (s_.node_of(loop).when) loop.branch = true;
  loop.loop = std::make_unique<LoopProgress>();
  return {};
}

// The arguments and the answer of a turn, and its recorded choice.
Status Applier::import_turn(Step& loop, const ForkEntry& entry, const Erasable& results) {
  LoopProgress& progress = *loop.loop;
  const std::uint32_t turn = progress.turn_count();
  if (entry.turn != std::int64_t{turn} || !may_begin_turn(s_, loop)) {
    return corrupt_event("its turns are not those of a loop, one after the other");
  }
  const auto index = static_cast<std::uint32_t>(s_.steps.size());
  Step& step = new_loop_part(loop, turn, kNoTurn, entry.step_id);
  if (!import_end(step, entry, results) || step.result_type != ResultType::pure || step.skipped) {
    return corrupt_event("no turn ends so");
  }
  const Value& arguments = results.value[entry.step_id.text + "/arguments"];
  step.imported->arguments = arguments;
  step.imported->invocation = entry.invocation.value_or(InvocationId());
  progress.turns.push_back({.step = index});
  progress.next = 0;
  AE_TRY(turn_declared(loop, turn, arguments));
  if (entry.choice) AE_TRY(apply_tool_choice(loop, *entry.choice));
  const Value* const message = results.value.find(entry.step_id.text + "/message");
  if (message == nullptr) return {};
  if (!s_.node_of(loop).loop->thread || !progress.turns.back().chosen) {
    return corrupt_event("no message can follow its turn");
  }
  begin_exchange(progress, *message);
  return {};
}

// A call of the newest turn; missing ones are made in this job.
Status Applier::import_turn_call(Step& loop, const ForkEntry& entry, const Erasable& results) {
  LoopProgress& progress = *loop.loop;
  if (progress.turns.empty() || entry.turn != std::int64_t{progress.turn_count()} - 1) {
    return corrupt_event("no such turn");
  }
  auto& calls = progress.turns.back().calls;
  const auto nth = static_cast<std::size_t>(entry.turn_call.value_or(-1));
  if (nth >= calls.size() || calls[nth].refused || calls[nth].step != kNoStep ||
      s_.plan->tools[calls[nth].tool].name != or_empty(entry.tool)) {
    return corrupt_event("its model requested no such call, or it exists already");
  }
  calls[nth].step = static_cast<std::uint32_t>(s_.steps.size());
  Step& step = new_loop_part(loop, progress.turn_count() - 1, static_cast<std::uint32_t>(nth),
                             entry.step_id);
  step.tool = calls[nth].tool;
  if (entry.edited == true) calls[nth].edited = results.value[entry.step_id.text + "/edited"];
  advance_past_answered(progress);
  return import_end(step, entry, results) ? Status() : corrupt_event("no call ends so");
}

// The turns and calls of a completed loop, kept for reference.
Status Applier::import_of_loop(Step& loop, const ForkEntry& entry, const Erasable& results) {
  const StepId& id = entry.step_id;
  if (loop.loop && loop.phase == StepPhase::ready && !s_.find_step(id)) {
    return entry.turn_call ? import_turn_call(loop, entry, results)
                           : import_turn(loop, entry, results);
  }
  const std::optional<std::int64_t>&turn = entry.turn, &nth = entry.turn_call;
  const auto fits = [](const std::optional<std::int64_t>& n) {
    return n && *n >= 0 && *n < static_cast<std::int64_t>(kNoTurn);
  };
  if (!s_.node_of(loop).loop || !loop.imported || loop.skipped || s_.find_step(id)) {
    return corrupt_event("no such loop");
  }
  if (!fits(turn) || (nth && !fits(nth))) return corrupt_event("no such turn");
  std::uint32_t tool = kNoTurn;
  if (nth) {
    const auto named = std::ranges::find(s_.plan->tools, or_empty(entry.tool), &ToolPolicy::name);
    if (named == s_.plan->tools.end())
      return corrupt_event("a call of a tool that the plan has not");
    tool = static_cast<std::uint32_t>(named - s_.plan->tools.begin());
  }
  Step& step = new_loop_part(loop, static_cast<std::uint32_t>(*turn),
                             nth ? static_cast<std::uint32_t>(*nth) : kNoTurn, id);
  step.tool = tool;
  return import_end(step, entry, results) ? Status() : corrupt_event("no call ends so");
}

}  // namespace ae::engine
