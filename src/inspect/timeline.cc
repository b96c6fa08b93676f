#include "inspect/timeline.h"

#include <algorithm>
#include <utility>

#include "engine/heart/request.h"
#include "engine/state/view_values.h"
#include "log/decisions.h"
#include "log/field_names.h"
#include "log/outcome.h"

namespace ae::engine {
namespace {

bool is_failure(const ToolInvocationFinished& finished) {
  const std::string_view outcome = finished.outcome.view();
  return finished.late != true && outcome != ae::to_text(OutcomeKind::success) &&
         outcome != ae::to_text(OutcomeKind::input_required);
}

// Not by time, and not because the job ends.
bool is_answer(const WaitCompleted& completed) {
  const std::string_view outcome = completed.outcome.view();
  return outcome != "fired" && outcome != "timed_out" && outcome != "cancelled";
}

}  // namespace

std::string_view to_text(TimelineKind kind) {
  switch (kind) {
    case TimelineKind::attempt:
      return "attempt";
    case TimelineKind::failure:
      return "failure";
    case TimelineKind::control:
      return "control";
    case TimelineKind::wait:
      return "wait";
    case TimelineKind::plan:
      return "plan";
    case TimelineKind::end:
      return "end";
  }
  return {};
}

std::optional<TimelineKind> Timeline::kind_of(const Event& event) {
  using enum TimelineKind;
  const auto if_true = [](bool is_marked, TimelineKind kind) {
    return is_marked ? std::optional(kind) : std::nullopt;
  };
  switch (event.type) {
    case EventType::job_running:
      return attempt;
    case EventType::tool_invocation_finished:
      return if_true(is_failure(*as<ToolInvocationFinished>(event)), failure);
    case EventType::node_finished:
      return if_true(as<NodeFinished>(event)->error.has_value(), failure);
    case EventType::routine_diverged:
    case EventType::routine_failed:
      return failure;
    case EventType::wait_opened:
    case EventType::job_parked:
      return wait;
    case EventType::wait_completed:
      return is_answer(*as<WaitCompleted>(event)) ? control : wait;
    case EventType::agent_message:
    case EventType::job_pause_requested:
    case EventType::job_cancel_requested:
      return control;
    case EventType::job_resumed:
      return if_true(as<JobResumed>(event)->by != kRuntimeActor, control);
    case EventType::outcome_noted:
      return if_true(as<OutcomeNoted>(event)->by != kRuntimeActor, control);
    case EventType::decision_recorded: {
      const DecisionRecorded& decision = *as<DecisionRecorded>(event);
      return if_true(
          is_decision<ConfirmationAnswered>(decision) || is_decision<BudgetRaised>(decision),
          control);
    }
    case EventType::plan_generated:
      return if_true(std::exchange(has_plan_, true), plan);
    case EventType::job_completed:
    case EventType::job_failed:
    case EventType::job_cancelled:
      return end;
    default:
      return std::nullopt;
  }
}

std::uint32_t Timeline::number_of(std::string_view node) {
  const auto [found, is_new] =
      numbers_.try_emplace(std::string(node), static_cast<std::uint32_t>(nodes_.size()));
  if (is_new) nodes_.emplace_back(node);
  return found->second;
}

void Timeline::add(const Event& event) {
  seq_ = event.seq;
  const auto kind = kind_of(event);
  if (!kind) return;
  entries_.push_back({.seq = event.seq,
                      .at = event.created_at,
                      .step = StepId(step_of(event)),
                      .node = number_of(node_of(event)),
                      .type = event.type,
                      .kind = *kind});
}

Value Timeline::page(std::uint64_t after, std::size_t limit) const {
  auto entry = std::ranges::upper_bound(entries_, after, {}, &Entry::seq);
  std::vector<Value> shown;
  for (; entry != entries_.end() && shown.size() < limit; ++entry) {
    const EventKind* const type = event_kind(entry->type);
    shown.push_back(Value::object({{field::at, ae::to_text(entry->at)},
                                   {field::kind, to_text(entry->kind)},
                                   {field::node_id, or_null(nodes_[entry->node])},
                                   {"seq", number(entry->seq)},
                                   {field::step_id, or_null(entry->step.text.view())},
                                   {"type", type->name}}));
  }
  Value next = entry == entries_.end() ? Value() : shown.back()["seq"];
  return Value::object({{"entries", Value::array(std::move(shown))},
                        {"next", std::move(next)},
                        {"seq", number(seq_)}});
}

}  // namespace ae::engine
