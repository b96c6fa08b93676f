// Decider: makes the decision of one call of `decide`. Its parts: decide.cc (which step is next),
// decide_calls.cc (the ledger's rules), decide_approvals.cc (approvals), decide_questions.cc
// (questions of a tool during its call), decide_children.cc (child jobs), decide_nodes.cc (the plan), decide_waits.cc (its waits),
// decide_loop.cc (loops), decide_code.cc (code), decide_value.cc (times, random numbers, UUIDs),
// decide_budget.cc (the budget), decide_probe.cc (probes of calls with an unknown outcome),
// decide_confirm.cc (verification of external changes), decide_undo.cc (compensation),
// decide_version.cc (version mismatches), decide_pause.cc (pauses) and decide_end.cc (how a job
// ends or becomes idle).
//
// Long: one class, with the methods of all its parts.
//
// Only `decide` uses it. Threads: short-lived, one owner.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "engine/heart/decide.h"
#include "engine/heart/declaration.h"
#include "engine/heart/evaluate.h"
#include "engine/heart/recorded_error.h"
#include "engine/heart/routine.h"
#include "json/json.h"
#include "log/seal.h"

namespace ae::engine {

// By the `retry` of its tool and its request. REQUIRES: the step has a call.
bool has_tries_left(const State& state, const Step& step);
// The same when the outcome of the newest try is unknown.
bool has_tries_after_unknown(const State& state, const Step& step);

class Decider {
 public:
  // Adds to `decision`, which is empty.
  Decider(const State& state, const DecisionContext& context, const DecideLimits& limits,
          Decision& decision);
  void resume(const DecisionCursor& from);

  void run();
  Work work() const { return work_; }
  std::vector<std::string> unknown_calls_to_resend() const;

 private:
  void visit(const NumberSet& steps);
  void decide_step(std::uint32_t index);
  void decide_call(const Step& step);
  void decide_ready(const Step& step);
  void start_tool(const Step& step);
  void start_wait(const Step& step);
  void start_map(const Step& step);
  Result<Value> check_item_limits(Value over);
  void start_items(const Step& step);
  void decide_loop(const Step& step);
  bool can_only_conclude(const Step& step) const;
  void ask_model(const Step& step);
  void request_summary(const Step& step, std::uint32_t turn, std::uint32_t from);
  void record_tool_choice(const Step& step);
  void start_calls(const Step& step);
  void finish_loop(const Step& step);
  void await_message(const Step& step);
  void refuse_calls(const Step& step);
  const Routine* routine_of(const Step& step) const;
  bool awaits_routine() const;
  bool may_perform(const Step& step) const;
  bool is_code_full(const Step& step) const;
  bool is_code_full(const Node& node) const;
  void decide_routines();
  bool is_cancelled(const Step& step) const;
  bool has_ended_code(const Step& step) const;
  bool cancel_request(const Step& code, std::string_view position);
  void cancel_wait_of(const Step& step);
  bool withdraw_call(const Step& step);
  void fail_cancelled(const Step& step);
  void admit_requests(const Step& code, const Routine& routine, std::uint64_t outcomes);
  void start_request(const Step& code, const NewRequest& request, const StepId& id,
                     std::uint64_t outcomes);
  void refuse_request(const Step& code, const StepId& id, RecordedError error);
  Status check_call(const NewRequest& request) const;
  bool admit_call(const Step& code, const NewRequest& request, const StepId& id, const Step* known,
                  std::uint64_t outcomes);
  bool open_requested_wait(const Step& code, const NewRequest& request, const StepId& id);
  void end_code(const Step& code, const Routine& routine);
  void park_diverged_routine(const Step& code, const Routine& routine);
  void park_failed_routine(const Step& code, const Routine& routine);
  void park_stalled_routine();
  void drain_for_pause();
  Result<Value> arguments(const Node& node, std::uint32_t item) const;
  Result<Value> arguments(const Step& step) const;
  void handle_definite_failure(const Step& step);
  void handle_questions(const Step& step);
  void await_child(const Step& step);
  void cancel_child(const Wait& wait);
  bool await_children();
  void handle_unknown_outcome(const Step& step);
  void handle_orphaned_try(const Step& step);
  void schedule_retry(const Step& step);
  bool may_repeat(const Step& step) const;
  bool has_changed(const Step& step) const;
  void open_resolve_wait(const Step& step, std::string_view reason);
  // `source`: where the final outcome comes from.
  void finish_as_unknown(const Step& step, std::string_view source = {});
  void declare_try(const Step& step, bool close_earlier);
  void continue_after_backoff(const Step& step);
  void commit_command(const Step& step);
  void finish_tool(const Step& step);
  void finish_wait(const Step& step);
  void finish_map(const Step& step);
  void start(const Step& step);
  void skip(const Step& step);
  void fail_step(const Step& step, std::string_view code, std::string_view message);
  void fail_step(const Step& step, const Error& error) {
    fail_step(step, code_name(error.code), error.message);
  }
  void fail_job_for(const Step& step);
  std::string_view failure_type(const Step& step) const;
  bool may_probe(const Step& step) const;
  void start_probe(const Step& step);
  void decide_probe(const Step& probe);
  void handle_probe_answer(const Step& probe);
  void record_probe_result(const Step& probe, const Value& result);
  void decide_undo();
  bool settle_unknown_calls();
  void settle_unknown_call(const Step& step);
  void undo_newest();
  void decide_undo_step(const Step& undo);
  void requeue_for_claim();
  void park_before_end();
  void park_for_version();
  bool release_until(std::optional<Instant> backoff);
  // Too many attempts lost this job; an operator must handle calls that may have caused it.
  bool attempts_exhausted() const { return s_.lost_claims >= lost_claims_max(); }
  std::uint32_t lost_claims_max() const;
  void end_with_error(std::string_view code, std::string message);
  void become_idle();
  void wait_for_answers();
  void cancel_wait(const std::string& key, const Wait& wait);
  void end_job(const Ending& ending);
  void complete_job();
  bool unsettled_changes();
  bool confirm_changes();
  void emit_changes(const Step& step, const Value& result);
  bool request_missing_checks(const std::vector<std::string>& keys);
  void record_checks(const std::vector<std::string>& keys);
  void emit_check(const Change& change, const CheckResult& check);
  void escalate(const std::vector<std::string>& keys);
  CheckResult check_result_of(const std::string& key) const;
  DecisionId confirmation_id(std::string_view what) const;

  ExternalKey external_key_of(const Declaration& d) const;
  void digest(Declaration& d) const;
  bool counts_against_budget(const Declaration& d) const;
  Reservation child_reservation(const ChildPolicy& child) const;
  Reservation reservation(const Declaration& d, const Value& args) const;
  Usage usage_of(const Declaration& d, const Value& args) const;
  bool may_fit_budget(const ToolPolicy& tool);
  bool fits_budget(Declaration& d, const Value& args);
  std::vector<ExceededLimit> exceeded_limits(const Usage& more) const;
  std::optional<Reservation> reserve(const Declaration& d, const Value& args);
  void park_for_budget();
  std::string path_of(const Declaration& d) const;
  bool deny_if_forbidden(const Declaration& d, const Value& args, const Hash& hash);
  bool is_call_approved(const Declaration& d, const Value& args, const Hash& hash) const;
  void request_approval(const Declaration& d, const Value& args, const Hash& hash);
  static std::string denied_text(const std::string& tool, const std::string& reason);
  void finish_refused(const Step& step);
  void withdraw_requests(const Step& parent);
  bool start_part(Declaration&& part);
  // Nothing is scheduled after the job's deadline, which fires first.
  Instant cap_at_deadline(Instant at) const;
  void deliver_early_answer(WaitCompleted answer, const WaitRules& rules, const std::string& key,
                            std::string_view channel);
  std::vector<UndeliveredMessage> undelivered() const;
  // True: the step is finished, because its tool makes no call.
  bool begin_call(Declaration&& d);
  void record_value(const Declaration& d);
  void commit_value(const StepId& step, std::string_view node);
  void finish_value(const StepId& step, std::string_view node);
  void emit_command(const Declaration& d, std::string_view input_ref);
  const CallOptions* options_of(const Declaration& d) const;
  void emit_first(const Declaration& d);
  ToolInvocationStarted& emit_started(const Declaration& d, const Value& args);
  // Adds an event, to be filled in before the next one is added.
  template <class E>
  E& emit() {
    return std::get<E>(decision_.events.emplace_back(std::in_place_type<E>));
  }
  template <class E>
  void emit(E event) {
    decision_.events.emplace_back(std::move(event));
  }
  DecisionId decision_id_of(const Step& step, std::string_view what) const;
  // Adds an event of a step, with its node and id filled in.
  template <class E>
  E& emit_of(const Step& step, E event = {}) {
    E& added = std::get<E>(decision_.events.emplace_back(std::move(event)));
    added.node_id = s_.node_of(step).id;
    added.step_id = step.id;
    return added;
  }
  void decide_again_at(Instant at);
  // Leaves a call with an unknown outcome until then. The job need not stay leased meanwhile.
  void revisit_at(Instant at);
  const std::string& offered_version(std::uint32_t tool) const;
  // Enough events, or some and no work left. Outside of `visit` almost each evaluation adds one.
  bool is_full() const;
  // May one more try be open? One that replaces an open try takes its place.
  bool has_room(bool replaces = false);

  const State& s_;
  const DecisionContext& context_;
  const DecideLimits& limits_;
  std::size_t open_;  // open tries, including those declared by this decision
  // Tries of code that this decision declares, by node.
  std::map<std::uint32_t, std::int64_t> opened_;
  bool settling_ = false;       // calls that may have changed something come first
  bool limit_reached_ = false;  // something could start but for a limit
  bool undoable_ = false;       // a step that can be undone is committed in this decision
  // When a call with an unknown outcome may be retried, probed or given up.
  std::optional<Instant> revisit_at_;
  bool failed_ = false;    // an event of this decision ends the job: nothing starts after it
  bool answered_ = false;  // a model's answer is committed in this decision
  Usage reserved_;         // of the budget, by what this decision declares
  std::vector<ExceededLimit> exceeded_limits_;  // limits that left no room for a call
  bool unconfirmed_ = false;  // changes of another attempt became known and are not verified
  std::set<std::uint32_t> failed_maps_;  // an item fails in this decision: no more of these start
  std::set<std::string> keys_;           // of waits that this decision opens
  // Messages that this decision delivers, by channel.
  std::map<std::string, std::size_t, std::less<>> delivered_;
  std::uint64_t new_items_ = 0;  // of the maps that this decision starts
  mutable Work work_ = 0;        // of the expressions and schemas evaluated so far
  std::optional<DecisionCursor> from_, stopped_;
  Decision& decision_;
};

}  // namespace ae::engine
