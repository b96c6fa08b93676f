// What a job has done at an event, and what a fork from there repeats.
#include "engine/fork/fork.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <ranges>
#include <set>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "engine/fork/fork_effects.h"
#include "engine/heart/features.h"
#include "engine/heart/request.h"
#include "json/json.h"
#include "log/decisions.h"
#include "log/field_names.h"

namespace ae::engine {
namespace {

constexpr std::size_t kImportBytes = 4u << 20;  // of results and unknown calls per event, about

class ForkBuilder {
 public:
  ForkBuilder(const State& now, const std::vector<Event>& events, const State& then)
      : now_(now), events_(events), then_(then) {}

  Result<Fork> run();

 private:
  template <class Recorded>
  void gather_recorded(const Recorded& event);
  void gather(const TimeRecorded& event) { gather_recorded(event); }
  void gather(const RandomRecorded& event) { gather_recorded(event); }
  void gather(const UuidRecorded& event) { gather_recorded(event); }
  void gather(const ToolInvocationStarted& event);
  void gather(const ToolInvocationFinished& event);
  void gather(const CommandCommitted& event);
  void gather(const NodeFinished& event);
  void gather(const DecisionRecorded& event);
  void gather(const WaitCompleted& event);
  void gather(const AgentMessage& event);
  void gather(const ForkImported& event);
  void gather(const PlanGenerated& event);
  void gather(const OutcomeNoted& event);
  void gather(const auto&) {}
  void gather(const StepId& step, const MapListed& map, const DecisionRecorded& event);
  void gather(const StepId& step, const ToolChosen& chosen, const DecisionRecorded& event);
  void gather(const StepId& step, const ApprovalAnswered& answer, const DecisionRecorded& event);
  void gather(const StepId& step, const CallDenied& denial, const DecisionRecorded& event);
  void gather(const StepId& step, const ArgumentsEdited& edit, const DecisionRecorded& event);
  void gather(const StepId&, const auto&, const DecisionRecorded&) {}
  void gather_imported(const ForkEntry& entry, const Value& results);
  void gather_items();
  bool is_in_effect(const Step& step) const;
  // Is this step of a node one that records a value without a call?
  bool records_value(const Step& step) const {
    const Node& node = then_.node_of(step);
    return !step.skipped && !step.is_part() && node.is_single_call() &&
           !then_.tool_of(step).makes_call();
  }
  static bool is_complete(const Step& step, const Node& node, bool continue_on_failure);
  const Value* found_result(const Step& step) const;
  Status import_node(const Node& node);
  Status import_map(const Node& node, const Step& step);
  Status import_loop(const Node& node, const Step& step);
  struct Turn {
    const Step* model_call = nullptr;
    const ToolChoice* choice = nullptr;  // nullptr: not recorded yet
    std::vector<const Step*> calls;      // that need not be repeated
    const Value* message = nullptr;      // of a thread, that follows
    bool finished = false;               // another turn may follow
  };
  std::vector<Turn> turns_of(const Node& node, const Step& step) const;
  Turn turn_of(const Node& node, const Step& model_call) const;
  bool has_final_result(const Node& node, const Step& call) const;
  Status import_turns(const std::vector<Turn>& turns);
  Status import_items(const Node& node, const std::vector<const Step*>& items, bool with_results);
  Status import_step(const Step& step, const Value* result, ForkEntry entry = {},
                     std::vector<Member> results = {}, bool was_found = false);
  static std::unexpected<Error> erased_from(std::string_view node);
  void add_call(const Step& step, ForkEntry& entry) const;
  Status append_entry(ForkEntry entry, std::vector<Member> results);
  void import_unknown_call(const UnknownCall& call);
  void flush_event_if_full(std::size_t bytes);
  void flush_event();
  void copy_creation_fields(const JobCreated& created);

  const State& now_;
  const std::vector<Event>& events_;
  const State& then_;
  Fork fork_;
  // From the log up to the fork, by step id.
  std::unordered_map<std::string, Value> results_, map_values_;
  std::unordered_map<std::string, Value> found_results_;  // of calls, noted after the end
  // Of calls, by step id: the first sent arguments, and the edited ones. Of turns: the invocation
  // of the answer, and by that the recorded choice.
  std::unordered_map<std::string, Value> arguments_, edited_;
  std::unordered_map<std::string, ToolChoice> choices_;
  // Of a thread: messages by their id, and by the invocation of the answer that they follow.
  std::unordered_map<std::string, Value> received_, messages_;
  std::string last_answer_;
  std::unordered_map<std::string, std::string> hashes_, invocations_;
  std::unordered_set<std::string> erased_;  // values to be imported, by their name there
  // Calls that an approver or a policy rejected; those whose newest try asked the user a question.
  std::unordered_set<std::string> refused_, denied_, awaiting_input_;
  std::unordered_map<std::uint32_t, std::vector<const Step*>> items_;  // by map or loop
  std::vector<bool> fully_imported_;                                   // nodes that are imported
  std::unordered_set<std::string> imported_;                           // step ids
  std::vector<ForkEntry> entries_;
  std::vector<UnknownImport> unknown_;
  std::vector<Member> entry_results_;
  std::size_t bytes_ = 0;
};

// A node or item that succeeded, or whose failure does not stop the plan.
bool ForkBuilder::is_complete(const Step& step, const Node& node, bool continue_on_failure) {
  switch (step.phase) {
    case StepPhase::done:
      return !step.failure || continue_on_failure;
    case StepPhase::recorded:
    case StepPhase::committed:
      return !step.failure;
    case StepPhase::settled:
      return step.call->outcome == OutcomeKind::success && !step.failure;
    case StepPhase::answered:
      return step.item == kNoItem && node.kind == NodeKind::wait &&
             (!step.timed_out || node.wait.continue_on_expire) &&
             (!step.rejected || node.wait.continue_on_reject);
    default:
      return false;
  }
}

// The result that an operator or a late answer gave, after the end, for a call whose outcome had
// been unknown or whose result had been refused. nullptr = none.
const Value* ForkBuilder::found_result(const Step& step) const {
  if (!then_.may_have_happened(step) && !is_result_refused(then_, step)) return nullptr;
  const auto found = found_results_.find(step.id.text);
  return found == found_results_.end() ? nullptr : &found->second;
}

// The origin has not undone it since, and is not doing so.
bool ForkBuilder::is_in_effect(const Step& step) const {
  const Step* const known = now_.find_step(step.id);
  if (known == nullptr) return true;  // a later plan of the origin has no such step
  const Step& later = *known;
  if (later.result_type == ResultType::compensated) return false;
  return later.undo == kNoStep || !now_.may_have_happened(now_.steps[later.undo]);
}

// The results of items and the values of maps are in the log; the state drops them after use.
template <class Recorded>
void ForkBuilder::gather_recorded(const Recorded& event) {
  const auto of = step_of_effect(event.effect_id, recorded_kind_of(Recorded::kType));
  if (of) results_[of->text] = event.value.value;
}

void ForkBuilder::gather(const ToolInvocationStarted& event) {
  const std::string& id = event.step_id.text;
  if (event.try_no != 1) return;
  arguments_[id] = event.arguments.value;
  if (event.arguments.erased) erased_.insert(id + "/arguments");
  hashes_[id] = to_hex(event.arguments_hash);
  invocations_[id] = event.invocation_id.text;
}

void ForkBuilder::gather(const ToolInvocationFinished& event) {
  const std::string& id = event.step_id.text;
  awaiting_input_.erase(id);
  if (event.outcome == "input_required") awaiting_input_.insert(id);
  if (event.outcome == "success" && !event.late.value_or(false)) results_[id] = event.result.value;
}

void ForkBuilder::gather(const CommandCommitted& event) {
  if (!event.result_of) results_[event.step_id.text] = event.result.value;  // null is not written
}

void ForkBuilder::gather(const NodeFinished& event) {
  if (!event.error) return;
  if (event.error->code == "interrupted") denied_.insert(event.step_id.text);
  const Value error =
      Value::object({{field::code, event.error->code}, {"message", event.error->message.value}});
  results_[event.step_id.text] = Value::object({{field::error, error}});
}

void ForkBuilder::gather(const WaitCompleted& event) {
  if (event.outcome == "timed_out" && event.correlation_key.starts_with("approval/")) {
    refused_.insert(event.step_id.text);
  }
  const Step* const thread = thread_of(then_);
  if (thread != nullptr && event.outcome == "cancelled" &&
      event.correlation_key.starts_with("approval/")) {
    refused_.insert(event.step_id.text);  // its exchange was interrupted
  }
  if (thread == nullptr || event.step_id != thread->id || event.outcome != "signalled") return;
  const auto received = received_.find(or_empty(event.signal_id));
  if (received == received_.end()) return;  // the thread ends
  messages_[last_answer_] = received->second;
  if (erased_.contains(received->first + "/message")) erased_.insert(last_answer_ + "/message");
}

void ForkBuilder::gather(const AgentMessage& event) {
  if (event.channel != kThreadChannel || event.control) return;
  received_[event.message_id] = event.payload.value;
  if (event.payload.erased) erased_.insert(event.message_id + "/message");
}

void ForkBuilder::gather(const ForkImported& event) {
  const auto entries = event.commands.read();
  if (!entries) return;
  for (const ForkEntry& entry : *entries) gather_imported(entry, event.results.value);
}

void ForkBuilder::gather(const PlanGenerated& event) {
  fork_.planner_version = or_empty(event.planner_version);
}

void ForkBuilder::gather(const OutcomeNoted& event) {
  if (event.resolution != "happened") return;
  // The runtime stores no result of an erased job: it is unknown, not null.
  if (now_.blind_erased && event.by == kRuntimeActor && event.result.is_null()) return;
  found_results_[event.step_id.text] = event.result.value;
  if (event.result.erased) erased_.insert(event.step_id.text);
}

// Only the structure of an erased value is left; a fork cannot use it.
void ForkBuilder::gather(const DecisionRecorded& event) {
  const auto decision = decision_body(event);
  if (!decision) return;
  const StepId step = event.step_id.value_or(StepId());
  if (event.kind == ArgumentsEdited::kKind && event.payload.erased) {
    erased_.insert(step.text + "/edited");
  }
  std::visit([&](const auto& body) { gather(step, body, event); }, *decision);
}

void ForkBuilder::gather(const StepId& step, const MapListed& map, const DecisionRecorded&) {
  map_values_[step.text] = map.list;
  if (map.erased) erased_.insert(step.text + "/over");
}

void ForkBuilder::gather(const StepId&, const ToolChosen& chosen, const DecisionRecorded&) {
  const std::string of = chosen.choice.of.text;
  choices_[of] = chosen.choice;
  last_answer_ = of;
  if (chosen.erased) erased_.insert(of + "/choice");
}

void ForkBuilder::gather(const StepId& step, const ApprovalAnswered&,
                         const DecisionRecorded& event) {
  if (event.state == "rejected") refused_.insert(step.text);
}

void ForkBuilder::gather(const StepId& step, const CallDenied&, const DecisionRecorded&) {
  denied_.insert(step.text);
}

void ForkBuilder::gather(const StepId& step, const ArgumentsEdited& edit, const DecisionRecorded&) {
  edited_[step.text] = edit.arguments;
}

// Results that the origin had imported itself.
void ForkBuilder::gather_imported(const ForkEntry& entry, const Value& results) {
  const std::string id = entry.step_id.text;
  const bool over = entry.over == true;
  if (const Value* result = results.find(id)) (over ? map_values_ : results_)[id] = *result;
  if (const Value* sent = results.find(id + "/arguments")) arguments_[id] = *sent;
  if (const Value* edited = results.find(id + "/edited")) edited_[id] = *edited;
  if (!or_empty(entry.arguments_hash).empty()) hashes_[id] = *entry.arguments_hash;
  if (!entry.invocation) return;
  invocations_[id] = entry.invocation->text;
  if (entry.choice) choices_[entry.invocation->text] = *entry.choice;
  if (entry.choice) last_answer_ = entry.invocation->text;
  if (const Value* message = results.find(id + "/message")) {
    messages_[entry.invocation->text] = *message;
  }
}

void ForkBuilder::gather_items() {
  for (const Step& step : then_.steps) {
    if (step.role == Role::node && step.is_part()) items_[step.node].push_back(&step);
  }
  for (auto& [whole, parts] : items_) {
    std::ranges::sort(parts, {},
                      [](const Step* s) { return std::tuple(s->item, s->turn, s->nth + 1); });
  }
}

void ForkBuilder::flush_event() {
  ForkImported event{.commands = std::exchange(entries_, {}),
                     .results = Value::object(std::exchange(entry_results_, {}))};
  if (!unknown_.empty()) event.unknown = std::exchange(unknown_, {});
  fork_.imported.emplace_back(std::move(event));
  bytes_ = 0;
}

void ForkBuilder::flush_event_if_full(std::size_t bytes) {
  if (bytes_ > 0 && bytes_ + bytes > kImportBytes) flush_event();
  bytes_ += bytes;
}

std::unexpected<Error> ForkBuilder::erased_from(std::string_view node) {
  return fail(Code::input_invalid,
              "what node \"{}\" gave has been erased from the log; fork at an event before it",
              node);
}

Status ForkBuilder::append_entry(ForkEntry entry, std::vector<Member> results) {
  std::size_t bytes = 0;
  for (const auto& [name, result] : results) {
    if (erased_.contains(name)) return erased_from(entry.node_id);
    bytes += canonical(result).size();
  }
  flush_event_if_full(bytes);
  entries_.push_back(std::move(entry));
  std::ranges::move(results, std::back_inserter(entry_results_));
  return {};
}

// Imports a call that the fork does not repeat and whose outcome is unknown, unless the origin has
// noted its outcome since.
void ForkBuilder::import_unknown_call(const UnknownCall& call) {
  if (now_.noted.contains(call.invocation.text)) return;
  UnknownImport unknown{.checkable_at = call.checkable_at,
                        .external_key = call.external_key,
                        .idempotency_key = call.key,
                        .invocation_id = call.invocation,
                        .node_id = call.node_id,
                        .reason = none_if_empty(call.error.code),
                        .step_id = call.step,
                        .tool = call.tool,
                        .try_no = call.try_no};
  if (call.item != kNoItem) unknown.item = call.item;
  flush_event_if_full(canonical(record_json(unknown)).size());
  unknown_.push_back(std::move(unknown));
}

// The tool and the arguments of the step's call, if it made one.
void ForkBuilder::add_call(const Step& step, ForkEntry& entry) const {
  // Hashes under different blinds cannot be compared.
  const auto add = [&](std::string_view tool, std::string_view hash) {
    entry.tool = tool;
    if (!now_.blind_erased) entry.arguments_hash = hash;
  };
  if (step.call) {
    add(step.call->tool, to_hex(step.call->arguments_hash));
  } else if (step.imported && !step.imported->tool.empty()) {
    add(step.imported->tool, step.imported->arguments_hash);
  } else if (step.is_loop_call() || (step.is_part() && step.committed) || records_value(step)) {
    const auto hash = hashes_.find(step.id.text);
    const std::string& tool = then_.tool_of(step).name;
    if (step.is_loop_call() && hash != hashes_.end()) return add(tool, hash->second);
    entry.tool = tool;
  }
}

Status ForkBuilder::import_step(const Step& step, const Value* result, ForkEntry entry,
                                std::vector<Member> results, bool was_found) {
  ResultType type = was_found ? ResultType::side_effect_committed : step.result_type;
  if (type == ResultType::none) {  // the result type that its end would have
    const bool pure = step.phase == StepPhase::answered || then_.kind_of(step) == NodeKind::llm;
    type = pure ? ResultType::pure : ResultType::side_effect_committed;
  }
  entry.node_id = then_.node_of(step).id;
  entry.result_type = to_text(type);
  entry.step_id = step.id;
  if (step.item != kNoItem) entry.item = step.item;
  if (step.turn != kNoTurn) entry.turn = step.turn;
  if (step.is_loop_call()) entry.turn_call = step.nth;
  if (step.skipped) entry.skipped = true;
  if (step.committed && type != ResultType::side_effect_committed) entry.committed = true;
  add_call(step, entry);
  imported_.insert(step.id.text);
  if (then_.may_have_happened(step)) import_unknown_call(then_.call_of(step));
  if (result && step.erased && !step.failure) erased_.insert(step.id.text);
  if (result) results.emplace_back(step.id.text, *result);
  return append_entry(std::move(entry), std::move(results));
}

Status ForkBuilder::import_items(const Node& node, const std::vector<const Step*>& items,
                                 bool with_results) {
  for (const Step* item : items) {
    const bool complete = is_complete(*item, node, with_results ? node.collect_errors : true);
    const Value* result = complete ? nullptr : found_result(*item);
    if ((!complete && result == nullptr) || !is_in_effect(*item)) continue;
    if (complete && (with_results || item->failure)) {
      const auto known = results_.find(item->id.text);
      if (known == results_.end()) continue;  // its result is not in the log
      result = &known->second;
    }
    AE_TRY(import_step(*item, result, {}, {}, !complete));
  }
  return {};
}

// An unfinished map continues with its recorded value and its completed items.
Status ForkBuilder::import_map(const Node& node, const Step& step) {
  const std::vector<const Step*>& items = items_[node.index];
  const bool all_in_effect =
      std::ranges::all_of(items, [&](const Step* i) { return is_in_effect(*i); });
  if (is_complete(step, node, node.continue_on_error) && all_in_effect) {
    const Value result = then_.result_for_dependents(step);
    AE_TRY(import_step(step, &result));
    fully_imported_[node.index] = true;
    return import_items(node, items, false);
  }
  auto over = map_values_.find(step.id.text);
  if (over == map_values_.end() && step.map)
    over = map_values_.emplace(step.id.text, step.map->over).first;
  if (over == map_values_.end()) return {};
  if (erased_.contains(step.id.text + "/over")) return erased_from(node.id);
  AE_TRY(append_entry({.node_id = node.id, .over = true, .step_id = step.id},
                      {{step.id.text, over->second}}));
  return import_items(node, items, true);
}

// Has the origin's model received a final result of this call? Not if the call was skipped because
// the loop had failed, if it ended the loop, or if its outcome is unknown.
bool ForkBuilder::has_final_result(const Node& node, const Step& call) const {
  if (!is_complete(call, node, true) || !is_in_effect(call) || then_.may_have_happened(call))
    return false;
  const std::string& id = call.id.text;
  if (!results_.contains(id)) return false;
  if (!call.failure || call.imported) return true;
  if (refused_.contains(id)) return !node.loop->fail_on_reject;
  return denied_.contains(id) || (invocations_.contains(id) && !awaiting_input_.contains(id));
}

ForkBuilder::Turn ForkBuilder::turn_of(const Node& node, const Step& model_call) const {
  const std::string& id = model_call.id.text;
  const auto invocation = invocations_.find(id);
  if (!is_complete(model_call, node, false) || !results_.contains(id) || !arguments_.contains(id) ||
      invocation == invocations_.end()) {
    return {};
  }
  Turn turn{.model_call = &model_call, .choice = nullptr, .calls = {}};
  const auto choice = choices_.find(invocation->second);
  if (choice == choices_.end()) return turn;
  turn.choice = &choice->second;
  std::size_t made = 0;
  for (const ChosenCall& call : turn.choice->calls) made += call.refused ? 0 : 1;
  for (const Step* part : items_.at(node.index)) {
    if (part->turn == model_call.turn && part->is_loop_call() && has_final_result(node, *part)) {
      turn.calls.push_back(part);
    }
  }
  if (const auto message = messages_.find(invocation->second); message != messages_.end()) {
    turn.message = &message->second;
  }
  const bool may_follow = !turn.choice->calls.empty() || turn.choice->repair || turn.message;
  turn.finished = may_follow && turn.calls.size() == made;
  return turn;
}

// The valid turns of a loop: those before the first one that is incomplete or undone. If the loop
// failed at an answer, its turn is repeated.
std::vector<ForkBuilder::Turn> ForkBuilder::turns_of(const Node& node, const Step& step) const {
  std::vector<Turn> turns;
  const auto parts = items_.find(node.index);
  if (parts == items_.end() || parts->second.empty()) return turns;
  for (const Step* part : parts->second) {
    if (!part->is_turn()) continue;
    Turn turn = turn_of(node, *part);
    if (!turn.model_call) break;
    turns.push_back(std::move(turn));
    if (!turns.back().finished) break;
  }
  const bool failed = step.phase == StepPhase::done && step.failure;
  if (!failed || turns.empty() || turns.back().finished) return turns;
  const auto parts_from_newest = parts->second | std::views::reverse;
  const Step& newest = **std::ranges::find_if_not(parts_from_newest, &Step::is_summary);
  if (turns.back().model_call == &newest) turns.pop_back();
  return turns;
}

Status ForkBuilder::import_turns(const std::vector<Turn>& turns) {
  for (const Turn& turn : turns) {
    const std::string& id = turn.model_call->id.text;
    ForkEntry entry{.invocation = InvocationId(invocations_.at(id))};
    if (turn.choice) entry.choice = *turn.choice;
    const std::string& answer = invocations_.at(id);
    if (erased_.contains(answer + "/choice") || erased_.contains(answer + "/message")) {
      return erased_from(then_.node_of(*turn.model_call).id);
    }
    std::vector<Member> values{{id + "/arguments", arguments_.at(id)}};
    if (turn.message != nullptr) values.emplace_back(id + "/message", *turn.message);
    AE_TRY(import_step(*turn.model_call, &results_.at(id), std::move(entry), std::move(values)));
    for (const Step* call : turn.calls) {
      const std::string& of = call->id.text;
      const auto edited = edited_.find(of);
      ForkEntry made;
      std::vector<Member> results;
      if (edited != edited_.end()) {
        made.edited = true;
        results.emplace_back(of + "/edited", edited->second);
      }
      AE_TRY(import_step(*call, &results_.at(of), std::move(made), std::move(results)));
    }
  }
  return {};
}

// An unfinished loop continues with its valid turns.
Status ForkBuilder::import_loop(const Node& node, const Step& step) {
  const std::vector<const Step*>& parts = items_[node.index];
  const bool all_in_effect =
      std::ranges::all_of(parts, [&](const Step* p) { return is_in_effect(*p); });
  if (!is_complete(step, node, node.continue_on_error) || !all_in_effect) {
    const std::vector<Turn> turns = turns_of(node, step);
    if (turns.empty()) return {};
    AE_TRY(append_entry({.node_id = node.id, .step_id = step.id, .under_way = true}, {}));
    return import_turns(turns);
  }
  const Value result = then_.result_for_dependents(step);
  AE_TRY(import_step(step, &result));
  fully_imported_[node.index] = true;
  for (const Step* part : parts) {
    if (part->is_summary()) continue;  // its text is in the arguments of its turn
    const auto known = results_.find(part->id.text);
    if (part->phase != StepPhase::done || (part->failure && known == results_.end())) continue;
    AE_TRY(import_step(*part, part->failure ? &known->second : nullptr));
  }
  return {};
}

Status ForkBuilder::import_node(const Node& node) {
  const bool follows =
      std::ranges::all_of(node.needs, [&](std::uint32_t need) { return fully_imported_[need]; });
  if (!follows) return {};
  const Step& step = then_.steps[node.index];
  if (node.kind == NodeKind::map && !step.skipped) return import_map(node, step);
  if (node.loop && !step.skipped) return import_loop(node, step);
  const bool complete = is_complete(step, node, node.continue_on_error);
  const Value* found = complete ? nullptr : found_result(step);
  if ((!complete && found == nullptr) || !is_in_effect(step)) return {};
  const Value result = found != nullptr ? *found : then_.result_for_dependents(step);
  fully_imported_[node.index] = true;
  return import_step(step, &result, {}, {}, found != nullptr);
}

// Fields that the state does not hold.
void ForkBuilder::copy_creation_fields(const JobCreated& created) {
  fork_.input_erased = created.input.erased;
  fork_.priority = created.priority.value_or(0);
  fork_.queue = or_empty(created.queue);
  fork_.required_capabilities = created.required_capabilities.read_leniently();
}

Result<Fork> ForkBuilder::run() {
  for (const Event& event : events_) {
    if (event.seq > then_.seq) break;
    std::visit([this](const auto& body) { gather(body); }, event.body);
  }
  gather_items();
  for (const UnknownCall& call : then_.earlier_unknown) import_unknown_call(call);
  fork_.plan = then_.plan;
  const auto& nodes = then_.plan->nodes;
  fully_imported_.resize(nodes.size());
  Needs needs;
  needs.reserve(nodes.size());
  for (const Node& node : nodes) needs.push_back(node.needs);
  for (const std::uint32_t index : topological_order(needs).order)
    AE_TRY(import_node(nodes[index]));
  if (!entries_.empty() || !unknown_.empty() || fork_.imported.empty()) flush_event();
  fork_.effects =
      effects_since({.now = now_, .events = events_, .then = then_, .imported = imported_});
  const Event& at = events_[then_.seq - 1];
  fork_.agent = now_.agent;
  fork_.execution_version = now_.execution_version;
  fork_.input = now_.input;
  fork_.blind = now_.blind;
  fork_.blind_erased = now_.blind_erased;
  fork_.budget = then_.budget.limits;
  fork_.spent = then_.budget.spent;
  fork_.labels = now_.labels;
  if (const auto* created = as<JobCreated>(events_.front())) copy_creation_fields(*created);
  fork_.forked_from = {
      .hash = at.hash, .job_id = now_.job.text, .seq = static_cast<std::int64_t>(at.seq)};
  return std::move(fork_);
}

// The requests of code and the order of their outcomes are not imported.
Status check_no_code(const State& now, std::string_view what) {
  if (!now.plan || !has_code(*now.plan)) return {};
  return fail(Code::unsupported, Action{.act = act::kJob, .job = now.job.text},
              "a job that runs code cannot be {} yet; start a new job with its input", what);
}

}  // namespace

Result<Fork> fork_at(const State& now, const std::vector<Event>& events, std::uint64_t at,
                     const PlanSource& plans) {
  std::uint64_t first = 0;
  for (const Event& event : events) {
    if (event.type == EventType::plan_generated) {
      first = event.seq;
      break;
    }
  }
  if (first == 0) return fail(Code::plan_missing, "the job's log holds no plan");
  AE_TRY(check_no_code(now, "forked"));
  if (at < first || at > events.size()) {
    return fail(Code::input_invalid, Action{.act = act::kEvents, .job = now.job.text},
                "a fork of this job can begin at an event from {} to {}", first, events.size());
  }
  const std::vector<Event> prefix(events.begin(), events.begin() + static_cast<std::ptrdiff_t>(at));
  IncrementalFold folding(now.job, prefix, plans, /*keeps_folded=*/true);
  while (folding.next()) {
  }
  AE_ASSIGN(const State then, std::move(folding).take());
  return ForkBuilder(now, events, then).run();
}

Result<std::uint64_t> retry_point(const State& now, const std::vector<Event>& events) {
  if (now.status != JobStatus::failed) {
    return fail(Code::input_invalid, Action{.act = act::kFork, .job = now.job.text},
                "only a failed job can be retried; this one is {}", to_text(now.status));
  }
  AE_TRY(check_no_code(now, "retried"));
  return events.back().seq;
}

}  // namespace ae::engine
