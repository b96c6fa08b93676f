// How events of calls change the state: tries, their outcomes, and committed commands.
#include <algorithm>
#include <iterator>

#include "engine/heart/features.h"
#include "engine/state/applier.h"
#include "log/sealed_form.h"
#include "plan/model_calls.h"

namespace ae::engine {
namespace {

// A year: longer than any useful wait, and the sum of two instants stays valid.
constexpr std::int64_t kRetryAfterMsMax = 366LL * 24 * 3600 * 1000;

OutcomeKind outcome_of(std::string_view text) {
  for (auto kind : {OutcomeKind::success, OutcomeKind::failure, OutcomeKind::timeout,
                    OutcomeKind::input_required}) {
    if (to_text(kind) == text) return kind;
  }
  return OutcomeKind::unknown;
}

// Did this try end before it could reach the downstream? Then the outcome of an earlier one stays
// unknown.
bool was_not_sent(const Invocation& call) {
  static constexpr std::string_view kCodes[] = {
      "not_sent", "connect", "tls", "spawn_failed", "secret_missing", "request_invalid"};
  return call.outcome == OutcomeKind::failure && call.definite &&
         std::ranges::find(kCodes, call.error().code) != std::end(kCodes);
}

// As the downstream requested, within bounds.
std::optional<Duration> retry_after_of(const ToolInvocationFinished& event) {
  const auto ms = event.retry_after_ms;
  if (!ms || *ms < 0 || *ms > kRetryAfterMsMax) return std::nullopt;
  return std::chrono::milliseconds(*ms);
}

// That of a model of the server is in command_committed.
bool has_usage_of_model(const State& state, const Step& step, const ToolInvocationFinished& event) {
  return !event.usage.is_null() && state.tool_of(step).is_model();
}

}  // namespace

// Is the external key that of this command? In schema 1 it names the attempt that declares the
// call.
bool Applier::has_own_external_key(const ToolInvocationStarted& event, const Step& step) const {
  std::string_view last = "0";
  if (logged_ != nullptr && logged_->schema < 2) {
    if (!s_.attempt.empty()) last = s_.attempt.text;
  } else if (s_.is_chosen(step)) {
    last = event.idempotency_key.text.view().substr(0, 16);
  }
  return is_external_key(event.external_key.text, s_.job.text, step.id.text, last);
}

// May this event start a try of the step's call?
Status Applier::check_may_start(const Step* step) const {
  if (!step || !step->started) return corrupt_event("no such step");
  if (s_.ending && step->role == Role::node && !s_.blocks_ending(*step) &&
      !s_.has_ended_child(*step)) {
    return corrupt_event("nothing starts in a job that ends");
  }
  if (s_.status != JobStatus::running) return corrupt_event("no worker holds the job");
  if (!s_.to_confirm.empty() && !s_.ending && !s_.may_have_changed(*step)) {
    return corrupt_event("what was changed before is not confirmed");
  }
  if (!s_.has_tool(*step)) return corrupt_event("this step makes no call");
  if (!s_.tool_of(*step).makes_call()) return corrupt_event("its tool makes no call");
  switch (step->phase) {
    case StepPhase::ready:
      if (step->role == Role::node && !step->is_part() && !s_.node_of(*step).is_single_call()) {
        return corrupt_event("this node makes no call");
      }
      return {};
    case StepPhase::backoff:
    case StepPhase::redo:
      return {};
    case StepPhase::settled:
      if (step->call->outcome != OutcomeKind::success) return {};
      [[fallthrough]];
    default:
      return corrupt_event("no call may start here");
  }
}

// May the call be tried after its earlier tries?
Status Applier::check_may_repeat(const ToolInvocationStarted& event, const Step& step) const {
  const Invocation& call = *step.call;
  if (call.open) return corrupt_event("the earlier try is still open");
  if (open_question(call)) return corrupt_event("the question of its tool has no answer yet");
  if (s_.may_have_happened(step)) {
    if (s_.tool_of(step).effect == EffectClass::at_most_once) {
      return corrupt_event(
          "the earlier try may have happened, and no decision states that it did not");
    }
    if (call.tool_version != event.tool_version) {
      return corrupt_event("the earlier try may have happened, and the tool has changed since");
    }
  }
  if (event.try_no != static_cast<std::int64_t>(call.try_no) + 1) {
    return corrupt_event("tries count 1, 2, 3");
  }
  return {};
}

// The first try declares what all tries of the call share; a later one must have the same.
Status Applier::declare_call(const ToolInvocationStarted& event, Step& step) {
  Invocation& call = *step.call;
  if (call.try_no > 0) {
    if (call.id != event.invocation_id || call.key != event.idempotency_key ||
        call.external_key != event.external_key || call.arguments_hash != event.arguments_hash ||
        call.tool != event.tool_name) {
      return corrupt_event("a later try must keep the keys, the tool and the arguments");
    }
    return {};
  }
  // The key belongs to this command; no two commands share one.
  if (!has_own_external_key(event, step)) {
    return corrupt_event("its external key is that of another command");
  }
  call.id = event.invocation_id;
  call.key = event.idempotency_key;
  call.external_key = event.external_key;
  call.arguments = event.arguments.value;
  call.erased = event.arguments.erased;
  call.arguments_hash = event.arguments_hash;
  call.tool = event.tool_name;
  call.first_send_by = event.send_by;
  if (step.request && !step.request->arguments_hash) {
    step.request->arguments_hash = event.arguments_hash;
  }
  if (step.is_turn()) return turn_declared(s_.steps[step.node], step.turn, call.arguments);
  if (step.is_summary()) return check_summary(step);
  return {};
}

Status Applier::apply(const ToolInvocationStarted& event) {
  Step* step = this->step(event.step_id);
  AE_TRY(check_may_start(step));
  AE_TRY(check_approval(event, *step));
  if (!step->call) step->call = std::make_unique<Invocation>();
  Invocation& call = *step->call;
  AE_TRY(check_may_repeat(event, *step));
  AE_TRY(declare_call(event, *step));
  AE_TRY(reserve(*step, event.reserved));
  // Not counted: a resend after a crash, one that an operator requested, and one with
  // answers (API §1, SPEC §6).
  const bool repeats =
      step->phase == StepPhase::backoff && call.outcome != OutcomeKind::input_required;
  const bool is_counted = call.try_no == 0 || repeats || call.error().code == "not_sent";
  call.ended_deadline = call.last_deadline();  // `next_opening` limits it, and begins again
  call.tool_version = event.tool_version;
  call.try_no++;
  if (is_counted) call.counted_tries++;
  call.open = true;
  s_.open_tries++;
  s_.tries_started++;
  if (s_.tool_of(*step).is_model()) s_.models.tries++;
  call.attempt = s_.attempt;
  call.worker.reset();
  if (step->request && s_.tool_of(*step).function) call.worker = s_.steps[step->node].code->worker;
  call.send_by = event.send_by;
  call.deadline = event.deadline;
  call.taken_over_at.reset();
  call.ended_at.reset();
  call.sent_opening = s_.opened_at;
  call.next_opening.reset();
  set_phase(*step, StepPhase::calling);
  return {};
}

// The newest try has ended, and its request may still take effect.
void Applier::note_unsettled_end(Step& step) {
  Invocation& call = *step.call;
  // Its own attempt, or the process that opened the store since, saw its process group end.
  const bool has_ended =
      s_.tool_of(step).local &&
      (s_.opened_at || (s_.status == JobStatus::running && call.attempt == s_.attempt));
  // In `redo` it was settled when that was decided.
  if (has_ended || step.phase == StepPhase::redo) return;
  call.ended_deadline = std::max(call.ended_deadline, std::optional(call.deadline));
}

Status Applier::apply(const ToolInvocationFinished& event) {
  Step* step = this->step(event.step_id);
  if (event.late.value_or(false)) {  // for display; its try was closed before
    if (step) charge_function(*step, event);
    if (step && step->call) step->call->last_late_try = static_cast<std::uint32_t>(event.try_no);
    return {};
  }
  if (!step || !step->call || !step->call->open || step->call->id != event.invocation_id ||
      event.try_no != static_cast<std::int64_t>(step->call->try_no)) {
    return corrupt_event("no such try is open");
  }
  Invocation& call = *step->call;
  call.open = false;
  call.ended_at = created_at_;
  if (event.at) call.checkable_from = event.at;
  s_.open_tries--;
  if (s_.status == JobStatus::queued) s_.not_before.reset();  // its outcome is known
  call.outcome = outcome_of(event.outcome);
  call.definite = event.definite.value_or(false);
  call.retryable = event.retryable.value_or(false);
  call.failure = event.error ? boxed(failure_of(*event.error)) : Boxed<Failure>();
  call.retry_after = retry_after_of(event);
  // The end of a child has the code of the child, whatever that means for other calls.
  const bool is_end_of_child = s_.awaits_child(*step) && event.external_id;
  const bool withdrawn = call.outcome == OutcomeKind::failure && call.definite &&
                         call.error().code == "not_sent" &&  // before a byte was sent
                         !is_end_of_child;
  call.unsent_tries = withdrawn ? call.unsent_tries + 1 : 0;
  if (call.outcome == OutcomeKind::timeout || call.outcome == OutcomeKind::unknown ||
      (call.outcome == OutcomeKind::failure && !call.definite)) {
    // In `redo` it is already decided that it did not happen.
    if (step->phase != StepPhase::redo) call.outcome_unknown = true;
  } else if (is_end_of_child || !was_not_sent(call)) {
    call.outcome_unknown = false;  // the downstream knows the key and has answered
  }
  settle(*step, withdrawn);
  if (has_usage_of_model(s_, *step, event)) return corrupt_event("a model has no usage here");
  charge_function(*step, event);
  if (withdrawn && call.counted_tries > 0) call.counted_tries--;
  if (withdrawn && s_.tool_of(*step).is_model()) s_.models.withdrawn++;
  // An invalid output is a failure: no routine was given it before.
  const bool is_valid = call.outcome == OutcomeKind::success && !event.error;
  if (event.delivered && !(is_valid && step->request && s_.tool_of(*step).function)) {
    return corrupt_event("only the success of a function of code has a position");
  }
  if (call.outcome == OutcomeKind::success && step->request) {
    AE_TRY(add_outcome(*step, event.delivered));
    step->request->succeeded = is_valid;
  }
  if (call.outcome == OutcomeKind::success) {
    step->result = event.result.value;
    step->erased = event.result.erased;
    if (event.error) step->failure = call.error();  // the output is invalid
  }
  if (call.outcome == OutcomeKind::input_required) await_answers(*step, event.result);
  const bool certain = call.outcome == OutcomeKind::success ||
                       call.outcome == OutcomeKind::input_required ||
                       (call.outcome == OutcomeKind::failure && call.definite);
  if (!certain) {
    call.uncertain_tries.insert(call.try_no);
    s_.had_unknown_outcome = true;
  }
  if (certain) call.worker.reset();
  if (!certain && !event.settled.value_or(false)) note_unsettled_end(*step);
  // The `not_happened` decision was made before it was known that the tool asks a question.
  const bool sends_answers =
      step->phase == StepPhase::redo && call.outcome == OutcomeKind::input_required;
  if (step->phase == StepPhase::calling || (step->phase == StepPhase::probing && certain) ||
      sends_answers) {
    set_phase(*step, StepPhase::settled);
  } else {
    update_work_sets(index_of(*step));
  }
  if (step->role == Role::probe && s_.steps[step->of].phase != StepPhase::probing &&
      call.outcome != OutcomeKind::success) {
    retire(*step);  // its answer is not needed any more
  }
  return {};
}

Status Applier::apply(const CommandCommitted& event) {
  Step* step = this->step(event.step_id);
  if (step && step->phase == StepPhase::recorded) {
    if (!event.result.is_null() || event.result_of != step->id.text) {
      return corrupt_event("the result is not the recorded value");
    }
    step->committed = true;
    note_progress();
    set_phase(*step, StepPhase::committed);
    return {};
  }
  if (!step || !step->call || step->call->open || step->committed ||
      step->phase == StepPhase::done) {
    return corrupt_event("no such command to commit");
  }
  const bool success = step->call->outcome == OutcomeKind::success;
  if (!event.result_of) {
    // The operator or the probe decided that it happened, and its result; null is not written.
    const bool outcome_unknown =
        step->phase == StepPhase::in_doubt || step->phase == StepPhase::probing;
    if (!outcome_unknown || success) return corrupt_event("no call has an unknown outcome");
    step->result = event.result.value;
    step->erased = event.result.erased;
  } else if (!success || event.result_of != step->call->id.text) {
    return corrupt_event("the result is that of no successful call");
  }
  step->committed = true;
  note_detached_child(*step);
  if (!step->failure && step->changed < s_.tool_of(*step).changes.size()) {
    step->failure =
        Failure{std::string(code_name(Code::tool_output_invalid)), std::string(kChangesUnread)};
  }
  if (s_.tool_of(*step).is_model()) {
    const TokenUsage usage = event.usage.read_leniently();
    add_usage(usage, s_.models);
    settle_answer(*step, usage);
  }
  note_progress();
  set_phase(*step, StepPhase::committed);
  if (step->role == Role::probe && s_.steps[step->of].phase != StepPhase::probing) retire(*step);
  return {};
}

Status Applier::apply(const StepCommitted& event) {
  Step* step = this->step(event.step_id);
  if (!step || step->phase != StepPhase::done || !step->committed || step->barrier) {
    return corrupt_event("no such step to commit");
  }
  step->barrier = true;
  update_work_sets(index_of(*step));
  if (s_.tool_of(*step).compensate) {
    s_.undoable.push_back(index_of(*step));
  } else if (step->item != kNoItem || step->is_loop_call() || step->request) {
    step->call.reset();
  }
  if (step->is_part()) step->approval.reset();
  return {};
}

}  // namespace ae::engine
