// apply: one event changes the state. Nothing is decided here; what cannot have happened is refused.
#include <algorithm>
#include <utility>

#include "engine/state/applier.h"
#include "json/json.h"

namespace ae::engine {

Step* Applier::step() {
  auto it = s_.by_id.find(StepId(std::string(p_.text("step_id"))));
  return it == s_.by_id.end() ? nullptr : &s_.steps[it->second];
}

// The step of this event; an unknown step_id is the next part of its map or loop, when it is the one that its path gives.
Step* Applier::step_or_new_part() {
  if (Step* known = step()) return known;
  if (!s_.plan) return nullptr;
  auto node = s_.plan->by_id.find(std::string(p_.text("node_id")));
  if (node == s_.plan->by_id.end()) return nullptr;
  Step& whole = s_.steps[node->second];
  if (whole.phase == StepPhase::looping) return next_of_loop(whole);
  return next_item(whole);
}

Step* Applier::next_item(Step& map) {
  if (map.phase != StepPhase::mapping || map.map->failure ||
      map.map->started >= map.map->results.size()) {
    return nullptr;
  }
  const std::uint32_t item = map.map->started;
  StepId id = s_.item_step_id(s_.node_of(map), item);
  if (id.text != p_.text("step_id")) return nullptr;
  map.map->started++;
  pass_finished(*map.map);
  map.map->active++;
  Step& fresh = new_item(map, item, id);
  fresh.phase = StepPhase::ready;
  refresh(map.node);
  return &fresh;
}

Step& Applier::new_part(const Step& whole, const StepId& id) {
  const auto index = static_cast<std::uint32_t>(s_.steps.size());
  Step& fresh = s_.steps.emplace_back();  // of a deque: `whole` stays where it is
  fresh.id = id;
  fresh.node = whole.node;
  fresh.plan_no = whole.plan_no;
  fresh.place = whole.place;
  s_.by_id.emplace(id, index);
  return fresh;
}

Step& Applier::new_item(const Step& map, std::uint32_t item, const StepId& id) {
  Step& fresh = new_part(map, id);
  fresh.item = item;
  return fresh;
}

// Items that were done before the job was forked do not start.
void Applier::pass_finished(MapProgress& map) {
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

// A call that may start, but for a limit. What else is ready (a branch to take, a wait, a map) costs nothing.
bool Applier::is_startable(const Step& step) const {
  if (step.phase != StepPhase::ready || step.role != Role::node) return false;
  const Node& node = s_.node_of(step);
  return step.is_part() || (node.calls() && (!node.when || step.branch));
}

bool Applier::wants_decision(const Step& step) const {
  switch (step.phase) {
    case StepPhase::ready:
      if (step.role != Role::node) return false;  // looked at when its turn to undo has come
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
      return false;
  }
  return false;
}

void Applier::refresh(std::uint32_t index) {
  const Step& step = s_.steps[index];
  const auto keep = [index](std::set<std::uint32_t>& set, bool in) {
    if (in) {
      set.insert(index);
    } else {
      set.erase(index);
    }
  };
  const bool wants = wants_decision(step);
  keep(s_.todo, wants);
  keep(s_.startable, !wants && is_startable(step));
  keep(s_.calling, step.phase == StepPhase::calling);
}

void Applier::enter(Step& step, StepPhase phase) {
  const bool answered = step.phase == StepPhase::probing && phase != StepPhase::probing;
  step.phase = phase;
  refresh(index_of(step));
  if (!answered) return;
  Step& probe = s_.steps[step.probe];
  if (!probe.call || !probe.call->open) retire(probe);  // else when it is heard of
}

Status Applier::job_created() {
  s_.agent = p_.text("agent");
  s_.input = p_["input"];
  s_.labels = p_["labels"].is_null() ? Value::object({}) : p_["labels"];
  s_.execution_version = p_.text("execution_version");
  s_.forked_from = p_["forked_from"];
  if (erased("blind")) {
    s_.blind_gone = true;
  } else if (p_.find("blind") != nullptr) {
    s_.blind = p_.text("blind");
    if (s_.blind.size() != kBlindDigits || !from_hex(s_.blind))
      return bad("a blind is 32 hex digits");
  }
  s_.traceparent = p_.text("traceparent");
  s_.tracestate = p_.text("tracestate");
  s_.deadline = maybe_instant(p_, "deadline");
  s_.job_root = Value::object({{"agent", s_.agent},
                               {"created_at", to_text(created_at_)},
                               {"id", s_.job.text},
                               {"labels", s_.labels}});
  return budget_given();
}

Status Applier::plan_generated() {
  AE_ASSIGN(auto plan, plans_(p_["task_graph"], p_.text("plan_hash")));
  if (to_hex(plan->hash) != p_.text("plan_hash")) return bad("the plan has another hash");
  if (plan->decision.text != p_.text("decision_id")) return bad("the plan has another id");
  const bool by_model = p_.text("planned_by").starts_with(kModelToolPrefix);
  if (s_.plan && by_model) AE_TRY(follows_from_answer(*plan));
  s_.planned_by_model = by_model || planner_of(*plan) != "file";
  if (s_.plan) return re_plan(std::move(plan));
  s_.plan = std::move(plan);
  s_.nodes_left = static_cast<std::uint32_t>(s_.plan->nodes.size());
  for (const Node& node : s_.plan->nodes) {
    Step& step = s_.steps.emplace_back();
    begin_node(step, node);
    s_.by_id.emplace(step.id, node.index);
  }
  for (const Node& node : s_.plan->nodes) open_node(node.index);
  return {};
}

void Applier::begin_node(Step& step, const Node& node) {
  step.node = step.place = node.index;
  step.plan_no = s_.plan_number;
  step.needs_left = static_cast<std::uint32_t>(node.needs.size());
  step.id = step_id(s_.job, s_.plan->decision, Plan::path(s_.plan_number, node.index),
                    to_text(node.kind));
}

Status Applier::job_running() {
  if (!s_.plan) return fail(Code::plan_missing, "the log has no plan_generated");
  const Value& epoch = p_["epoch"];
  if (!epoch.is_integer() || epoch.as_int() <= 0 ||
      static_cast<std::uint64_t>(epoch.as_int()) <= s_.epoch) {
    return bad("the epoch does not rise");
  }
  if (s_.status == JobStatus::running) s_.lost_claims++;
  s_.epoch = static_cast<std::uint64_t>(epoch.as_int());
  s_.attempt = AttemptId(std::string(p_.text("attempt_id")));
  s_.opened_at = p_.find("opened_at") ? std::optional(instant_of(p_, "opened_at")) : std::nullopt;
  s_.not_before.reset();
  const auto open = s_.calling;
  for (std::uint32_t index : open) {
    Invocation& call = *s_.steps[index].call;
    if (!call.left_at) call.left_at = created_at_;
    refresh(index);
  }
  if (s_.opened_at) store_opened();
  confirm_anew();
  return {};
}

// What has a new command, or is decided to end, does not stand still.
void Applier::progressed() {
  s_.lost_claims = 0;
  s_.process_deaths = 0;
}

// A person wants the job to go on, or to end. One more death without progress parks it again.
void Applier::one_more_try() {
  s_.process_deaths = std::min(s_.process_deaths, kProcessDeathsMax - 1);
}

// A process that was not the sender's has the job, and the store's lock proves that the sender is dead.
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

// Who wanted the job to rest wanted it before this was known.
void Applier::begin_end(Ending ending) {
  s_.ending = std::move(ending);
  s_.pausing.reset();
}

// Does this timer say of itself that it has fired too early?
bool Applier::fired_before(Instant due) const {
  return !erased("value") && instant_of(p_, "value") < due;
}

Status Applier::deadline_passed() {
  if (!s_.deadline || s_.deadline_fired) return bad("no deadline is armed");
  if (fired_before(*s_.deadline)) return bad("the deadline has not passed");
  s_.deadline_fired = true;
  if (!s_.ending) {
    begin_end({.cancelled = false,
               .code = "deadline_exceeded",
               .message = "the job's deadline has passed",
               .node_id = {},
               .by = {}});
  }
  return {};
}

// What may end a job, beyond the table: nothing is open, and a completed plan is done.
Status Applier::may_end() const {
  if (s_.open_tries > 0) return bad("a call is still open");
  if (!s_.undoable.empty() && type_ != EventType::job_completed &&
      (!s_.ending || s_.ending->compensate)) {
    return bad("a committed step is not compensated");
  }
  if (!s_.waits.empty()) return bad("a wait is still open");
  if (type_ == EventType::job_completed && (!s_.plan || s_.nodes_left > 0 || s_.ending)) {
    return bad("the plan is not done");
  }
  if (type_ == EventType::job_completed && awaits_plan(s_)) {
    return bad("its planner's plan is to follow");
  }
  return {};
}

// What became of a call that was given up, or whose job has ended. It changes nothing but what the views show.
void Applier::outcome_noted() {
  const auto value = [&](std::string_view field) { return erased(field) ? Value() : p_[field]; };
  s_.noted.insert_or_assign(std::string(p_.text("invocation_id")),
                            NotedOutcome{.resolution = std::string(p_.text("resolution")),
                                         .by = std::string(p_.text("by")),
                                         .at = instant_of(p_, "at"),
                                         .result = value("result"),
                                         .note = value("note")});
}

void Applier::cancel_requested() {
  const bool compensate = !(p_["compensate"] == Value(false));
  if (s_.ending && s_.ending->cancelled) {
    if (!compensate) s_.ending->compensate = false;
    return;
  }
  begin_end({.cancelled = true,
             .code = "cancelled",
             .message = std::string(p_.text("reason")),
             .node_id = {},
             .by = std::string(p_.text("by")),
             .compensate = compensate});
}

// What concerns the job as a whole.
Status Applier::of_job() {
  switch (type_) {
    case EventType::job_created:
      return job_created();
    case EventType::plan_generated:
      return plan_generated();
    case EventType::fork_imported:
      return fork_imported();
    case EventType::job_running:
      return job_running();
    case EventType::timer_fired:
      if (p_.text("effect_id") == "budget") return wall_passed();
      return p_.text("effect_id") == "deadline" ? deadline_passed() : Status();
    case EventType::job_requeued:
      s_.not_before = maybe_instant(p_, "not_before");
      if (p_.text("reason") == kProcessDied) s_.process_deaths++;
      return {};
    case EventType::job_parked:
      s_.parked_reason = p_.text("reason");
      s_.parked_until = p_.text("until");
      s_.parked_since = created_at_;
      if (s_.parked_until == "confirmation" && s_.raised == 0)
        return bad("no confirmation is requested");
      if (s_.parked_until == "budget" && !s_.budget.exceeded) return bad("no budget is used up");
      if (s_.parked_until == "resume") {
        s_.pausing.reset();
        s_.not_before.reset();
      }
      return {};
    case EventType::job_pause_requested:
      return pause_requested();
    case EventType::job_resumed:
      if (!may_resume()) return bad("another act ends this park");
      unraise();
      one_more_try();
      return {};
    case EventType::agent_message:
      return agent_message();
    case EventType::job_cancel_requested:
      cancel_requested();
      one_more_try();
      return {};
    case EventType::job_completed:
      s_.result = p_["result"];
      s_.final_in_doubt = p_["in_doubt"];
      return {};
    case EventType::job_failed:
      s_.error = Failure{std::string(p_.text("code")), std::string(p_.text("error"))};
      s_.final_in_doubt = p_["in_doubt"];
      return {};
    case EventType::job_cancelled:
      s_.final_in_doubt = p_["in_doubt"];
      return {};
    default:
      return {};
  }
}

Status Applier::of_step() {
  switch (type_) {
    case EventType::decision_recorded:
      return decision_recorded();
    case EventType::node_started:
      return node_started();
    case EventType::command_emitted:
      return command_emitted();
    case EventType::tool_invocation_started:
      return tool_invocation_started();
    case EventType::tool_invocation_finished:
      return tool_invocation_finished();
    case EventType::time_recorded:
    case EventType::random_recorded:
    case EventType::uuid_recorded:
      return value_recorded();
    case EventType::command_committed:
      return command_committed();
    case EventType::node_finished:
      return node_finished();
    case EventType::step_committed:
      return step_committed();
    case EventType::step_compensated:
      return step_compensated();
    case EventType::state_changed:
      return state_changed();
    case EventType::wait_opened:
      return wait_opened();
    case EventType::wait_completed:
      return wait_completed();
    default:
      return of_job();
  }
}

// Does this end a wait that the park itself opened?
bool Applier::ends_own_park() const {
  if (type_ != EventType::wait_completed || s_.parked_until != "resolve") return false;
  auto wait = s_.waits.find(std::string(p_.text("correlation_key")));
  return wait != s_.waits.end() && wait->second.resolve;
}

Status Applier::run() {
  const EventKind* kind = event_kind(type_);
  if (!kind || kind->event_class == EventClass::narrative) {
    if (type_ == EventType::outcome_noted) outcome_noted();
    s_.seq++;
    s_.updated_at = created_at_;
    return {};
  }
  if (is_terminal(s_.status)) {
    return fail(Code::job_terminal, "the job has ended; only a fork can continue it");
  }
  const auto status = next_status(s_.status, type_, ends_own_park());
  if (!status) return bad("illegal while the job is " + std::string(to_text(s_.status)));
  if (is_terminal(*status)) AE_TRY(may_end());
  const bool ended_before = s_.ending.has_value();
  AE_TRY(of_step());
  if (*status != JobStatus::parked) {
    s_.parked_reason.clear();
    s_.parked_until.clear();
    s_.parked_since.reset();
  }
  // What happens to a job that backs off is answered at once.
  if (type_ == EventType::wait_completed || type_ == EventType::job_cancel_requested ||
      (s_.ending && !ended_before)) {
    s_.not_before.reset();
  }
  s_.status = *status;
  s_.seq++;
  s_.updated_at = created_at_;
  return {};
}

Status apply(State& state, const EventDraft& event, Instant created_at, const PlanSource& plans) {
  return Applier(state, event, created_at, plans).run();
}

Status apply(State& state, const Event& event, const PlanSource& plans) {
  return Applier(state, event, plans).run();
}

}  // namespace ae::engine
