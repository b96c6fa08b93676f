// ReplayProof: compares each event with what the plan requires in the state before it. See
// verify.h. Threads: none of its own.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "engine/state/state.h"
#include "log/decisions.h"
#include "log/event.h"
#include "plan/plan.h"

namespace ae::engine {

class ReplayProof {
 public:
  // Checks an event against the state before it. Empty, or the error.
  std::string check_before(const State& state, const Event& event);
  // Checks what shows only after the event is applied.
  static std::string check_after(const State& state, const Event& event);
  std::size_t commands() const { return commands_; }

 private:
  static const Step* find(const State& state, const StepId& id);
  static const Step* find(const State& state, const std::optional<StepId>& id);

  // The error of an event of this type.
  static std::string check_event(const State& state, const NodeStarted& event);
  static std::string check_event(const State& state, const NodeFinished& event);
  std::string check_event(const State& state, const CommandEmitted& event);
  static std::string check_event(const State& state, const TimeRecorded& event);
  static std::string check_event(const State& state, const RandomRecorded& event);
  static std::string check_event(const State& state, const UuidRecorded& event);
  static std::string check_event(const State& state, const ToolInvocationStarted& event);
  static std::string check_event(const State& state, const ToolInvocationFinished& event);
  static std::string check_event(const State& state, const CommandCommitted& event);
  static std::string check_event(const State& state, const DecisionRecorded& event);
  static std::string check_event(const State& state, const StateChanged& event);
  static std::string check_event(const State& state, const WaitOpened& event);
  static std::string check_event(const State& state, const PlanGenerated& event);
  static std::string check_event(const State& state, const JobCompleted& event);
  static std::string check_event(const State&, const auto&) { return {}; }

  static Result<Value> requested_arguments(const State& state, const Step& step);
  static std::string check_extras(const State& state, const Step& step, const Value& arguments);
  static Result<Value> turn_arguments(const State& state, const Step& step, const Value& recorded);
  static std::string check_recorded(const State& state, RecordedKind records,
                                    std::string_view effect_id, const Erasable& value);
  static std::string check_requested_call(const State& state, const Step& step,
                                          const ToolInvocationStarted& event);
  static std::string check_given_early(const State& state, const Step& step, std::int64_t position);
  static std::string check_stated_position(const Step& code, std::int64_t last,
                                           std::int64_t position);
  static std::string check_code_value(RecordedKind records, std::string_view suffix);
  static std::string check_schema(const ToolPolicy& tool, const Value& result);
  static std::string check_probe_outcome(const State& state, const CommandCommitted& event);
  static std::string check_probe_outcome(const State& state, const DecisionRecorded& event);
  static std::string check_answer(const State& state, const CommandCommitted& event);
  static std::string check_all_changes(const State& state, const CommandCommitted& event);
  static std::string check_decision(const State& state, const Step& step,
                                    const BranchTaken& branch);
  static std::string check_decision(const State& state, const Step& step, const MapListed& map);
  static std::string check_decision(const State& state, const Step& step, const ToolChosen& chosen);
  static std::string check_decision(const State& state, const Step& step,
                                    const ApprovalRequested& request);
  static std::string check_decision(const State& state, const Step& step, const CallDenied& denial);
  static std::string check_decision(const State&, const Step&, const auto&) { return {}; }
  // A call that is requested or denied is the one that the plan's expressions yield, or that code
  // states.
  static std::string check_call(const State& state, const Step& step, const auto& call);

  std::size_t commands_ = 0;
};

}  // namespace ae::engine
