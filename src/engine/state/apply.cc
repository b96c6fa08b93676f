// apply: changes the state by one event. It decides nothing; it rejects events that are impossible.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "engine/state/applier.h"
#include "json/json.h"
#include "log/field_names.h"
#include "log/park_until.h"

namespace ae::engine {

Step* Applier::step(const StepId& id) {
  const std::uint32_t index = s_.index_of(id);
  return index == kNoStep ? nullptr : &s_.steps[index];
}

// The step that starts. An unknown step_id is the next part of its map or loop, or a request of its
// code, if it matches the path of that part.
Step* Applier::step_or_new_part(const NodeStarted& event) {
  if (Step* known = step(event.step_id)) return known;
  if (!s_.plan) return nullptr;
  auto node = s_.plan->by_id.find(event.node_id);
  if (node == s_.plan->by_id.end()) return nullptr;
  Step& parent = s_.steps[node->second];
  if (parent.phase == StepPhase::looping) return next_loop_part(parent, event.step_id);
  if (parent.phase == StepPhase::running) return next_request(parent, event);
  return next_item(parent, event.step_id);
}

Step* Applier::next_item(Step& map, const StepId& named) {
  if (map.phase != StepPhase::mapping || map.map->failure ||
      map.map->started >= map.map->results.size()) {
    return nullptr;
  }
  const std::uint32_t item = map.map->started;
  StepId id = s_.item_step_id(s_.node_of(map), item);
  if (id != named) return nullptr;
  map.map->started++;
  advance_past_finished(*map.map);
  map.map->active++;
  Step& new_step = new_item(map, item, id);
  new_step.phase = StepPhase::ready;
  update_work_sets(map.node);
  return &new_step;
}

Step& Applier::new_part(const Step& parent, const StepId& id) {
  Step& new_step = s_.steps.add(id);
  new_step.node = parent.node;
  new_step.start_plan = parent.start_plan;
  new_step.start_node = parent.start_node;
  return new_step;
}

Step& Applier::new_item(const Step& map, std::uint32_t item, const StepId& id) {
  Step& new_step = new_part(map, id);
  new_step.item = item;
  return new_step;
}

// Imported items do not start.
void Applier::advance_past_finished(MapProgress& map) {
  while (map.started < map.finished.size() && map.finished[map.started]) map.started++;
}

bool Applier::map_wants_decision(const Step& step) const {
  const MapProgress& map = *step.map;
  const Node& node = s_.node_of(step);
  const bool may_start = !map.failure && map.started < map.results.size();
  if (may_start) return map.active < node.max_parallel;
  if (map.failure && map.asking > 0) return true;
  return map.active == 0;
}

// A call that may start, except for a limit. Other ready steps (a branch, a
// wait, a map) are not calls.
bool Applier::is_startable(const Step& step) const {
  if (step.phase != StepPhase::ready || step.role != Role::node) return false;
  const Node& node = s_.node_of(step);
  if (step.request) {
    return step.request->kind == NodeKind::tool || step.request->kind == NodeKind::llm;
  }
  return step.is_part() || (node.is_single_call() && (!node.when || step.branch));
}

bool Applier::wants_decision(const Step& step) const {
  switch (step.phase) {
    case StepPhase::ready:
      if (step.role != Role::node) return false;  // visited when its turn to undo has come
      if (step.request) return false;             // a wait or a scope: the next event opens it
      return !is_startable(step) || (step.branch && !*step.branch);
    case StepPhase::refused:
      return step.role == Role::node || (step.call && step.call->open);
    case StepPhase::settled:
    case StepPhase::backoff:
    case StepPhase::redo:
    case StepPhase::recorded:
    case StepPhase::committed:
    case StepPhase::answered:
      return true;
    case StepPhase::calling:
      return step.call->attempt != s_.attempt;
    case StepPhase::mapping:
      return map_wants_decision(step);
    case StepPhase::looping:
      return loop_wants_decision(step);
    case StepPhase::done:
      return step.committed && !step.barrier;
    case StepPhase::blocked:
    case StepPhase::in_doubt:
    case StepPhase::probing:
    case StepPhase::asking:
    case StepPhase::questioned:
    case StepPhase::waiting:
    case StepPhase::running:
      return false;
  }
  return false;
}

void Applier::update_work_sets(std::uint32_t index) {
  const Step& step = s_.steps[index];
  const bool wants = wants_decision(step);
  s_.todo.set(index, wants);
  s_.startable.set(index, !wants && is_startable(step));
  s_.calling.set(index, step.phase == StepPhase::calling);
  if (step.code) s_.routines.set(index, step.phase == StepPhase::running);
}

void Applier::set_phase(Step& step, StepPhase phase) {
  const bool answered = step.phase == StepPhase::probing && phase != StepPhase::probing;
  step.phase = phase;
  update_work_sets(index_of(step));
  if (!answered) return;
  Step& probe = s_.steps[step.probe];
  if (!probe.call || !probe.call->open) retire(probe);  // else when its outcome arrives
}

Status Applier::apply(const JobCreated& event) {
  s_.agent = event.agent;
  s_.input = event.input.value;
  s_.labels = event.labels.is_null() ? Value::object({}) : event.labels;
  s_.execution_version = event.execution_version;
  if (!event.forked_from.is_null()) {
    auto origin = event.forked_from.read();
    if (!origin) return corrupt_event(origin.error().message);
    s_.forked_from = *std::move(origin);
  }
  if (!event.parent.is_null()) {
    auto parent = event.parent.read();
    if (!parent) return corrupt_event(parent.error().message);
    s_.parent = *std::move(parent);
  }
  if (event.blind.erased) {
    s_.blind_erased = true;
  } else if (!event.blind.is_null()) {
    if (!event.blind.value.is_string()) return corrupt_event("a blind is 32 hex digits");
    s_.blind = event.blind.value.as_string();
    if (s_.blind.size() != kBlindDigits || !from_hex(s_.blind))
      return corrupt_event("a blind is 32 hex digits");
  }
  s_.priority = event.priority.value_or(0);
  s_.queue = or_empty(event.queue);
  s_.required_capabilities = event.required_capabilities.json();
  s_.traceparent = or_empty(event.traceparent);
  s_.tracestate = or_empty(event.tracestate);
  s_.deadline = event.deadline;
  s_.job_root = Value::object({{field::agent, s_.agent},
                               {"created_at", to_text(created_at_)},
                               {"id", s_.job.text},
                               {field::labels, s_.labels}});
  return set_initial_budget(event.budget);
}

Status Applier::apply(const PlanGenerated& event) {
  AE_ASSIGN(auto plan, plans_(event.task_graph, to_hex(event.plan_hash)));
  if (plan->hash != event.plan_hash) return corrupt_event("the plan has another hash");
  if (plan->decision != event.decision_id) return corrupt_event("the plan has another id");
  const bool by_model = or_empty(event.planned_by).starts_with(kModelToolPrefix);
  if (s_.plan && by_model) AE_TRY(check_follows_from_answer(event, *plan));
  s_.planned_by_model = by_model || plan_author(*plan) != "file";
  if (s_.plan) return apply_replan(event, std::move(plan));
  s_.plan = std::move(plan);
  s_.nodes_left = static_cast<std::uint32_t>(s_.plan->nodes.size());
  for (const Node& node : s_.plan->nodes) begin_node(node);
  for (const Node& node : s_.plan->nodes) open_node(node.index);
  return {};
}

void Applier::begin_node(const Node& node) {
  Step& step = s_.steps.add(step_id(s_.job, s_.plan->decision,
                                    Plan::path(s_.plan_number, node.index), to_text(node.kind)));
  step.node = step.start_node = node.index;
  step.start_plan = s_.plan_number;
  step.needs_left = static_cast<std::uint32_t>(node.needs.size());
}

Status Applier::apply(const JobRunning& event) {
  if (!s_.plan) return fail(Code::plan_missing, "the log has no plan_generated");
  if (event.epoch <= 0 || static_cast<std::uint64_t>(event.epoch) <= s_.epoch) {
    return corrupt_event("the epoch does not rise");
  }
  if (s_.status == JobStatus::running) s_.lost_claims++;
  s_.epoch = static_cast<std::uint64_t>(event.epoch);
  s_.attempt = AttemptId(event.attempt_id);
  s_.opened_at = event.opened_at;
  if (!s_.started_at) s_.started_at = created_at_;
  s_.not_before.reset();
  const NumberSet open = s_.calling;
  for (std::uint32_t index : open) {
    Invocation& call = *s_.steps[index].call;
    if (!call.taken_over_at) call.taken_over_at = created_at_;
    update_work_sets(index);
  }
  if (s_.opened_at) store_opened();
  restart_confirmation();
  return {};
}

// A committed command, or a decision to end the job, is progress.
void Applier::note_progress() {
  s_.lost_claims = 0;
  s_.process_deaths = 0;
}

// A request to continue or to end the job. One more death without progress parks it again.
void Applier::allow_one_more_attempt() {
  s_.process_deaths = std::min(s_.process_deaths, kProcessDeathsMax - 1);
}

// A process other than the sender's has the job. Its lock on the store proves
// that the sender is dead.
void Applier::store_opened() {
  const auto note = [&](const Step& step) {
    if (!step.call || step.call->next_opening || step.call->sent_opening == s_.opened_at) return;
    step.call->next_opening = s_.opened_at;
  };
  for (const std::uint32_t index : s_.calling) note(s_.steps[index]);
  for (const std::uint32_t index : s_.todo) note(s_.steps[index]);
  for (const auto& [key, wait] : s_.waits) {
    if (wait.resolve) note(s_.steps[wait.step]);
  }
}

// The end of the job overrides a requested pause.
void Applier::begin_ending(Ending ending) {
  s_.ending = std::move(ending);
  s_.pause_request.reset();
}

// Does the event's own value show that the timer fired too early?
bool Applier::fired_before(const TimerFired& event, Instant due) {
  if (event.value.erased) return false;
  const Value& value = event.value.value;
  const auto fired = instant_from_text(value.is_string() ? value.as_string() : "");
  return (fired ? *fired : Instant{}) < due;
}

Status Applier::apply(const TimerFired& event) {
  if (event.effect_id == kWallTimer) return wall_passed(event);
  return event.effect_id == kDeadlineTimer ? deadline_passed(event) : Status();
}

Status Applier::deadline_passed(const TimerFired& event) {
  if (!s_.deadline || s_.deadline_fired) return corrupt_event("no deadline is armed");
  if (fired_before(event, *s_.deadline)) return corrupt_event("the deadline has not passed");
  s_.deadline_fired = true;
  if (!s_.ending) {
    begin_ending({.cancelled = false,
                  .code = "deadline_exceeded",
                  .message = "the job's deadline has passed",
                  .node_id = {},
                  .by = {}});
  }
  return {};
}

// The conditions for the end of a job beyond the status table: nothing is open, and
// a completed plan is done.
Status Applier::may_end() const {
  const bool completes = type_ == EventType::job_completed;
  if (s_.open_tries > 0) return corrupt_event("a call is still open");
  if (!s_.undoable.empty() && !completes && (!s_.ending || s_.ending->compensate)) {
    return corrupt_event("a committed step is not compensated");
  }
  if (!s_.waits.empty()) return corrupt_event("a wait is still open");
  if (completes && (!s_.plan || s_.nodes_left > 0 || s_.ending)) {
    return corrupt_event("the plan is not done");
  }
  if (completes && awaits_plan(s_)) {
    return corrupt_event("its planner's plan is to follow");
  }
  return {};
}

// The outcome of a call that was given up, or whose job has ended. No decision reads it; views,
// requests and forks do.
Status Applier::apply(const OutcomeNoted& event) {
  const auto known = [](const Erasable& field) { return field.erased ? Value() : field.value; };
  s_.noted.insert_or_assign(event.invocation_id.text, NotedOutcome{.resolution = event.resolution,
                                                                   .by = or_empty(event.by),
                                                                   .at = event.at,
                                                                   .result = known(event.result),
                                                                   .note = known(event.note)});
  return {};
}

Status Applier::apply(const JobCancelRequested& event) {
  const bool compensate = event.compensate.value_or(true);
  if (!s_.ending || !s_.ending->cancelled) {
    begin_ending({.cancelled = true,
                  .code = "cancelled",
                  .message = or_empty(event.reason),
                  .node_id = {},
                  .by = or_empty(event.by),
                  .compensate = compensate});
  } else if (!compensate) {
    s_.ending->compensate = false;
  }
  allow_one_more_attempt();
  return {};
}

Status Applier::apply(const JobRequeued& event) {
  s_.not_before = event.not_before;
  if (event.reason == kProcessDied) s_.process_deaths++;
  return {};
}

Status Applier::apply(const JobParked& event) {
  s_.parked_reason = event.reason;
  s_.parked_until = event.until;
  s_.parked_since = created_at_;
  if (s_.parked_until == park_until::kConfirmation && s_.escalated == 0)
    return corrupt_event("no confirmation is requested");
  if (s_.parked_until == park_until::kBudget && !s_.budget.exceeded)
    return corrupt_event("no budget is used up");
  if (s_.parked_until == park_until::kResume) {
    s_.pause_request.reset();
    s_.not_before.reset();
  }
  return {};
}

Status Applier::apply(const JobResumed& event) {
  if (!may_resume()) return corrupt_event("a request of another kind ends this park");
  if (event.by != kRuntimeActor) may_repeat_versions();
  withdraw_escalations();
  allow_one_more_attempt();
  return {};
}

Status Applier::apply(const JobCompleted& event) {
  s_.result = event.result.value;
  s_.final_in_doubt = event.in_doubt.json();
  return {};
}

Status Applier::apply(const JobFailed& event) {
  const Value& error = event.error.value;
  s_.error = Failure{event.code, error.is_string() ? error.as_string() : std::string()};
  s_.final_in_doubt = event.in_doubt.json();
  return {};
}

Status Applier::apply(const JobCancelled& event) {
  s_.final_in_doubt = event.in_doubt.json();
  return {};
}

// Does this event end a wait that the park itself opened?
bool Applier::ends_own_park() const {
  const auto* event = std::get_if<WaitCompleted>(&event_);
  if (event == nullptr || s_.parked_until != park_until::kResolve) return false;
  auto wait = s_.waits.find(event->correlation_key);
  return wait != s_.waits.end() && wait->second.resolve;
}

Status Applier::run() {
  const auto apply_it = [this](const auto& event) { return apply(event); };
  const EventKind* kind = event_kind(type_);
  if (!kind || kind->event_class == EventClass::narrative) {
    AE_TRY(std::visit(apply_it, event_));
    s_.seq++;
    s_.updated_at = created_at_;
    return {};
  }
  if (is_terminal(s_.status)) {
    return fail(Code::job_terminal, "the job has ended; only a fork can continue it");
  }
  const auto status = next_status(s_.status, type_, ends_own_park());
  if (!status) return corrupt_event(fmt::format("illegal while the job is {}", to_text(s_.status)));
  if (is_terminal(*status)) AE_TRY(may_end());
  const bool ended_before = s_.ending.has_value();
  AE_TRY(std::visit(apply_it, event_));
  if (s_.status == JobStatus::parked && *status != JobStatus::parked) {
    s_.parked_reason.clear();
    s_.parked_until.clear();
    s_.parked_since.reset();
  }
  // An answer or a cancel ends the back-off of a job.
  if (type_ == EventType::wait_completed || type_ == EventType::job_cancel_requested ||
      (s_.ending && !ended_before)) {
    s_.not_before.reset();
  }
  s_.status = *status;
  s_.seq++;
  s_.updated_at = created_at_;
  drop_folded_steps(s_);
  return {};
}

Status apply(State& state, const EventBody& event, Instant created_at, const PlanSource& plans) {
  return Applier(state, event, nullptr, created_at, plans).run();
}

Status apply(State& state, const Event& event, const PlanSource& plans) {
  return Applier(state, event.body, &event, event.created_at, plans).run();
}

}  // namespace ae::engine
