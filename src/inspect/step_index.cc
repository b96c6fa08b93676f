#include "inspect/step_index.h"

#include <bit>
#include <utility>

#include "engine/state/view_values.h"
#include "inspect/effects.h"
#include "log/decisions.h"
#include "plan/model_calls.h"

namespace ae::engine {
namespace {

// Of a step in the index and its slots, without its events.
constexpr std::size_t kStepBytes = sizeof(IndexedStep) * 3 / 2 + 48;

std::uint64_t count_in(const Value& usage, std::string_view name) {
  const Value& count = usage[name];
  return count.is_integer() && count.as_int() > 0 ? static_cast<std::uint64_t>(count.as_int()) : 0;
}

// As TraceRecord::add_decision and add_narrative.
void add_resolution(IndexedStep& step, std::string_view resolution, bool is_note) {
  for (TryOutcome& one : step.tries) {
    const bool is_uncertain = one.outcome != OutcomeKind::success && !one.definite;
    if (is_note ? is_uncertain : &one == &step.tries.back()) {
      one.resolution = resolution_from_text(resolution);
    }
  }
}

}  // namespace

std::size_t StepIndex::slot_of(const StepId& id) const {
  std::size_t slot = id.text.hash() & (slots_.size() - 1);
  while (slots_[slot] != kFree && steps_[slots_[slot]].id != id) {
    slot = (slot + 1) & (slots_.size() - 1);
  }
  return slot;
}

IndexedStep& StepIndex::at(const StepId& id) {
  if (2 * (steps_.size() + 1) > slots_.size()) grow();
  std::uint32_t& slot = slots_[slot_of(id)];
  if (slot == kFree) {
    slot = static_cast<std::uint32_t>(steps_.size());
    steps_.emplace_back().id = id;
    bytes_ += kStepBytes;
  }
  return steps_[slot];
}

void StepIndex::grow() {
  slots_.assign(std::bit_ceil(4 * steps_.size() + 8), kFree);
  for (std::uint32_t i = 0; i < steps_.size(); ++i) slots_[slot_of(steps_[i].id)] = i;
}

void StepIndex::add_seq(IndexedStep& step, std::uint64_t seq) {
  if (!step.seqs.empty() && step.seqs.back() == seq) return;
  step.seqs.push_back(seq);
  bytes_ += sizeof(seq);
}

const IndexedStep* StepIndex::find(const StepId& step) const {
  if (slots_.empty()) return nullptr;
  const std::uint32_t found = slots_[slot_of(step)];
  return found == kFree ? nullptr : &steps_[found];
}

void StepIndex::add(const Event& event) {
  const std::size_t marked = timeline_.size();
  timeline_.add(event);
  bytes_ += (timeline_.size() - marked) * Timeline::kEntryBytes;
  if (event.type == EventType::job_running) attempts_.push_back(event.seq);
  if (event.type == EventType::fork_imported) imports_.push_back(event.seq);
  if (const auto recorded = recorded_step_of(event)) add_seq(at(*recorded), event.seq);
  const auto* decision = as<DecisionRecorded>(event);
  if (decision != nullptr && is_decision<ToolChosen>(*decision)) {
    const auto chosen = decision_as<ToolChosen>(*decision);
    const auto turn = chosen ? turns_.find(chosen->choice.of) : turns_.end();
    if (turn != turns_.end()) add_seq(at(turn->second), event.seq);
  }
  const std::string_view id = step_of(event);
  if (id.empty() || event_kind(event.type) == nullptr) return;
  IndexedStep& step = at(StepId(id));
  add_seq(step, event.seq);
  if (event.type == EventType::node_started ||
      (event.type == EventType::command_emitted && !step.started_at)) {
    step.started_at = event.created_at;
  }
  add_tool_event(step, event);
  if (const auto* committed = as<CommandCommitted>(event)) {
    const Value& usage = committed->usage.json();
    step.total_tokens = count_in(usage, "total_tokens");
    if (usage["cost_micros"].is_integer()) step.cost_micros = count_in(usage, "cost_micros");
  }
  if (decision != nullptr && is_decision<OutcomeDecided>(*decision)) {
    add_resolution(step, or_empty(decision->state), false);
  }
  if (const auto* note = as<OutcomeNoted>(event)) add_resolution(step, note->resolution, true);
  if (event.type == EventType::node_finished) {
    step.finished_at = event.created_at;
    step.finished_seq = event.seq;
  }
}

void StepIndex::add_tool_event(IndexedStep& step, const Event& event) {
  if (const auto* started = as<ToolInvocationStarted>(event)) {
    if (step.first_try_seq == 0) step.first_try_seq = event.seq;
    step.tries.push_back({.try_no = static_cast<std::uint32_t>(started->try_no), .outcome = {}});
    bytes_ += sizeof(TryOutcome);
    if (started->tool_name.starts_with(kModelToolPrefix)) {
      turns_.try_emplace(started->invocation_id, step.id);
    }
  }
  if (const auto* finished = as<ToolInvocationFinished>(event)) {
    step.late = step.late || finished->late == true;
    step.caught_up = step.caught_up || finished->caught_up == true;
    for (TryOutcome& one : step.tries) {
      if (finished->late == true || std::cmp_not_equal(one.try_no, finished->try_no)) continue;
      one.outcome = outcome_from_text(finished->outcome.view());
      one.definite = finished->definite == true;
    }
  }
}

}  // namespace ae::engine
