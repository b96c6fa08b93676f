// The rules about users: approvals, answers, messages and pauses.
#include <algorithm>
#include <deque>
#include <optional>
#include <set>

#include "json/json.h"
#include "log/decisions.h"
#include "log/field_names.h"
#include "log/park_until.h"
#include "sim/checker.h"

namespace ae::sim {
namespace {

// ---------------------------------------------------------------- approvals

struct Request {  // for the approval of one call
  std::string command, tool, arguments_hash, schema;
  std::optional<Instant> expires;
  std::string decided, outcome;  // by the decision; by the end of its wait
  std::set<std::string, std::less<>> invocations;
};

class Approvals {
 public:
  explicit Approvals(Checker& checker) : checker_(checker) {}

  void apply(const Event& event) {
    if (const auto* decision = decision_of(event, ApprovalRequested::kKind))
      return apply_decision(event, *decision);
    if (const auto* completed = as<WaitCompleted>(event)) return apply_completion(*completed);
    if (const auto* call = as<ToolInvocationStarted>(event)) apply_call(event, *call);
  }

 private:
  void apply_decision(const Event& event, const DecisionRecorded& decision) {
    if (const auto requested = decision_as<ApprovalRequested>(decision)) {
      Request& request = requests_[decision.decision_id.text];
      request.command = step_of(event);
      request.tool = requested->tool;
      request.arguments_hash = requested->arguments_hash;
      request.schema = requested->schema_digest;
      if (requested->expires_at) request.expires = *requested->expires_at;
      newest_[request.command] = decision.decision_id.text;
      return;
    }
    DecisionId approval;
    if (const auto answer = decision_as<ApprovalAnswered>(decision)) approval = answer->approval_id;
    if (const auto edit = decision_as<ArgumentsEdited>(decision)) approval = edit->approval_id;
    const auto request = requests_.find(approval.text);
    if (request == requests_.end()) return checker_.fail("an answer without a request");
    checker_.fail_if(!request->second.decided.empty(), "a second answer to one request");
    request->second.decided = or_empty(decision.state);
  }

  void apply_completion(const WaitCompleted& wait) {
    if (!wait.correlation_key.starts_with("approval/")) return;
    Request& request = requests_[newest_[wait.step_id.text]];
    request.outcome = wait.outcome;
    const bool has_answer = request.outcome == "approved" || request.outcome == "rejected";
    checker_.fail_if(request.decided != (has_answer ? request.outcome : ""),
                     "the wait ended {}, the decision is {}", request.outcome, request.decided);
    checker_.mark("approval." + request.outcome);
    if (request.outcome != "approved") refused_.insert(request.command);
  }

  void apply_call(const Event& event, const ToolInvocationStarted& call) {
    const std::string &command = call.step_id.text, &tool = call.tool_name;
    checker_.fail_if(refused_.contains(command),
                     "the call of {} at event {} was made without an approval", tool, event.seq);
    const ToolKind* kind = tool_kind(tool);
    const auto request = requests_.find(or_empty(call.approval_id));
    if (request == requests_.end()) {
      return checker_.fail_if(kind && needs_approval(*kind, call.arguments.value),
                              "the call of {} at event {} has no approval", tool, event.seq);
    }
    Request& approval_request = request->second;
    const bool same = approval_request.command == command && approval_request.tool == tool &&
                      approval_request.arguments_hash == to_hex(call.arguments_hash) &&
                      approval_request.schema ==
                          (call.request_schema_hash ? to_hex(*call.request_schema_hash) : "");
    checker_.fail_if(approval_request.outcome != "approved" || !same,
                     "the call of {} at event {} has the approval of another call", tool,
                     event.seq);
    const bool first = approval_request.invocations.empty();
    checker_.fail_if(
        first && approval_request.expires && event.created_at >= *approval_request.expires,
        "the call of {} at event {} begins after its approval has expired", tool, event.seq);
    approval_request.invocations.insert(call.invocation_id.text);
    checker_.fail_if(approval_request.invocations.size() > 1,
                     "the call of {} at event {} uses an approval a second time", tool, event.seq);
  }

  Checker& checker_;
  std::map<std::string, Request, std::less<>> requests_;    // by id
  std::map<std::string, std::string, std::less<>> newest_;  // request by command
  std::set<std::string, std::less<>> refused_;              // commands
};

void approvals_bind(const JobEvidence& e, Checker& checker) {
  Approvals approvals(checker);
  for (const Event& event : e.events) approvals.apply(event);
}

// ---------------------------------------------------------------- requests of users

// A tool's question: an approval fills in the form, or takes its defaults.
bool matches_answer(const engine::SignalRequest& signal, const WaitCompleted& wait) {
  const bool yes = signal.payload.text("decision") == "approve";
  if (signal.correlation_key != wait.correlation_key) return false;
  if (wait.outcome == "cancelled") return true;
  const Value default_value = question()["schema"]["properties"]["n"]["default"];
  const Value* const form = signal.payload.find("content");
  const Value content = form != nullptr ? *form : Value::object({{"n", default_value}});
  const Value answer = yes ? Value::object({{"action", "accept"}, {"content", content}})
                           : Value::object({{"action", "decline"}});
  return wait.outcome == (yes ? "approved" : "rejected") && wait.payload.value == answer;
}

// True if the logged answer matches the user's request.
bool matches_request(const JobEvidence& e, const engine::ControlRequest& request,
                     const Event& event) {
  const auto& wait = std::get<WaitCompleted>(event.body);
  const std::string_view key = wait.correlation_key, outcome = wait.outcome;
  if (key.starts_with("resolve/")) {
    const auto* const resolve = request.as<engine::ResolveRequest>();
    return resolve != nullptr && key.substr(8).starts_with(resolve->idempotency_key) &&
           (outcome == "rejected") == (resolve->resolution == "fail");
  }
  if (wait.wait_type == "message") return request.is<engine::MessageRequest>();
  if (key.starts_with("input/")) {
    const auto* const signal = request.as<engine::SignalRequest>();
    return signal != nullptr && matches_answer(*signal, wait);
  }
  const Value payload = payload_of(request);
  if (!wait.payload.is_null() && wait.payload.value != payload) return false;
  if (wait_of(e, request) != key) return false;
  if (wait.wait_type != "human" || outcome == "cancelled") return true;
  const std::string_view decision = payload.text("decision");
  const engine::Step* const step = e.state.find_step(wait.step_id);
  const bool accepts_data = step != nullptr && step->request ? step->request->wait.accepts_data
                                                             : node_of(e, event).wait.accepts_data;
  if (outcome == "rejected") return decision == "reject";
  return outcome == "approved" && (decision == "approve" || (accepts_data && decision != "reject"));
}

// True if the logged message is the user's message or signal.
bool matches_message(const engine::MessageRequest& request, const AgentMessage& message) {
  return request.payload == message.payload.value && request.channel == message.channel &&
         or_empty(message.correlation_key).empty();
}
bool matches_message(const engine::SignalRequest& request, const AgentMessage& message) {
  return request.payload == message.payload.value && message.channel.empty() &&
         request.correlation_key == or_empty(message.correlation_key);
}
bool matches_message(const auto&, const AgentMessage&) { return false; }

void requests_were_made_by_users(const JobEvidence& e, Checker& checker) {
  for (const Event& event : e.events) {
    const auto* message = as<AgentMessage>(event);
    const auto* wait = as<WaitCompleted>(event);
    if (!message && !wait) continue;
    if (is_of_child(message ? or_empty(message->wait_type) : wait->wait_type)) continue;
    const std::string& id = message ? message->message_id : or_empty(wait->signal_id);
    const std::string_view outcome = wait ? std::string_view(wait->outcome) : std::string_view();
    const bool needs =
        message || outcome == "approved" || outcome == "rejected" || outcome == "signalled";
    if (!needs && id.empty()) continue;
    const auto requested = e.requested.find(id);
    if (requested == e.requested.end()) {
      checker.fail("event {} ({}): no user requested this", event.seq, id);
      continue;
    }
    const engine::ControlRequest& request = requested->second.request;
    const bool matches =
        message ? std::visit([&](const auto& body) { return matches_message(body, *message); },
                             request.body)
                : matches_request(e, request, event);
    checker.fail_if(!matches, "event {} ({}) is not what the user requested", event.seq, id);
  }
}

// A tool with questions receives the user's answer, and has no effect without an accepted one.
void questions_are_answered(const JobEvidence& e, Checker& checker) {
  std::map<std::string, std::vector<Value>, std::less<>> answers_by_step;  // by the step that asked
  for (const Event& event : e.events) {
    const auto* wait = as<WaitCompleted>(event);
    if (!wait || !wait->correlation_key.starts_with("input/")) continue;
    const bool has_answer = wait->outcome == "approved" || wait->outcome == "rejected";
    answers_by_step[wait->step_id.text].push_back(
        has_answer ? wait->payload.value : Value::object({{"action", "cancel"}}));
    checker.mark("question." + wait->outcome);
  }
  for (const auto& [invocation, call] : calls_of(e.events)) {
    const KeyRecord* record = record_of(e, call.key);
    if (!record || !tool_kind(record->tool)->questions) continue;
    const std::vector<Value>& answers = answers_by_step[call.step];
    for (const Arrival& arrival : record->arrivals) {
      if (arrival.inputs.is_null()) continue;
      const Value& carried_answer = arrival.inputs["answers"][kQuestion];
      checker.fail_if(std::ranges::find(answers, carried_answer) == answers.end(),
                      "{} received an answer that no user gave: {}", call.tool,
                      canonical(carried_answer));
      checker.fail_if(arrival.inputs.text(field::state) != call.key.substr(0, 8),
                      "{} did not get its state back", call.tool);
    }
    const bool yes = std::ranges::any_of(
        answers, [](const Value& answer) { return answer.text("action") == "accept"; });
    checker.fail_if(record->effects > 0 && !yes, "{} took effect without an accepted answer",
                    call.tool);
  }
}

// An early signal is the only answer of the wait that opens with its key: the first that is valid.
void early_signals_answer(const JobEvidence& e, Checker& checker) {
  std::map<std::string, std::vector<const AgentMessage*>, std::less<>> early_messages;  // by key
  for (std::size_t i = 0; i < e.events.size(); ++i) {
    const Event& event = e.events[i];
    if (const auto* message = as<AgentMessage>(event)) {
      const std::string& key = or_empty(message->correlation_key);
      if (!key.empty()) early_messages[key].push_back(message);
    }
    const auto* wait = as<WaitOpened>(event);
    if (!wait || !early_messages.contains(wait->correlation_key)) continue;
    const std::string& key = wait->correlation_key;
    const bool accepts_data = node_of(e, event).wait.accepts_data || wait->answer_type;
    for (const AgentMessage* message : early_messages[key]) {
      const std::string_view decision = message->payload.value.text("decision");
      const bool fits = wait->wait_type != "human" || accepts_data || decision == "approve" ||
                        decision == "reject";
      if (!fits) continue;
      const auto* next = i + 1 < e.events.size() ? as<WaitCompleted>(e.events[i + 1]) : nullptr;
      const bool is_consumed =
          next && next->correlation_key == key && or_empty(next->signal_id) == message->message_id;
      checker.fail_if(!is_consumed,
                      "{} was opened and {}, which arrived earlier, did not answer it", key,
                      message->message_id);
      checker.mark("early.delivered");
      break;
    }
  }
}

// ---------------------------------------------------------------- messages

struct Channel {
  std::deque<std::string> unreceived;  // messages without a receiver
  struct Waiting {
    std::string key;
    std::optional<Instant> expires;
  };
  std::deque<Waiting> waiting;  // waits without a message, oldest first

  // The wait that receives the next message: the oldest that has not expired, else the oldest.
  const std::string* receiver(Instant now) const {
    const auto open = std::ranges::find_if(
        waiting, [&](const Waiting& wait) { return !wait.expires || *wait.expires > now; });
    if (open != waiting.end()) return &open->key;
    return waiting.empty() ? nullptr : &waiting.front().key;
  }
};

void messages_keep_order(const JobEvidence& e, Checker& checker) {
  std::map<std::string, Channel, std::less<>> channels;
  std::map<std::string, std::string, std::less<>> channel_of;  // by the wait's key
  std::set<std::string> payloads;
  for (const Event& event : e.events) {
    const auto* wait = as<WaitOpened>(event);
    const auto* end = as<WaitCompleted>(event);
    if (const auto* message = as<AgentMessage>(event);
        message && or_empty(message->correlation_key).empty()) {
      channels[message->channel].unreceived.push_back(message->message_id);
      const std::string payload = canonical(message->payload.value);
      checker.fail_if(!payloads.insert(payload).second, "{} is in the log twice", payload);
    } else if (wait && wait->wait_type == "message") {
      const std::string& channel = or_empty(wait->channel);
      channel_of[wait->correlation_key] = channel;
      channels[channel].waiting.push_back({wait->correlation_key, wait->expires_at});
    } else if (end && channel_of.contains(end->correlation_key)) {
      const std::string& key = end->correlation_key;
      Channel& channel = channels[channel_of[key]];
      if (end->outcome == "signalled") {
        const std::string& id = or_empty(end->signal_id);
        const bool first = !channel.unreceived.empty() && channel.unreceived.front() == id;
        checker.fail_if(!first, "{} got {}, which is not the oldest undelivered one", key, id);
        const std::string* const receiver = channel.receiver(event.created_at);
        checker.fail_if(!receiver || *receiver != key,
                        "{} got a message for which another wait was older", key);
        if (first) channel.unreceived.pop_front();
        checker.mark("message.delivered");
      }
      std::erase_if(channel.waiting, [&](const Channel::Waiting& one) { return one.key == key; });
    }
  }
  const bool ended = end_of(e) != nullptr;
  for (const auto& [name, channel] : channels) {
    for (const std::string& id : channel.unreceived) {
      checker.fail_if(ended && !is_expired_request(e, id), "{} was neither delivered nor listed",
                      id);
    }
    if (channel.unreceived.empty() || channel.waiting.empty() || e.state.ending) continue;
    checker.fail("{} waits although a message for it exists", channel.waiting.front().key);
  }
}

// A message sent after an acknowledgement comes later in the log.
void messages_come_in_order(const JobEvidence& e, Checker& checker) {
  std::vector<std::pair<std::string_view, const SentRequest*>> logged;
  for (const Event& event : e.events) {
    const auto* message = as<AgentMessage>(event);
    if (!message || message->channel.empty()) continue;
    const auto requested = e.requested.find(message->message_id);
    if (requested == e.requested.end()) continue;
    for (const auto& [channel, before] : logged) {
      checker.fail_if(channel == message->channel && requested->second.acked &&
                          *requested->second.acked < before->first,
                      "{} comes before {}, which had been accepted before it was written",
                      before->request.id, requested->first);
    }
    logged.emplace_back(message->channel, &requested->second);
  }
}

void messages_are_kept(const JobEvidence& e, Checker& checker) {
  for (const Ack* ack : e.acks) {
    const bool is_kept = ack->request.is<engine::MessageRequest>() ||
                         (ack->answer["buffered"].is_bool() && ack->answer["duplicate"].is_null());
    if (!is_kept) continue;
    std::size_t times = 0;
    for (const Event& event : e.events) {
      const auto* message = as<AgentMessage>(event);
      times += message && message->message_id == ack->request.id;
    }
    // An early signal may have come to its wait when that was already open.
    const bool has_answer = completion_of(e, ack->request.id) != nullptr;
    if (ack->request.is<engine::SignalRequest>() && times == 0 && has_answer) continue;
    checker.fail_if(times != 1 && end_of(e), "{} was accepted and is in the log {} times",
                    ack->request.id, times);
    if (ack->request.is<engine::MessageRequest>()) continue;
    const bool delivered = has_answer || is_expired_request(e, ack->request.id) || !end_of(e);
    checker.fail_if(!delivered, "{} was neither delivered nor listed", ack->request.id);
  }
}

// ---------------------------------------------------------------- pauses

// True if the log has the effect of this pause or resume; each event names its author.
bool left_trace(const JobEvidence& e, const engine::ControlRequest& request) {
  const bool pauses = request.is<engine::PauseRequest>();
  const bool resumes = request.is<engine::ResumeRequest>();
  return std::ranges::any_of(e.events, [&](const Event& event) {
    if (const auto* requested = as<JobPauseRequested>(event)) {
      return (requested->withdrawn ? resumes : pauses) && or_empty(requested->by) == request.by;
    }
    const auto* resumed = as<JobResumed>(event);
    return resumes && resumed && resumed->by == request.by;
  });
}

void pauses_are_kept(const JobEvidence& e, Checker& checker) {
  if (!end_of(e)) return;
  for (const Ack* ack : e.acks) {
    const bool pause = ack->request.is<engine::PauseRequest>();
    if ((!pause && !ack->request.is<engine::ResumeRequest>()) || left_trace(e, ack->request))
      continue;
    if (was_ended_early(e)) continue;  // it may have expired; a job that completes has applied it
    // Another request for the same came first. A pause has no effect on a job that is already
    // parked until `resume`, for any reason; the caller gets this as the answer.
    bool other = pause && ack->answer["paused"] == Value(true) &&
                 std::ranges::any_of(e.events, [](const Event& event) {
                   const auto* park = as<JobParked>(event);
                   return park && park->until == park_until::kResume && park->reason != "paused";
                 });
    for (const auto& [id, requested] : e.requested) {
      other = other || (requested.request.body.index() == ack->request.body.index() &&
                        id != ack->request.id && left_trace(e, requested.request));
    }
    checker.fail_if(!other, "{} was accepted and is not in the log", ack->request.id);
  }
}

bool begins_scope(const NodeStarted& started) {
  const std::string_view kind = started.kind ? started.kind->view() : std::string_view();
  return kind == to_text(engine::NodeKind::scope) || kind == to_text(engine::NodeKind::turn);
}

void idle_job_stays_idle(const JobEvidence& e, Checker& checker) {
  bool pause_requested = false, parked = false;
  PartSteps parts(e);
  for (const Event& event : e.events) {
    parts.apply(event);
    switch (event.type) {
      case EventType::job_pause_requested:
        pause_requested = !std::get<JobPauseRequested>(event.body).withdrawn.has_value();
        break;
      case EventType::job_parked:
        parked = std::get<JobParked>(event.body).until == park_until::kResume;
        if (parked) checker.mark("paused");
        break;
      case EventType::job_resumed:
      case EventType::job_cancel_requested:
        pause_requested = parked = false;
        break;
      case EventType::node_started:
        // Code is in a scope already when its advance is recorded.
        if (begins_scope(std::get<NodeStarted>(event.body))) break;
        [[fallthrough]];
      case EventType::tool_invocation_started:
      case EventType::command_emitted:
        checker.fail_if(pause_requested || parked,
                        "event {}: a step starts while a pause is requested or in effect",
                        event.seq);
        break;
      case EventType::timer_fired:
        if (std::get<TimerFired>(event.body).effect_id == engine::kDeadlineTimer) {
          pause_requested = parked = false;
        } else {
          checker.fail_if(parked, "event {}: a timer fires while the job is paused", event.seq);
        }
        break;
      case EventType::node_finished:
        if (parts.fails_job(event)) pause_requested = false;
        break;
      case EventType::decision_recorded: {
        const auto& decision = std::get<DecisionRecorded>(event.body);
        if (decision.kind == EndDecided::kKind) pause_requested = parked = false;
        if (decision.kind == ConfirmationFailed::kKind &&
            or_empty(decision.state).starts_with("fail")) {
          pause_requested = parked = false;
        }
        break;
      }
      default:
        break;
    }
  }
}

constexpr Rule kUserRules[] = {
    {"P1 a call that needs approval is made only under its own approval", approvals_bind},
    {"P2 every user action in the log was requested by a user", requests_were_made_by_users},
    {"N1 an accepted message is never lost", messages_are_kept},
    {"N1 an accepted pause or resume is never lost", pauses_are_kept},
    {"N3 messages are delivered once, in order, or listed as undelivered", messages_keep_order},
    {"N3 a message sent after an acknowledgement comes later in the log", messages_come_in_order},
    {"N3 an early signal answers its wait", early_signals_answer},
    {"P3 nothing starts while a pause is requested or in effect", idle_job_stays_idle},
    {"P4 a tool with questions receives the user's answer", questions_are_answered},
};

}  // namespace

std::span<const Rule> user_rules() { return kUserRules; }

}  // namespace ae::sim
