// apply: one event changes the state. Nothing is decided here; what cannot have happened is refused.
#include <utility>

#include "core/json.h"
#include "engine/state.h"

namespace ae::engine {
namespace {

std::unexpected<Error> corrupt(const State& state, EventType type, std::string_view why) {
  return fail(Code::log_corrupt, "event " + std::to_string(state.seq + 1) + " (" +
                                     std::string(event_name(type)) + "): " + std::string(why));
}

Failure failure_of(const Value& error) {
  return {std::string(error.text("code")), std::string(error.text("message"))};
}

// A year: nobody waits longer, and the sum of two instants stays one.
constexpr std::int64_t kRetryAfterMsMax = 366LL * 24 * 3600 * 1000;

Instant instant_of(const Value& payload, std::string_view key) {
  auto instant = instant_from_text(payload.text(key));
  return instant ? *instant : Instant{};
}
std::optional<Instant> maybe_instant(const Value& payload, std::string_view key) {
  if (!payload.find(key)) return std::nullopt;
  return instant_of(payload, key);
}

std::optional<std::int64_t> maybe_int(const Value& payload, std::string_view key) {
  const Value& value = payload[key];
  return value.is_integer() ? std::optional(value.as_int()) : std::nullopt;
}

bool flag(const Value& payload, std::string_view key) {
  const Value& value = payload[key];
  return value.is_bool() && value.as_bool();
}

std::optional<WaitType> wait_type_of(std::string_view text) {
  for (auto type :
       {WaitType::webhook, WaitType::human, WaitType::timer, WaitType::signal, WaitType::message}) {
    if (to_text(type) == text) return type;
  }
  return std::nullopt;
}

OutcomeKind outcome_of(std::string_view text) {
  for (auto kind : {OutcomeKind::success, OutcomeKind::failure, OutcomeKind::timeout}) {
    if (to_text(kind) == text) return kind;
  }
  return OutcomeKind::unknown;
}

ResultType result_type_of(std::string_view text) {
  for (auto type :
       {ResultType::pure, ResultType::side_effect_committed, ResultType::permanent_failure,
        ResultType::compensatable_failure, ResultType::compensated}) {
    if (to_text(type) == text) return type;
  }
  return ResultType::none;
}

// Applies one event to one state; short-lived.
class Applier {
 public:
  Applier(State& state, const EventDraft& event, Instant created_at, const PlanSource& plans)
      : s_(state), type_(event.type), p_(event.payload), created_at_(created_at), plans_(plans) {}

  Status run();

 private:
  std::unexpected<Error> bad(std::string_view why) const { return corrupt(s_, type_, why); }
  Step* step();
  Step* step_or_new_item();
  bool map_wants_decision(const Step& step) const;
  bool is_startable(const Step& step) const;
  bool wants_decision(const Step& step) const;
  void refresh(std::uint32_t index);
  void enter(Step& step, StepPhase phase);
  std::uint32_t index_of(const Step& step) const { return s_.by_id.at(step.id); }
  void open_node(std::uint32_t node);

  Status job_created();
  Status plan_generated();
  Status job_running();
  Status decision_recorded();
  Status node_started();
  Status tool_invocation_started();
  Status tool_invocation_finished();
  Status command_committed();
  bool may_finish(const Step& step) const;
  Status node_finished();
  Status item_finished(Step& step);
  Status wait_opened();
  Status wait_completed();
  Status step_committed();
  Status deadline_passed();
  void cancel_requested();
  Status may_end() const;
  bool ends_own_park() const;
  Status of_job();
  Status of_step();

  State& s_;
  EventType type_;
  const Value& p_;
  Instant created_at_;
  const PlanSource& plans_;
};

Step* Applier::step() {
  auto it = s_.by_id.find(StepId(std::string(p_.text("step_id"))));
  return it == s_.by_id.end() ? nullptr : &s_.steps[it->second];
}

// The step of this event; an unknown step_id is the next item of its map, when it is the one that its path gives.
Step* Applier::step_or_new_item() {
  if (Step* known = step()) return known;
  if (!s_.plan) return nullptr;
  auto node = s_.plan->by_id.find(std::string(p_.text("node_id")));
  if (node == s_.plan->by_id.end()) return nullptr;
  Step& map = s_.steps[node->second];
  if (map.phase != StepPhase::mapping || map.map->failure ||
      map.map->started >= map.map->results.size()) {
    return nullptr;
  }
  const std::uint32_t item = map.map->started;
  StepId id = s_.item_step_id(s_.plan->nodes[node->second], item);
  if (id.text != p_.text("step_id")) return nullptr;
  map.map->started++;
  map.map->active++;
  const auto index = static_cast<std::uint32_t>(s_.steps.size());
  Step& fresh = s_.steps.emplace_back();
  fresh.id = id;
  fresh.node = node->second;
  fresh.item = item;
  fresh.phase = StepPhase::ready;
  s_.by_id.emplace(std::move(id), index);
  refresh(node->second);
  return &fresh;
}

bool Applier::map_wants_decision(const Step& step) const {
  const MapProgress& map = *step.map;
  const Node& node = s_.node_of(step);
  const bool may_start = !map.failure && map.started < map.results.size();
  if (may_start) return map.active < node.max_parallel;
  return map.active == 0;
}

// A call that may start, but for a limit. What else is ready (a branch to take, a wait, a map) costs nothing.
bool Applier::is_startable(const Step& step) const {
  if (step.phase != StepPhase::ready) return false;
  const Node& node = s_.node_of(step);
  return step.item != kNoItem || (node.kind == NodeKind::tool && (!node.when || step.branch));
}

bool Applier::wants_decision(const Step& step) const {
  switch (step.phase) {
    case StepPhase::ready:
      return !is_startable(step) || (step.branch && !*step.branch);
    case StepPhase::settled:
    case StepPhase::backoff:
    case StepPhase::redo:
    case StepPhase::committed:
    case StepPhase::answered:
    case StepPhase::refused:
      return true;
    case StepPhase::calling:
      return step.call->attempt != s_.attempt;
    case StepPhase::mapping:
      return map_wants_decision(step);
    case StepPhase::done:
      return step.committed && !step.barrier;
    case StepPhase::blocked:
    case StepPhase::in_doubt:
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
  step.phase = phase;
  refresh(index_of(step));
}

Status Applier::job_created() {
  s_.agent = p_.text("agent");
  s_.input = p_["input"];
  s_.labels = p_["labels"].is_null() ? Value::object({}) : p_["labels"];
  s_.execution_version = p_.text("execution_version");
  s_.deadline = maybe_instant(p_, "deadline");
  s_.job_root = Value::object({{"agent", s_.agent},
                               {"created_at", to_text(created_at_)},
                               {"id", s_.job.text},
                               {"labels", s_.labels}});
  return {};
}

void Applier::open_node(std::uint32_t node) {
  Step& step = s_.steps[node];
  if (step.phase == StepPhase::blocked && step.needs_left == 0) enter(step, StepPhase::ready);
}

Status Applier::plan_generated() {
  if (s_.plan) return bad("a second plan");
  AE_ASSIGN(auto plan, plans_(p_["task_graph"], p_.text("plan_hash")));
  if (to_hex(plan->hash) != p_.text("plan_hash")) return bad("the plan has another hash");
  if (plan->decision.text != p_.text("decision_id")) return bad("the plan has another id");
  s_.plan = std::move(plan);
  s_.nodes_left = static_cast<std::uint32_t>(s_.plan->nodes.size());
  for (const Node& node : s_.plan->nodes) {
    Step& step = s_.steps.emplace_back();
    step.node = node.index;
    step.needs_left = static_cast<std::uint32_t>(node.needs.size());
    step.id = step_id(s_.job, s_.plan->decision, Plan::path(s_.plan_number, node.index),
                      to_text(node.kind));
    s_.by_id.emplace(step.id, node.index);
  }
  for (const Node& node : s_.plan->nodes) open_node(node.index);
  return {};
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
  s_.not_before.reset();
  const auto open = s_.calling;
  for (std::uint32_t index : open) refresh(index);
  return {};
}

Status Applier::decision_recorded() {
  const std::string_view kind = p_.text("kind");
  if (kind == "branch") {
    Step* step = this->step();
    if (!step || step->phase != StepPhase::ready) return bad("no such step to branch");
    if (s_.node_of(*step).when && !step->branch) {
      if (!p_["payload"].is_bool()) return bad("a branch that is no boolean");
      step->branch = p_["payload"].as_bool();
      refresh(index_of(*step));
      return {};
    }
    if (s_.node_of(*step).kind != NodeKind::map || step->map || (step->branch && !*step->branch) ||
        !p_["payload"].is_array()) {
      return bad("a branch nobody asked for");
    }
    step->map = std::make_unique<MapProgress>();
    step->map->over = p_["payload"];
    step->map->results.resize(step->map->over.size());
    step->map->finished.resize(step->map->over.size());
    return {};
  }
  if (kind == "retry") {
    Step* step = this->step();
    if (!step || step->phase != StepPhase::settled || step->call->outcome == OutcomeKind::success) {
      return bad("no such try to repeat");
    }
    step->not_before = instant_of(p_, "not_before");
    enter(*step, StepPhase::backoff);
    return {};
  }
  if (kind == "in_doubt") {
    Step* step = this->step();
    if (!step || step->phase != StepPhase::in_doubt) return bad("nothing in doubt");
    if (p_.text("state") == "not_happened") {
      enter(*step, StepPhase::redo);
    } else if (p_.text("state") == "fail") {
      enter(*step, StepPhase::refused);
    }  // happened: the command_committed beside it says the rest
  }
  return {};
}

Status Applier::node_started() {
  Step* step = step_or_new_item();
  if (!step || step->phase != StepPhase::ready || step->started) return bad("cannot start here");
  if (s_.ending) return bad("nothing starts in a job that ends");
  if (s_.status != JobStatus::running) return bad("nobody holds the job");
  if (s_.node_of(*step).when && step->item == kNoItem && step->branch && !*step->branch) {
    return bad("its branch was not taken");
  }
  step->started = true;
  if (step->map) {
    enter(*step, StepPhase::mapping);
  } else {
    refresh(index_of(*step));
  }
  return {};
}

Status Applier::tool_invocation_started() {
  Step* step = this->step();
  if (!step || !step->started) return bad("no such step");
  if (s_.ending) return bad("nothing starts in a job that ends");
  if (s_.status != JobStatus::running) return bad("nobody holds the job");
  switch (step->phase) {
    case StepPhase::ready:
      if (step->item == kNoItem && s_.node_of(*step).kind != NodeKind::tool) {
        return bad("this node makes no call");
      }
      break;
    case StepPhase::backoff:
    case StepPhase::redo:
      break;
    case StepPhase::settled:
      if (step->call->outcome != OutcomeKind::success) break;
      [[fallthrough]];
    default:
      return bad("no call may start here");
  }
  if (!step->call) step->call = std::make_unique<Invocation>();
  Invocation& call = *step->call;
  if (call.open) return bad("the earlier try is still open");
  if (maybe_int(p_, "try") != static_cast<std::int64_t>(call.try_no) + 1) {
    return bad("tries count 1, 2, 3");
  }
  if (call.try_no == 0) {
    call.id = InvocationId(std::string(p_.text("invocation_id")));
    call.key = IdempotencyKey(std::string(p_.text("idempotency_key")));
    call.external_key = ExternalKey(std::string(p_.text("external_key")));
    call.arguments = p_["arguments"];
    call.arguments_hash = p_.text("arguments_hash");
    call.tool = p_.text("tool_name");
    call.first_send_by = instant_of(p_, "send_by");
  } else if (call.id.text != p_.text("invocation_id") ||
             call.key.text != p_.text("idempotency_key") ||
             call.external_key.text != p_.text("external_key") ||
             call.arguments_hash != p_.text("arguments_hash") ||
             call.tool != p_.text("tool_name")) {
    return bad("a later try must keep the keys, the tool and the arguments");
  }
  // A resend after a crash, and one that a person asked for, are not counted (API §1, SPEC §6).
  const bool counted =
      call.try_no == 0 || step->phase == StepPhase::backoff || call.error.code == "not_sent";
  call.tool_version = p_.text("tool_version");
  call.try_no++;
  if (counted) call.counted++;
  call.open = true;
  s_.open_tries++;
  s_.tries_started++;
  call.attempt = s_.attempt;
  call.send_by = instant_of(p_, "send_by");
  call.deadline = instant_of(p_, "deadline");
  enter(*step, StepPhase::calling);
  return {};
}

Status Applier::tool_invocation_finished() {
  Step* step = this->step();
  if (flag(p_, "late")) {  // shown to people; its try was closed before
    const auto late = maybe_int(p_, "try");
    if (step && step->call && late) step->call->late = static_cast<std::uint32_t>(*late);
    return {};
  }
  if (!step || !step->call || !step->call->open ||
      step->call->id.text != p_.text("invocation_id") ||
      maybe_int(p_, "try") != static_cast<std::int64_t>(step->call->try_no)) {
    return bad("no such try is open");
  }
  Invocation& call = *step->call;
  call.open = false;
  s_.open_tries--;
  call.outcome = outcome_of(p_.text("outcome"));
  call.definite = flag(p_, "definite");
  call.retryable = flag(p_, "retryable");
  call.error = failure_of(p_["error"]);
  call.retry_after.reset();
  if (const auto ms = maybe_int(p_, "retry_after_ms"); ms && *ms >= 0 && *ms <= kRetryAfterMsMax) {
    call.retry_after = std::chrono::milliseconds(*ms);
  }
  const bool withdrawn = call.outcome == OutcomeKind::failure && call.definite &&
                         call.error.code == "not_sent";  // before a byte was sent
  call.unsent = withdrawn ? call.unsent + 1 : 0;
  if (withdrawn && call.counted > 0) call.counted--;
  if (call.outcome == OutcomeKind::success) {
    step->result = p_["result"];
    if (!p_["error"].is_null()) step->failure = call.error;  // the output broke a rule
  }
  if (step->phase == StepPhase::calling) enter(*step, StepPhase::settled);
  return {};
}

Status Applier::command_committed() {
  Step* step = this->step();
  if (!step || !step->call || step->call->open || step->committed ||
      step->phase == StepPhase::done) {
    return bad("no such command to commit");
  }
  const bool success = step->call->outcome == OutcomeKind::success;
  if (const Value* result = p_.find("result"); result && !p_.find("result_of")) {
    // A person says that it happened, and what it gave.
    if (step->phase != StepPhase::in_doubt || success) return bad("nothing in doubt");
    step->result = *result;
  } else if (!success || p_.text("result_of") != step->call->id.text) {
    return bad("the result is that of no successful call");
  }
  step->committed = true;
  s_.lost_claims = 0;
  enter(*step, StepPhase::committed);
  return {};
}

Status Applier::item_finished(Step& step) {
  Step& map_step = s_.steps[step.node];
  MapProgress& map = *map_step.map;
  map.active--;
  map.done++;
  map.finished[step.item] = true;
  if (step.failure && !s_.node_of(step).collect_errors) {
    if (!map.failure) map.failure = step.failure;
  } else {
    map.results[step.item] = s_.seen_result(step);
  }
  if (!step.committed && !s_.may_have_happened(step)) step.call.reset();
  step.result = Value();
  refresh(step.node);
  return {};
}

// Does the log hold what this end of a step stands on?
bool Applier::may_finish(const Step& step) const {
  if (step.call && step.call->open) return false;
  const bool failed = !p_["error"].is_null();
  switch (result_type_of(p_.text("result_type"))) {
    case ResultType::pure:
      if (failed) return false;
      if (flag(p_, "skipped")) {
        return step.phase == StepPhase::ready && step.branch && !*step.branch;
      }
      if (step.phase == StepPhase::mapping) {
        return step.map->done == step.map->results.size() && !step.map->failure;
      }
      return step.phase == StepPhase::answered;
    case ResultType::side_effect_committed:
      return step.phase == StepPhase::committed && !step.failure && !failed;
    case ResultType::permanent_failure:
    case ResultType::compensatable_failure:
      if (!failed || !step.started) return false;
      if (step.phase == StepPhase::mapping) return step.map->active == 0;
      if (step.phase == StepPhase::settled) return step.call->outcome != OutcomeKind::success;
      return step.phase == StepPhase::ready || step.phase == StepPhase::backoff ||
             step.phase == StepPhase::refused || step.phase == StepPhase::answered ||
             (step.phase == StepPhase::committed && step.failure);
    default:
      return false;
  }
}

Status Applier::node_finished() {
  Step* step = this->step();
  if (!step || !may_finish(*step)) return bad("no such step to finish so");
  step->result_type = result_type_of(p_.text("result_type"));
  step->skipped = flag(p_, "skipped");
  step->failure.reset();
  if (!p_["error"].is_null()) step->failure = failure_of(p_["error"]);
  if (step->skipped) step->result = Value();
  if (const Value* result = p_.find("result")) step->result = *result;
  const Node& node = s_.node_of(*step);
  if (step->map) {
    if (!step->failure) step->result = Value::array(std::move(step->map->results));
    step->map.reset();
  }
  enter(*step, StepPhase::done);
  if (step->item != kNoItem) return item_finished(*step);

  s_.nodes_left--;
  if (step->failure && !node.continue_on_error) {
    if (!s_.ending) {
      s_.ending = Ending{.cancelled = false,
                         .code = step->failure->code,
                         .message = step->failure->message,
                         .node_id = node.id,
                         .by = {}};
    }
    return {};
  }
  for (std::uint32_t dependent : node.dependents) {
    s_.steps[dependent].needs_left--;
    open_node(dependent);
  }
  return {};
}

Status Applier::wait_opened() {
  Step* step = this->step();
  if (!step) return bad("no such step");
  const bool of_call = step->call && step->phase != StepPhase::done && !step->committed;
  const bool of_node =
      step->phase == StepPhase::ready && step->started && s_.node_of(*step).kind == NodeKind::wait;
  if (!of_call && !of_node) return bad("this step waits for nothing");
  if (of_call && step->phase == StepPhase::in_doubt) return bad("it waits already");
  if (of_node && s_.ending) return bad("nothing starts in a job that ends");
  std::string key(p_.text("correlation_key"));
  auto type = wait_type_of(p_.text("wait_type"));
  if (!type) return bad("an unknown wait type");
  if (s_.waits.contains(key) || s_.closed_waits.contains(key))
    return bad("the key was used before");
  Wait wait{.step = index_of(*step),
            .type = *type,
            .due_at = maybe_instant(p_, "due_at"),
            .expires_at = maybe_instant(p_, "expires_at"),
            .resolve = of_call,
            .opened_at = created_at_,
            .reason = std::string(p_.text("reason"))};
  step->wait_key = key;
  enter(*step, wait.resolve ? StepPhase::in_doubt : StepPhase::waiting);
  s_.waits.emplace(std::move(key), wait);
  return {};
}

Status Applier::wait_completed() {
  std::string key(p_.text("correlation_key"));
  auto it = s_.waits.find(key);
  if (it == s_.waits.end()) return bad("no such wait is open");
  const Wait wait = it->second;
  s_.waits.erase(it);
  Step& step = s_.steps[wait.step];
  if (!wait.resolve) {
    const std::string_view outcome = p_.text("outcome");
    step.timed_out = outcome == "timed_out";
    step.result = step.timed_out ? Value::object({{"timed_out", true}}) : p_["payload"];
    if (outcome != "cancelled") enter(step, StepPhase::answered);
    if (p_.find("signal_id")) {
      s_.signals++;
      if (outcome == "cancelled") {
        s_.undelivered.push_back(
            Value::object({{"correlation_key", key}, {"signal_id", p_["signal_id"]}}));
      }
    }
  } else if (step.phase == StepPhase::in_doubt && !step.call->open && step.call->definite) {
    enter(step, StepPhase::settled);  // its answer came after all: for sure nothing happened
  }
  s_.closed_waits.emplace(std::move(key), ClosedWait{.type = wait.type,
                                                     .outcome = std::string(p_.text("outcome")),
                                                     .payload = p_["payload"]});
  return {};
}

Status Applier::step_committed() {
  Step* step = this->step();
  if (!step || step->phase != StepPhase::done || !step->committed || step->barrier) {
    return bad("no such step to commit");
  }
  step->barrier = true;
  refresh(index_of(*step));
  if (step->item != kNoItem) step->call.reset();
  return {};
}

Status Applier::deadline_passed() {
  if (!s_.deadline || s_.deadline_fired) return bad("no deadline is armed");
  s_.deadline_fired = true;
  if (!s_.ending) {
    s_.ending = Ending{.cancelled = false,
                       .code = "deadline_exceeded",
                       .message = "the job's deadline has passed",
                       .node_id = {},
                       .by = {}};
  }
  return {};
}

// What may end a job, beyond the table: nothing is open, and a completed plan is done.
Status Applier::may_end() const {
  if (s_.open_tries > 0) return bad("a call is still open");
  if (!s_.waits.empty()) return bad("a wait is still open");
  if (type_ == EventType::job_completed && (!s_.plan || s_.nodes_left > 0 || s_.ending)) {
    return bad("the plan is not done");
  }
  return {};
}

void Applier::cancel_requested() {
  if (s_.ending && s_.ending->cancelled) return;
  s_.ending = Ending{.cancelled = true,
                     .code = "cancelled",
                     .message = std::string(p_.text("reason")),
                     .node_id = {},
                     .by = std::string(p_.text("by"))};
}

// What concerns the job as a whole.
Status Applier::of_job() {
  switch (type_) {
    case EventType::job_created:
      return job_created();
    case EventType::plan_generated:
      return plan_generated();
    case EventType::job_running:
      return job_running();
    case EventType::timer_fired:
      return p_.text("effect_id") == "deadline" ? deadline_passed() : Status();
    case EventType::job_requeued:
      s_.not_before = maybe_instant(p_, "not_before");
      return {};
    case EventType::job_parked:
      s_.parked_reason = p_.text("reason");
      s_.parked_until = p_.text("until");
      s_.parked_since = created_at_;
      return {};
    case EventType::job_cancel_requested:
      cancel_requested();
      return {};
    case EventType::job_completed:
      s_.result = p_["result"];
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
      if (const Step* step = this->step(); !step || !step->started) return bad("no such step");
      return {};
    case EventType::tool_invocation_started:
      return tool_invocation_started();
    case EventType::tool_invocation_finished:
      return tool_invocation_finished();
    case EventType::command_committed:
      return command_committed();
    case EventType::node_finished:
      return node_finished();
    case EventType::step_committed:
      return step_committed();
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
    s_.seq++;
    s_.updated_at = created_at_;
    return {};
  }
  if (is_terminal(s_.status)) {
    return fail(Code::job_terminal, "the job has ended; a terminal job goes on only as a fork");
  }
  const auto status = next_status(s_.status, type_, ends_own_park());
  if (!status) return bad("illegal while the job is " + std::string(to_text(s_.status)));
  if (is_terminal(*status)) AE_TRY(may_end());
  AE_TRY(of_step());
  if (*status != JobStatus::parked) {
    s_.parked_reason.clear();
    s_.parked_until.clear();
    s_.parked_since.reset();
  }
  // What happens to a job that backs off is answered at once.
  if (type_ == EventType::wait_completed || s_.ending) s_.not_before.reset();
  s_.status = *status;
  s_.seq++;
  s_.updated_at = created_at_;
  return {};
}

}  // namespace

Status apply(State& state, const EventDraft& event, Instant created_at, const PlanSource& plans) {
  return Applier(state, event, created_at, plans).run();
}

}  // namespace ae::engine
