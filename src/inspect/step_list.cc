#include "inspect/step_list.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "engine/state/view_values.h"
#include "inspect/view.h"
#include "inspect/view_parts.h"
#include "log/field_names.h"

namespace ae::engine {

namespace {

// How many steps have each status.
class StatusCounts {
 public:
  void add(StepStatus status) { counts_[static_cast<std::size_t>(status)]++; }
  Value value() const {
    std::vector<Member> members;
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      if (counts_[i] == 0) continue;
      members.emplace_back(to_text(static_cast<StepStatus>(i)), number(counts_[i]));
    }
    return Value::object(std::move(members));
  }

 private:
  std::array<std::uint64_t, kStepStatuses> counts_{};
};

class StepRows {
 public:
  StepRows(const StepTree& tree, const StepIndex& index)
      : s_(tree.state()), index_(index), tree_(tree) {}

  Result<Value> list(const StepQuery& query) const {
    StepTree::Steps steps;
    if (query.parent.empty()) {
      for (std::size_t i = 0; s_.plan && i < s_.plan->nodes.size(); ++i) {
        steps.push_back(&s_.steps[i]);
      }
    } else {
      AE_ASSIGN(const Step* const parent, find_step(s_, query.parent));
      steps = tree_.parts_of(*parent);
      const StepTree::Steps& sides = tree_.sides_of(*parent);
      steps.insert(steps.end(), sides.begin(), sides.end());
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
      const StepStatus status = tree_.status_of(step);
      if (!query.statuses.empty() && !query.statuses.contains(to_text(status))) continue;
      if (query.changed_since > 0 && last_seq_of(step) <= query.changed_since) continue;
      if (rows.size() == query.limit) {
        next = rows.back()[field::step_id];
        break;
      }
      rows.push_back(row(step, status));
    }
    StatusCounts counts;
    for (const Step* step : steps) counts.add(tree_.status_of(*step));
    return Value::object({{"by_status", counts.value()},
                          {"next", std::move(next)},
                          {field::parent, or_null(query.parent)},
                          {"seq", number(s_.seq)},
                          {"steps", Value::array(std::move(rows))},
                          {"total", number(steps.size())}});
  }

 private:
  Value children_of(const Step& step) const {
    const StepTree::Steps& parts = tree_.parts_of(step);
    const StepTree::Steps& sides = tree_.sides_of(step);
    StatusCounts counts;
    for (const Step* part : parts) counts.add(tree_.status_of(*part));
    for (const Step* side : sides) counts.add(tree_.status_of(*side));
    return Value::object(
        {{"by_status", counts.value()}, {"total", number(parts.size() + sides.size())}});
  }

  // Of its events and those of its parts, probes and compensation.
  std::uint64_t last_seq_of(const Step& step) const {
    const IndexedStep* indexed = index_.find(step.id);
    std::uint64_t last = indexed != nullptr ? indexed->seqs.back() : 0;
    for (const Step* part : tree_.parts_of(step)) last = std::max(last, last_seq_of(*part));
    for (const Step* side : tree_.sides_of(step)) last = std::max(last, last_seq_of(*side));
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

  Value row(const Step& step, StepStatus status) const {
    static const IndexedStep kNone;
    const IndexedStep* const found = index_.find(step.id);
    const IndexedStep& indexed = found != nullptr ? *found : kNone;
    const Step* const parent = tree_.parent_of(step);
    const Node& node = s_.node_of(step);
    Value duration;
    if (indexed.started_at && indexed.finished_at) {
      duration = static_cast<std::int64_t>((*indexed.finished_at - *indexed.started_at).count());
    }
    const bool has_usage = indexed.total_tokens > 0 || indexed.cost_micros;
    return Value::object(
        {{"badges", badges(step, indexed)},
         {"children", children_of(step)},
         {field::code, parent == nullptr ? code_view(node) : Value()},
         {field::delivered, delivered_to(step)},
         {field::duration_us, std::move(duration)},
         {field::error,
          step.failure ? Value::object({{field::code, step.failure->code}}) : Value()},
         {"finished_at", or_null(indexed.finished_at)},
         {"item", step.item != kNoItem ? number(step.item) : Value()},
         {field::kind, to_text(s_.kind_of(step))},
         {field::node_id, node.id},
         {field::parent, parent != nullptr ? Value(parent->id.text) : Value()},
         {"path", s_.path_of(step)},
         {"phase", to_text(step.phase)},
         {field::position, position_of(step)},
         {"role", to_text(step.role)},
         {"seq_first", indexed.seqs.empty() ? Value() : number(indexed.seqs.front())},
         {"seq_last", indexed.seqs.empty() ? Value() : number(indexed.seqs.back())},
         {"started_at", or_null(indexed.started_at)},
         {"status", to_text(status)},
         {field::step_id, step.id.text},
         {"tool", s_.has_tool(step) ? Value(s_.tool_of(step).name) : Value()},
         {"tries", number(indexed.tries.size())},
         {"turn", step.turn != kNoTurn ? number(step.turn) : Value()},
         {"turn_call", step.is_loop_call() ? number(step.nth) : Value()},
         {field::usage,
          has_usage ? Value::object({{"cost_micros",
                                      indexed.cost_micros ? number(*indexed.cost_micros) : Value()},
                                     {"total_tokens", number(indexed.total_tokens)}})
                    : Value()},
         {"world", to_text(world_of(tree_, index_, step))}});
  }

  const State& s_;
  const StepIndex& index_;
  const StepTree& tree_;
};

}  // namespace

Result<Value> list_steps(const StepTree& tree, const StepIndex& index, const StepQuery& query) {
  return StepRows(tree, index).list(query);
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

ExternalEffect world_of(const StepTree& tree, const StepIndex& index, const Step& step) {
  if (step.result_type == ResultType::compensated) return ExternalEffect::rolled_back;
  EffectSum sum;
  const IndexedStep* const indexed = index.find(step.id);
  if (indexed != nullptr && !indexed->tries.empty()) {
    sum.add(tree.state().tool_of(step).effect, indexed->tries);
  }
  for (const Step* part : tree.parts_of(step)) sum.add(world_of(tree, index, *part));
  return sum.total();
}

}  // namespace ae::engine
