// Answers to waits, now or later: signals, early signals, messages; and what an approval shares
// with them.
#include <fmt/core.h>

#include <algorithm>
#include <concepts>
#include <utility>

#include "base/hash.h"
#include "engine/heart/decide.h"
#include "engine/heart/evaluate.h"
#include "engine/heart/features.h"
#include "engine/heart/request.h"
#include "json/json.h"
#include "log/field_names.h"
#include "log/seal.h"

namespace ae::engine {
namespace {

// The limit of a wait's key, so that a kept signal can match one.
constexpr std::size_t kKeyMax = 256;

// The answer for a closed wait. If other arguments than the client's were approved, the
// client must check them first. If the payload was erased, the id shows that the request ended the
// wait.
Result<Value> answer_for_closed_wait(const State& state, const std::string& key,
                                     const ClosedWait& closed, const ControlRequest& request,
                                     const WaitAnswer& answer) {
  const Value payload = recorded_answer(state, answer);
  const bool has_ended_it = closed.erased && !request.id.empty() && closed.signal_id == request.id;
  if (closed.outcome == "edited" && !has_ended_it &&
      payload.text(field::arguments_hash) != closed.payload.text(field::arguments_hash)) {
    return fail(Code::approval_edited, Action{.act = act::kTrace, .job = state.job.text},
                "this call was approved with changed arguments");
  }
  const bool same =
      has_ended_it || (is_question_wait_key(key) ? is_same_answer(answer, closed.payload)
                                                 : closed.payload == payload);
  const bool delivered = closed.outcome == "signalled" || closed.outcome == "approved" ||
                         closed.outcome == "edited" || closed.outcome == "rejected";
  return Value::object({{"applied", delivered && same},
                        {field::correlation_key, key},
                        {field::delivered, delivered},
                        {"duplicate", true},
                        {field::outcome, closed.outcome},
                        {field::payload, closed.payload}});
}

// The key with which a wait of the plan will open; "" = not known yet.
std::string expected_wait_key(const State& state, const Node& node, Work& work) {
  const Step& step = state.steps[node.index];
  if (!node.wait_key) return step.id.text;
  if (!node.wait_key->is_constant()) {
    const ExprRoots& read = node.wait_key->roots();
    const bool known = std::ranges::all_of(read.steps, [&](const std::string& id) {
      const auto of = state.plan->by_id.find(id);
      return of != state.plan->by_id.end() && state.steps[of->second].phase == StepPhase::done;
    });
    if (read.all_steps || !known) return {};
  }
  const auto named = wait_key_of(state, node, &work);
  return named ? state.unique_wait_key(*named) : std::string();
}

// An early answer to a human wait must be a decision. If the plan cannot tell yet which wait has
// this key, the signal is kept, and listed as undelivered if no wait takes it.
Status check_early_signal(const State& state, const SignalRequest& signal, const std::string& key) {
  if (!state.plan) return {};
  Status refused;
  Work work = 0;
  for (const Node& node : state.plan->nodes) {
    if (work >= DecideLimits{}.work_max) break;  // kept, unless an earlier wait rejected it
    const StepPhase phase = state.steps[node.index].phase;
    const bool to_come = phase == StepPhase::blocked || phase == StepPhase::ready;
    if (node.kind != NodeKind::wait || node.wait.type != WaitType::human || !to_come) continue;
    if (!signal.wait_type.empty() && signal.wait_type != to_text(node.wait.type)) continue;
    if (expected_wait_key(state, node, work) != key) continue;
    const auto outcome = outcome_of_answer(&node.wait, signal.payload);
    if (outcome) return {};
    refused = std::unexpected(outcome.error());
  }
  return refused;
}

// The kept signal for this key that the wait would take before the new one; nullptr =
// none. The wait may ignore a kept one of another wait type, or one without a
// decision if the new one has one.
const BufferedMessage* buffered_signal_for(const State& state, const SignalRequest& signal,
                                           const std::string& key) {
  const auto decides = [](const Value& payload) {
    const std::string_view decision = payload.text("decision");
    return decision == "approve" || decision == "reject";
  };
  const auto early = state.early_signals.find(key);
  if (early == state.early_signals.end()) return nullptr;
  const auto same = std::ranges::find_if(early->second, [&](const BufferedMessage& kept) {
    return kept.wait_type == signal.wait_type && !kept.erased &&
           decides(kept.payload) == decides(signal.payload);
  });
  return same == early->second.end() ? nullptr : &*same;
}

// The event that keeps a signal that arrived before its wait.
AgentMessage buffered_event(const ControlRequest& request, const SignalRequest& signal) {
  return {.by = none_if_empty(request.by),
          .correlation_key = signal.correlation_key,
          .message_id = request.id,
          .payload = signal.payload,
          .traceparent = none_if_empty(signal.traceparent),
          .wait_type = none_if_empty(signal.wait_type)};
}

// The event that keeps a message.
AgentMessage buffered_event(const ControlRequest& request, const MessageRequest& message) {
  return {.by = none_if_empty(request.by),
          .channel = message.channel,
          .control = none_if_empty(message.control),
          .message_id = request.id,
          .payload = message.payload,
          .traceparent = none_if_empty(message.traceparent)};
}

Value buffered_reply(const std::string& key) {
  return Value::object({{"buffered", true}, {field::correlation_key, key}});
}

// Keeps a signal until a wait opens with its key (SPEC §10).
Result<AppliedRequest> buffer_early_signal(const State& state, const ControlRequest& request,
                                           const SignalRequest& signal, const std::string& key) {
  if (is_reserved_key(key)) {
    return fail(Code::wait_mismatch,
                "keys of the form resolve/…, approval/…, input/…#n and job/… are reserved for the "
                "runtime: such requests cannot be answered early");
  }
  if (key.empty() || key.size() > kKeyMax) {
    return fail(Code::wait_mismatch, "a correlation key has 1 to 256 bytes");
  }
  if (state.ending) {
    return fail(Code::wait_mismatch, "the job is ending: no wait will open any more");
  }
  AE_TRY(check_early_signal(state, signal, key));
  const Value answer = buffered_reply(key);
  if (const BufferedMessage* kept = buffered_signal_for(state, signal, key)) {
    const Value again = answer.with("duplicate", true).with(field::payload, kept->payload);
    return AppliedRequest{.events = {},
                          .answer = again.with("applied", kept->payload == signal.payload)};
  }
  if (state.message_keys.contains(message_key({}, key, request.id))) {
    return AppliedRequest{.events = {}, .answer = answer.with("duplicate", true)};
  }
  return AppliedRequest{.events = {buffered_event(request, signal)}, .answer = answer};
}

}  // namespace

WaitAnswer answer_of(const SignalRequest& signal) {
  return {.wait_type = signal.wait_type,
          .payload = signal.payload,
          .arguments = std::nullopt,
          .traceparent = signal.traceparent};
}

const std::string* open_wait_key(const State& state, const SignalRequest& signal) {
  const auto wait = state.waits.find(signal.correlation_key);
  return wait == state.waits.end() ? nullptr : &wait->first;
}

Value recorded_answer(const State& state, const WaitAnswer& answer) {
  if (!answer.arguments) return answer.payload;
  return answer.payload.with(field::arguments_hash, state.hash_of(*answer.arguments));
}

std::string after_rejection(const State& state, const Step& step) {
  const Node& node = state.node_of(step);
  const std::string name = fmt::format("node {}", node.id);
  if (step.request) {
    const bool is_wait = step.request->kind == NodeKind::wait;
    return fmt::format("the code of {} gets the rejection{}", name, is_wait ? "" : " as a failure");
  }
  if (step.turn != kNoTurn && !node.loop->fail_on_reject) {
    return fmt::format("the model of {} gets the rejection as the result of its call", name);
  }
  if (step.item != kNoItem && node.collect_errors) {
    return fmt::format("item {} of {} fails and the job continues", step.item, name);
  }
  if (node.kind == NodeKind::wait && node.wait.continue_on_reject) {
    return fmt::format("the job continues after {}", name);
  }
  if (node.continue_on_error) return fmt::format("{} fails and the job continues", name);
  return fmt::format("the job fails at {}", name);
}

Value delivered_reply(const std::string& key, std::string_view outcome) {
  return Value::object(
      {{field::correlation_key, key}, {field::delivered, true}, {field::outcome, outcome}});
}

WaitCompleted with_answer(WaitCompleted event, const ControlRequest& request,
                          const WaitAnswer& answer, const Value& payload) {
  event.by = none_if_empty(request.by);
  event.payload = payload;
  event.signal_id = none_if_empty(request.id);
  event.traceparent = none_if_empty(answer.traceparent);
  return event;
}

bool is_reserved_key(std::string_view key) {
  return key.starts_with("resolve/") || key.starts_with("approval/") || is_question_wait_key(key) ||
         is_child_wait_key(key);
}

Result<std::string_view> outcome_of_answer(const WaitRules* rules, const Value& payload) {
  if (rules != nullptr && rules->type != WaitType::human) return "signalled";
  const std::string_view decision = payload.text("decision");
  if (decision == "approve") return "approved";
  if (decision == "reject") return "rejected";
  if (rules != nullptr && rules->accepts_data) return "approved";
  return fail(Code::input_invalid, Action{.act = act::kApprovals},
              R"(an answer is {"decision": "approve"} or {"decision": "reject"})");
}

const BufferedMessage* first_fitting_signal(const std::deque<BufferedMessage>& early,
                                            const WaitRules& rules) {
  for (const BufferedMessage& kept : early) {
    if (!kept.wait_type.empty() && kept.wait_type != to_text(rules.type)) continue;
    if (outcome_of_answer(&rules, kept.payload)) return &kept;
  }
  return nullptr;
}

namespace {

// If the job is ending: cancels the open wait with this key. Null: there is none.
std::vector<EventBody> cancel_wait(const State& state, const std::string* key,
                                   const ControlRequest& request, const WaitAnswer& answer) {
  if (!state.ending || key == nullptr) return {};
  const Wait& wait = state.waits.at(*key);
  if (wait.resolve) return {};
  return {with_answer(wait_completed_event(state, *key, wait, "cancelled"), request, answer,
                      answer.payload)};
}

std::vector<EventBody> expire(const State& state, const ControlRequest& request,
                              const ApproveRequest& approve) {
  return cancel_wait(state, open_wait_key(state, approve), request, answer_of(approve));
}

std::vector<EventBody> expire(const State& state, const ControlRequest& request,
                              const SignalRequest& signal) {
  auto cancelled = cancel_wait(state, open_wait_key(state, signal), request, answer_of(signal));
  if (!cancelled.empty()) return cancelled;
  const std::string& key = signal.correlation_key;
  if (!signal.buffer || is_reserved_key(key) || key.empty() || key.size() > kKeyMax) return {};
  if (state.message_keys.contains(message_key({}, key, request.id))) return {};
  const auto closed = state.closed_waits.find(key);
  if (closed != state.closed_waits.end() && closed->second.signal_id == request.id) return {};
  return {buffered_event(request, signal)};
}

std::vector<EventBody> expire(const State& state, const ControlRequest& request,
                              const MessageRequest& message) {
  if (!state.ending) return {};
  if (state.message_keys.contains(message_key(message.channel, {}, request.id))) return {};
  return {buffered_event(request, message)};
}

std::vector<EventBody> expire(const State&, const ControlRequest&, const auto&) { return {}; }

}  // namespace

std::vector<EventBody> expire_request(const State& state, const ControlRequest& request) {
  if (is_terminal(state.status) || request.id.empty()) return {};
  return std::visit([&](const auto& body) { return expire(state, request, body); }, request.body);
}

namespace {

bool has_expired(const Wait& wait, Instant now) {
  return wait.expires_at && *wait.expires_at <= now;
}

// The longest open wait for this channel. An expired one gets the message only if there is no
// other: the message was accepted before the expiry.
const std::pair<const std::string, Wait>* receiving_wait(const State& state,
                                                         std::string_view channel, Instant now) {
  const std::pair<const std::string, Wait>* first = nullptr;
  for (const auto& entry : state.waits) {
    const Wait& wait = entry.second;
    if (wait.type != WaitType::message || wait.channel != channel) continue;
    const auto rank = [now](const Wait& one) {
      return std::pair(has_expired(one, now), one.opened_seq);
    };
    if (!first || rank(wait) < rank(first->second)) first = &entry;
  }
  return first;
}

// The open wait that the request would answer; nullptr = none.
const Wait* answered_wait(const State& state, const MessageRequest& message, Instant now) {
  const auto* const first = receiving_wait(state, message.channel, now);
  return first == nullptr ? nullptr : &first->second;
}

template <class Answer>
  requires std::same_as<Answer, SignalRequest> || std::same_as<Answer, ApproveRequest>
const Wait* answered_wait(const State& state, const Answer& answer, Instant) {
  const std::string* const key = open_wait_key(state, answer);
  const Wait* const wait = key == nullptr ? nullptr : &state.waits.at(*key);
  return wait == nullptr || wait->type == WaitType::message ? nullptr : wait;
}

const Wait* answered_wait(const State&, const auto&, Instant) { return nullptr; }

}  // namespace

Status check_not_expired(const State& state, const ControlRequest& request, Instant now) {
  const Wait* const wait =
      std::visit([&](const auto& body) { return answered_wait(state, body, now); }, request.body);
  if (wait == nullptr || !has_expired(*wait, now)) return {};
  return fail(Code::wait_expired,
              "no answer came in time: the wait expired at {}, and job {} continues "
              "without an answer as soon as a process runs it",
              to_text(*wait->expires_at), state.job.text);
}

namespace {

Status check_wait_type(const WaitAnswer& answer, const std::string& key, WaitType type) {
  if (answer.wait_type.empty() || answer.wait_type == to_text(type)) return {};
  return fail(Code::wait_mismatch, "the wait \"{}\" is of type {}", key, to_text(type));
}

// The closed wait with this key, if answers to it are answered from the log; null otherwise.
const ClosedWait* closed_wait(const State& state, const std::string& key) {
  const auto closed = state.closed_waits.find(key);
  return closed == state.closed_waits.end() || key.starts_with("resolve/") ? nullptr
                                                                           : &closed->second;
}

}  // namespace

Result<AppliedRequest> apply_wait_answer(const State& state, const std::string& key,
                                         const ControlRequest& request, const WaitAnswer& answer,
                                         const DecisionContext& context) {
  if (const ClosedWait* const closed = closed_wait(state, key)) {
    AE_TRY(check_wait_type(answer, key, closed->type));
    AE_ASSIGN(Value before, answer_for_closed_wait(state, key, *closed, request, answer));
    return AppliedRequest{.events = {}, .answer = std::move(before)};
  }
  if (is_terminal(state.status)) return fail(Code::job_terminal, "the job has ended");
  const auto found = state.waits.find(key);
  const bool open = found != state.waits.end() && !found->second.resolve &&
                    found->second.type != WaitType::timer &&
                    found->second.type != WaitType::message &&
                    found->second.type != WaitType::job && !state.ending;
  if (!open) {
    return fail(Code::wait_mismatch, Action{.act = act::kJob, .job = state.job.text},
                "no open wait of this job has the key \"{}\"", key);
  }
  const Wait& wait = found->second;
  AE_TRY(check_wait_type(answer, key, wait.type));
  if (wait.question) return apply_question_answer(state, key, wait, request, answer);
  if (wait.approval) return apply_approval_answer(state, key, wait, request, answer, context);
  const Step& step = state.steps[wait.step];
  AE_ASSIGN(const std::string_view outcome,
            outcome_of_answer(&state.wait_rules_of(step), answer.payload));
  if (answer.arguments) {
    return fail(Code::input_invalid, "only a call that is approved can be given other arguments");
  }
  AppliedRequest applied;
  applied.events.emplace_back(with_answer(wait_completed_event(state, key, wait, outcome), request,
                                          answer, answer.payload));
  applied.answer = delivered_reply(key, outcome);
  if (outcome == "rejected") {
    applied.answer = applied.answer.with("then", after_rejection(state, step));
  }
  return applied;
}

Result<AppliedRequest> apply_request(const State& state, const ControlRequest& request,
                                     const SignalRequest& signal, const DecisionContext& context) {
  const std::string& key = signal.correlation_key;
  const bool has_no_wait = !state.waits.contains(key) && closed_wait(state, key) == nullptr;
  const bool ends = is_terminal(state.status) || state.ending;
  if (has_no_wait && ends && state.message_keys.contains(message_key({}, key, request.id))) {
    return AppliedRequest{.events = {}, .answer = buffered_reply(key).with("duplicate", true)};
  }
  const bool early = signal.buffer && has_no_wait && !is_terminal(state.status);
  if (early) return buffer_early_signal(state, request, signal, key);
  return apply_wait_answer(state, key, request, answer_of(signal), context);
}

namespace {

// Can a thread take this message? Of other jobs any payload can be one.
Status check_thread_message(const State& state, const MessageRequest& message) {
  const bool is_thread = thread_of(state) != nullptr && message.channel == kThreadChannel;
  const std::string& control = message.control;
  if (!control.empty() && control != thread_control::kEnd &&
      control != thread_control::kInterrupt) {
    return fail(Code::input_invalid, "`control` is \"end\" or \"interrupt\"");
  }
  if (!control.empty() && !is_thread) {
    return fail(Code::input_invalid,
                "`control` is for the channel \"{}\" of a loop agent with `thread: true`",
                kThreadChannel);
  }
  if (!is_thread || control == thread_control::kInterrupt) return {};
  if (is_thread_ending(state)) return fail(Code::job_terminal, "the thread is ending");
  if (control.empty() && message_text_of(message.payload).empty()) {
    return fail(Code::input_invalid, "a message of a thread is a text, or has a text `message`");
  }
  return {};
}

}  // namespace

// Messages are kept in order of arrival; the longest open wait for the channel gets it at once.
Result<AppliedRequest> apply_request(const State& state, const ControlRequest& request,
                                     const MessageRequest& message,
                                     const DecisionContext& context) {
  if (message.channel.empty() || message.channel.size() > 256) {
    return fail(Code::input_invalid, "a channel has 1 to 256 bytes");
  }
  AppliedRequest applied;
  applied.answer = Value::object(
      {{"accepted", true}, {field::channel, message.channel}, {field::message_id, request.id}});
  if (!message.control.empty()) {
    applied.answer = applied.answer.with(field::control, message.control);
  }
  if (state.message_keys.contains(message_key(message.channel, {}, request.id))) {
    applied.answer = applied.answer.with("duplicate", true);
    return applied;
  }
  if (is_terminal(state.status)) return fail(Code::job_terminal, "the job has ended");
  if (state.ending) return fail(Code::job_terminal, "the job is ending");
  AE_TRY(check_thread_message(state, message));
  // Between two exchanges there is nothing to interrupt.
  const bool interrupts = message.control == thread_control::kInterrupt;
  if (interrupts && !may_interrupt(state)) {
    applied.answer = applied.answer.with("applied", false);
    return applied;
  }
  applied.events.push_back(buffered_event(request, message));
  if (interrupts) {
    // Open approvals of the exchange are withdrawn, so that the job continues.
    for (const auto& [key, wait] : state.waits) {
      if (!wait.approval || state.steps[wait.step].node != thread_of(state)->node) continue;
      applied.events.emplace_back(wait_completed_event(state, key, wait, "cancelled"));
    }
    return applied;
  }
  // The payload is in the message event.
  if (const auto* const first = receiving_wait(state, message.channel, context.now)) {
    WaitCompleted delivered = wait_completed_event(state, first->first, first->second, "signalled");
    delivered.signal_id = request.id;
    applied.events.emplace_back(std::move(delivered));
  }
  return applied;
}

}  // namespace ae::engine
