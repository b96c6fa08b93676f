#include "api/answered.h"

#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "log/redacted.h"

namespace ae::api {
namespace {

using engine::Act;

constexpr std::size_t kKeyMin = 8;  // digits of a key that name a call

// {at, by} of an event; a decision says itself when it was made.
Value answerer(const Event& event) {
  const Value& p = event.payload;
  return Value::object(
      {{"at", p["at"].is_string() ? p["at"] : Value(to_text(event.created_at))}, {"by", p["by"]}});
}

std::string told(const Event& event, std::string_view what) {
  const Value who = answerer(event);
  std::string text(what);
  if (who["by"].is_string()) text.append(" by ").append(who.text("by"));
  return text.append(" at ").append(who.text("at"));
}

bool is_decision(const Event& event, std::string_view kind) {
  return event.type == EventType::decision_recorded && event.payload.text("kind") == kind;
}

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
    const Value& p = event.payload;
    if (event.type == EventType::tool_invocation_started) {
      tries_.insert_or_assign(std::string(p.text("idempotency_key")), p["try"]);
    } else if (is_decision(event, "in_doubt") && p.text("state") != "resend" &&
               is_mine(p["payload"].text("idempotency_key"))) {
      last_ = &event;
      result_ = Value();
    } else if (event.type == EventType::outcome_noted && is_mine(p.text("idempotency_key"))) {
      last_ = &event;
      result_ = p["result"];
    } else if (is_decision(event, "confirmation") && is_answer(p.text("state")) && names(p)) {
      last_ = &event;
    } else if (event.type == EventType::command_committed && last_ != nullptr &&
               p["step_id"] == last_->payload["step_id"]) {
      result_ = p["result"];
    }
  }

  const Event* last() const { return last_; }
  std::string_view resolution() const {
    return last_->payload.text(last_->type == EventType::outcome_noted ? "resolution" : "state");
  }

  bool says_the_same() const {
    const std::string_view said = resolution();
    const bool approves = act_.payload.text("decision") == "approve";
    const std::string_view wish = !listed_   ? std::string_view(act_.resolution)
                                  : approves ? "accept"
                                             : "fail";
    return wish == said && (said != "happened" || act_.result.value_or(Value()) == result_);
  }

  Value shown() const {
    const Value& p = last_->payload;
    Value answer = Value::object({{"answered", answerer(*last_)},
                                  {"applied", true},
                                  {"duplicate", true},
                                  {"node_id", p["node_id"]},
                                  {"resolution", resolution()}});
    if (is_decision(*last_, "confirmation")) return answer.with("step_id", p["step_id"]);
    const bool noted = last_->type == EventType::outcome_noted;
    if (noted) answer = answer.with("noted", true);
    answer = answer.with("idempotency_key", (noted ? p : p["payload"])["idempotency_key"]);
    return resolution() == "happened" ? answer.with("result", result_) : answer;
  }

 private:
  static bool is_answer(std::string_view state) { return state == "accept" || state == "fail"; }
  bool is_mine(std::string_view key) const {
    if (listed_ || act_.idempotency_key.size() < kKeyMin) return false;
    if (!key.starts_with(act_.idempotency_key)) return false;
    const auto of = tries_.find(key);
    return act_.try_no == 0 ||
           (of != tries_.end() && of->second == Value(std::uint64_t{act_.try_no}));
  }
  bool names(const Value& p) const {
    return p.text("step_id") == step_ || (!listed_ && p.text("node_id") == step_);
  }

  const Act& act_;
  const bool listed_;  // among the approvals
  const std::string step_;
  std::map<std::string, Value, std::less<>> tries_;  // the last one of each call
  const Event* last_ = nullptr;
  Value result_;
};

// Who changed the arguments of the call that this act approves; nullptr = the log does not say.
const Event* edit_of(const Act& act, const std::vector<Event>& events) {
  for (const Event& event : events) {
    if (!is_decision(event, "approval") || event.payload.text("state") != "edited") continue;
    const Value& of = event.payload["payload"];
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
    const Value& p = event.payload;
    if (event.type != EventType::agent_message || p.text("message_id") != act.id ||
        p.text("channel") != act.channel || is_erased(event, "payload")) {
      continue;
    }
    return answer.with("applied", p["payload"] == act.payload).with("payload", p["payload"]);
  }
  return answer;
}

}  // namespace

Value with_answerer(Value answer, const Act& act, const std::vector<Event>& events) {
  if (act.kind == Act::Kind::message) return with_same_message(std::move(answer), act, events);
  const Event* found = nullptr;
  for (const Event& event : events) {
    const bool budget = act.kind == Act::Kind::budget;
    const bool meant = budget
                           ? is_decision(event, "budget") && event.payload.text("state") == "raised"
                           : event.type == EventType::wait_completed &&
                                 event.payload["correlation_key"] == answer["correlation_key"];
    if (meant) found = &event;
  }
  return found == nullptr ? answer : answer.with("answered", answerer(*found));
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
  if (said.says_the_same()) return said.shown();
  return fail(Code::not_in_doubt,
              "already answered differently: " + told(*said.last(), said.resolution()));
}

}  // namespace ae::api
