#include "api/answered.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "log/event.h"

namespace ae::api {
namespace {

using engine::Act;

constexpr std::size_t kKeyMin = 8;  // digits of a key that name a call

struct Answerer {
  Instant at;
  std::optional<std::string> by;
};

// A decision says itself when it was made.
Answerer answerer_of(const Event& event) {
  Answerer answerer{.at = event.created_at, .by = {}};
  std::visit(
      [&answerer](const auto& body) {
        if constexpr (requires { body.at; }) {
          answerer.at = std::optional<Instant>(body.at).value_or(answerer.at);
        }
        if constexpr (requires { body.by; }) answerer.by = body.by;
      },
      event.body);
  return answerer;
}

Value shown_answerer(const Event& event) {
  const Answerer answerer = answerer_of(event);
  return Value::object(
      {{"at", to_text(answerer.at)}, {"by", answerer.by ? Value(*answerer.by) : Value()}});
}

std::string told(const Event& event, std::string_view what) {
  const Answerer answerer = answerer_of(event);
  std::string text(what);
  if (answerer.by) text.append(" by ").append(*answerer.by);
  return text.append(" at ").append(to_text(answerer.at));
}

const DecisionRecorded* decision_of(const Event& event, std::string_view kind) {
  const auto* decision = as<DecisionRecorded>(event);
  return decision != nullptr && decision->kind == kind ? decision : nullptr;
}

// Null instead of an empty text.
Value shown(std::string_view text) { return text.empty() ? Value() : Value(text); }

// The decisions about what the act is about, in the words of a resolution.
class Resolutions {
 public:
  explicit Resolutions(const Act& act)
      : act_(act),
        listed_(act.kind == Act::Kind::signal),
        step_(listed_               ? act.approval
              : act.step_id.empty() ? act.idempotency_key
                                    : act.step_id) {}

  void take(const Event& event) {
    if (const auto* started = as<ToolInvocationStarted>(event)) {
      tries_.insert_or_assign(started->idempotency_key.text, started->try_no);
    } else if (const auto* decision = as<DecisionRecorded>(event)) {
      decided(event, *decision);
    } else if (const auto* note = as<OutcomeNoted>(event)) {
      if (is_mine(note->idempotency_key.text)) decides(event, note->result.value);
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

  bool says_the_same() const {
    const std::string_view said = resolution();
    const bool approves = act_.payload.text("decision") == "approve";
    const std::string_view wish = !listed_   ? std::string_view(act_.resolution)
                                  : approves ? "accept"
                                             : "fail";
    return wish == said && (said != "happened" || act_.result.value_or(Value()) == result_);
  }

  Value shown_answer() const {
    Value answer = Value::object({{"answered", shown_answerer(*last_)},
                                  {"applied", true},
                                  {"duplicate", true},
                                  {"node_id", shown(node_of(*last_))},
                                  {"resolution", resolution()}});
    if (decision_of(*last_, "confirmation")) return answer.with("step_id", shown(step_of(*last_)));
    if (const auto* note = as<OutcomeNoted>(*last_)) {
      answer = answer.with("noted", true).with("idempotency_key", note->idempotency_key.text);
    } else {
      const auto& decision = std::get<DecisionRecorded>(last_->body);
      answer = answer.with("idempotency_key", decision.payload.value["idempotency_key"]);
    }
    return resolution() == "happened" ? answer.with("result", result_) : answer;
  }

 private:
  void decided(const Event& event, const DecisionRecorded& decision) {
    const std::string_view state = or_empty(decision.state);
    if (decision.kind == "in_doubt" && state != "resend" &&
        is_mine(decision.payload.value.text("idempotency_key"))) {
      decides(event, Value());
    } else if (decision.kind == "confirmation" && is_answer(state) && names(event)) {
      last_ = &event;
    }
  }
  void decides(const Event& event, Value result) {
    last_ = &event;
    result_ = std::move(result);
  }
  static bool is_answer(std::string_view state) { return state == "accept" || state == "fail"; }
  bool is_mine(std::string_view key) const {
    if (listed_ || act_.idempotency_key.size() < kKeyMin) return false;
    if (!key.starts_with(act_.idempotency_key)) return false;
    const auto of = tries_.find(key);
    return act_.try_no == 0 || (of != tries_.end() && of->second == act_.try_no);
  }
  bool names(const Event& event) const {
    return step_of(event) == step_ || (!listed_ && node_of(event) == step_);
  }

  const Act& act_;
  const bool listed_;  // among the approvals
  const std::string step_;
  std::map<std::string, std::int64_t, std::less<>> tries_;  // the last one of each call
  const Event* last_ = nullptr;
  Value result_;
};

// Who changed the arguments of the call that this act approves; nullptr = the log does not say.
const Event* edit_of(const Act& act, const std::vector<Event>& events) {
  for (const Event& event : events) {
    const auto* decision = decision_of(event, "approval");
    if (decision == nullptr || decision->state != "edited") continue;
    const Value& of = decision->payload.value;
    std::string key("approval/");
    key.append(of.text("command_id"));
    if (act.approval.empty() ? key == act.correlation_key
                             : of.text("approval_id") == act.approval) {
      return &event;
    }
  }
  return nullptr;
}

}  // namespace

namespace {

// A message with an id that came before: is it the same one? Of an erased one the log does not say.
Value with_same_message(Value answer, const Act& act, const std::vector<Event>& events) {
  for (const Event& event : events) {
    const auto* message = as<AgentMessage>(event);
    if (message == nullptr || message->message_id != act.id || message->channel != act.channel ||
        message->payload.erased) {
      continue;
    }
    const Value& payload = message->payload.value;
    return answer.with("applied", payload == act.payload).with("payload", payload);
  }
  return answer;
}

// Is it what an act like this one leads to? `key`: of the wait that the act is for.
bool answers(const Act& act, const Event& event, const Value& key) {
  if (act.kind == Act::Kind::budget) {
    const auto* decision = decision_of(event, "budget");
    return decision != nullptr && decision->state == "raised";
  }
  const auto* completed = as<WaitCompleted>(event);
  return completed != nullptr && key == Value(completed->correlation_key);
}

}  // namespace

Value with_answerer(Value answer, const Act& act, const std::vector<Event>& events) {
  if (act.kind == Act::Kind::message) return with_same_message(std::move(answer), act, events);
  const Event* found = nullptr;
  for (const Event& event : events) {
    if (answers(act, event, answer["correlation_key"])) found = &event;
  }
  return found == nullptr ? answer : answer.with("answered", shown_answerer(*found));
}

bool may_be_answered(const Act& act, Code refused) {
  switch (refused) {
    case Code::not_in_doubt:
    case Code::job_terminal:
      return act.kind == Act::Kind::resolve;
    case Code::approval_edited:
      return true;
    case Code::not_found:
      return !act.approval.empty();  // a confirmation that is answered is listed no more
    default:
      return false;
  }
}

Result<Value> answered_before(const Act& act, const std::vector<Event>& events, Error refusal) {
  if (refusal.code == Code::approval_edited) {
    if (const Event* edit = edit_of(act, events))
      refusal.message.append(": ").append(told(*edit, "edited"));
    return std::unexpected(std::move(refusal));
  }
  Resolutions said(act);
  for (const Event& event : events) said.take(event);
  if (said.last() == nullptr) return std::unexpected(std::move(refusal));
  if (said.says_the_same()) return said.shown_answer();
  return fail(Code::not_in_doubt,
              "already answered differently: " + told(*said.last(), said.resolution()));
}

}  // namespace ae::api
