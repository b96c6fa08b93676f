#include "api/duplicate_answer.h"

#include <fmt/core.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "json/json.h"
#include "log/decisions.h"
#include "log/event.h"
#include "log/field_names.h"

namespace ae::api {
namespace {

using engine::ApproveRequest, engine::BudgetRequest, engine::ControlRequest, engine::MessageRequest,
    engine::ResolveRequest, engine::SignalRequest;

constexpr std::size_t kKeyMin = 8;  // minimum digits that identify a call

struct Answerer {
  Instant at;
  std::optional<std::string> by;
};

// A decision has its own time, if it is recorded there.
Answerer answerer_of(const Event& event) {
  Answerer answerer_json{.at = event.created_at, .by = {}};
  std::visit(
      [&answerer_json](const auto& body) {
        if constexpr (requires { body.at; }) {
          answerer_json.at = std::optional<Instant>(body.at).value_or(answerer_json.at);
        }
        if constexpr (requires { body.by; }) answerer_json.by = body.by;
      },
      event.body);
  return answerer_json;
}

Value shown_answerer(const Event& event) {
  const Answerer answerer_json = answerer_of(event);
  return Value::object({{field::at, to_text(answerer_json.at)},
                        {field::by, answerer_json.by ? Value(*answerer_json.by) : Value()}});
}

std::string answerer_text(const Event& event, std::string_view what) {
  const Answerer answerer_json = answerer_of(event);
  const std::string by = answerer_json.by ? fmt::format(" by {}", *answerer_json.by) : "";
  return fmt::format("{}{} at {}", what, by, to_text(answerer_json.at));
}

// Null instead of an empty text.
Value shown(std::string_view text) { return text.empty() ? Value() : Value(text); }

// What a control request decides: about a call, or about the changes of a step.
struct Decision {
  std::string call;         // its id, or a prefix of it
  std::int64_t try_no = 0;  // 0 = the last one
  std::string step;         // its id
  std::string node;
  std::string resolution;
  Value result;
};

std::optional<Decision> requested_decision(const ApproveRequest& approve) {
  return Decision{.step = approve.approval_id,
                  .resolution = approve.decision == "approve" ? "accept" : "fail"};
}
std::optional<Decision> requested_decision(const ResolveRequest& resolve) {
  const std::string& name = resolve.step_id.empty() ? resolve.idempotency_key : resolve.step_id;
  return Decision{.call = resolve.idempotency_key,
                  .try_no = resolve.try_no,
                  .step = name,
                  .node = name,
                  .resolution = resolve.resolution,
                  .result = resolve.result.value_or(Value())};
}
std::optional<Decision> requested_decision(const auto&) { return std::nullopt; }

// The decisions about the same subject, as resolutions.
class ResolutionHistory {
 public:
  explicit ResolutionHistory(Decision requested) : requested_(std::move(requested)) {}

  void take(const Event& event) {
    if (const auto* started = as<ToolInvocationStarted>(event)) {
      tries_.insert_or_assign(started->idempotency_key.text, started->try_no);
    } else if (const auto* decision = as<DecisionRecorded>(event)) {
      decided(event, *decision);
    } else if (const auto* note = as<OutcomeNoted>(event)) {
      if (is_same_call(note->idempotency_key.text)) decides(event, note->result.value);
    } else if (const auto* committed = as<CommandCommitted>(event)) {
      if (last_ != nullptr && committed->step_id.text == step_of(*last_)) {
        result_ = committed->result.value;
      }
    }
  }

  const Event* last() const { return last_; }
  std::string_view resolution() const {
    if (const auto* note = as<OutcomeNoted>(*last_)) return note->resolution;
    return or_empty(std::get<DecisionRecorded>(last_->body).state);
  }

  bool is_same_resolution() const {
    const std::string_view recorded = resolution();
    return requested_.resolution == recorded &&
           (recorded != "happened" || requested_.result == result_);
  }

  // The recorded result of a call that happened, if it is short.
  std::string result_text() const {
    constexpr std::size_t kResultMax = 60;
    if (resolution() != "happened" || canonical_exceeds(result_, kResultMax)) return {};
    return fmt::format(" with the result {}", canonical(result_));
  }

  Value shown_answer() const {
    Value answer = Value::object({{"answered", shown_answerer(*last_)},
                                  {"applied", true},
                                  {"duplicate", true},
                                  {field::node_id, shown(node_of(*last_))},
                                  {field::resolution, resolution()}});
    if (const auto* note = as<OutcomeNoted>(*last_)) {
      answer = answer.with("noted", true).with(field::idempotency_key, note->idempotency_key.text);
    } else if (const auto decided = decision_as<OutcomeDecided>(*last_)) {
      answer = answer.with(field::idempotency_key, decided->idempotency_key.text);
    } else {
      return answer.with(field::step_id, shown(step_of(*last_)));
    }
    return resolution() == "happened" ? answer.with(field::result, result_) : answer;
  }

 private:
  void decided(const Event& event, const DecisionRecorded& decision) {
    if (const auto outcome = decision_as<OutcomeDecided>(decision)) {
      if (is_same_call(outcome->idempotency_key.text)) decides(event, Value());
    } else if (is_decision<ConfirmationAnswered>(decision) && is_same_step(event)) {
      last_ = &event;
    }
  }
  void decides(const Event& event, Value result) {
    last_ = &event;
    result_ = std::move(result);
  }
  bool is_same_call(std::string_view key) const {
    if (requested_.call.size() < kKeyMin || !key.starts_with(requested_.call)) return false;
    const auto of = tries_.find(key);
    return requested_.try_no == 0 || (of != tries_.end() && of->second == requested_.try_no);
  }
  bool is_same_step(const Event& event) const {
    return step_of(event) == requested_.step ||
           (!requested_.node.empty() && node_of(event) == requested_.node);
  }

  const Decision requested_;
  std::map<std::string, std::int64_t, std::less<>> tries_;  // the last try of each call
  const Event* last_ = nullptr;
  Value result_;
};

// Does the request decide about the call whose arguments this decision changed?
bool names_call(const SignalRequest& signal, const ArgumentsEdited& edit) {
  return signal.correlation_key == fmt::format("approval/{}", edit.command_id.text);
}
bool names_call(const ApproveRequest& approve, const ArgumentsEdited& edit) {
  return approve.approval_id == edit.approval_id.text;
}
bool names_call(const auto&, const ArgumentsEdited&) { return false; }

// The event that changed the arguments of the call that this request approves; nullptr = not in the
// log.
const Event* find_edit(const ControlRequest& control, const std::vector<Event>& events) {
  for (const Event& event : events) {
    const auto edit = decision_as<ArgumentsEdited>(event);
    if (!edit) continue;
    const bool names_it =
        std::visit([&](const auto& body) { return names_call(body, *edit); }, control.body);
    if (names_it) return &event;
  }
  return nullptr;
}

// For a message with a known id: has it the same payload? Unknown if that was erased.
Value add_message_match(Value answer, const std::string& id, const MessageRequest& repeated,
                        const std::vector<Event>& events) {
  for (const Event& event : events) {
    const auto* message = as<AgentMessage>(event);
    if (message == nullptr || message->message_id != id || message->channel != repeated.channel ||
        message->payload.erased) {
      continue;
    }
    const Value& payload = message->payload.value;
    return answer.with("applied", payload == repeated.payload).with(field::payload, payload);
  }
  return answer;
}

// Is this event the result of such a control request? `key`: of the request's wait.
bool answers(const BudgetRequest&, const Event& event, const Value&) {
  const auto* decision = as<DecisionRecorded>(event);
  return decision != nullptr && is_decision<BudgetRaised>(*decision);
}
bool answers(const auto&, const Event& event, const Value& key) {
  const auto* completed = as<WaitCompleted>(event);
  return completed != nullptr && key == Value(completed->correlation_key);
}

}  // namespace

Value add_previous_answerer(Value answer, const ControlRequest& control,
                            const std::vector<Event>& events) {
  if (const auto* message = control.as<MessageRequest>())
    return add_message_match(std::move(answer), control.id, *message, events);
  const Value key = answer[field::correlation_key];
  const Event* found = nullptr;
  std::visit(
      [&](const auto& body) {
        for (const Event& event : events) {
          if (answers(body, event, key)) found = &event;
        }
      },
      control.body);
  return found == nullptr ? answer : answer.with("answered", shown_answerer(*found));
}

bool may_be_duplicate_answer(const ControlRequest& control, Code refused) {
  switch (refused) {
    case Code::not_in_doubt:
    case Code::job_terminal:
      return control.is<ResolveRequest>();
    case Code::approval_edited:
      return true;
    case Code::not_found:
      // An answered verification is no longer listed.
      return control.is<ApproveRequest>();
    default:
      return false;
  }
}

Result<Value> find_previous_answer(const ControlRequest& control, const std::vector<Event>& events,
                                   Error refusal) {
  if (refusal.code == Code::approval_edited) {
    if (const Event* edit = find_edit(control, events))
      refusal.message += fmt::format(": {}", answerer_text(*edit, "edited"));
    return std::unexpected(std::move(refusal));
  }
  auto requested =
      std::visit([](const auto& body) { return requested_decision(body); }, control.body);
  if (!requested) return std::unexpected(std::move(refusal));
  ResolutionHistory recorded(*std::move(requested));
  for (const Event& event : events) recorded.take(event);
  if (recorded.last() == nullptr) return std::unexpected(std::move(refusal));
  if (recorded.is_same_resolution()) return recorded.shown_answer();
  return fail(Code::not_in_doubt, "already answered differently: {}{}",
              answerer_text(*recorded.last(), recorded.resolution()), recorded.result_text());
}

}  // namespace ae::api
