// How a decision treats calls: the ledger's rules for starting, repeating, resolving and committing
// them (SPEC §4, §6, §7).
#include <fmt/core.h>

#include <array>
#include <charconv>

#include "base/byte_buffer.h"
#include "engine/heart/decider.h"
#include "engine/heart/features.h"
#include "json/canonical_buffer.h"
#include "plan/model_calls.h"

namespace ae::engine {
namespace {

// splitmix64: derives any number of seeds from the context's one.
std::uint64_t splitmix64(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

std::uint64_t bits_of(const StepId& id) {
  std::uint64_t bits = 0;
  std::from_chars(id.text.data(), id.text.data() + id.text.size(), bits, 16);
  return bits;
}

constexpr Duration kUnsentPauseMin = std::chrono::milliseconds(100);

// A downstream that knows our key reports that the first request with it is still running.
bool still_running(const ToolPolicy& tool, const Invocation& call) {
  return tool.effect == EffectClass::idempotent && !call.definite &&
         (call.error().code == "http_409" || call.error().code == "http_425");
}

// The worker died during the call: as after a crash of the runtime, `on_in_doubt` decides, not
// `retry`. Limited, since the function may be what ends its worker.
constexpr std::uint32_t kLostTriesMax = 10;
bool is_resent_without_retry(const State& state, const Step& step) {
  return state.tool_of(step).function && step.call->error().code == "worker_lost" &&
         state.on_in_doubt_of(step) == OnInDoubt::resend;
}

// The error of a failed model call for a reader without the job: the node, the model,
// and the number of tries.
std::string describe_failure(const State& state, const Step& step, std::string_view error,
                             std::uint32_t tries) {
  const ToolPolicy& tool = state.tool_of(step);
  if (!tool.is_model()) return std::string(error);
  const std::string item = step.item == kNoItem ? "" : fmt::format(", item {}", step.item);
  const std::string turn = step.turn == kNoTurn ? "" : fmt::format(", turn {}", step.turn + 1);
  const std::string tried = tries == 0   ? ""
                            : tries == 1 ? " (tried once)"
                                         : fmt::format(" (tried {} times)", tries);
  return fmt::format("node {}{}{}, model {}: {}{}", state.node_of(step).id, item, turn,
                     tool.name.substr(kModelToolPrefix.size()), error, tried);
}

}  // namespace

bool has_tries_left(const State& state, const Step& step) {
  const ToolPolicy& tool = state.tool_of(step);
  const Invocation& call = *step.call;
  if (is_resent_without_retry(state, step)) return call.counted_tries < kLostTriesMax;
  return call.counted_tries < state.max_attempts_of(step) &&
         (tool.retry.covers(call.error().code) || still_running(tool, call));
}

bool has_tries_after_unknown(const State& state, const Step& step) {
  // A child may exist: another try finds it, or creates it.
  return state.awaits_child(step) || has_tries_left(state, step) || step.call->unsent_tries > 0;
}

Result<Value> Decider::arguments(const Node& node, std::uint32_t item) const {
  auto args = arguments_of(s_, node, item, &work_);
  if (args && canonical_exceeds(*args, kValueMax)) return too_large("the arguments");
  const ToolPolicy& tool = s_.plan->tools[node.tool];
  if (args && !always_allowed(s_, tool)) AE_TRY(evaluate_policy(s_, tool, *args, &work_));
  return args;
}

Result<Value> Decider::arguments(const Step& step) const {
  if (step.turn == kNoTurn) return arguments(s_.node_of(step), step.item);
  return arguments_of(s_, step, &work_);
}

void Decider::start_tool(const Step& step) {
  const bool is_approved = step.approval && step.approval->state == ApprovalState::approved;
  // The routine states the arguments of a call (decide_routines); then the approval has them.
  if (step.request && is_approved && is_cancelled(step)) return fail_cancelled(step);
  if (step.request && (!is_approved || !may_perform(step) || is_code_full(step))) return;
  if (!has_room()) return;
  if (step.item != kNoItem &&
      (s_.steps[step.node].map->failure || failed_maps_.contains(step.node))) {
    start(step);
    return fail_step(step, code_name(Code::rejected),
                     "the call was not made: another item of its map had failed");
  }
  if (step.turn != kNoTurn && s_.steps[step.node].loop->failure) {
    start(step);
    return fail_step(step, code_name(Code::rejected), "the call was not made: its loop had failed");
  }
  if (!may_fit_budget(s_.tool_of(step))) return;
  // The approved arguments are sent.
  auto args = is_approved ? Result<Value>(step.approval->arguments) : arguments(step);
  if (!args) {
    start(step);
    return fail_step(step, args.error());
  }
  Declaration first{.step = step.id,
                    .node = s_.node_of(step),
                    .tool = s_.tool_index(step),
                    .args = std::move(*args),
                    .item = step.item,
                    .known = &step,
                    .turn = step.is_loop_call() ? kNoTurn : step.turn};
  if (!fits_budget(first, first.args)) return;
  start(step);
  begin_call(std::move(first));
}

void Decider::digest(Declaration& d) const {
  if (d.hash) return;
  std::array<char, 1024> first;
  ByteBuffer text(first);
  write_canonical(d.args, text);
  d.hash = blinded_digest(s_.blind, text.view());
  d.key = idempotency_key(s_.job, d.step, s_.plan->tools[d.tool].name, text.view(), s_.blind);
}

bool Decider::begin_call(Declaration&& d) {
  digest(d);
  const ToolPolicy& tool = s_.plan->tools[d.tool];
  // Probes and compensations belong to their call.
  if (d.of == nullptr && !always_allowed(s_, tool)) {
    if (deny_if_forbidden(d, d.args, *d.hash)) return false;
    if (!is_call_approved(d, d.args, *d.hash)) {
      request_approval(d, d.args, *d.hash);
      return false;
    }
  }
  const bool makes_call = tool.makes_call();
  if (makes_call) {
    emit_first(d);
  } else {
    record_value(d);
  }
  return !makes_call;
}

void Decider::emit_command(const Declaration& d, std::string_view input_ref) {
  auto& event = emit<CommandEmitted>();
  event.command_id = event.step_id = d.step;
  event.input_ref = input_ref;
  const ToolPolicy& tool = s_.plan->tools[d.tool];
  event.kind = tool.is_model() ? "llm" : tool.child ? "workflow" : "tool";
  event.node_id = d.node.id;
  if (d.of != nullptr) event.of = d.of->id;
  if (const CallOptions* const options = options_of(d)) event.options = to_json(*options);
}

// What the request of code set for this call; nullptr: nothing.
const CallOptions* Decider::options_of(const Declaration& d) const {
  if (d.options != nullptr) return d.options->any() ? d.options : nullptr;
  return d.of == nullptr && d.known != nullptr ? s_.options_of(*d.known) : nullptr;
}

// Probes and compensations follow the rule of their call.
ExternalKey Decider::external_key_of(const Declaration& d) const {
  const Step* const known = d.of != nullptr ? d.of : d.known;
  const bool chosen = d.chosen || (known != nullptr ? s_.is_chosen(*known) : s_.planned_by_model);
  return chosen ? chosen_external_key(s_.job, d.step, d.key) : external_key(s_.job, d.step);
}

// The first try of a command: fixes its keys. REQUIRES: digest.
void Decider::emit_first(const Declaration& d) {
  const InvocationId invocation = invocation_id(s_.job, d.step, d.key);
  if (!d.emitted) emit_command(d, invocation.text);
  ToolInvocationStarted& event = emit_started(d, d.args);
  event.arguments_hash = *d.hash;
  event.external_key = external_key_of(d);
  event.idempotency_key = d.key;
  event.invocation_id = invocation;
  event.try_no = 1;
}

// The caller adds the keys and the number of the try.
ToolInvocationStarted& Decider::emit_started(const Declaration& d, const Value& args) {
  const ToolPolicy& tool = s_.plan->tools[d.tool];
  const Instant send_by = std::min(context_.now + limits_.send_window, context_.lease_until);
  auto& event = emit<ToolInvocationStarted>();
  event.arguments = args;
  event.command_id = event.step_id = d.step;
  const CallOptions* const options = options_of(d);
  event.deadline = send_by + (options && options->timeout ? *options->timeout : tool.timeout);
  event.effect_class = to_text(tool.effect);
  event.node_id = d.node.id;
  event.send_by = send_by;
  event.tool_name = tool.name;
  event.tool_version = offered_version(d.tool);
  const Approval* const approval = d.known != nullptr ? d.known->approval.get() : nullptr;
  const bool is_approved = approval && approval->state == ApprovalState::approved;
  if (is_approved) event.approval_id = approval->id;
  // An approval is valid only for this schema, including its absence.
  if (tool.args_schema || is_approved)
    event.request_schema_hash = hash_from_hex(tool.schema_digest);
  if (const auto reserved = reserve(d, args)) event.reserved = to_record(*reserved);
  decision_.perform.push_back(d.step);
  open_++;
  if (d.node.code && d.of == nullptr) opened_[d.node.index]++;
  return event;
}

// A later try of a call sends the recorded arguments under the same keys.
void Decider::declare_try(const Step& step, bool close_earlier) {
  // An orphaned try counts as open: its resend takes its place.
  const bool replaces = step.phase == StepPhase::calling;
  if (s_.pause_request || !may_perform(step)) return;
  if (!replaces && (is_code_full(step) || !has_room())) return;
  Declaration again{.step = step.id,
                    .node = s_.node_of(step),
                    .tool = s_.tool_index(step),
                    .args = {},
                    .item = step.item,
                    .known = &step,
                    .hash = step.call->arguments_hash};
  if (!fits_budget(again, step.call->arguments)) return;
  if (replaces) open_--;
  if (replaces && step.request) opened_[step.node]--;
  if (close_earlier && step.call->open) finish_as_unknown(step);
  const Invocation& call = *step.call;
  if (!is_call_approved(again, call.arguments, call.arguments_hash)) {
    // The plan was replaced since the earlier try. A call that its policies
    // deny cannot be approved.
    const auto policy_decision =
        evaluate_policy(s_, &step, s_.tool_of(step), call.arguments, &work_);
    if (policy_decision && policy_decision->action == PolicyAction::deny) {
      return fail_step(step, code_name(Code::denied),
                       denied_text(call.tool, policy_decision->reason));
    }
    return request_approval(again, call.arguments, call.arguments_hash);
  }
  ToolInvocationStarted& event = emit_started(again, call.arguments);
  event.arguments_hash = call.arguments_hash;
  event.external_key = call.external_key;
  event.idempotency_key = call.key;
  event.invocation_id = call.id;
  event.try_no = call.try_no + 1;
}

// The command of this step was declared before: the ledger's rules decide.
void Decider::decide_call(const Step& step) {
  const Invocation& call = *step.call;
  switch (admit(s_, {s_.index_of(step), call.tool, call.arguments_hash})) {
    case Verdict::declare:
      if (step.phase == StepPhase::settled) return handle_definite_failure(step);
      if (step.phase == StepPhase::backoff) return continue_after_backoff(step);
      return declare_try(step, step.phase == StepPhase::redo);
    case Verdict::in_doubt:
      return step.phase == StepPhase::calling ? handle_orphaned_try(step)
                                              : handle_unknown_outcome(step);
    case Verdict::recorded:
      if (step.phase == StepPhase::settled) commit_command(step);
      return;
    case Verdict::not_yet:
    case Verdict::unapproved:
    case Verdict::refuse:
      return;
    case Verdict::non_determinism:
      AE_CHECK(false, fmt::format("a plan's recorded call differs from itself: {}", step.id.text));
  }
}

// A try that another attempt left open.
void Decider::handle_orphaned_try(const Step& step) {
  const Invocation& call = *step.call;
  const ToolPolicy& tool = s_.tool_of(step);
  // WaitOtherWorker: until the end of the lease that it was sent under, and its grace period.
  if (!context_.owned) {
    const Instant left = call.taken_over_at.value_or(call.send_by);
    const Instant settled = std::max(call.send_by, left) + tool.grace;
    if (context_.now < settled) return revisit_at(settled);
  }
  if (call.worker) {  // it may report how the call ended, or that it did not receive it
    const bool was_received =
        context_.held_calls != nullptr && context_.held_calls->contains(call.id);
    const Instant until = std::max(context_.functions_held_until.value_or(context_.now),
                                   was_received ? call.deadline : context_.now);
    if (context_.now < until) return revisit_at(until);
  }
  const bool changed = has_changed(step);
  if (step.role == Role::probe && !changed) return declare_try(step, true);  // it only reads
  if (step.role == Role::probe) return fail_step(step, code_name(Code::invocation_in_doubt), "");
  if (s_.on_in_doubt_of(step) == OnInDoubt::resend && may_repeat(step))
    return declare_try(step, true);
  if (may_probe(step)) return start_probe(step);
  if (s_.on_in_doubt_of(step) == OnInDoubt::fail) {
    finish_as_unknown(step);
    return fail_step(step, code_name(Code::invocation_in_doubt),
                     "the runtime stopped during the call, which may have happened; the tool says "
                     "on_in_doubt: fail");
  }
  open_resolve_wait(step,
                    changed ? "the runtime stopped during the call, and the tool has changed since"
                            : "the runtime stopped during the call");
}

// The newest try ended in a definite failure.
void Decider::handle_definite_failure(const Step& step) {
  const Invocation& call = *step.call;
  const bool has_child = s_.awaits_child(step);
  if (call.outcome == OutcomeKind::input_required) {
    return has_child ? await_child(step) : handle_questions(step);
  }
  const bool awaited = has_child && s_.has_ended_child(step);  // its outcome is recorded
  if (call.unsent_tries > 0 && is_cancelled(step) && !awaited) return fail_cancelled(step);
  if (call.unsent_tries > 0) {
    // Another process could not send it. This one tries at once, then with increasing delays.
    return call.attempt == s_.attempt ? schedule_retry(step) : declare_try(step, false);
  }
  // The end of a child is final, whatever its code: its own calls were tried as its agent states.
  if (!has_child && has_tries_left(s_, step) && !is_cancelled(step)) return schedule_retry(step);
  fail_step(step, call.error().code,
            describe_failure(s_, step, call.error().message, call.counted_tries));
}

// The newest try ended with an unknown outcome.
void Decider::handle_unknown_outcome(const Step& step) {
  const Invocation& call = *step.call;
  const ToolPolicy& tool = s_.tool_of(step);
  // What only reads is not repeated for code that does not need it any more.
  const bool is_needed = tool.effect != EffectClass::read || !is_cancelled(step);
  const bool again = is_needed && has_tries_after_unknown(s_, step);
  const bool waits =
      step.phase != StepPhase::backoff && (call.unsent_tries == 0 || call.attempt == s_.attempt);
  if (again && !waits && !has_room()) return;  // before evaluating its policies
  if (again && may_repeat(step)) return waits ? schedule_retry(step) : declare_try(step, false);
  // A read that another tool version would repeat is left to an operator.
  // So is the call of a probe.
  const bool left = again && has_changed(step) && step.role == Role::node;
  if (tool.effect == EffectClass::read && !left) {
    return fail_step(step, call.error().code,
                     describe_failure(s_, step, call.error().message, call.counted_tries));
  }
  if (may_probe(step)) return start_probe(step);
  if (s_.on_in_doubt_of(step) == OnInDoubt::fail) {
    return fail_step(step, code_name(Code::invocation_in_doubt),
                     fmt::format("the call may have happened ({}); the tool says on_in_doubt: fail",
                                 call.error().code));
  }
  open_resolve_wait(step,
                    call.error().code.empty() ? to_text(OutcomeKind::unknown) : call.error().code);
}

void Decider::open_resolve_wait(const Step& step, std::string_view reason) {
  const std::string plain = "resolve/" + s_.key_of(step).text;
  std::string key = plain;
  // A key identifies one wait permanently.
  for (std::uint32_t n = step.call ? step.call->try_no : 1; s_.closed_waits.contains(key); ++n) {
    key = fmt::format("{}#{}", plain, n);
  }
  emit_of(step, WaitOpened{.correlation_key = std::move(key),
                           .reason = std::string(reason),
                           .wait_type = "human"});
}

void Decider::schedule_retry(const Step& step) {
  const Invocation& call = *step.call;
  const ToolPolicy& tool = s_.tool_of(step);
  // Seeded with the step's id, so that the order of branches has no influence. 53 bits: what a JSON
  // number holds; `backoff` uses the upper ones of 64.
  const std::uint64_t jitter_seed = splitmix64(context_.jitter_seed ^ bits_of(step.id)) >> 11;
  const bool has_questions = call.outcome == OutcomeKind::input_required;
  const std::uint32_t before = call.unsent_tries > 0 ? call.unsent_tries
                               : has_questions       ? call.questions->rounds
                                                     : call.counted_tries;
  RetryPolicy retry = tool.retry;
  if (const CallOptions* const options = s_.options_of(step)) {
    retry.initial_backoff = options->initial_backoff.value_or(retry.initial_backoff);
    retry.max_backoff = options->max_backoff.value_or(retry.max_backoff);
  }
  Duration wait = retry.backoff(before + 1, jitter_seed << 11, call.retry_after);
  // At least this, whatever the tool's own retry policy is.
  if (call.unsent_tries > 0) wait = std::max(wait, kUnsentPauseMin);
  emit(RandomRecorded{.effect_id = fmt::format("{}:random:{}", step.id.text, call.try_no),
                      .value = Value(jitter_seed)});
  emit_of(step,
          decision_event(
              RetryScheduled{.try_no = std::int64_t{call.try_no} + 1},
              {.decision_id = decision_id_of(step, fmt::format("retry{}", call.try_no)),
               .not_before = context_.now + wait,
               .reason = has_questions ? std::string(to_text(call.outcome)) : call.error().code}));
}

// Makes the next try when its time has come. A long back-off may exceed the
// downstream's dedupe window.
void Decider::continue_after_backoff(const Step& step) {
  if (is_cancelled(step) && !s_.may_have_happened(step) && !s_.has_ended_child(step)) {
    return fail_cancelled(step);
  }
  if (context_.now < step.not_before) return decide_again_at(step.not_before);
  if (step.call->outcome == OutcomeKind::input_required) return handle_definite_failure(step);
  // A read with a lost answer has no unknown effect, but is not resent by
  // another version of the tool.
  if (s_.may_have_happened(step) || (!step.call->definite && has_changed(step))) {
    return handle_unknown_outcome(step);
  }
  declare_try(step, false);
}

// Another version of the tool would send it. A model is called again in any case: that
// only adds cost (SPEC §5).
bool Decider::has_changed(const Step& step) const {
  const std::uint32_t index = s_.tool_index(step);
  return !s_.plan->tools[index].is_model() && step.call->tool_version != offered_version(index);
}

// The earlier try may have happened. Is another one under the same external key harmless, and
// without need for a new approval?
bool Decider::may_repeat(const Step& step) const {
  const Invocation& call = *step.call;
  const std::uint32_t index = s_.tool_index(step);
  const ToolPolicy& tool = s_.plan->tools[index];
  if (tool.effect == EffectClass::at_most_once || has_changed(step)) return false;
  // `first_send_by` is at most one send window after the first declaration.
  const Instant declared = call.first_send_by - limits_.send_window;
  const bool forgotten = tool.effect != EffectClass::read && tool.dedupe_window &&
                         context_.now - declared >= *tool.dedupe_window;
  const Declaration again{.step = step.id,
                          .node = s_.node_of(step),
                          .tool = index,
                          .args = {},
                          .item = step.item,
                          .known = &step};
  return !forgotten && is_call_approved(again, call.arguments, call.arguments_hash);
}

// Closes a try whose outcome never arrived.
void Decider::finish_as_unknown(const Step& step, std::string_view source) {
  ToolInvocationFinished event{.invocation_id = step.call->id,
                               .outcome = to_text(OutcomeKind::unknown),
                               .step_id = step.id,
                               .try_no = step.call->try_no};
  if (!source.empty()) event.source = source;
  emit(std::move(event));
}

// A success is in the log, its command_committed is not.
void Decider::commit_command(const Step& step) {
  if (!step.failure) emit_changes(step, step.result);
  answered_ = answered_ || s_.tool_of(step).is_model();
  auto& event = emit_of<CommandCommitted>(step);
  event.command_id = step.id;
  event.result_of = step.call->id.text;
  set_committed_answer(s_.blind, s_.tool_of(step), step.call->arguments, step.result, event);
}

void Decider::finish_tool(const Step& step) {
  if (!s_.tool_of(step).makes_call()) return finish_value(step.id, s_.node_of(step).id);
  const Invocation& call = *step.call;
  if (auto wait = s_.open_wait_of(step); wait != s_.waits.end()) {
    cancel_wait(wait->first, wait->second);  // the result arrived before the operator's answer
  }
  if (step.failure) {  // the effect is done, but its output is invalid
    fail_job_for(step);
    std::string message = step.failure->message;
    if (message == kChangesUnread) {
      if (auto changes = changes_of(s_, step, step.result, &work_).status; !changes) {
        message = changes.error().message;
      }
    }
    message = describe_failure(s_, step, message, 0);
    emit_of(step, NodeFinished{.error = {{step.failure->code, Value(message)}},
                               .result_of = call.id.text,
                               .result_type = std::string(failure_type(step)),
                               .try_no = call.try_no});
  } else {
    auto& event = emit_of<NodeFinished>(step);
    event.result_of = call.id.text;
    event.result_type = s_.kind_of(step) == NodeKind::llm ? "pure" : "side_effect_committed";
    event.try_no = call.try_no;
  }
  emit_of<StepCommitted>(step).command_id = step.id;
  undoable_ = undoable_ || s_.tool_of(step).compensate.has_value();
}

}  // namespace ae::engine
