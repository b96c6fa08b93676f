// record_outcome and apply_request: turn observations and requests into events.
#include "engine/heart/ingest.h"

#include <fmt/core.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/utf8.h"
#include "engine/heart/features.h"
#include "engine/heart/request.h"
#include "engine/heart/side_record.h"
#include "json/json.h"
#include "log/field_names.h"
#include "log/seal.h"
#include "plan/model_calls.h"
#include "schema/question.h"

namespace ae::engine {
namespace {

RecordedError recorded_error(std::string_view code, std::string_view message) {
  return {std::string(code), Value(message)};
}

// The resolve wait of the call that the request names.
Result<const std::pair<const std::string, Wait>*> find_resolve_wait(const State& state,
                                                                    const ResolveRequest& resolve) {
  const std::pair<const std::string, Wait>* found = nullptr;
  if (resolve.idempotency_key.size() >= 8) {
    for (const auto& entry : state.waits) {
      if (!entry.second.resolve) continue;
      const Step& step = state.steps[entry.second.step];
      if (!state.key_of(step).text.starts_with(resolve.idempotency_key)) continue;
      if (resolve.try_no != 0 && (!step.call || resolve.try_no != step.call->try_no)) continue;
      if (found) {
        return fail(Code::input_invalid,
                    "more than one call with an unknown outcome has a key that begins "
                    "with \"{}\"; give more of the key",
                    resolve.idempotency_key);
      }
      found = &entry;
    }
  }
  if (!found) {
    return fail(Code::not_in_doubt, Action{.act = act::kJob, .job = state.job.text},
                "no call with this id has an unknown outcome");
  }
  return found;
}

// Does the result given by an operator match the tool's result_schema? A tool that is not in the
// plan any more has no schema.
Status given_result_fits(const State& state, const std::string& tool,
                         const ResolveRequest& resolve) {
  const auto policy = std::ranges::find(state.plan->tools, tool, &ToolPolicy::name);
  if (policy == state.plan->tools.end() || !policy->result_schema) return {};
  auto fits = policy->result_schema->check(resolve.result.value_or(Value()));
  if (fits) return {};
  return std::unexpected(std::move(fits).error().with_context(
      resolve.result ? fmt::format("the result for \"{}\"", tool)
                     : fmt::format("`happened` needs the result of \"{}\"", tool)));
}

// The calls that can be resolved after the end: those whose outcome or whose result is unknown.
std::vector<UnknownCall> open_calls(const State& state) {
  std::vector<UnknownCall> calls = state.unknown_calls();
  for (const Step& step : state.steps) {
    if (is_result_refused(state, step)) calls.push_back(state.call_of(step));
  }
  return calls;
}

// The open call that the request names, after the end of the job. Fails with
// job_terminal if there is none, input_invalid if the key matches several.
Result<UnknownCall> find_unknown_call(const State& state, const ResolveRequest& resolve) {
  std::optional<UnknownCall> found;
  for (UnknownCall& call : open_calls(state)) {
    const bool named = resolve.idempotency_key.size() >= 8 &&
                       call.key.text.starts_with(resolve.idempotency_key) &&
                       (resolve.try_no == 0 || resolve.try_no == call.try_no);
    if (!named) continue;
    if (found) {
      return fail(Code::input_invalid,
                  "more than one call with an unknown outcome has a key that begins "
                  "with \"{}\"; give more of the key",
                  resolve.idempotency_key);
    }
    found = std::move(call);
  }
  if (!found) {
    return fail(Code::job_terminal,
                "the job has ended, and no call with this id has an unknown outcome");
  }
  return *std::move(found);
}

// Can `not_happened` be decided with knowledge from `checked_at`? Not while a try may still take
// effect, and not with a check from before the newest try was sent.
Status check_settled(const std::optional<Instant>& checkable_at, Instant checked_at) {
  if (!checkable_at || checked_at >= *checkable_at) return {};
  return fail(
      Code::not_settled,
      "at {} the call could still be running, until {}; check it after that, then resolve it",
      to_text(checked_at), to_text(*checkable_at));
}

// The outcome of a call that was given up, or whose job has ended.
OutcomeNoted noted_event(const UnknownCall& call, Instant at, std::string_view resolution,
                         std::string_view by) {
  return {.at = at,
          .by = none_if_empty(by),
          .idempotency_key = call.key,
          .invocation_id = call.invocation,
          .node_id = call.node_id,
          .resolution = std::string(resolution),
          .step_id = call.step};
}

bool was_result_refused(const State& state, const UnknownCall& call) {
  const Step* step = state.find_step(call.step);
  return step != nullptr && is_result_refused(state, *step);
}

// After the end an operator can only note an outcome. The end and the result
// of the job do not change.
Result<AppliedRequest> apply_late_resolution(const State& state, const ControlRequest& request,
                                             const ResolveRequest& resolve,
                                             const DecisionContext& context) {
  AE_ASSIGN(const UnknownCall call, find_unknown_call(state, resolve));
  if (resolve.resolution == "fail") {
    return fail(Code::job_terminal,
                "the job has ended: the outcome of its call can only be noted, as happened or "
                "not_happened");
  }
  if (state.noted.contains(call.invocation.text)) {
    return fail(Code::not_in_doubt, "the outcome of this call is noted already");
  }
  const Instant checked_at = std::min(context.now, request.checked_at.value_or(context.now));
  if (resolve.resolution == "not_happened") AE_TRY(check_settled(call.checkable_at, checked_at));
  const bool refused = was_result_refused(state, call);
  if (refused && (resolve.resolution != "happened" || !resolve.result)) {
    return fail(Code::input_invalid,
                "this call took effect and its result was refused: resolve it as happened, with "
                "its result");
  }
  // A refused result broke this schema, which the file of a retry may correct.
  if (resolve.result && !refused) AE_TRY(given_result_fits(state, call.tool, resolve));
  OutcomeNoted event = noted_event(call, context.now, resolve.resolution, request.by);
  if (!resolve.reason.empty()) event.note = Value(resolve.reason);
  if (resolve.result) event.result = *resolve.result;
  Value answer = Value::object({{field::idempotency_key, call.key.text},
                                {field::node_id, call.node_id},
                                {"noted", true},
                                {field::resolution, resolve.resolution}});
  if (resolve.result) answer = answer.with(field::result, *resolve.result);
  return AppliedRequest{.events = {std::move(event)}, .answer = std::move(answer)};
}

Result<AppliedRequest> apply_resolution(const State& state, const ControlRequest& request,
                                        const ResolveRequest& resolve,
                                        const DecisionContext& context) {
  const bool happened = resolve.resolution == "happened";
  const bool not_happened = resolve.resolution == "not_happened";
  if (!happened && !not_happened && resolve.resolution != "fail") {
    return fail(Code::input_invalid, "a resolution is happened, not_happened or fail");
  }
  if (resolve.result && !happened) {
    return fail(Code::input_invalid, "only `happened` takes a result");
  }
  if (is_terminal(state.status)) return apply_late_resolution(state, request, resolve, context);
  AE_ASSIGN(const auto* entry, find_resolve_wait(state, resolve));
  const auto& [key, wait] = *entry;
  const Step& step = state.steps[wait.step];
  const std::string call_key = state.key_of(step).text;
  const std::uint32_t try_no = step.call ? step.call->try_no : 0;
  const bool maybe_called = step.call && (step.call->open || step.call->outcome_unknown);
  const Instant checked_at = std::min(context.now, request.checked_at.value_or(context.now));
  if (not_happened && maybe_called) AE_TRY(check_settled(state.checkable_at(step), checked_at));
  ExtractedChanges changed;
  if (happened && step.call) {
    AE_TRY(given_result_fits(state, state.tool_of(step).name, resolve));
    changed = changes_of(state, step, resolve.result.value_or(Value()));
    if (!changed.status) {
      return fail(Code::input_invalid, "the result does not show what the call changed: {}",
                  changed.status.error().message);
    }
  }
  AppliedRequest applied;
  applied.try_no = try_no;
  const bool fails = resolve.resolution == "fail";
  if ((happened || fails) && step.call && step.call->open) {  // a later result is late
    applied.events.emplace_back(ToolInvocationFinished{.invocation_id = step.call->id,
                                                       .outcome = to_text(OutcomeKind::unknown),
                                                       .source = "person",
                                                       .step_id = step.id,
                                                       .try_no = step.call->try_no});
  }
  applied.events.emplace_back(decision_event(
      OutcomeDecided{.idempotency_key = state.key_of(step), .resolution = resolve.resolution},
      {.at = context.now,
       .by = none_if_empty(request.by),
       .decision_id = decision_at(state, fmt::format("{}#in_doubt{}", state.path_of(step), try_no)),
       .node_id = state.node_of(step).id,
       .reason = none_if_empty(resolve.reason),
       .state = resolve.resolution,
       .step_id = step.id}));
  if (happened && step.call) {
    for (StateChanged& change : changed.events) applied.events.emplace_back(std::move(change));
    applied.events.emplace_back(CommandCommitted{.command_id = step.id,
                                                 .node_id = state.node_of(step).id,
                                                 .result = resolve.result.value_or(Value()),
                                                 .step_id = step.id});
  }
  WaitCompleted completed =
      wait_completed_event(state, key, wait, fails ? "rejected" : "signalled");
  completed.by = none_if_empty(request.by);
  completed.signal_id = none_if_empty(request.id);
  applied.events.emplace_back(std::move(completed));
  applied.answer = Value::object({{field::idempotency_key, call_key},
                                  {field::node_id, state.node_of(step).id},
                                  {field::resolution, resolve.resolution}});
  // The answer shows the recorded result, in case the operator gave none.
  if (happened && step.call)
    applied.answer = applied.answer.with(field::result, resolve.result.value_or(Value()));
  return applied;
}

// The source of results that were caught up or arrived late.
constexpr std::string_view kEffectStoreSource = "effect_store";
constexpr std::size_t kPreviewMax = 256, kReasonMax = 512;  // bytes

Value invalid_result_summary(const Value& result, std::string_view reason, bool shown) {
  const std::string text = canonical(result);
  return Value::object({{"head", shown ? truncate_utf8(text, kPreviewMax) : std::string_view()},
                        {"invalid", true},
                        {field::reason, truncate_utf8(reason, kReasonMax)},
                        {"sha256", to_hex(sha256(text))},
                        {"size", static_cast<std::uint64_t>(text.size())}});
}

// Probes and compensations must not ask a user, and no call may ask invalid questions.
Outcome validated_questions(Outcome outcome, bool may_ask_user, bool awaits_child) {
  outcome.definite = true;
  if (awaits_child) return outcome;  // the runtime has created the child
  auto good = check_questions(outcome.result);
  if (may_ask_user && good) return outcome;
  outcome.kind = OutcomeKind::failure;
  outcome.result = Value();
  outcome.error_code = to_text(OutcomeKind::input_required);
  outcome.error_message =
      good ? "it asks a person something, which only the call of a step may"
           : fmt::format("it asks what nobody can answer: {}", good.error().message);
  return outcome;
}

// The only place that validates a result. A success whose result is too large, or breaks the plan's
// schema, has still happened: the summary `invalid` replaces the result from here on.
class ValidatedOutcome {
 public:
  // Borrows the outcome.
  ValidatedOutcome(const Outcome& observed, const std::optional<Schema>& schema, bool may_ask_user,
                   bool awaits_child)
      : observed_(observed) {
    if (observed.kind == OutcomeKind::input_required) {
      replaced_ = validated_questions(observed, may_ask_user, awaits_child);
    } else if (observed.kind == OutcomeKind::success && !observed.invalid) {
      check_result(schema);
    }
  }
  const Outcome& operator*() const { return replaced_ ? *replaced_ : observed_; }

 private:
  void check_result(const std::optional<Schema>& schema) {
    const Value& result = observed_.result;
    if (canonical_exceeds(result, kValueMax)) {
      const std::string most = std::to_string(kValueMax >> 20);
      refuse(invalid_result_summary(result, "is longer than " + most + " MiB as canonical JSON",
                                    false));
    } else if (schema) {
      if (const auto fits = schema->check(result); !fits) {
        refuse(invalid_result_summary(result, "breaks the result_schema: " + fits.error().message,
                                      true));
      }
    }
  }
  void refuse(Value summary) {
    replaced_ = observed_;
    replaced_->invalid = std::move(summary);
    replaced_->result = Value();
  }

  const Outcome& observed_;
  std::optional<Outcome> replaced_;
};

const Value& result_of(const Outcome& outcome) {
  return outcome.invalid ? *outcome.invalid : outcome.result;
}

// "the answer is too large", or "its output breaks a rule".
std::string invalid_reason(const Value& invalid) {
  const std::string_view reason = invalid.text(field::reason, "broke a rule");
  return (reason.starts_with("the ") ? "" : "its output ") + std::string(reason);
}

// Adds an event, to be filled in before the next one is added.
template <class E>
E& new_event(std::vector<EventBody>& events) {
  return std::get<E>(events.emplace_back(std::in_place_type<E>));
}

// Fills in the event for the outcome of a try. REQUIRES: the outcome is validated.
void set_finished(const InvocationId& invocation, const StepId& step, std::int64_t try_no,
                  const Outcome& outcome, ToolInvocationFinished& event) {
  event.external_id = none_if_empty(outcome.external_id);
  event.invocation_id = invocation;
  event.outcome = to_text(outcome.kind);
  event.step_id = step;
  event.try_no = try_no;
  if (outcome.elapsed.count() > 0) event.duration_us = outcome.elapsed.count();
  if (outcome.kind == OutcomeKind::success) {
    event.result = result_of(outcome);
    event.usage = JsonOf<TokenUsage>(outcome.usage);
    if (outcome.invalid) {
      event.error = recorded_error(
          code_name(Code::tool_output_invalid),
          fmt::format("the call succeeded, but {}", invalid_reason(*outcome.invalid)));
    }
    return;
  }
  event.definite = outcome.definite;
  if (outcome.kind == OutcomeKind::input_required) {
    event.result = outcome.result;
    return;
  }
  event.error = recorded_error(outcome.error_code, outcome.error_message);
  event.retryable = outcome.retryable;
  if (outcome.settled) event.settled = true;
  if (outcome.retry_after) event.retry_after_ms = outcome.retry_after->count() / 1000;
}

ToolInvocationFinished& add_finished(const Step& step, std::uint32_t try_no, const Outcome& outcome,
                                     std::vector<EventBody>& events) {
  auto& event = new_event<ToolInvocationFinished>(events);
  set_finished(step.call->id, step.id, try_no, outcome, event);
  return event;
}

// The events of a success: its changes, and the commit of its command. REQUIRES:
// the outcome is validated.
void commit(const State& state, const Step& step, const Outcome& outcome,
            std::vector<EventBody>& events) {
  if (!outcome.invalid) {
    for (StateChanged& change : changes_of(state, step, outcome.result).events) {
      events.emplace_back(std::move(change));
    }
  }
  auto& event = new_event<CommandCommitted>(events);
  event.command_id = event.step_id = step.id;
  event.node_id = state.node_of(step).id;
  event.result_of = step.call->id.text;
  set_committed_answer(state.blind, state.tool_of(step), step.call->arguments, result_of(outcome),
                       event);
}

// The outcome in an effect record.
Result<Outcome> outcome_of_record(const EffectRecord& record) {
  Outcome outcome;
  bool known = false;
  for (auto k : {OutcomeKind::success, OutcomeKind::failure, OutcomeKind::timeout,
                 OutcomeKind::unknown, OutcomeKind::input_required}) {
    if (to_text(k) == record.outcome) {
      outcome.kind = k;
      known = true;
    }
  }
  if (!known) return fail(Code::log_corrupt, "an effect record without outcome");
  outcome.external_id = or_empty(record.external_id);
  if (record.retry_after_ms) {
    outcome.retry_after = std::chrono::milliseconds(*record.retry_after_ms);
  }
  outcome.elapsed = Duration(record.took_us);
  if (record.output) outcome.result = record.output->value;
  if (!record.invalid.is_null()) outcome.invalid = record.invalid;
  if (record.usage) outcome.usage = record_json(*record.usage);
  outcome.definite = record.definite == true;
  outcome.retryable = record.retryable == true;
  outcome.settled = record.settled == true;
  if (record.error) {
    outcome.error_code = record.error->code;
    outcome.error_message = record.error->message;
  }
  return outcome;
}

Result<EffectRecord> effect_record_of(const State& state, const StoredEffect& effect) {
  AE_ASSIGN(const Value record,
            read_side_record(effect_location(state.job, effect.invocation, effect.try_no),
                             effect.record));
  return record_from_json<EffectRecord>(record);
}

// Notes the outcomes of calls that were given up, or whose job has ended, from late results: one
// try succeeded, or each try with an unknown outcome definitely failed.
Status note_late_results(const State& state, const std::vector<StoredEffect>& effects,
                         std::vector<EventBody>& events) {
  struct Late {
    UnknownCall call;
    std::size_t failed_tries = 0;  // tries
  };
  std::unordered_map<std::string, Late> calls;
  for (UnknownCall& call : state.unknown_calls()) {
    const bool over = is_terminal(state.status) || call.given_up;
    if (!over || state.noted.contains(call.invocation.text)) continue;
    const std::string id = call.invocation.text;
    calls.emplace(id, Late{.call = std::move(call)});
  }
  if (calls.empty()) return {};
  for (const StoredEffect& effect : effects) {
    const auto found = calls.find(effect.invocation.text);
    if (found == calls.end() || !found->second.call.uncertain_tries.contains(effect.try_no))
      continue;
    AE_ASSIGN(const EffectRecord record, effect_record_of(state, effect));
    AE_ASSIGN(const Outcome outcome, outcome_of_record(record));
    Late& late = found->second;
    if (record.late != true || !is_certain(outcome)) continue;
    const bool happened = outcome.kind == OutcomeKind::success;
    if (!happened && ++late.failed_tries < late.call.uncertain_tries.size()) continue;
    const Value& result = result_of(outcome);
    OutcomeNoted event = noted_event(late.call, record.created_at,
                                     happened ? "happened" : "not_happened", kRuntimeActor);
    // A job whose values were erased gets no new ones.
    if (happened && !state.blind_erased) event.result = result;
    events.emplace_back(std::move(event));
    calls.erase(found);
  }
  return {};
}

}  // namespace

bool is_result_refused(const State& state, const Step& step) {
  if (!step.call || step.call->open || !step.failure || step.role != Role::node) return false;
  if (step.result_type == ResultType::compensated || step.undo != kNoStep) return false;
  return step.call->outcome == OutcomeKind::success &&
         step.failure->code == code_name(Code::tool_output_invalid) &&
         state.tool_of(step).effect != EffectClass::read && !state.tool_of(step).is_model();
}

WaitCompleted wait_completed_event(const State& state, const std::string& key, const Wait& wait,
                                   std::string_view outcome) {
  const Step& step = state.steps[wait.step];
  return {.correlation_key = key,
          .node_id = state.node_of(step).id,
          .outcome = std::string(outcome),
          .step_id = step.id,
          .wait_type = std::string(to_text(wait.type))};
}

std::vector<EventBody> record_outcome(const State& state, std::uint32_t index,
                                      const Outcome& observed, Instant at) {
  const Step& step = state.steps[index];
  AE_CHECK(step.call && step.call->open, fmt::format("{} step {}", state.job.text, step.id.text));
  const ToolPolicy& tool = state.tool_of(step);
  const ValidatedOutcome validated(observed, tool.result_schema, step.role == Role::node,
                                   state.awaits_child(step));
  const Outcome& outcome = *validated;
  std::vector<EventBody> events;
  events.reserve(2 + tool.changes.size());
  auto& event = add_finished(step, step.call->try_no, outcome, events);
  if (outcome.kind == OutcomeKind::success && tool.result_schema) {
    event.response_schema_hash = hash_from_hex(tool.result_digest);
  }
  if (!is_certain(outcome)) event.at = at;
  if (outcome.kind == OutcomeKind::success && !outcome.invalid && step.request &&
      observed.delivered && *observed.delivered != state.steps[step.node].code->outcomes.size()) {
    event.delivered = static_cast<std::int64_t>(*observed.delivered);
  }
  if (outcome.kind == OutcomeKind::success) commit(state, step, outcome, events);
  return events;
}

SentTry sent_try_of(const State& state, const Step& step) {
  const Invocation& call = *step.call;
  SentTry sent{.step = step.id,
               .invocation = call.id,
               .try_no = call.try_no,
               .attempt = call.attempt,
               .key = call.key,
               .arguments_hash = call.arguments_hash};
  const ToolPolicy& tool = state.tool_of(step);
  if (tool.is_model()) {
    sent.provider = tool.provider;
    sent.blind = state.blind;
    sent.request = call.arguments;
  }
  if (!state.plan->prices.empty()) sent.plan = state.plan;
  sent.may_ask_user = step.role == Role::node;
  sent.awaits_child = state.awaits_child(step);
  sent.result_schema = tool.result_schema;
  sent.result_digest = tool.result_digest;
  return sent;
}

Result<std::string> erased_effect(std::string_view location, std::string_view text) {
  AE_ASSIGN(const Value stored, read_side_record(location, text));
  AE_ASSIGN(EffectRecord record, record_from_json<EffectRecord>(stored));
  if (record.erased == true) return std::string(text);
  if (record.error) record.error->message.clear();
  record.output.reset();
  record.invalid = record.metadata = Value();
  record.external_id.reset();
  record.erased = true;
  return canonical(with_checksum(location, record_json(record)));
}

bool is_certain(const Outcome& outcome) {
  return outcome.kind == OutcomeKind::success || outcome.kind == OutcomeKind::input_required ||
         (outcome.kind == OutcomeKind::failure && outcome.definite);
}

Result<std::vector<EventBody>> import_stored_effects(const State& state,
                                                     const std::vector<StoredEffect>& effects) {
  std::vector<EventBody> events;
  if (effects.empty()) return events;
  std::unordered_map<std::string_view, std::uint32_t> calls;
  for (std::uint32_t i = 0; i < state.steps.size(); ++i) {
    if (const Step& step = state.steps[i]; step.call) calls.emplace(step.call->id.text, i);
  }
  for (const StoredEffect& effect : effects) {
    auto found = calls.find(effect.invocation.text);
    if (found == calls.end()) continue;
    const Step& step = state.steps[found->second];
    const Invocation& call = *step.call;
    const bool open = call.open && call.try_no == effect.try_no;
    const bool awaits_late_result =
        !open && effect.try_no <= call.try_no && effect.try_no > call.last_late_try;
    if (!open &&
        (!awaits_late_result || effect.record.find(R"("late":true)") == effect.record.npos))
      continue;
    AE_ASSIGN(const EffectRecord record, effect_record_of(state, effect));
    AE_ASSIGN(const Outcome outcome, outcome_of_record(record));
    if (awaits_late_result) {
      // A result that is in the log is not late, although its attempt could not
      // know that it was committed.
      const bool known = !call.uncertain_tries.contains(effect.try_no);
      if (record.late == true && !known && !is_terminal(state.status) && is_certain(outcome)) {
        auto& event = add_finished(step, effect.try_no, outcome, events);
        event.response_schema_hash = record.response_schema_hash;
        event.late = true;
        event.source = kEffectStoreSource;
      }
      continue;
    }
    if (record.attempt_id != call.attempt.text) continue;
    const bool outcome_unknown = step.phase == StepPhase::in_doubt;
    if (outcome_unknown && !is_certain(outcome)) continue;
    auto& event = add_finished(step, effect.try_no, outcome, events);
    event.response_schema_hash = record.response_schema_hash;
    event.caught_up = true;
    event.source = kEffectStoreSource;
    if (!is_certain(outcome)) event.at = record.created_at;
    if (outcome.kind == OutcomeKind::success) commit(state, step, outcome, events);
    if (auto wait = state.open_wait_of(step); outcome_unknown && wait != state.waits.end()) {
      events.emplace_back(wait_completed_event(state, wait->first, wait->second, "cancelled"));
    }
  }
  AE_TRY(note_late_results(state, effects, events));
  return events;
}

Result<ToolInvocationFinished> finished_payload(const EffectRecord& record) {
  AE_ASSIGN(const Outcome outcome, outcome_of_record(record));
  ToolInvocationFinished event;
  set_finished(record.invocation_id, record.command_id, record.try_no, outcome, event);
  event.response_schema_hash = record.response_schema_hash;
  return event;
}

std::optional<std::pair<InvocationId, std::uint32_t>> decided_effect_slot(const State& state,
                                                                          const EventBody& event) {
  const StepId* named = nullptr;
  if (const auto* closes = std::get_if<ToolInvocationFinished>(&event)) named = &closes->step_id;
  if (const auto* opened = std::get_if<WaitOpened>(&event))
    named = &opened->step_id;  // an operator
  if (const auto* decision = std::get_if<DecisionRecorded>(&event);
      decision != nullptr && decision->kind == OutcomeDecided::kKind && decision->step_id) {
    named = &*decision->step_id;
  }
  const Step* const step = named != nullptr ? state.find_step(*named) : nullptr;
  if (step == nullptr || !step->call || !step->call->open) return std::nullopt;
  return std::pair(step->call->id, step->call->try_no);
}

Value effect_record(const JobId& job, const SentTry& sent, const Outcome& observed, Instant at,
                    Arrival arrival) {
  const ValidatedOutcome validated(observed, sent.result_schema, sent.may_ask_user,
                                   sent.awaits_child);
  const Outcome& outcome = *validated;
  EffectRecord record{.attempt_id = sent.attempt.text,
                      .command_id = sent.step,
                      .created_at = at,
                      .external_id = none_if_empty(outcome.external_id),
                      .idempotency_key = sent.key,
                      .input_ref = to_hex(sent.arguments_hash),
                      .invocation_id = sent.invocation,
                      .job_id = job.text,
                      .kind = sent.provider.empty() ? "tool" : "llm",
                      .outcome = to_text(outcome.kind),
                      .took_us = outcome.elapsed.count(),
                      .try_no = sent.try_no};
  if (arrival == Arrival::late) record.late = true;
  if (outcome.retry_after) record.retry_after_ms = outcome.retry_after->count() / 1000;
  if (!sent.provider.empty()) {
    record.metadata = model_metadata(sent.blind, sent.provider, sent.request, result_of(outcome));
  }
  if (outcome.kind == OutcomeKind::success) {
    if (outcome.invalid) record.invalid = *outcome.invalid;
    if (!outcome.invalid) record.output = NullableJson{outcome.result};
    if (!outcome.usage.is_null()) {
      const Value usage = sent.plan ? with_cost(*sent.plan, outcome.usage) : outcome.usage;
      record.usage = JsonOf<TokenUsage>(usage).read_leniently();
    }
    if (sent.result_schema) record.response_schema_hash = hash_from_hex(sent.result_digest);
  } else if (outcome.kind == OutcomeKind::input_required) {
    record.definite = true;
    record.output = NullableJson{outcome.result};
  } else {
    record.definite = outcome.definite;
    record.error = EffectError{.code = outcome.error_code, .message = outcome.error_message};
    record.retryable = outcome.retryable;
    if (outcome.settled) record.settled = true;
  }
  return with_checksum(effect_location(job, sent.invocation, sent.try_no), record_json(record));
}

AcceptedRequest apply_accepted(const State& state, const ControlRequest& request,
                               const DecisionContext& context) {
  auto applied = apply_request(state, request, context);
  if (applied && !applied->events.empty()) {
    if (request.checked_at) {
      if (auto in_time = check_not_expired(state, request, *request.checked_at); !in_time) {
        if (!request.is<MessageRequest>())
          return {.events = {}, .answer = std::unexpected(in_time.error())};
        // Its sender may know that it was accepted: it is recorded, for a later wait.
        applied->events.erase(applied->events.begin() + 1, applied->events.end());
      }
    }
    if (is_counted(request) && state.signals >= kSignalsMax)
      return {.events = {}, .answer = std::unexpected(signals_limit_error())};
    return {.events = std::move(applied->events), .answer = std::move(applied->answer)};
  }
  if (auto events = expire_request(state, request); !events.empty())
    return {.events = std::move(events), .answer = Value::object({{"accepted", true}})};
  if (!applied) return {.events = {}, .answer = std::unexpected(applied.error())};
  return {.events = {}, .answer = std::move(applied->answer)};
}

Error signals_limit_error() {
  return {
      Code::signals_limit,
      fmt::format("the job has accepted {} signals, the most that one job may have", kSignalsMax)};
}

Result<AppliedRequest> apply_request(const State& state, const ControlRequest& request,
                                     const CancelRequest& cancel, const DecisionContext&) {
  if (is_terminal(state.status)) {
    return fail(Code::job_terminal, "the job has ended ({}); nothing to cancel",
                to_text(state.status));
  }
  const Value answer = Value::object({{"cancel_requested", true}});
  const bool keeps_effects = cancel.compensate == false;
  if (state.ending && state.ending->cancelled && (!keeps_effects || !state.ending->compensate)) {
    return AppliedRequest{{}, answer};
  }
  return AppliedRequest{{JobCancelRequested{.by = none_if_empty(request.by),
                                            .compensate = cancel.compensate,
                                            .reason = none_if_empty(cancel.reason)}},
                        answer};
}

Result<AppliedRequest> apply_request(const State& state, const ControlRequest& request,
                                     const ResolveRequest& resolve,
                                     const DecisionContext& context) {
  if (answers_confirmation(state, resolve))
    return apply_confirmation_answer(state, request, resolve, context);
  return apply_resolution(state, request, resolve, context);
}

Result<AppliedRequest> apply_request(const State& state, const ControlRequest& request,
                                     const DecisionContext& context) {
  return std::visit([&](const auto& body) { return apply_request(state, request, body, context); },
                    request.body);
}

}  // namespace ae::engine
