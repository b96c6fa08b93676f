// decide: the plan's requests, the ledger's rules, and the events that follow from both.
#include "engine/heart/decide.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "engine/heart/decider.h"
#include "engine/heart/features.h"
#include "json/json.h"
#include "log/park_until.h"

namespace ae::engine {

Decider::Decider(const State& state, const DecisionContext& context, const DecideLimits& limits,
                 Decision& decision)
    : s_(state),
      context_(context),
      limits_(limits),
      open_(state.calling.size()),
      decision_(decision) {
  // Room for the start of a call, or its end, so that the large events are not moved.
  decision_.events.reserve(4);
}

Instant Decider::cap_at_deadline(Instant at) const {
  return s_.deadline ? std::min(at, *s_.deadline) : at;
}

const std::string& Decider::offered_version(std::uint32_t tool) const {
  return context_.tool_versions ? (*context_.tool_versions)[tool] : s_.plan->tools[tool].version;
}

bool Decider::is_full() const {
  const std::size_t events = decision_.events.size();
  return events >= limits_.events_max || (events > 0 && work_ >= limits_.work_max);
}

bool Decider::has_room(bool replaces) {
  if (open_ - (replaces ? 1 : 0) < limits_.parallel_max) return true;
  limit_reached_ = true;
  return false;
}

void Decider::decide_again_at(Instant at) {
  if (!decision_.decide_again_at || at < *decision_.decide_again_at) decision_.decide_again_at = at;
}

void Decider::revisit_at(Instant at) {
  if (!revisit_at_ || at < *revisit_at_) revisit_at_ = at;
  decide_again_at(at);
}

std::uint32_t Decider::lost_claims_max() const {
  return s_.plan->max_attempts ? s_.plan->max_attempts : limits_.lost_claims_max;
}

void Decider::decide_step(std::uint32_t index) {
  const Step& step = s_.steps[index];
  if (step.role == Role::probe) return decide_probe(step);
  if (step.role == Role::undo) return decide_undo_step(step);
  switch (step.phase) {
    case StepPhase::ready:
      return decide_ready(step);
    case StepPhase::calling:
    case StepPhase::settled:
    case StepPhase::backoff:
    case StepPhase::redo:
      return decide_call(step);
    case StepPhase::refused:
      if (step.call->open) {
        finish_as_unknown(step);
      }
      return fail_step(step, code_name(Code::invocation_in_doubt), "resolved as failed");
    case StepPhase::recorded:  // a crash between the value and its command_committed
      return commit_value(step.id, s_.node_of(step).id);
    case StepPhase::committed:
      return finish_tool(step);
    case StepPhase::answered:
      return s_.kind_of(step) == NodeKind::wait ? finish_wait(step) : finish_refused(step);
    case StepPhase::mapping:
      if (!step.map->failure && step.map->started < step.map->results.size())
        return start_items(step);
      if (step.map->failure && step.map->asking > 0) return withdraw_requests(step);
      if (step.map->active == 0) finish_map(step);
      return;
    case StepPhase::looping:
      return decide_loop(step);
    case StepPhase::done:  // a crash between node_finished and step_committed
      undoable_ = undoable_ || s_.tool_of(step).compensate.has_value();
      emit_of<StepCommitted>(step).command_id = step.id;
      return;
    case StepPhase::blocked:
    case StepPhase::in_doubt:
    case StepPhase::probing:
    case StepPhase::asking:
    case StepPhase::questioned:
    case StepPhase::waiting:
    case StepPhase::running:  // see decide_routines
      return;
  }
}

DecisionId Decider::decision_id_of(const Step& step, std::string_view what) const {
  return decision_at(s_, fmt::format("{}#{}", s_.path_of(step), what));
}

// Visits steps until the decision is full or its work is used up. Then the next decision
// starts here, so that an evaluation without an event (a call that exceeds the budget) is
// not repeated in each one.
void Decider::visit(const NumberSet& steps) {
  const bool startable = &steps == &s_.startable;
  const bool continues = from_ && from_->startable == startable;
  for (auto it = continues ? steps.lower_bound(from_->step) : steps.begin(); it != steps.end();
       ++it) {
    if (stopped_ || failed_ || unconfirmed_) return;
    const bool has_events = !decision_.events.empty();
    if (work_ >= limits_.work_max) {
      stopped_ = {.startable = startable,
                  .step = *it,
                  .added_events = has_events || (from_ && from_->added_events),
                  .over = exceeded_limits_,
                  .limit_reached = !has_events && limit_reached_,
                  .revisit_at = revisit_at_,
                  .decide_again_at = decision_.decide_again_at};
      return;
    }
    if (is_full() || (startable && limit_reached_)) return;
    decide_step(*it);
  }
}

void Decider::resume(const DecisionCursor& from) {
  from_ = from;
  exceeded_limits_ = from.over;
  if (from.added_events) return;
  limit_reached_ = from.limit_reached;
  revisit_at_ = from.revisit_at;
  decision_.decide_again_at = from.decide_again_at;
}

void Decider::run() {
  if (s_.status == JobStatus::none || is_terminal(s_.status)) return;
  if (s_.is_worn_out() && s_.status == JobStatus::running) {
    decision_.events.push_back(paused_event(kWornOut));
    decision_.release = true;
    return;
  }
  if (s_.ending) {
    // Only the lease holder decides steps that may kill the process, so that the death is counted.
    if (s_.process_deaths > 0 && s_.status != JobStatus::running) {
      requeue_for_claim();
    } else {
      end_job(*s_.ending);
    }
    return;
  }
  if (!s_.plan) {
    end_with_error(code_name(Code::plan_missing),
                   "the job's log holds no plan, and none is made up");
    return;
  }
  if (s_.status != JobStatus::running) return;
  if (attempts_exhausted()) {
    end_with_error(code_name(Code::max_attempts),
                   fmt::format("{} attempts in a row ended without progress", s_.lost_claims));
    return;
  }
  if (has_wrong_version(s_, context_)) {
    if (!s_.has_live_call()) {
      park_for_version();
    } else if (auto due = s_.next_due()) {
      decide_again_at(*due);
    }
    return;
  }
  if (s_.seq >= limits_.job_events_max) {
    end_with_error(code_name(Code::events_limit),
                   fmt::format("the job has {} events, the most that one may have", s_.seq));
    return;
  }
  if (awaits_plan(s_)) {
    auto plan = plan_generated_payload(s_);
    if (!plan) {
      end_with_error(code_name(Code::plan_invalid), plan.error().message);
    } else {
      emit(*std::move(plan));
    }
    return;
  }
  if (s_.pause_request) {
    drain_for_pause();
    return;
  }
  if (!s_.to_confirm.empty() && (unsettled_changes() || !confirm_changes())) {
    if (auto due = s_.next_due(); due && decision_.events.empty()) decide_again_at(*due);
    return;
  }
  if (!from_ || !from_->startable) visit(s_.todo);
  visit(s_.startable);
  if (stopped_) decision_.unfinished = std::move(stopped_);
  if (decision_.events.empty() && !stopped_ && from_ && from_->added_events)
    decision_.unfinished.emplace();
  if (decision_.unfinished) return;
  if (decision_.events.empty()) decide_routines();
  if (decision_.events.empty() && !s_.has_live_call() && !awaits_routine()) become_idle();
  if (decision_.events.empty()) {
    if (auto due = s_.next_due()) decide_again_at(*due);
  }
}

Verdict admit(const State& state, const CallRequest& request) {
  const Step& step = state.steps[request.step];
  if (step.call &&
      (step.call->tool != request.tool || step.call->arguments_hash != request.arguments_hash)) {
    return Verdict::non_determinism;
  }
  // A success is recorded, whatever happens to the job; a failed call is not repeated either.
  if (step.phase == StepPhase::settled && step.call->outcome == OutcomeKind::success) {
    return Verdict::recorded;
  }
  if (step.phase == StepPhase::recorded) return Verdict::recorded;
  if (step.phase == StepPhase::committed || step.phase == StepPhase::done) {
    return step.failure ? Verdict::refuse : Verdict::recorded;
  }
  // In an ending job only a call with an unknown outcome that could be undone may be resent.
  // The outcome of a child that has ended is recorded, too.
  const bool ends = state.ending && step.role == Role::node && !state.blocks_ending(step) &&
                    !state.has_ended_child(step);
  if (ends || is_terminal(state.status)) return Verdict::refuse;
  const bool approved =
      !request.arguments || is_approved(state, &step, state.tool_of(step), request);
  const Verdict may_declare = approved ? Verdict::declare : Verdict::unapproved;
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

bool is_requested(const State& state, std::uint32_t step) {
  if (state.startable.contains(step)) return true;
  if (!state.todo.contains(step)) return false;
  const StepPhase phase = state.steps[step].phase;
  return phase == StepPhase::settled || phase == StepPhase::backoff || phase == StepPhase::redo ||
         phase == StepPhase::calling;
}

std::vector<std::uint32_t> requested_steps(const State& state) {
  std::vector<std::uint32_t> steps(state.startable.begin(), state.startable.end());
  for (std::uint32_t index : state.todo) {
    if (is_requested(state, index)) steps.push_back(index);
  }
  std::ranges::sort(steps);
  return steps;
}

void Decision::clear() {
  events.clear();
  perform.clear();
  confirm.clear();
  release = false;
  decide_again_at.reset();
  unfinished.reset();
  work = 0;
  exceeded.clear();
}

void decide(const State& state, const DecisionContext& context, const DecideLimits& limits,
            const DecisionCursor* from, Decision& decision) {
  decision.clear();
  Decider decider(state, context, limits, decision);
  if (from != nullptr) decider.resume(*from);
  decider.run();
  decision.work = decider.work();
}

Decision decide(const State& state, const DecisionContext& context, const DecideLimits& limits,
                const DecisionCursor* from) {
  Decision decision;
  decide(state, context, limits, from, decision);
  return decision;
}

std::vector<EventBody> job_events(const NewJobEvents& job) {
  JobCreated created{.agent = job.agent,
                     .asked = job.explicit_options,
                     .deadline = job.deadline,
                     .execution_version = job.execution_version,
                     .idempotency_key = none_if_empty(job.idempotency_key),
                     .input = job.input,
                     .queue = none_if_empty(job.queue),
                     .traceparent = none_if_empty(job.traceparent),
                     .tracestate = none_if_empty(job.tracestate)};
  if (!job.blind.empty()) created.blind = Value(job.blind);
  if (job.forked_from) created.forked_from = *job.forked_from;
  if (job.parent) created.parent = *job.parent;
  if (job.labels.size() > 0) created.labels = job.labels;
  const Limits& budget = job.budget.any() ? job.budget : job.plan->budget;
  if (budget.any()) {
    JobBudget limits = to_record(budget);
    if (budget.wall) limits.wall_until = job.now + *budget.wall;
    if (const BudgetUse spent = to_record(job.spent); spent != BudgetUse()) limits.spent = spent;
    created.budget = limits;
  }
  if (job.priority != 0) created.priority = job.priority;
  if (!job.required_capabilities.empty()) {
    created.required_capabilities = job.required_capabilities;
  }
  PlanGenerated plan{.decision_id = job.plan->decision,
                     .decision_locked = true,
                     .plan_hash = job.plan->hash,
                     .plan_input_hash = blinded_digest(job.blind, canonical(job.input)),
                     .planned_by = std::string(plan_author(*job.plan)),
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
  return JobParked{.reason = std::string(reason.empty() ? "paused" : reason),
                   .until = park_until::kResume};
}

EventBody requeued_event(std::string_view reason, std::optional<Instant> not_before) {
  return JobRequeued{.not_before = not_before, .reason = std::string(reason)};
}

}  // namespace ae::engine
