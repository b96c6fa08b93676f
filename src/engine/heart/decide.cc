// decide: the plan's wishes, the ledger's rules, and the events that follow from both.
#include "engine/heart/decide.h"

#include <algorithm>
#include <utility>

#include "engine/heart/decider.h"
#include "engine/heart/features.h"
#include "json/json.h"

namespace ae::engine {

void Decider::step(std::uint32_t index) {
  const Step& step = s_.steps[index];
  if (step.role == Role::probe) return probe_step(step);
  if (step.role == Role::undo) return undo_step(step);
  switch (step.phase) {
    case StepPhase::ready:
      return ready(step);
    case StepPhase::calling:
    case StepPhase::settled:
    case StepPhase::backoff:
    case StepPhase::redo:
      return call(step);
    case StepPhase::refused:
      if (step.call->open) {
        close_unknown(step);
      }
      return fail_step(step, code_name(Code::invocation_in_doubt), "resolved as failed");
    case StepPhase::recorded:  // a crash between the value and its command_committed
      return commit_value(step.id, s_.node_of(step).id);
    case StepPhase::committed:
      return finish_tool(step);
    case StepPhase::answered:
      return s_.node_of(step).kind == NodeKind::wait ? finish_wait(step) : finish_refused(step);
    case StepPhase::mapping:
      if (!step.map->failure && step.map->started < step.map->results.size())
        return start_items(step);
      if (step.map->failure && step.map->asking > 0) return withdraw_requests(step);
      if (step.map->active == 0) finish_map(step);
      return;
    case StepPhase::looping:
      return loop(step);
    case StepPhase::done:  // a crash between node_finished and step_committed
      undoable_ = undoable_ || s_.tool_of(step).compensate.has_value();
      return emit_of(step, StepCommitted{.command_id = step.id});
    case StepPhase::blocked:
    case StepPhase::in_doubt:
    case StepPhase::probing:
    case StepPhase::asking:
    case StepPhase::questioned:
    case StepPhase::waiting:
      return;
  }
}

// Visits steps until the decision is full or its work is used up. Then the next decision starts here, so that an
// evaluation without an event (a call that exceeds the budget) is not repeated for each part of the pass.
void Decider::look_at(const std::set<std::uint32_t>& steps) {
  const bool startable = &steps == &s_.startable;
  const bool goes_on = from_ && from_->startable == startable;
  for (auto it = goes_on ? steps.lower_bound(from_->step) : steps.begin(); it != steps.end();
       ++it) {
    if (stopped_ || failed_ || unconfirmed_) return;
    const bool says = !decision_.events.empty();
    if (work_ >= limits_.work_max) {
      stopped_ = {.startable = startable,
                  .step = *it,
                  .said = says || (from_ && from_->said),
                  .over = over_,
                  .held_back = !says && held_back_,
                  .later = later_,
                  .ask_again = decision_.ask_again};
      return;
    }
    if (full() || (startable && held_back_)) return;
    step(*it);
  }
}

void Decider::go_on(const Unfinished& from) {
  from_ = from;
  over_ = from.over;
  if (from.said) return;
  held_back_ = from.held_back;
  later_ = from.later;
  decision_.ask_again = from.ask_again;
}

Decision Decider::run() {
  if (s_.status == JobStatus::none || is_terminal(s_.status)) return {};
  if (s_.is_worn_out() && s_.status == JobStatus::running) {
    decision_.events.push_back(paused_event(kWornOut));
    decision_.release = true;
    return std::move(decision_);
  }
  if (s_.ending) {
    // Only who holds the job decides what may kill the process, so that its death is counted.
    if (s_.process_deaths > 0 && s_.status != JobStatus::running) {
      make_claimable();
    } else {
      end(*s_.ending);
    }
    return std::move(decision_);
  }
  if (!s_.plan) {
    end_for(code_name(Code::plan_missing), "the job's log holds no plan, and none is made up");
    return std::move(decision_);
  }
  if (s_.status != JobStatus::running) return {};
  if (worn_out()) {
    end_for(code_name(Code::max_attempts),
            std::to_string(s_.lost_claims) + " attempts in a row ended without progress");
    return std::move(decision_);
  }
  if (has_wrong_version(s_, stamp_)) {
    if (!s_.any_is_live()) {
      park_for_version();
    } else if (auto due = s_.next_due()) {
      ask_again(*due);
    }
    return std::move(decision_);
  }
  if (s_.seq >= limits_.job_events_max) {
    end_for(code_name(Code::events_limit),
            "the job has " + std::to_string(s_.seq) + " events, the most that one may have");
    return std::move(decision_);
  }
  if (awaits_plan(s_)) {
    auto plan = planned_event(s_);
    if (!plan) {
      end_for(code_name(Code::plan_invalid), plan.error().message);
    } else {
      emit(*std::move(plan));
    }
    return std::move(decision_);
  }
  if (s_.pausing) {
    pause();
    return std::move(decision_);
  }
  if (!s_.to_confirm.empty() && (unsettled_changes() || !confirm())) {
    if (auto due = s_.next_due(); due && decision_.events.empty()) ask_again(*due);
    return std::move(decision_);
  }
  if (!from_ || !from_->startable) look_at(s_.todo);
  look_at(s_.startable);
  decision_.unfinished = stopped_;
  if (decision_.events.empty() && !stopped_ && from_ && from_->said) decision_.unfinished.emplace();
  if (decision_.unfinished) return std::move(decision_);
  if (decision_.events.empty() && !s_.any_is_live()) rest();
  if (decision_.events.empty()) {
    if (auto due = s_.next_due()) ask_again(*due);
  }
  return std::move(decision_);
}

Verdict admit(const State& state, const Ask& ask) {
  const Step& step = state.steps[ask.step];
  if (step.call &&
      (step.call->tool != ask.tool || step.call->arguments_hash != ask.arguments_hash)) {
    return Verdict::non_determinism;
  }
  // What succeeded is recorded, whatever becomes of the job; a call that failed is not called again either.
  if (step.phase == StepPhase::settled && step.call->outcome == OutcomeKind::success) {
    return Verdict::recorded;
  }
  if (step.phase == StepPhase::recorded) return Verdict::recorded;
  if (step.phase == StepPhase::committed || step.phase == StepPhase::done) {
    return step.failure ? Verdict::refuse : Verdict::recorded;
  }
  // Of an ending job, only a call in doubt that could be undone may be sent again.
  const bool ends = state.ending && step.role == Role::node && !state.holds_end(step);
  if (ends || is_terminal(state.status)) return Verdict::refuse;
  const bool approved = !ask.arguments || is_approved(state, &step, state.tool_of(step), ask);
  const bool fits =
      ask.use == nullptr || step.role != Role::node || state.budget.over(*ask.use).empty();
  const Verdict may_declare = !approved ? Verdict::unapproved
                              : fits    ? Verdict::declare
                                        : Verdict::over_budget;
  switch (step.phase) {
    case StepPhase::asking:
      return Verdict::unapproved;
    case StepPhase::questioned:
      return Verdict::not_yet;
    case StepPhase::calling:
      return state.is_live(step) ? Verdict::not_yet : Verdict::in_doubt;
    case StepPhase::in_doubt:
    case StepPhase::probing:
      return Verdict::in_doubt;
    case StepPhase::settled:
      return state.may_have_happened(step) ? Verdict::in_doubt : may_declare;
    case StepPhase::ready:
    case StepPhase::backoff:
    case StepPhase::redo:
      return may_declare;
    default:
      return Verdict::refuse;
  }
}

bool asks_for(const State& state, std::uint32_t step) {
  if (state.startable.contains(step)) return true;
  if (!state.todo.contains(step)) return false;
  const StepPhase phase = state.steps[step].phase;
  return phase == StepPhase::settled || phase == StepPhase::backoff || phase == StepPhase::redo ||
         phase == StepPhase::calling;
}

std::vector<std::uint32_t> next_asks(const State& state) {
  std::vector<std::uint32_t> asks(state.startable.begin(), state.startable.end());
  for (std::uint32_t index : state.todo) {
    if (asks_for(state, index)) asks.push_back(index);
  }
  std::ranges::sort(asks);
  return asks;
}

Decision decide(const State& state, const Stamp& stamp, const DecideLimits& limits,
                const Unfinished* from) {
  Decider decider(state, stamp, limits);
  if (from != nullptr) decider.go_on(*from);
  Decision decision = decider.run();
  decision.work = decider.work();
  return decision;
}

std::vector<EventBody> job_events(const NewJobEvents& job) {
  JobCreated created{.agent = job.agent,
                     .asked = job.asked,
                     .deadline = job.deadline,
                     .execution_version = job.execution_version,
                     .forked_from = job.forked_from,
                     .idempotency_key = none_if_empty(job.idempotency_key),
                     .input = job.input,
                     .queue = none_if_empty(job.queue),
                     .traceparent = none_if_empty(job.traceparent),
                     .tracestate = none_if_empty(job.tracestate)};
  if (!job.blind.empty()) created.blind = Value(job.blind);
  if (job.labels.size() > 0) created.labels = job.labels;
  const Limits& budget = job.budget.any() ? job.budget : job.plan->budget;
  if (budget.any()) {
    Value limits = stored(budget);
    if (budget.wall) limits = limits.with("wall_until", to_text(job.now + *budget.wall));
    if (Value spent = stored(job.spent); spent.size() > 0) limits = limits.with("spent", spent);
    created.budget = std::move(limits);
  }
  if (job.priority != 0) created.priority = job.priority;
  if (!job.required_capabilities.empty()) {
    created.required_capabilities = Value::array(
        std::vector<Value>(job.required_capabilities.begin(), job.required_capabilities.end()));
  }
  PlanGenerated plan{
      .decision_id = job.plan->decision,
      .decision_locked = true,
      .plan_hash = job.plan->hash,
      .plan_input_hash = *hash_from_hex(blinded_hash(job.blind, canonical(job.input))),
      .planned_by = std::string(planner_of(*job.plan)),
      .planner_version = none_if_empty(job.planner_version),
      .schema_version = 1,
      .task_graph = job.plan->task_graph};
  std::vector<EventBody> events;
  events.reserve(2 + job.imported.size());
  events.emplace_back(std::move(created));
  events.emplace_back(std::move(plan));
  events.insert(events.end(), job.imported.begin(), job.imported.end());
  return events;
}

EventBody running_event(const AttemptId& attempt, std::uint64_t epoch, std::string_view worker,
                        std::optional<Instant> opened_at) {
  return JobRunning{.attempt_id = attempt.text,
                    .epoch = static_cast<std::int64_t>(epoch),
                    .opened_at = opened_at,
                    .worker_id = std::string(worker)};
}

EventBody paused_event(std::string_view reason) {
  return JobParked{.reason = std::string(reason.empty() ? "paused" : reason), .until = "resume"};
}

EventBody requeued_event(std::string_view reason, std::optional<Instant> not_before) {
  return JobRequeued{.not_before = not_before, .reason = std::string(reason)};
}

}  // namespace ae::engine
