#include "inspect/step_list.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "engine/heart/recorded_value.h"
#include "engine/state/view_values.h"
#include "inspect/view.h"
#include "log/decisions.h"
#include "log/field_names.h"
#include "plan/model_calls.h"

namespace ae::engine {

// ---------------------------------------------------------------- index

namespace {

constexpr std::size_t kStepBytes = 256;  // of a step in the index, without its events

std::uint64_t count_in(const Value& usage, std::string_view name) {
  const Value& count = usage[name];
  return count.is_integer() && count.as_int() > 0 ? static_cast<std::uint64_t>(count.as_int()) : 0;
}

// The step whose time, random number or UUID the event records.
std::optional<StepId> recorded_step_of(const Event& event) {
  const RecordedKind kind = recorded_kind_of(event.type);
  if (kind == RecordedKind::nothing) return std::nullopt;
  return std::visit(
      [&](const auto& body) -> std::optional<StepId> {
        if constexpr (requires { body.effect_id; }) return step_of_effect(body.effect_id, kind);
        return std::nullopt;
      },
      event.body);
}

}  // namespace

IndexedStep& StepIndex::at(std::string_view step) {
  const auto [found, is_new] = steps_.try_emplace(std::string(step));
  if (is_new) bytes_ += kStepBytes;
  return found->second;
}

void StepIndex::add_seq(std::string_view step, std::uint64_t seq) {
  std::vector<std::uint64_t>& seqs = at(step).seqs;
  if (!seqs.empty() && seqs.back() == seq) return;
  seqs.push_back(seq);
  bytes_ += sizeof(seq);
}

// As TraceRecord::add_decision and add_narrative.
void StepIndex::add_resolution(IndexedStep& step, std::string_view resolution, bool is_note) {
  for (TryOutcome& one : step.tries) {
    const bool is_uncertain = one.outcome != OutcomeKind::success && !one.definite;
    if (is_note ? is_uncertain : &one == &step.tries.back()) {
      one.resolution = resolution_from_text(resolution);
    }
  }
}

const IndexedStep* StepIndex::find(const StepId& step) const {
  const auto found = steps_.find(step.text.string());
  return found == steps_.end() ? nullptr : &found->second;
}

void StepIndex::add(const Event& event) {
  const std::size_t marked = timeline_.size();
  timeline_.add(event);
  bytes_ += (timeline_.size() - marked) * Timeline::kEntryBytes;
  if (event.type == EventType::job_running) attempts_.push_back(event.seq);
  if (event.type == EventType::fork_imported) imports_.push_back(event.seq);
  if (const auto recorded = recorded_step_of(event)) add_seq(recorded->text.view(), event.seq);
  const std::string_view id = step_of(event);
  const auto* decision = as<DecisionRecorded>(event);
  if (const auto chosen = decision_as<ToolChosen>(event)) {
    const auto turn = turns_.find(chosen->choice.of.text.string());
    if (turn != turns_.end()) add_seq(turn->second, event.seq);
  }
  if (id.empty() || event_kind(event.type) == nullptr) return;
  add_seq(id, event.seq);
  IndexedStep& step = at(id);
  if (event.type == EventType::node_started ||
      (event.type == EventType::command_emitted && !step.started_at)) {
    step.started_at = event.created_at;
  }
  if (const auto* started = as<ToolInvocationStarted>(event)) {
    if (step.first_try_seq == 0) step.first_try_seq = event.seq;
    step.tries.push_back({.try_no = static_cast<std::uint32_t>(started->try_no), .outcome = {}});
    bytes_ += sizeof(TryOutcome);
    if (started->tool_name.starts_with(kModelToolPrefix)) {
      turns_.try_emplace(started->invocation_id.text.string(), id);
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
  if (const auto* committed = as<CommandCommitted>(event)) {
    step.total_tokens = count_in(committed->usage, "total_tokens");
    if (committed->usage["cost_micros"].is_integer()) {
      step.cost_micros = count_in(committed->usage, "cost_micros");
    }
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

// ---------------------------------------------------------------- lists

namespace {

std::optional<std::uint32_t> parent_of(const State& state, const Step& step) {
  if (step.role != Role::node) return step.of;
  if (step.is_loop_call()) {
    const StepId turn = state.part_step_id(state.steps[step.node], step.turn, kNoTurn);
    const std::uint32_t found = state.index_of(turn);
    return found == kNoStep ? step.node : found;
  }
  return step.is_part() ? std::optional(step.node) : std::nullopt;
}

StepTree::Steps children_of(const StepTree& tree, const Step& step) {
  StepTree::Steps children = tree.parts_of(step);
  const StepTree::Steps& sides = tree.sides_of(step);
  children.insert(children.end(), sides.begin(), sides.end());
  return children;
}

class StepRows {
 public:
  StepRows(const State& state, const StepIndex& index) : s_(state), index_(index), tree_(state) {}

  Result<Value> list(const StepQuery& query) const {
    StepTree::Steps steps;
    if (query.parent.empty()) {
      for (std::size_t i = 0; s_.plan && i < s_.plan->nodes.size(); ++i) {
        steps.push_back(&s_.steps[i]);
      }
    } else {
      AE_ASSIGN(const Step* const parent, find_step(s_, query.parent));
      steps = children_of(tree_, *parent);
    }
    auto from = steps.begin();
    if (!query.after.empty()) {
      AE_ASSIGN(const Step* const after, find_step(s_, query.after));
      from = std::ranges::find(steps, after);
      if (from == steps.end()) {
        return fail(Code::not_found, "step {} is not a child of this parent", query.after);
      }
      ++from;
    }
    std::vector<Value> rows;
    Value next;
    for (auto it = from; it != steps.end(); ++it) {
      const Step& step = **it;
      const std::string status(to_text(tree_.status_of(step)));
      if (!query.statuses.empty() && !query.statuses.contains(status)) continue;
      if (query.changed_since > 0 && last_seq_of(step) <= query.changed_since) continue;
      if (rows.size() == query.limit) {
        next = rows.back()[field::step_id];
        break;
      }
      rows.push_back(row(step, status));
    }
    return Value::object({{"by_status", count_statuses(steps)},
                          {"next", std::move(next)},
                          {field::parent, or_null(query.parent)},
                          {"seq", number(s_.seq)},
                          {"steps", Value::array(std::move(rows))},
                          {"total", number(steps.size())}});
  }

 private:
  Value count_statuses(const StepTree::Steps& steps) const {
    std::map<std::string, std::uint64_t> counts;
    for (const Step* step : steps) ++counts[std::string(to_text(tree_.status_of(*step)))];
    std::vector<Member> members(counts.begin(), counts.end());
    return Value::object(std::move(members));
  }

  // Of its events and those of its parts, probes and compensation.
  std::uint64_t last_seq_of(const Step& step) const {
    const IndexedStep* indexed = index_.find(step.id);
    std::uint64_t last = indexed != nullptr ? indexed->seqs.back() : 0;
    for (const Step* child : children_of(tree_, step)) last = std::max(last, last_seq_of(*child));
    return last;
  }

  Value badges(const Step& step, const IndexedStep& indexed) const {
    std::vector<Value> names;
    if (step.imported) names.emplace_back("imported");
    if (indexed.finished_seq > 0 && index_.attempt_from() > indexed.finished_seq) {
      names.emplace_back("replayed");
    }
    if (indexed.caught_up) names.emplace_back(field::caught_up);
    if (indexed.late) names.emplace_back(field::late);
    if (step.result_type == ResultType::compensated) names.emplace_back(to_text(step.result_type));
    return Value::array(std::move(names));
  }

  Value row(const Step& step, std::string_view status) const {
    static const IndexedStep kNone;
    const IndexedStep* const found = index_.find(step.id);
    const IndexedStep& indexed = found != nullptr ? *found : kNone;
    const StepTree::Steps children = children_of(tree_, step);
    const auto parent = parent_of(s_, step);
    const Node& node = s_.node_of(step);
    const bool calls = step.is_part() || step.role != Role::node || node.kind != NodeKind::wait;
    Value duration;
    if (indexed.started_at && indexed.finished_at) {
      duration = static_cast<std::int64_t>((*indexed.finished_at - *indexed.started_at).count());
    }
    const bool has_usage = indexed.total_tokens > 0 || indexed.cost_micros;
    return Value::object(
        {{"badges", badges(step, indexed)},
         {"children", Value::object({{"by_status", count_statuses(children)},
                                     {"total", number(children.size())}})},
         {field::duration_us, std::move(duration)},
         {field::error,
          step.failure ? Value::object({{field::code, step.failure->code}}) : Value()},
         {"finished_at", or_null(indexed.finished_at)},
         {"item", step.item != kNoItem ? number(step.item) : Value()},
         {field::kind, to_text(s_.kind_of(step))},
         {field::node_id, node.id},
         {field::parent, parent ? Value(s_.steps[*parent].id.text) : Value()},
         {"path", s_.path_of(step)},
         {"phase", to_text(step.phase)},
         {"role", to_text(step.role)},
         {"seq_first", indexed.seqs.empty() ? Value() : number(indexed.seqs.front())},
         {"seq_last", indexed.seqs.empty() ? Value() : number(indexed.seqs.back())},
         {"started_at", or_null(indexed.started_at)},
         {"status", status},
         {field::step_id, step.id.text},
         {"tool", calls ? Value(s_.tool_of(step).name) : Value()},
         {"tries", number(indexed.tries.size())},
         {"turn", step.turn != kNoTurn ? number(step.turn) : Value()},
         {"turn_call", step.is_loop_call() ? number(step.nth) : Value()},
         {field::usage,
          has_usage ? Value::object({{"cost_micros",
                                      indexed.cost_micros ? number(*indexed.cost_micros) : Value()},
                                     {"total_tokens", number(indexed.total_tokens)}})
                    : Value()},
         {"world", to_text(world_of(s_, index_, tree_, step))}});
  }

  const State& s_;
  const StepIndex& index_;
  const StepTree tree_;
};

}  // namespace

Result<Value> list_steps(const State& state, const StepIndex& index, const StepQuery& query) {
  return StepRows(state, index).list(query);
}

Result<const Step*> find_step(const State& state, std::string_view id) {
  if (const Step* found = state.find_step(StepId(id))) return found;
  return fail(Code::not_found, "the current plan of the job has no step \"{}\"", id.substr(0, 64));
}

namespace {

void add_seqs(const StepTree& tree, const StepIndex& index, const Step& step,
              std::vector<std::uint64_t>& seqs) {
  if (const IndexedStep* indexed = index.find(step.id)) {
    seqs.insert(seqs.end(), indexed->seqs.begin(), indexed->seqs.end());
  }
  for (const Step* side : tree.sides_of(step)) add_seqs(tree, index, *side, seqs);
}

}  // namespace

std::vector<std::uint64_t> seqs_of(const StepTree& tree, const StepIndex& index, const Step& step) {
  std::vector<std::uint64_t> seqs;
  add_seqs(tree, index, step, seqs);
  if (step.imported && step.is_turn()) {
    seqs.insert(seqs.end(), index.imports().begin(), index.imports().end());
  }
  // The beginnings of the attempts that wrote these events, and of the last one.
  const std::vector<std::uint64_t>& attempts = index.attempts();
  const std::size_t own = seqs.size();
  for (std::size_t i = 0; i < own; ++i) {
    const auto next = std::ranges::upper_bound(attempts, seqs[i]);
    if (next != attempts.begin()) seqs.push_back(*std::prev(next));
  }
  if (!attempts.empty()) seqs.push_back(attempts.back());
  std::ranges::sort(seqs);
  const auto twice = std::ranges::unique(seqs);
  seqs.erase(twice.begin(), twice.end());
  return seqs;
}

ExternalEffect world_of(const State& state, const StepIndex& index, const StepTree& tree,
                        const Step& step) {
  if (step.result_type == ResultType::compensated) return ExternalEffect::rolled_back;
  EffectSum sum;
  const IndexedStep* const indexed = index.find(step.id);
  if (indexed != nullptr && !indexed->tries.empty()) {
    sum.add(state.tool_of(step).effect, indexed->tries);
  }
  for (const Step* part : tree.parts_of(step)) sum.add(world_of(state, index, tree, *part));
  return sum.total();
}

}  // namespace ae::engine
