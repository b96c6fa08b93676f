// Applier: applies one event to one state. Its parts: apply.cc (the job), apply_nodes.cc (steps),
// apply_waits.cc (waits, messages, early signals), apply_loop.cc (loops), apply_code.cc (requests of
// code), apply_calls.cc (calls),
// apply_side.cc (probes and compensations), apply_value.cc (times, random numbers and UUIDs),
// apply_confirm.cc (changes and their verification), apply_approvals.cc (approvals),
// apply_questions.cc (questions of tools), apply_children.cc (child jobs), apply_pause.cc (pauses), apply_budget.cc (the budget),
// apply_fork.cc (imports of a fork), apply_planner.cc (the plan that a model made) and
// apply_replan.cc (re-plans).
//
// Only `apply` uses it. Threads: short-lived, one owner.
//
// Long: one overload for each type of event and of decision, and the steps that they share.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "engine/state/event_values.h"
#include "engine/state/state.h"
#include "log/decisions.h"
#include "log/event.h"

namespace ae::engine {

class Applier {
 public:
  // `logged`: the event as read from a log; nullptr: it is about to be sealed.
  Applier(State& state, const EventBody& event, const Event* logged, Instant created_at,
          const PlanSource& plans)
      : s_(state),
        event_(event),
        type_(type_of(event)),
        logged_(logged),
        created_at_(created_at),
        plans_(plans) {}

  Status run();

 private:
  std::unexpected<Error> corrupt_event(std::string_view why) const {
    return corrupt(s_, type_, why);
  }
  // ---- one event each
  Status apply(const JobCreated& event);
  Status apply(const PlanGenerated& event);
  Status apply(const ForkImported& event);
  Status apply(const JobRunning& event);
  Status apply(const JobRequeued& event);
  Status apply(const JobWaiting&) { return {}; }
  Status apply(const JobParked& event);
  Status apply(const JobResumed& event);
  Status apply(const JobPauseRequested& event);
  Status apply(const JobCancelRequested& event);
  Status apply(const JobCompleted& event);
  Status apply(const JobFailed& event);
  Status apply(const JobCancelled& event);
  Status apply(const DecisionRecorded& event);
  // Its decision, once the payload is read. `step`: nullptr: it names none of the job.
  Status apply(const BranchTaken& branch, const DecisionRecorded& event, Step* step);
  Status apply(const MapListed& map, const DecisionRecorded& event, Step* step);
  Status apply(const ToolChosen& chosen, const DecisionRecorded& event, Step* step);
  Status apply(const RetryScheduled& retry, const DecisionRecorded& event, Step* step);
  Status apply(const OutcomeDecided& decided, const DecisionRecorded& event, Step* step);
  Status apply(const ResendDecided& resend, const DecisionRecorded& event, Step* step);
  Status apply(const ApprovalRequested& request, const DecisionRecorded& event, Step* step);
  Status apply(const CallDenied& denial, const DecisionRecorded& event, Step* step);
  Status apply(const ApprovalAnswered& answer, const DecisionRecorded& event, Step* step);
  Status apply(const ArgumentsEdited& edit, const DecisionRecorded& event, Step* step);
  Status apply(const ChangesChecked& checked, const DecisionRecorded& event, Step* step);
  Status apply(const ConfirmationRequested& request, const DecisionRecorded& event, Step* step);
  Status apply(const ConfirmationAnswered& answer, const DecisionRecorded& event, Step* step);
  Status apply(const ConfirmationFailed& failure, const DecisionRecorded& event, Step* step);
  Status apply(const BudgetExceeded& exceeded, const DecisionRecorded& event, Step* step);
  Status apply(const BudgetRaised& raised, const DecisionRecorded& event, Step* step);
  Status apply(const EndDecided& end, const DecisionRecorded& event, Step* step);
  Status apply(const PlanReplaced&, const DecisionRecorded&, Step*) { return {}; }
  Status apply(const PatchDecided& patch, const DecisionRecorded& event, Step* step);
  Status apply(const VersionMoved& moved, const DecisionRecorded& event, Step* step);
  Status apply(const NodeStarted& event);
  Status apply(const NodeFinished& event);
  Status apply(const CommandEmitted& event);
  Status note_options(Step& step, const Value& recorded);
  Status apply(const ToolInvocationStarted& event);
  Status apply(const ToolInvocationFinished& event);
  Status apply(const CommandCommitted& event);
  Status apply(const StepCommitted& event);
  Status apply(const StepCompensated& event);
  Status apply(const StateChanged& event);
  Status apply(const WaitOpened& event);
  Status apply(const WaitCompleted& event);
  Status apply(const ChildCancelRequested& event);
  Status apply(const AgentMessage& event);
  Status apply(const TimerFired& event);
  Status apply(const TimeRecorded& event);
  Status apply(const RandomRecorded& event);
  Status apply(const UuidRecorded& event);
  Status apply(const HttpRecorded&) { return {}; }
  Status apply(const ValueEmitted& event);
  Status apply(const OutcomeNoted& event);
  // Other narrative events change nothing, nor do events of unknown types.
  Status apply(const UnknownEvent&) { return {}; }
  Status apply(const RecoveryStarted&) { return {}; }
  Status apply(const RecoveryCompleted&) { return {}; }
  Status apply(const ConfirmationChecked&) { return {}; }
  Status apply(const Progress&) { return {}; }
  Status apply(const AgentThoughtRecorded&) { return {}; }
  Status apply(const StateCheckpointed&) { return {}; }
  Status apply(const VersionMismatched&) { return {}; }
  Status apply(const RoutineStarted& event);
  Status apply(const RoutineDiverged& event);
  Status apply(const RoutineFailed& event);
  void version_tried(const StepId& code, const std::optional<std::string>& version);
  void may_repeat_versions();

  Step* step(const StepId& id);  // nullptr: there is none
  Step* step_or_new_part(const NodeStarted& event);
  bool map_wants_decision(const Step& step) const;
  bool is_startable(const Step& step) const;
  bool wants_decision(const Step& step) const;
  void update_work_sets(std::uint32_t index);
  void set_phase(Step& step, StepPhase phase);
  std::uint32_t index_of(const Step& step) const { return s_.index_of(step); }
  void open_node(std::uint32_t node);
  void open_dependents(const Node& node);

  Step* next_item(Step& map, const StepId& named);
  Step* next_loop_part(Step& loop, const StepId& named);
  Step& new_part(const Step& parent, const StepId& id);
  Step& new_item(const Step& map, std::uint32_t item, const StepId& id);
  Step& new_loop_part(const Step& loop, std::uint32_t turn, std::uint32_t nth, const StepId& id);
  static void advance_past_finished(MapProgress& map);
  static void advance_past_answered(LoopProgress& loop);
  bool loop_wants_decision(const Step& step) const;
  bool ends_loop(const Step& step) const;
  Status apply_tool_choice(Step& loop, const ToolChoice& choice);
  void begin_map(Step& map, Value over);
  Status loop_part_finished(Step& step);
  Status thread_waits(Step& loop, const std::string& key, const Wait& wait);
  Status thread_answered(Step& loop, std::string_view outcome,
                         const std::optional<BufferedMessage>& message);
  Status interrupt_thread();
  Status turn_declared(Step& loop, std::uint32_t turn, const Value& arguments);
  Status check_summary(const Step& step) const;
  void leave_out(Step& loop, ContextStart start);
  static void begin_exchange(LoopProgress& loop, const Value& message);
  Step* next_request(Step& code, const NodeStarted& event);
  bool may_finish_code(const NodeFinished& event, const Step& step) const;
  static bool is_next_turn(const CodeProgress& code, std::string_view position);
  Status add_outcome(Step& request, std::optional<std::int64_t> named);
  static void turn_ended(CodeProgress& code, const Step& turn, std::uint64_t position);
  Status request_finished(Step& step);
  void fold_request(Step& step);
  static void forget_inside(CodeProgress& progress, std::string_view scope);
  Status code_value_recorded(Step& code, std::string_view name, const Erasable& value);
  Status import_running_loop(Step& loop);
  Status import_of_loop(Step& loop, const ForkEntry& entry, const Erasable& results);
  Status import_turn(Step& loop, const ForkEntry& entry, const Erasable& results);
  Status import_turn_call(Step& loop, const ForkEntry& entry, const Erasable& results);
  Status check_follows_from_answer(const PlanGenerated& event, const Plan& plan) const;
  void begin_node(const Node& node);
  Status apply_replan(const PlanGenerated& event, std::shared_ptr<const Plan> plan);
  Result<std::map<std::uint32_t, std::uint32_t>> parse_carried(
      const JsonOf<std::vector<CarriedNode>>& list, const Plan& plan) const;
  Status check_abandoned(const std::vector<std::string>& drop,
                         const std::set<std::uint32_t>& kept) const;
  void keep_unknown_calls(const std::set<std::uint32_t>& kept);
  static void move_step(Step& step, std::uint32_t node);
  Status move_tool(Step& step, const Plan& before);
  Status reindex_steps(const std::map<std::uint32_t, std::uint32_t>& moved);
  void import_unknown(const UnknownImport& unknown);
  static bool import_end(Step& step, const ForkEntry& entry, const Erasable& results);
  Status import_entry(const ForkEntry& entry, const Erasable& results);
  Status import_over(Step& map, const Value& over);
  Status import_item(Step& map, std::uint32_t item, const ForkEntry& entry,
                     const Erasable& results);
  Status import_node(Step& step, const ForkEntry& entry, const Erasable& results);
  void note_progress();
  void allow_one_more_attempt();
  void store_opened();
  void retire(Step& side);
  void begin_ending(Ending ending);
  bool has_own_external_key(const ToolInvocationStarted& event, const Step& step) const;
  Status value_recorded(const std::string& effect_id, const Erasable& value);
  Status value_approved(Step& step);
  bool may_finish(const NodeFinished& event, ResultType type, const Step& step) const;
  bool may_conclude(const NodeFinished& event, const Step& loop) const;
  Status loop_concluded(Step& loop);
  Status item_finished(Step& step);
  static void note_requested_arguments(Step& step, std::string_view arguments_hash);
  Status check_may_request(const Step* step) const;
  struct RecordedArguments {
    const Value& value;
    bool erased = false;
  };
  std::optional<PolicyAction> recorded_policy_action(const RecordedArguments& arguments,
                                                     const Step& step) const;
  Status check_requested(const DecisionId& approval, const Step* step) const;
  static void record_answer(const DecisionRecorded& event, Approval& approval, ApprovalState state);
  Status edit_arguments(const ArgumentsEdited& edit, Step& step);
  std::uint32_t* open_count(const Wait& wait);
  Status request_opened(Step& step, Wait& wait);
  void await_answers(Step& step, const Erasable& result);
  bool is_question(const Step& step) const;
  Status question_opened(Step& step, std::string_view key, Wait& wait);
  void note_child(const Step& step);
  void note_detached_child(const Step& step);
  Status child_created(Step& step, std::string_view key, Wait& wait);
  Status child_ended(Step& step, const Wait& wait, const WaitCompleted& event,
                     const Value& payload);
  void count_asking(const Step& step, int change);
  Status question_closed(Step& step, std::string_view outcome, const Value& payload);
  Status request_closed(Step& step, std::string_view outcome);
  Status check_may_start(const Step* step) const;
  Status check_may_repeat(const ToolInvocationStarted& event, const Step& step) const;
  Status declare_call(const ToolInvocationStarted& event, Step& step);
  Status check_approval(const ToolInvocationStarted& event, Step& step);
  std::optional<BufferedMessage> take_buffered(const std::string& key, const Wait& wait,
                                               const std::string& signal_id);
  void restart_confirmation();
  void withdraw_escalations();
  Change* find_change(const std::string& type, const std::string& id);
  void escalate(Change& change, Deviation deviation);
  Status confirmation_failed(const Step& step, std::string message);
  bool may_resume() const;
  Status deadline_passed(const TimerFired& event);
  Status set_initial_budget(const JsonOf<JobBudget>& stored);
  Status reserve(const Step& step, const JsonOf<TokenReservation>& reservation);
  void settle(const Step& step, bool withdrawn);
  void note_unsettled_end(Step& step);
  void settle_answer(const Step& step, const TokenUsage& usage);
  void charge_function(const Step& step, const ToolInvocationFinished& event);
  void settle_child(const Step& step, const JsonOf<BudgetUse>& recorded);
  static void record_notices(LoopProgress& loop, const Value& arguments);
  Status wall_passed(const TimerFired& event);
  bool has_room(const BudgetExceeded& exceeded) const;
  static bool fired_before(const TimerFired& event, Instant due);
  Status may_end() const;
  bool ends_own_park() const;

  State& s_;
  const EventBody& event_;
  const EventType type_;
  const Event* const logged_;
  Instant created_at_;
  const PlanSource& plans_;
};

}  // namespace ae::engine
