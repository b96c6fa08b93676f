// How a loop goes on: its turns, what an answer asked for, and the calls that follow from it.
#include <algorithm>
#include <utility>

#include "engine/applier.h"
#include "engine/left.h"
#include "engine/loop.h"

namespace ae::engine {

// Calls that are not made do not begin, nor do those that were made before the job was forked.
void Applier::pass_answered(LoopProgress& loop) {
  const auto& calls = loop.turns.back().calls;
  while (loop.next < calls.size() &&
         (calls[loop.next].refused || calls[loop.next].step != kNoStep)) {
    loop.next++;
  }
}

Step& Applier::new_of_loop(const Step& loop, std::uint32_t turn, std::uint32_t nth,
                           const StepId& id) {
  Step& fresh = new_part(loop, id);
  fresh.turn = turn;
  fresh.nth = nth;
  return fresh;
}

// The next turn, when the newest one has all its answers; else the next call of that one.
Step* Applier::next_of_loop(Step& loop) {
  LoopProgress& progress = *loop.loop;
  if (progress.failure) return nullptr;
  const auto index = static_cast<std::uint32_t>(s_.steps.size());
  const bool asks = may_ask_next(s_, loop);
  if (!asks) {
    if (progress.turns.empty() || !progress.turns.back().chosen ||
        progress.next >= progress.turns.back().calls.size() ||
        progress.turns.size() >= turns_max(s_, loop)) {
      return nullptr;
    }
  }
  const auto turn = static_cast<std::uint32_t>(progress.turns.size() - (asks ? 0 : 1));
  const std::uint32_t nth = asks ? kNoTurn : progress.next;
  const StepId id = s_.part_step_id(loop, turn, nth);
  if (id.text != p_.text("step_id")) return nullptr;
  Step& fresh = new_of_loop(loop, turn, nth, id);
  fresh.phase = StepPhase::ready;
  progress.active++;
  if (asks) {
    progress.turns.push_back({.step = index});
    progress.next = 0;
  } else {
    LoopCall& call = progress.turns.back().calls[nth];
    fresh.tool = call.tool;
    call.step = index;
    progress.next++;
    pass_answered(progress);
  }
  refresh(loop.node);
  return &fresh;
}

bool Applier::loop_wants_decision(const Step& step) const {
  const LoopProgress& loop = *step.loop;
  if (loop.failure) return loop.active == 0 || loop.asking > 0;
  if (loop.turns.empty() || !loop.turns.back().chosen) return loop.active == 0;
  if (loop.next < loop.turns.back().calls.size()) {
    return loop.active < s_.node_of(step).loop->parallel_tools;
  }
  return loop.active == 0;
}

// What the model asked for, before any of it is done.
Status Applier::tool_chosen() {
  Step* step = this->step();
  if (!step || step->phase != StepPhase::looping) return bad("no such loop");
  LoopProgress& loop = *step->loop;
  if (loop.turns.empty() || loop.turns.back().chosen || loop.active > 0 || loop.failure) {
    return bad("no answer of a model to act on");
  }
  AE_TRY(choose(*step, payload_left(logged_, p_)));
  refresh(index_of(*step));
  return {};
}

// REQUIRES: the newest turn has its answer, and nothing is chosen yet.
Status Applier::choose(Step& step, const Value& choice) {
  LoopProgress& loop = *step.loop;
  LoopTurn& newest = loop.turns.back();
  const Step& asked = s_.steps[newest.step];
  if (maybe_int(choice, "turn") != static_cast<std::int64_t>(loop.turns.size() - 1) ||
      !choice["calls"].is_array() || choice.text("of") != answer_of(asked).text) {
    return bad("it is about another answer");
  }
  const LoopSpec& spec = *s_.node_of(step).loop;
  std::vector<LoopCall> calls;
  for (const Value& one : choice["calls"].items()) {
    LoopCall& call = calls.emplace_back();
    call.id = one.text("id");
    if (const Value* refused = one.find("refused")) {
      call.refused = failure_of(*refused);
      continue;
    }
    const auto granted = std::ranges::find_if(spec.tools, [&](std::uint32_t tool) {
      return s_.plan->tools[tool].name == one.text("name");
    });
    if (granted == spec.tools.end()) return bad("it calls a tool that its loop may not call");
    call.tool = *granted;
  }
  if (const Value* repair = choice.find("repair")) {
    if (!calls.empty() || loop.repairs >= spec.repairs) return bad("no repair is allowed");
    newest.repair = std::string(choice.text("repair"));
    if (!repair->is_string() || newest.repair->size() > kRepairMax) {
      return bad("the reason for the repair is not a string of at most 1,024 bytes");
    }
    loop.repairs++;
  }
  newest.calls = std::move(calls);
  newest.chosen = true;
  loop.next = 0;
  pass_answered(loop);
  return {};
}

// The model asks for nothing more.
bool Applier::may_conclude(const Step& loop) const {
  const LoopProgress& progress = *loop.loop;
  if (progress.failure || progress.active > 0 || progress.turns.empty()) return false;
  const LoopTurn& newest = progress.turns.back();
  return newest.chosen && newest.calls.empty() && !newest.repair &&
         p_.text("result_of") == answer_of(s_.steps[newest.step]).text;
}

// A model that gives no answer, a call that may have happened and that nobody knows of, and a no of a person where the
// plan says so, end the loop. Every other failure is told to the model.
bool Applier::ends_loop(const Step& step) const {
  if (!step.failure) return false;
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
  refresh(step.node);
  return {};
}

}  // namespace ae::engine
