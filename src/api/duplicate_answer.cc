#include "api/duplicate_answer.h"

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

namespace ae::api {
namespace {

using engine::ControlRequest;

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
  return Value::object({{"at", to_text(answerer_json.at)},
                        {"by", answerer_json.by ? Value(*answerer_json.by) : Value()}});
}

std::string answerer_text(const Event& event, std::string_view what) {
  const Answerer answerer_json = answerer_of(event);
  std::string text(what);
  if (answerer_json.by) text.append(" by ").append(*answerer_json.by);
  return text.append(" at ").append(to_text(answerer_json.at));
}

// Null instead of an empty text.
Value shown(std::string_view text) { return text.empty() ? Value() : Value(text); }

// The decisions about the subject of the control request, as resolutions.
class ResolutionHistory {
 public:
  explicit ResolutionHistory(const ControlRequest& control)
      : control_(control),
        by_approval_(control.kind == ControlRequest::Kind::signal),
        step_(by_approval_              ? control.approval
              : control.step_id.empty() ? control.idempotency_key
                                        : control.step_id) {}

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
    const bool approves = control_.payload.text("decision") == "approve";
    const std::string_view requested = !by_approval_ ? std::string_view(control_.resolution)
                                       : approves    ? "accept"
                                                     : "fail";
    return requested == recorded &&
           (recorded != "happened" || control_.result.value_or(Value()) == result_);
  }

  // The recorded result of a call that happened, if it is short.
  std::string result_text() const {
    constexpr std::size_t kResultMax = 60;
    if (resolution() != "happened" || canonical_exceeds(result_, kResultMax)) return {};
    return " with the result " + canonical(result_);
  }

  Value shown_answer() const {
    Value answer = Value::object({{"answered", shown_answerer(*last_)},
                                  {"applied", true},
                                  {"duplicate", true},
                                  {"node_id", shown(node_of(*last_))},
                                  {"resolution", resolution()}});
    if (const auto* note = as<OutcomeNoted>(*last_)) {
      answer = answer.with("noted", true).with("idempotency_key", note->idempotency_key.text);
    } else if (const auto decided = decision_as<OutcomeDecided>(*last_)) {
      answer = answer.with("idempotency_key", decided->idempotency_key.text);
    } else {
      return answer.with("step_id", shown(step_of(*last_)));
    }
    return resolution() == "happened" ? answer.with("result", result_) : answer;
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
    if (by_approval_ || control_.idempotency_key.size() < kKeyMin) return false;
    if (!key.starts_with(control_.idempotency_key)) return false;
    const auto of = tries_.find(key);
    return control_.try_no == 0 || (of != tries_.end() && of->second == control_.try_no);
  }
  bool is_same_step(const Event& event) const {
    return step_of(event) == step_ || (!by_approval_ && node_of(event) == step_);
  }

  const ControlRequest& control_;
  const bool by_approval_;  // selected by approval id
  const std::string step_;
  std::map<std::string, std::int64_t, std::less<>> tries_;  // the last try of each call
  const Event* last_ = nullptr;
  Value result_;
};

// The event that changed the arguments of the call that this request approves; nullptr = not in the
// log.
const Event* find_edit(const ControlRequest& control, const std::vector<Event>& events) {
  for (const Event& event : events) {
    const auto edit = decision_as<ArgumentsEdited>(event);
    if (!edit) continue;
    std::string key("approval/");
    key.append(edit->command_id.text.view());
    if (control.approval.empty() ? key == control.correlation_key
                                 : edit->approval_id.text == control.approval) {
      return &event;
    }
  }
  return nullptr;
}

}  // namespace

namespace {

// For a message with a known id: has it the same payload? Unknown if that was erased.
Value add_message_match(Value answer, const ControlRequest& control,
                        const std::vector<Event>& events) {
  for (const Event& event : events) {
    const auto* message = as<AgentMessage>(event);
    if (message == nullptr || message->message_id != control.id ||
        message->channel != control.channel || message->payload.erased) {
      continue;
    }
    const Value& payload = message->payload.value;
    return answer.with("applied", payload == control.payload).with("payload", payload);
  }
  return answer;
}

// Is this event the result of such a control request? `key`: of the request's wait.
bool answers(const ControlRequest& control, const Event& event, const Value& key) {
  if (control.kind == ControlRequest::Kind::budget) {
    const auto* decision = as<DecisionRecorded>(event);
    return decision != nullptr && is_decision<BudgetRaised>(*decision);
  }
  const auto* completed = as<WaitCompleted>(event);
  return completed != nullptr && key == Value(completed->correlation_key);
}

}  // namespace

Value add_previous_answerer(Value answer, const ControlRequest& control,
                            const std::vector<Event>& events) {
  if (control.kind == ControlRequest::Kind::message)
    return add_message_match(std::move(answer), control, events);
  const Event* found = nullptr;
  for (const Event& event : events) {
    if (answers(control, event, answer["correlation_key"])) found = &event;
  }
  return found == nullptr ? answer : answer.with("answered", shown_answerer(*found));
}

bool may_be_duplicate_answer(const ControlRequest& control, Code refused) {
  switch (refused) {
    case Code::not_in_doubt:
    case Code::job_terminal:
      return control.kind == ControlRequest::Kind::resolve;
    case Code::approval_edited:
      return true;
    case Code::not_found:
      return !control.approval.empty();  // an answered verification is no longer listed
    default:
      return false;
  }
}

Result<Value> find_previous_answer(const ControlRequest& control, const std::vector<Event>& events,
                                   Error refusal) {
  if (refusal.code == Code::approval_edited) {
    if (const Event* edit = find_edit(control, events))
      refusal.message.append(": ").append(answerer_text(*edit, "edited"));
    return std::unexpected(std::move(refusal));
  }
  ResolutionHistory recorded(control);
  for (const Event& event : events) recorded.take(event);
  if (recorded.last() == nullptr) return std::unexpected(std::move(refusal));
  if (recorded.is_same_resolution()) return recorded.shown_answer();
  return fail(Code::not_in_doubt, "already answered differently: " +
                                      answerer_text(*recorded.last(), recorded.resolution()) +
                                      recorded.result_text());
}

}  // namespace ae::api
