// Applier: applies one event to one state. Its parts stand in apply.cc (the job), apply_nodes.cc (steps and waits),
// apply_loop.cc (a model that leads), apply_calls.cc (invocations), apply_value.cc (time, chance and ids), apply_confirm.cc (what was changed outside), apply_approvals.cc (what people say before
// they are waited for), apply_budget.cc (what it may still use), apply_fork.cc (what a fork begins with), apply_planner.cc (the plan that a model made) and apply_replan.cc (another plan).
//
// Only `apply` uses it. Threads: short-lived, one owner.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "engine/state/state.h"
#include "log/redacted.h"

namespace ae::engine {

inline std::unexpected<Error> corrupt(const State& state, EventType type, std::string_view why) {
  return fail(Code::log_corrupt, "event " + std::to_string(state.seq + 1) + " (" +
                                     std::string(event_name(type)) + "): " + std::string(why));
}

inline Failure failure_of(const Value& error) {
  return {std::string(error.text("code")), std::string(error.text("message"))};
}

inline Instant instant_of(const Value& payload, std::string_view key) {
  auto instant = instant_from_text(payload.text(key));
  return instant ? *instant : Instant{};
}

inline std::optional<Instant> maybe_instant(const Value& payload, std::string_view key) {
  if (!payload.find(key)) return std::nullopt;
  return instant_of(payload, key);
}

inline std::optional<std::int64_t> maybe_int(const Value& payload, std::string_view key) {
  const Value& value = payload[key];
  return value.is_integer() ? std::optional(value.as_int()) : std::nullopt;
}

inline bool flag(const Value& payload, std::string_view key) {
  const Value& value = payload[key];
  return value.is_bool() && value.as_bool();
}

ResultType result_type_of(std::string_view text);  // none: an unknown one

class Applier {
 public:
  Applier(State& state, const EventDraft& event, Instant created_at, const PlanSource& plans)
      : s_(state), type_(event.type), p_(event.payload), created_at_(created_at), plans_(plans) {}
  Applier(State& state, const Event& event, const PlanSource& plans)
      : s_(state),
        type_(event.type),
        p_(event.payload),
        logged_(&event),
        created_at_(event.created_at),
        plans_(plans) {}

  Status run();

 private:
  std::unexpected<Error> bad(std::string_view why) const { return corrupt(s_, type_, why); }
  // Was this field's value erased from the log? Of a draft, nothing is.
  bool erased(std::string_view field) const { return logged_ && is_erased(*logged_, field); }
  Step* step();
  Step* step_or_new_part();
  bool map_wants_decision(const Step& step) const;
  bool is_startable(const Step& step) const;
  bool wants_decision(const Step& step) const;
  void refresh(std::uint32_t index);
  void enter(Step& step, StepPhase phase);
  std::uint32_t index_of(const Step& step) const { return s_.by_id.at(step.id); }
  void open_node(std::uint32_t node);
  void open_dependents(const Node& node);

  Step* next_item(Step& map);
  Step* next_of_loop(Step& loop);
  Step& new_part(const Step& whole, const StepId& id);
  Step& new_item(const Step& map, std::uint32_t item, const StepId& id);
  Step& new_of_loop(const Step& loop, std::uint32_t turn, std::uint32_t nth, const StepId& id);
  static void pass_finished(MapProgress& map);
  static void pass_answered(LoopProgress& loop);
  bool loop_wants_decision(const Step& step) const;
  bool ends_loop(const Step& step) const;
  Status tool_chosen();
  Status choose(Step& loop, const Value& choice);
  void begin_map(Step& map, Value over);
  Status branch_taken();
  Status loop_part_finished(Step& step);
  Status import_under_way(Step& loop);
  Status import_of_loop(Step& loop, const StepId& id, const Value& entry, const Value& result);
  Status import_turn(Step& loop, const StepId& id, const Value& entry, const Value& result);
  Status import_turn_call(Step& loop, const StepId& id, const Value& entry, const Value& result);
  Status job_created();
  Status plan_generated();
  Status follows_from_answer(const Plan& plan) const;
  void begin_node(Step& step, const Node& node);
  Status re_plan(std::shared_ptr<const Plan> plan);
  Result<std::map<std::uint32_t, std::uint32_t>> carried(const Plan& plan) const;
  Status check_let_go(const std::set<std::uint32_t>& kept) const;
  void keep_unknown(const std::set<std::uint32_t>& kept);
  static void move_step(Step& step, std::uint32_t node);
  Status move_tool(Step& step, const Plan& before);
  Status settle_in(const std::map<std::uint32_t, std::uint32_t>& moved);
  Status fork_imported();
  Status import_unknown(const Value& list);
  static bool take_end(Step& step, const Value& entry, const Value& result, bool erased);
  Status import_one(const Value& entry, const Value& result);
  Status import_over(Step& map, const Value& over);
  Status import_item(Step& map, std::uint32_t item, const StepId& id, const Value& entry,
                     const Value& result);
  Status import_node(Step& step, const StepId& id, const Value& entry, const Value& result);
  Status job_running();
  void progressed();
  void one_more_try();
  void store_opened();
  Status decision_recorded();
  Status node_started();
  Status command_emitted();
  void retire(Step& side);
  Status step_compensated();
  Status in_doubt_decided(Step& step);
  void begin_end(Ending ending);
  Status end_decided();
  ExternalKey declared_external_key(const Step& step) const;
  Status tool_invocation_started();
  Status tool_invocation_finished();
  Status value_recorded();
  Status value_approved(Step& step);
  Status command_committed();
  bool may_finish(const Step& step) const;
  bool may_conclude(const Step& loop) const;
  Status node_finished();
  Status loop_concluded(Step& loop);
  Status item_finished(Step& step);
  Status wait_opened();
  Status wait_completed();
  Status may_be_judged(const Step* step) const;
  std::optional<PolicyAction> judged_here(const Step& step) const;
  Status approval_requested();
  Status approval_denied();
  Status arguments_edited(Step& step);
  Status approval_answered();
  Status request_opened(Step& step, Wait& wait);
  void asked(Step& step);
  bool is_question(const Step& step) const;
  Status question_opened(Step& step, std::string_view key, Wait& wait);
  Status question_closed(Step& step, std::string_view outcome, const Value& payload);
  Status request_closed(Step& step, std::string_view outcome);
  Status check_approval(Step& step);
  Status agent_message();
  std::optional<Kept> take_kept(const std::string& key, const Wait& wait);
  Status pause_requested();
  Status step_committed();
  Status state_changed();
  void confirm_anew();
  void unraise();
  Status confirmation_decided();
  Status confirmation_answered(Step& step, std::string_view said);
  Status confirmation_failed(const Step& step, std::string message);
  bool may_resume() const;
  Status deadline_passed();
  Status budget_given();
  Status budget_decided();
  Status reserve(const Step& step);
  void settle(const Step& step, bool withdrawn);
  void settle_answer(const Step& step);
  static void model_told(LoopProgress& loop, const Value& arguments);
  Status wall_passed();
  bool has_room(const Value& said) const;
  bool fired_before(Instant due) const;
  void outcome_noted();
  void cancel_requested();
  Status may_end() const;
  bool ends_own_park() const;
  Status of_job();
  Status of_step();

  State& s_;
  EventType type_;
  const Value& p_;
  const Event* logged_ = nullptr;  // nullptr: a draft
  Instant created_at_;
  const PlanSource& plans_;
};

}  // namespace ae::engine
