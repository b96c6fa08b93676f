// Queries on a state, and the fold of a whole log.
#include "engine/state/state.h"

#include <fmt/core.h>

#include <utility>

#include "engine/state/view_values.h"
#include "json/json.h"
#include "log/field_names.h"

namespace ae::engine {

IncrementalFold::IncrementalFold(const JobId& job, std::span<const Event> events, PlanSource plans,
                                 bool keeps_folded)
    : left_(events), plans_(std::move(plans)) {
  state_->job = job;
  state_->keeps_folded = keeps_folded;
}

bool IncrementalFold::next() {
  if (left_.empty() || !state_) return false;
  Status applied = apply(*state_, left_.front(), plans_);
  left_ = left_.subspan(1);
  if (!applied) state_ = std::unexpected(std::move(applied).error());
  return true;
}

Result<State> fold(const JobId& job, const std::vector<Event>& events, const PlanSource& plans) {
  IncrementalFold folding(job, events, plans);
  while (folding.next()) {
  }
  return std::move(folding).take();
}

State::State() = default;
State::State(State&& other) noexcept = default;
State& State::operator=(State&& other) noexcept = default;
State::~State() = default;

bool State::may_have_happened(const Step& step) const {
  if (!step.call || step.committed || step.phase == StepPhase::redo) return false;
  if (tool_of(step).effect == EffectClass::read) return false;
  return step.call->open || step.call->outcome_unknown;
}

std::optional<Instant> State::settles_at(const Step& step) const {
  const Invocation& call = *step.call;
  const ToolPolicy& tool = tool_of(step);
  // Its process group has ended: the process that opened the store next made sure of that.
  if (tool.local && call.next_opening) return std::nullopt;
  const auto last = call.last_deadline();
  return last ? std::optional(*last + tool.grace) : std::nullopt;
}

std::optional<Instant> State::checkable_at(const Step& step) const {
  const auto settles = settles_at(step);
  if (settles && step.call->open) return settles;
  // The newest try may have ended after the earlier ones had settled.
  return std::max(settles, step.call->checkable_from);
}

const CallOptions* State::options_of(const Step& step) const {
  const bool has_options = step.role == Role::node && step.request && step.request->options;
  return has_options ? &*step.request->options : nullptr;
}

Duration State::timeout_of(const Step& step) const {
  const CallOptions* const options = options_of(step);
  return options && options->timeout ? *options->timeout : tool_of(step).timeout;
}

std::uint32_t State::max_attempts_of(const Step& step) const {
  const CallOptions* const options = options_of(step);
  return options && options->max_attempts ? *options->max_attempts
                                          : tool_of(step).retry.max_attempts;
}

OnInDoubt State::on_in_doubt_of(const Step& step) const {
  const CallOptions* const options = options_of(step);
  return options && options->on_in_doubt ? *options->on_in_doubt : tool_of(step).on_in_doubt;
}

bool State::has_ended_child(const Step& step) const {
  if (!step.call || step.call->open || !step.call->questions || !awaits_child(step)) return false;
  const bool is_recorded =
      step.call->outcome != OutcomeKind::input_required && step.call->unsent_tries == 0;
  return !is_recorded && step.call->questions->answers.find(kChildAnswer) != nullptr;
}

bool State::has_unknown_child() const {
  const auto may_exist = [this](std::uint32_t index) {
    const Step& step = steps[index];
    return awaits_child(step) && blocks_ending(step) && !is_live(step);
  };
  return std::ranges::any_of(calling, may_exist) || std::ranges::any_of(todo, may_exist);
}

bool State::blocks_ending(const Step& step) const {
  if (step.role != Role::node || !may_have_happened(step)) return false;
  const ToolPolicy& tool = tool_of(step);
  // A child that may exist must be found, and cancelled.
  const bool matters = tool.compensate || tool.awaits_child();
  if (!matters || on_in_doubt_of(step) == OnInDoubt::fail) return false;
  switch (step.phase) {
    case StepPhase::calling:
    case StepPhase::settled:
    case StepPhase::backoff:
    case StepPhase::in_doubt:
    case StepPhase::probing:
      return true;
    default:  // the outcome was resolved, or the call was given up
      return false;
  }
}

bool State::must_settle_before_end(const Step& call) const {
  const bool undoes = !ending || ending->compensate;
  if (!undoes && !awaits_child(call)) return false;
  return (undoes && !undoable.empty()) || blocks_ending(call);
}

bool State::awaits_operator_before_end() const {
  return std::ranges::any_of(waits, [&](const auto& entry) {
    return entry.second.resolve && must_settle_before_end(steps[entry.second.step]);
  });
}

bool State::needs_undo() const {
  return !undoable.empty() ||
         std::ranges::any_of(steps, [&](const Step& step) { return blocks_ending(step); });
}

UnknownCall State::call_of(const Step& step) const {
  UnknownCall one{.step = step.id,
                  .node_id = node_of(step).id,
                  .tool = tool_of(step).name,
                  .item = step.item,
                  .key = key_of(step)};
  one.invocation = invocation_id(job, step.id, one.key);
  one.given_up = step.phase == StepPhase::done;
  if (step.role == Role::undo) one.compensates = steps[step.of].id;
  if (const Invocation* call = step.call.get()) {
    one.external_key = call->external_key;
    one.try_no = call->try_no;
    one.uncertain_tries = call->uncertain_tries;
    one.error = call->error();
    one.arguments = call->arguments;
    one.ended_at = call->ended_at;
    one.checkable_at = checkable_at(step);
  }
  return one;
}

std::vector<UnknownCall> State::unknown_calls() const {
  std::vector<UnknownCall> calls = earlier_unknown;
  for (const Step& step : steps) {
    if (may_have_happened(step)) calls.push_back(call_of(step));
  }
  return calls;
}

std::size_t State::unknown_call_count() const {
  const auto open =
      std::ranges::count_if(steps, [this](const Step& step) { return may_have_happened(step); });
  return earlier_unknown.size() + static_cast<std::size_t>(open);
}

std::vector<std::string> State::unknown_call_keys() const {
  std::vector<std::string> keys;
  for (const UnknownCall& call : unknown_calls()) keys.emplace_back(call.key.text);
  return keys;
}

bool State::may_have_changed(const Step& step) const {
  const Step& about = step.role == Role::probe ? steps[step.of] : step;
  return about.phase != StepPhase::done && may_have_happened(about) &&
         !tool_of(about).changes.empty();
}

bool State::has_tool(const Step& step) const {
  const NodeKind kind = kind_of(step);
  return kind != NodeKind::wait && kind != NodeKind::code && !is_scope(kind);
}

std::uint32_t State::tool_index(const Step& step) const {
  if (step.role == Role::node) {
    return step.tool != kNoTurn ? step.tool : node_of(step).tool;
  }
  const ToolPolicy& about =
      // An undo may have a probe, but there is no third level.
      tool_of(steps[step.of]);
  return step.role == Role::probe ? about.probe->tool : about.compensate->tool;
}

namespace {
// The path of a probe or a compensation of a call. A request of code can have any path with '/'.
std::string side_path(const State& state, const Step& of, Role role, std::uint32_t try_no) {
  const std::string path = state.path_of(of) + (of.request ? '#' : '/');
  return role == Role::undo ? fmt::format("{}compensate", path)
                            : fmt::format("{}probe/{}", path, try_no);
}
}  // namespace

StepId State::side_step_id(const Step& step, Role role) const {
  const std::uint32_t try_no = role == Role::probe ? step.call->try_no : 0;
  return step_id(job, plan->decision, side_path(*this, step, role, try_no), "tool");
}

bool State::may_probe(const Step& step) const {
  return on_in_doubt_of(step) == OnInDoubt::probe && may_have_happened(step) &&
         (step.phase == StepPhase::calling || step.phase == StepPhase::settled ||
          step.phase == StepPhase::backoff) &&
         step.call->absent_tries < max_attempts_of(step) &&
         (step.probe == kNoStep || steps[step.probe].of_try != step.call->try_no);
}

std::optional<Role> State::side_role(const Step& step, const StepId& id) const {
  if (status != JobStatus::running || find_step(id)) return std::nullopt;
  const bool undoes =
      !undoable.empty() && must_undo() && &steps[undoable.back()] == &step && step.undo == kNoStep;
  if (undoes && id == side_step_id(step, Role::undo)) return Role::undo;
  if (step.call && !is_live(step) && may_probe(step) && id == side_step_id(step, Role::probe)) {
    return Role::probe;
  }
  return std::nullopt;
}

// Without arguments there is nothing to guess, so the key does not include the blind.
IdempotencyKey State::key_of(const Step& step) const {
  return step.call ? step.call->key : idempotency_key(job, step.id, tool_of(step).name, "null", "");
}

DigestText State::hash_of(const Value& value) const {
  return blinded_hash(blind, canonical(value));
}

std::string State::unique_wait_key(const std::string& named) const {
  const auto closed = closed_waits.find(named);
  const bool was_abandoned =
      plan_number > 0 && closed != closed_waits.end() && closed->second.outcome == "cancelled";
  return was_abandoned ? fmt::format("{}#{}", named, plan_number) : named;
}

std::string State::approval_id(const Wait& wait) const {
  if (wait.type != WaitType::human || wait.resolve) return {};
  const Step& step = steps[wait.step];
  if (wait.question) return question_id(*this, step);
  return wait.approval ? step.approval->id : step.id.text.string();
}

namespace {
std::string request_path(const Step& code, std::string_view position) {
  return fmt::format("{}/{}", Plan::path(code.start_plan, code.start_node), position);
}
}  // namespace

StepId State::request_step_id(const Step& code, std::string_view position, NodeKind kind) const {
  const NodeKind named = kind == NodeKind::turn ? NodeKind::scope : kind;
  return step_id(job, plan->decision, request_path(code, position), to_text(named));
}

std::string State::path_of(const Step& step) const {
  if (step.role != Role::node) {
    return side_path(*this, steps[step.of], step.role, step.of_try);
  }
  if (step.turn != kNoTurn) return part_path(step, step.turn, step.nth);
  if (step.request) return request_path(step, step.request->position);
  return step.item == kNoItem ? Plan::path(step.start_plan, step.start_node)
                              : Plan::path(step.start_plan, step.start_node, step.item);
}

std::string State::part_path(const Step& loop, std::uint32_t turn, std::uint32_t nth) const {
  const std::string of_turn = Plan::path(loop.start_plan, loop.start_node, turn);
  if (nth == kSummary) return of_turn + "/summary";
  return nth == kNoTurn ? of_turn : fmt::format("{}/{}", of_turn, nth);
}

StepId State::part_step_id(const Step& loop, std::uint32_t turn, std::uint32_t nth) const {
  return step_id(job, plan->decision, part_path(loop, turn, nth),
                 to_text(nth >= kSummary ? NodeKind::llm : NodeKind::tool));
}

std::string State::item_path(const Node& map_node, std::uint32_t item) const {
  const Step& map = steps[map_node.index];
  return Plan::path(map.start_plan, map.start_node, item);
}

namespace {
NodeKind item_kind(const Plan& plan, const Node& map_node) {
  return plan.tools[map_node.tool].is_model() ? NodeKind::llm : NodeKind::tool;
}
}  // namespace

NodeKind State::kind_of(const Step& step) const {
  const Node& node = node_of(step);
  if (step.role != Role::node) return NodeKind::tool;
  if (step.request) return step.request->kind;
  if (step.turn != kNoTurn) return step.is_loop_call() ? NodeKind::tool : NodeKind::llm;
  return step.item == kNoItem ? node.kind : item_kind(*plan, node);
}

StepId State::item_step_id(const Node& map_node, std::uint32_t item) const {
  return step_id(job, plan->decision, item_path(map_node, item),
                 to_text(item_kind(*plan, map_node)));
}

std::optional<Instant> State::next_due() const {
  std::optional<Instant> due;
  const auto earlier = [&](const std::optional<Instant>& at) {
    if (at && (!due || *at < *due)) due = at;
  };
  if (!deadline_fired) earlier(deadline);
  if (!ending && !is_paused()) {  // what comes due in a pause fires after it
    if (!budget.wall_passed) earlier(budget.wall_until);
    for (const auto& [key, wait] : waits) {
      earlier(wait.due_at);
      earlier(wait.expires_at);
    }
  }
  return due;
}

Value State::result_for_dependents(const Step& step) const {
  if (step.failure) {
    return Value::object({{field::error, Value::object({{field::code, step.failure->code},
                                                        {"message", step.failure->message}})}});
  }
  return step.result;
}

DecisionId decision_at(const State& state, std::string_view path) {
  return DecisionId(step_id(state.job, state.plan->decision, path, "decision").text);
}

bool awaits_plan(const State& state) {
  if (!state.plan || !is_planner_only(*state.plan)) return false;
  const Step& step = state.steps.front();
  return step.phase == StepPhase::done && !step.failure && !step.skipped;
}

std::vector<StepReference> steps_list(const State& state, const std::vector<std::uint32_t>& steps) {
  std::vector<StepReference> list;
  list.reserve(steps.size());
  for (std::uint32_t index : steps) {
    const Step& step = state.steps[index];
    StepReference& one = list.emplace_back();
    one.node_id = state.node_of(step).id;
    one.step_id = step.id;
    if (step.item != kNoItem) one.item = step.item;
    if (step.turn != kNoTurn) one.turn = step.turn;
    if (step.is_loop_call()) one.turn_call = step.nth;
    if (step.request) one.position = step.request->position;
  }
  return list;
}

std::vector<std::uint32_t> not_undone(const State& state) {
  std::vector<std::uint32_t> steps = state.given_up;
  steps.insert(steps.end(), state.undoable.rbegin(), state.undoable.rend());
  // The effects of the origin are not this job's to undo.
  for (std::uint32_t i = 0; i < state.steps.size(); ++i) {
    const Step& step = state.steps[i];
    const bool calls = step.imported && step.committed && !step.imported->tool.empty();
    if (calls && state.tool_of(step).compensate) steps.push_back(i);
  }
  return steps;
}

// A try is sent before its send_by, and takes effect within timeout and grace of the sending. If
// another process has opened the store since, the try was sent before that opening.
std::optional<Instant> Invocation::last_deadline() const {
  std::optional<Instant> last = ended_deadline;
  if (open) last = std::max(last, std::optional(deadline));
  if (!last || !next_opening) return last;
  const Duration timeout = deadline - send_by;
  return std::min(*last, *next_opening + timeout);
}

const Member* open_question(const Invocation& call) {
  if (call.open || call.outcome != OutcomeKind::input_required || !call.questions) return nullptr;
  const Value& requests = call.questions->input_required["requests"];
  if (!requests.is_object()) return nullptr;
  for (const Member& request : requests.members()) {
    if (call.questions->answers.find(request.first) == nullptr) return &request;
  }
  return nullptr;
}

std::string message_key(std::string_view channel, std::string_view key, std::string_view id) {
  std::string name(channel);
  name += '\0';
  name += key;
  name += '\0';
  name += id;
  return name;
}

std::string question_id(const State& state, const Step& step) {
  const std::uint32_t number = step.call && step.call->questions ? step.call->questions->number : 0;
  return step_id(state.job, state.plan->decision,
                 fmt::format("{}#input{}", state.path_of(step), number), "decision")
      .text;
}

bool is_first_with_answers(const Invocation& call) {
  return !call.open && call.outcome == OutcomeKind::input_required && call.questions != nullptr;
}

const Value& turn_arguments(const Step& turn) {
  return turn.call ? turn.call->arguments : turn.imported->arguments;
}

}  // namespace ae::engine
