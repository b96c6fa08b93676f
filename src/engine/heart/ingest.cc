// record_outcome and apply_request: turn observations and requests into events.
#include "engine/heart/ingest.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/utf8.h"
#include "engine/heart/features.h"
#include "engine/heart/request.h"
#include "engine/heart/side_record.h"
#include "json/json.h"
#include "log/seal.h"
#include "plan/model_calls.h"
#include "schema/question.h"

namespace ae::engine {
namespace {

RecordedError recorded_error(std::string_view code, std::string_view message) {
  return {std::string(code), Value(message)};
}

Value error_value(std::string_view code, std::string_view message) {
  return Value::object({{"code", code}, {"message", message}});
}

Result<AppliedRequest> apply_cancel_request(const State& state, const ControlRequest& request) {
  if (is_terminal(state.status)) {
    return fail(Code::job_terminal, "the job has ended (" + std::string(to_text(state.status)) +
                                        "); nothing to cancel");
  }
  const Value answer = Value::object({{"cancel_requested", true}});
  const bool keeps_effects = request.compensate == false;
  if (state.ending && state.ending->cancelled && (!keeps_effects || !state.ending->compensate)) {
    return AppliedRequest{{}, answer};
  }
  return AppliedRequest{{JobCancelRequested{.by = none_if_empty(request.by),
                                            .compensate = request.compensate,
                                            .reason = none_if_empty(request.reason)}},
                        answer};
}

// The timers, expiries and deadline that are due.
Result<AppliedRequest> apply_due_timers(const State& state, const DecisionContext& context) {
  AppliedRequest applied;
  if (is_terminal(state.status)) return applied;
  const auto fired = [&](std::string effect, Instant due) {
    applied.events.emplace_back(TimerFired{
        .due_at = due, .effect_id = std::move(effect), .value = Value(to_text(context.now))});
  };
  if (state.deadline && !state.deadline_fired && *state.deadline <= context.now) {
    // The job ends: its waits are cancelled, none of them fires.
    fired("deadline", *state.deadline);
  } else if (!state.ending && !state.is_paused()) {
    const Budget& budget = state.budget;
    if (budget.wall_until && !budget.wall_passed && *budget.wall_until <= context.now) {
      fired("budget", *budget.wall_until);
    }
    for (const auto& [key, wait] : state.waits) {
      if (wait.due_at && *wait.due_at <= context.now) {
        fired(state.steps[wait.step].id.text, *wait.due_at);
        applied.events.emplace_back(wait_completed_event(state, key, wait, "fired"));
      } else if (wait.expires_at && *wait.expires_at <= context.now) {
        fired(state.steps[wait.step].id.text + ":expiry", *wait.expires_at);
        applied.events.emplace_back(wait_completed_event(state, key, wait, "timed_out"));
      }
    }
  }
  applied.answer = Value::object({{"fired", static_cast<std::uint64_t>(applied.events.size())}});
  return applied;
}

// The resolve wait of the call that the request names.
Result<const std::pair<const std::string, Wait>*> find_resolve_wait(const State& state,
                                                                    const ControlRequest& request) {
  const std::pair<const std::string, Wait>* found = nullptr;
  if (request.idempotency_key.size() >= 8) {
    for (const auto& entry : state.waits) {
      if (!entry.second.resolve) continue;
      const Step& step = state.steps[entry.second.step];
      if (!state.key_of(step).text.starts_with(request.idempotency_key)) continue;
      if (request.try_no != 0 && (!step.call || request.try_no != step.call->try_no)) continue;
      if (found) {
        return fail(Code::input_invalid,
                    "more than one call with an unknown outcome has a key that begins with \"" +
                        request.idempotency_key + "\"; give more of the key");
      }
      found = &entry;
    }
  }
  if (!found) {
    return fail(Code::not_in_doubt, "no call with this id has an unknown outcome; `aetheris job " +
                                        state.job.text + "` lists those that have one");
  }
  return found;
}

// Does the result given by an operator match the tool's result_schema? A tool that is not in the
// plan any more has no schema.
Status given_result_fits(const State& state, const std::string& tool,
                         const ControlRequest& request) {
  const auto policy = std::ranges::find(state.plan->tools, tool, &ToolPolicy::name);
  if (policy == state.plan->tools.end() || !policy->result_schema) return {};
  auto fits = policy->result_schema->check(request.result.value_or(Value()));
  if (fits) return {};
  return std::unexpected(std::move(fits).error().with_context(
      request.result ? "the result for \"" + tool + "\""
                     : "`happened` needs the result of \"" + tool + "\""));
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
Result<UnknownCall> find_unknown_call(const State& state, const ControlRequest& request) {
  std::optional<UnknownCall> found;
  for (UnknownCall& call : open_calls(state)) {
    const bool named = request.idempotency_key.size() >= 8 &&
                       call.key.text.starts_with(request.idempotency_key) &&
                       (request.try_no == 0 || request.try_no == call.try_no);
    if (!named) continue;
    if (found) {
      return fail(Code::input_invalid,
                  "more than one call with an unknown outcome has a key that begins with \"" +
                      request.idempotency_key + "\"; give more of the key");
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
  return fail(Code::not_settled,
              "at " + to_text(checked_at) + " the call could still be running, until " +
                  to_text(*checkable_at) + "; check it after that, then resolve it");
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
  const auto step = state.by_id.find(call.step);
  return step != state.by_id.end() && is_result_refused(state, state.steps[step->second]);
}

// After the end an operator can only note an outcome. The end and the result
// of the job do not change.
Result<AppliedRequest> apply_late_resolution(const State& state, const ControlRequest& request,
                                             const DecisionContext& context) {
  AE_ASSIGN(const UnknownCall call, find_unknown_call(state, request));
  if (request.resolution == "fail") {
    return fail(Code::job_terminal,
                "the job has ended: the outcome of its call can only be noted, as happened or "
                "not_happened");
  }
  if (state.noted.contains(call.invocation.text)) {
    return fail(Code::not_in_doubt, "the outcome of this call is noted already");
  }
  const Instant checked_at = std::min(context.now, request.checked_at.value_or(context.now));
  if (request.resolution == "not_happened") AE_TRY(check_settled(call.checkable_at, checked_at));
  const bool refused = was_result_refused(state, call);
  if (refused && (request.resolution != "happened" || !request.result)) {
    return fail(Code::input_invalid,
                "this call took effect and its result was refused: resolve it as happened, with "
                "its result");
  }
  // A refused result broke this schema, which the file of a retry may correct.
  if (request.result && !refused) AE_TRY(given_result_fits(state, call.tool, request));
  OutcomeNoted event = noted_event(call, context.now, request.resolution, request.by);
  if (!request.reason.empty()) event.note = Value(request.reason);
  if (request.result) event.result = *request.result;
  Value answer = Value::object({{"idempotency_key", call.key.text},
                                {"node_id", call.node_id},
                                {"noted", true},
                                {"resolution", request.resolution}});
  if (request.result) answer = answer.with("result", *request.result);
  return AppliedRequest{.events = {std::move(event)}, .answer = std::move(answer)};
}

Result<AppliedRequest> apply_resolution(const State& state, const ControlRequest& request,
                                        const DecisionContext& context) {
  const bool happened = request.resolution == "happened";
  const bool not_happened = request.resolution == "not_happened";
  if (!happened && !not_happened && request.resolution != "fail") {
    return fail(Code::input_invalid, "a resolution is happened, not_happened or fail");
  }
  if (request.result && !happened) {
    return fail(Code::input_invalid, "only `happened` takes a result");
  }
  if (is_terminal(state.status)) return apply_late_resolution(state, request, context);
  AE_ASSIGN(const auto* entry, find_resolve_wait(state, request));
  const auto& [key, wait] = *entry;
  const Step& step = state.steps[wait.step];
  const std::string call_key = state.key_of(step).text;
  const std::uint32_t try_no = step.call ? step.call->try_no : 0;
  const bool maybe_called = step.call && (step.call->open || step.call->outcome_unknown);
  const Instant checked_at = std::min(context.now, request.checked_at.value_or(context.now));
  if (not_happened && maybe_called) AE_TRY(check_settled(state.checkable_at(step), checked_at));
  ExtractedChanges changed;
  if (happened && step.call) {
    AE_TRY(given_result_fits(state, state.tool_of(step).name, request));
    changed = changes_of(state, step, request.result.value_or(Value()));
    if (!changed.status) {
      return fail(Code::input_invalid, "the result does not show what the call changed: " +
                                           changed.status.error().message);
    }
  }
  AppliedRequest applied;
  applied.try_no = try_no;
  const bool fails = request.resolution == "fail";
  if ((happened || fails) && step.call && step.call->open) {  // a later result is late
    applied.events.emplace_back(ToolInvocationFinished{.invocation_id = step.call->id,
                                                       .outcome = "unknown",
                                                       .source = "person",
                                                       .step_id = step.id,
                                                       .try_no = step.call->try_no});
  }
  applied.events.emplace_back(DecisionRecorded{
      .at = context.now,
      .by = none_if_empty(request.by),
      .decision_id = decision_at(state, state.path_of(step) + "#in_doubt" + std::to_string(try_no)),
      .kind = "in_doubt",
      .node_id = state.node_of(step).id,
      .payload = Value::object({{"idempotency_key", call_key}, {"resolution", request.resolution}}),
      .reason = none_if_empty(request.reason),
      .state = request.resolution,
      .step_id = step.id});
  if (happened && step.call) {
    for (StateChanged& change : changed.events) applied.events.emplace_back(std::move(change));
    applied.events.emplace_back(CommandCommitted{.command_id = step.id,
                                                 .node_id = state.node_of(step).id,
                                                 .result = request.result.value_or(Value()),
                                                 .step_id = step.id});
  }
  WaitCompleted completed =
      wait_completed_event(state, key, wait, fails ? "rejected" : "signalled");
  completed.by = none_if_empty(request.by);
  completed.signal_id = none_if_empty(request.id);
  applied.events.emplace_back(std::move(completed));
  applied.answer = Value::object({{"idempotency_key", call_key},
                                  {"node_id", state.node_of(step).id},
                                  {"resolution", request.resolution}});
  // The answer shows the recorded result, in case the operator gave none.
  if (happened && step.call)
    applied.answer = applied.answer.with("result", request.result.value_or(Value()));
  return applied;
}

// The source of results that were caught up or arrived late.
constexpr std::string_view kEffectStoreSource = "effect_store";
constexpr std::size_t kPreviewMax = 256, kReasonMax = 512;  // bytes

Value invalid_result_summary(const Value& result, std::string_view reason, bool shown) {
  const std::string text = canonical(result);
  return Value::object({{"head", shown ? truncate_utf8(text, kPreviewMax) : std::string_view()},
                        {"invalid", true},
                        {"reason", truncate_utf8(reason, kReasonMax)},
                        {"sha256", to_hex(sha256(text))},
                        {"size", static_cast<std::uint64_t>(text.size())}});
}

// Probes and compensations must not ask a user, and no call may ask invalid questions.
Outcome validated_questions(Outcome outcome, bool may_ask_user) {
  outcome.definite = true;
  auto good = check_questions(outcome.result);
  if (may_ask_user && good) return outcome;
  outcome.kind = OutcomeKind::failure;
  outcome.result = Value();
  outcome.error_code = to_text(OutcomeKind::input_required);
  outcome.error_message = good ? "it asks a person something, which only the call of a step may"
                               : "it asks what nobody can answer: " + good.error().message;
  return outcome;
}

// The only place that validates a result. A success whose result is too large, or breaks the plan's
// schema, has still happened: the summary `invalid` replaces the result from here on.
Outcome validated_outcome(const Outcome& outcome, const std::optional<Schema>& schema,
                          bool may_ask_user) {
  Outcome validated = outcome;
  if (validated.kind == OutcomeKind::input_required)
    return validated_questions(std::move(validated), may_ask_user);
  if (validated.kind != OutcomeKind::success || validated.invalid) return validated;
  if (canonical_exceeds(validated.result, kValueMax)) {
    const std::string most = std::to_string(kValueMax >> 20);
    validated.invalid = invalid_result_summary(
        validated.result, "is longer than " + most + " MiB as canonical JSON", false);
  } else if (schema) {
    if (const auto fits = schema->check(validated.result); !fits) {
      validated.invalid = invalid_result_summary(
          validated.result, "breaks the result_schema: " + fits.error().message, true);
    }
  }
  if (validated.invalid) validated.result = Value();
  return validated;
}

const Value& result_of(const Outcome& outcome) {
  return outcome.invalid ? *outcome.invalid : outcome.result;
}

// "the answer is too large", or "its output breaks a rule".
std::string invalid_reason(const Value& invalid) {
  const std::string_view reason = invalid.text("reason", "broke a rule");
  return (reason.starts_with("the ") ? "" : "its output ") + std::string(reason);
}

// The event for the outcome of a try. REQUIRES: the outcome is validated.
ToolInvocationFinished finished_event(const InvocationId& invocation, const StepId& step,
                                      std::int64_t try_no, const Outcome& outcome) {
  ToolInvocationFinished event{.external_id = none_if_empty(outcome.external_id),
                               .invocation_id = invocation,
                               .outcome = std::string(to_text(outcome.kind)),
                               .step_id = step,
                               .try_no = try_no};
  if (outcome.elapsed.count() > 0) event.duration_us = outcome.elapsed.count();
  if (outcome.kind == OutcomeKind::success) {
    event.result = result_of(outcome);
    if (outcome.invalid) {
      event.error = recorded_error(code_name(Code::tool_output_invalid),
                                   "the call succeeded, but " + invalid_reason(*outcome.invalid));
    }
    return event;
  }
  event.definite = outcome.definite;
  if (outcome.kind == OutcomeKind::input_required) {
    event.result = outcome.result;
    return event;
  }
  event.error = recorded_error(outcome.error_code, outcome.error_message);
  event.retryable = outcome.retryable;
  if (outcome.settled) event.settled = true;
  if (outcome.retry_after) event.retry_after_ms = outcome.retry_after->count() / 1000;
  return event;
}

ToolInvocationFinished finished_event(const Step& step, std::uint32_t try_no,
                                      const Outcome& outcome) {
  return finished_event(step.call->id, step.id, try_no, outcome);
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
  CommandCommitted event =
      committed_answer(state.blind, state.tool_of(step), step.call->arguments, result_of(outcome));
  event.command_id = event.step_id = step.id;
  event.node_id = state.node_of(step).id;
  event.result_of = step.call->id.text;
  events.emplace_back(std::move(event));
}

// The outcome in an effect record.
Result<Outcome> outcome_of_record(const Value& record) {
  Outcome outcome;
  const std::string_view kind = record.text("outcome");
  bool known = false;
  for (auto k : {OutcomeKind::success, OutcomeKind::failure, OutcomeKind::timeout,
                 OutcomeKind::unknown, OutcomeKind::input_required}) {
    if (to_text(k) == kind) {
      outcome.kind = k;
      known = true;
    }
  }
  if (!known) return fail(Code::log_corrupt, "an effect record without outcome");
  outcome.external_id = record.text("external_id");
  if (record["retry_after_ms"].is_integer()) {
    outcome.retry_after = std::chrono::milliseconds(record["retry_after_ms"].as_int());
  }
  if (record["took_us"].is_integer()) outcome.elapsed = Duration(record["took_us"].as_int());
  outcome.result = record["output"];
  if (const Value* invalid = record.find("invalid")) outcome.invalid = *invalid;
  outcome.definite = record["definite"].is_bool() && record["definite"].as_bool();
  outcome.retryable = record["retryable"].is_bool() && record["retryable"].as_bool();
  outcome.settled = record["settled"] == Value(true);
  outcome.error_code = record["error"].text("code");
  outcome.error_message = record["error"].text("message");
  return outcome;
}

// The schema that the recorded result was validated with.
std::optional<Hash> result_schema_hash_of(const Value& record) {
  return hash_from_hex(record.text("response_schema_hash"));
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
    AE_ASSIGN(const Value record,
              read_side_record(effect_location(state.job, effect.invocation, effect.try_no),
                               effect.record));
    AE_ASSIGN(const Outcome outcome, outcome_of_record(record));
    Late& late = found->second;
    if (!(record["late"] == Value(true)) || !is_certain(outcome)) continue;
    const bool happened = outcome.kind == OutcomeKind::success;
    if (!happened && ++late.failed_tries < late.call.uncertain_tries.size()) continue;
    const Value& result = result_of(outcome);
    const auto at = instant_from_text(record.text("created_at"));
    if (!at) return fail(Code::log_corrupt, "an effect record without the time of its writing");
    OutcomeNoted event =
        noted_event(late.call, *at, happened ? "happened" : "not_happened", kRuntimeActor);
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
  AE_CHECK(step.call && step.call->open, state.job.text + " step " + step.id.text);
  const ToolPolicy& tool = state.tool_of(step);
  const Outcome outcome = validated_outcome(observed, tool.result_schema, step.role == Role::node);
  ToolInvocationFinished event = finished_event(step, step.call->try_no, outcome);
  if (outcome.kind == OutcomeKind::success && tool.result_schema) {
    event.response_schema_hash = hash_from_hex(tool.result_digest);
  }
  if (!is_certain(outcome)) event.at = at;
  std::vector<EventBody> events{std::move(event)};
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
  sent.may_ask_user = step.role == Role::node;
  sent.result_schema = tool.result_schema;
  sent.result_digest = tool.result_digest;
  return sent;
}

Result<std::string> erased_effect(std::string_view location, std::string_view text) {
  AE_ASSIGN(const Value record, read_side_record(location, text));
  if (is_erased_effect(record)) return std::string(text);
  std::vector<Member> left;
  for (const auto& [name, value] : record.members()) {
    if (name == "error") {
      left.emplace_back(name, error_value(value.text("code"), ""));
    } else if (name != "output" && name != "invalid" && name != "metadata" &&
               name != "external_id") {
      left.emplace_back(name, value);
    }
  }
  left.emplace_back("erased", true);
  return canonical(with_checksum(location, Value::object(std::move(left))));
}

bool is_erased_effect(const Value& record) { return record["erased"] == Value(true); }

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
    AE_ASSIGN(const Value record,
              read_side_record(effect_location(state.job, effect.invocation, effect.try_no),
                               effect.record));
    AE_ASSIGN(const Outcome outcome, outcome_of_record(record));
    if (awaits_late_result) {
      // A result that is in the log is not late, although its attempt could not
      // know that it was committed.
      const bool known = !call.uncertain_tries.contains(effect.try_no);
      if (record["late"] == Value(true) && !known && !is_terminal(state.status) &&
          is_certain(outcome)) {
        ToolInvocationFinished event = finished_event(step, effect.try_no, outcome);
        event.response_schema_hash = result_schema_hash_of(record);
        event.late = true;
        event.source = kEffectStoreSource;
        events.emplace_back(std::move(event));
      }
      continue;
    }
    if (record.text("attempt_id") != call.attempt.text) continue;
    const bool outcome_unknown = step.phase == StepPhase::in_doubt;
    if (outcome_unknown && !is_certain(outcome)) continue;
    ToolInvocationFinished event = finished_event(step, effect.try_no, outcome);
    event.response_schema_hash = result_schema_hash_of(record);
    event.caught_up = true;
    event.source = kEffectStoreSource;
    if (!is_certain(outcome)) {
      const auto at = instant_from_text(record.text("created_at"));
      if (!at) return fail(Code::log_corrupt, "an effect record without the time of its writing");
      event.at = *at;
    }
    events.emplace_back(std::move(event));
    if (outcome.kind == OutcomeKind::success) commit(state, step, outcome, events);
    if (auto wait = state.waits.find(step.wait_key); outcome_unknown && wait != state.waits.end()) {
      events.emplace_back(wait_completed_event(state, wait->first, wait->second, "cancelled"));
    }
  }
  AE_TRY(note_late_results(state, effects, events));
  return events;
}

Result<ToolInvocationFinished> finished_payload(const Value& record) {
  AE_ASSIGN(const Outcome outcome, outcome_of_record(record));
  const std::int64_t n = record["try"].is_integer() ? record["try"].as_int() : 0;
  ToolInvocationFinished event =
      finished_event(InvocationId(std::string(record.text("invocation_id"))),
                     StepId(std::string(record.text("command_id"))), n, outcome);
  event.response_schema_hash = result_schema_hash_of(record);
  return event;
}

std::optional<std::pair<InvocationId, std::uint32_t>> decided_effect_slot(const State& state,
                                                                          const EventBody& event) {
  std::optional<StepId> named;
  if (const auto* closes = std::get_if<ToolInvocationFinished>(&event)) named = closes->step_id;
  if (const auto* asks = std::get_if<WaitOpened>(&event)) named = asks->step_id;  // an operator
  if (const auto* decision = std::get_if<DecisionRecorded>(&event);
      decision != nullptr && decision->kind == "in_doubt") {
    named = decision->step_id;
  }
  if (!named) return std::nullopt;
  auto step = state.by_id.find(*named);
  if (step == state.by_id.end()) return std::nullopt;
  const auto& call = state.steps[step->second].call;
  if (!call || !call->open) return std::nullopt;
  return std::pair(call->id, call->try_no);
}

Value effect_record(const JobId& job, const SentTry& sent, const Outcome& observed, Instant at,
                    Arrival arrival) {
  const Outcome outcome = validated_outcome(observed, sent.result_schema, sent.may_ask_user);
  std::vector<Member> p{{"attempt_id", sent.attempt.text},
                        {"command_id", sent.step.text},
                        {"created_at", to_text(at)},
                        {"idempotency_key", sent.key.text},
                        {"input_ref", sent.arguments_hash},
                        {"invocation_id", sent.invocation.text},
                        {"job_id", job.text},
                        {"kind", sent.provider.empty() ? "tool" : "llm"},
                        {"outcome", to_text(outcome.kind)},
                        {"took_us", static_cast<std::int64_t>(outcome.elapsed.count())},
                        {"try", static_cast<std::uint64_t>(sent.try_no)}};
  if (arrival == Arrival::late) p.emplace_back("late", true);
  if (!outcome.external_id.empty()) p.emplace_back("external_id", outcome.external_id);
  if (outcome.retry_after) {
    p.emplace_back("retry_after_ms",
                   static_cast<std::int64_t>(outcome.retry_after->count() / 1000));
  }
  if (!sent.provider.empty()) {
    p.emplace_back("metadata",
                   model_metadata(sent.blind, sent.provider, sent.request, result_of(outcome)));
  }
  if (outcome.kind == OutcomeKind::success) {
    p.emplace_back(outcome.invalid ? "invalid" : "output", result_of(outcome));
    if (sent.result_schema) p.emplace_back("response_schema_hash", sent.result_digest);
  } else if (outcome.kind == OutcomeKind::input_required) {
    p.emplace_back("definite", true);
    p.emplace_back("output", outcome.result);
  } else {
    p.emplace_back("definite", outcome.definite);
    p.emplace_back("error", error_value(outcome.error_code, outcome.error_message));
    p.emplace_back("retryable", outcome.retryable);
    if (outcome.settled) p.emplace_back("settled", true);
  }
  return with_checksum(effect_location(job, sent.invocation, sent.try_no),
                       Value::object(std::move(p)));
}

// In the order of ControlRequest::Kind.
constexpr std::string_view kRequestKinds[] = {"signal", "cancel", "resolve", "timers", "message",
                                              "pause",  "resume", "plan",    "budget", "version"};

// The allowed members of a request; `checksum` is that of its inbox location.
constexpr std::string_view kRequestMembers[] = {
    "kind",     "id",          "by",        "correlation_key", "wait_type",
    "approval", "channel",     "reason",    "idempotency_key", "resolution",
    "step_id",  "traceparent", "payload",   "compensate",      "result",
    "buffer",   "try",         "looked_at", "arguments",       "checksum"};

Value ControlRequest::to_json() const {
  std::vector<Member> p{{"kind", kRequestKinds[static_cast<int>(kind)]}};
  const auto text = [&](const char* name, const std::string& value) {
    if (!value.empty()) p.emplace_back(name, value);
  };
  text("id", id);
  text("by", by);
  text("correlation_key", correlation_key);
  text("wait_type", wait_type);
  text("approval", approval);
  text("channel", channel);
  text("reason", reason);
  text("idempotency_key", idempotency_key);
  text("resolution", resolution);
  text("step_id", step_id);
  text("traceparent", traceparent);
  if (!payload.is_null()) p.emplace_back("payload", payload);
  if (compensate) p.emplace_back("compensate", *compensate);
  if (result) p.emplace_back("result", *result);
  if (arguments) p.emplace_back("arguments", *arguments);
  if (buffer) p.emplace_back("buffer", true);
  if (try_no != 0) p.emplace_back("try", std::uint64_t{try_no});
  if (checked_at) p.emplace_back("looked_at", to_text(*checked_at));
  return Value::object(std::move(p));
}

Result<ControlRequest> ControlRequest::from_json(const Value& json) {
  ControlRequest request;
  const std::string_view kind = json.text("kind");
  const auto known = std::ranges::find(kRequestKinds, kind);
  if (known == std::end(kRequestKinds)) {
    return fail(Code::needs_version, "an act of the unknown kind \"" + std::string(kind) + "\"");
  }
  // A member from a newer program may change the meaning of the others.
  for (const Member& member : json.members()) {
    if (std::ranges::find(kRequestMembers, member.first) != std::end(kRequestMembers)) continue;
    return fail(Code::needs_version, "an act (" + std::string(kind) +
                                         ") with the unknown member \"" + member.first + "\"");
  }
  request.kind = static_cast<Kind>(known - std::begin(kRequestKinds));
  request.id = json.text("id");
  request.by = json.text("by");
  request.correlation_key = json.text("correlation_key");
  request.wait_type = json.text("wait_type");
  request.approval = json.text("approval");
  request.channel = json.text("channel");
  request.buffer = json["buffer"] == Value(true);
  request.reason = json.text("reason");
  request.idempotency_key = json.text("idempotency_key");
  request.resolution = json.text("resolution");
  request.step_id = json.text("step_id");
  request.traceparent = json.text("traceparent");
  request.payload = json["payload"];
  if (json["compensate"].is_bool()) request.compensate = json["compensate"].as_bool();
  if (const Value* result = json.find("result")) request.result = *result;
  if (const Value* arguments = json.find("arguments")) request.arguments = *arguments;
  if (json["try"].is_integer()) request.try_no = static_cast<std::uint32_t>(json["try"].as_int());
  if (json.find("looked_at") != nullptr) {
    AE_ASSIGN(request.checked_at, instant_from_text(json.text("looked_at")));
  }
  return request;
}

AcceptedRequest apply_accepted(const State& state, const ControlRequest& request,
                               const DecisionContext& context) {
  auto applied = apply_request(state, request, context);
  const bool counts =
      request.kind == ControlRequest::Kind::signal || request.kind == ControlRequest::Kind::message;
  if (applied && !applied->events.empty()) {
    if (request.checked_at) {
      if (auto in_time = check_not_expired(state, request, *request.checked_at); !in_time)
        return {.events = {}, .answer = std::unexpected(in_time.error())};
    }
    if (counts && state.signals >= kSignalsMax)
      return {.events = {}, .answer = std::unexpected(signals_limit_error())};
    return {.events = std::move(applied->events), .answer = std::move(applied->answer)};
  }
  if (auto events = expire_request(state, request); !events.empty())
    return {.events = std::move(events), .answer = Value::object({{"accepted", true}})};
  if (!applied) return {.events = {}, .answer = std::unexpected(applied.error())};
  return {.events = {}, .answer = std::move(applied->answer)};
}

Error signals_limit_error() {
  return {Code::signals_limit, "the job has accepted " + std::to_string(kSignalsMax) +
                                   " signals, the most that one job may have"};
}

Result<AppliedRequest> apply_request(const State& state, const ControlRequest& request,
                                     const DecisionContext& context) {
  switch (request.kind) {
    case ControlRequest::Kind::signal:
      if (answers_confirmation(state, request))
        return apply_confirmation_answer(state, request, context);
      return apply_signal_request(state, request, context);
    case ControlRequest::Kind::cancel:
      return apply_cancel_request(state, request);
    case ControlRequest::Kind::resolve:
      if (answers_confirmation(state, request))
        return apply_confirmation_answer(state, request, context);
      return apply_resolution(state, request, context);
    case ControlRequest::Kind::timers:
      return apply_due_timers(state, context);
    case ControlRequest::Kind::message:
      return apply_message_request(state, request, context);
    case ControlRequest::Kind::pause:
      return apply_pause_request(state, request);
    case ControlRequest::Kind::resume:
      return apply_resume_request(state, request);
    case ControlRequest::Kind::plan:
      return apply_plan_request(state, request, context);
    case ControlRequest::Kind::budget:
      return apply_budget_request(state, request, context);
    case ControlRequest::Kind::version:
      return apply_version_offer(state, request, context);
  }
  return fail(Code::needs_version, "an unknown act");
}

}  // namespace ae::engine
