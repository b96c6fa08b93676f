// What the rules share: the plan and node of an event, the history of each call, and the ends of
// waits and jobs.
#include "sim/checker.h"

#include <algorithm>
#include <iterator>
#include <variant>

#include "json/json.h"
#include "log/decisions.h"

namespace ae::sim {

bool is_end(EventType type) {
  return type == EventType::job_completed || type == EventType::job_failed ||
         type == EventType::job_cancelled;
}

const DecisionRecorded* decision_of(const Event& event, std::string_view kind) {
  const auto* decision = as<DecisionRecorded>(event);
  return decision && decision->kind == kind ? decision : nullptr;
}

bool is_definite(const ToolInvocationFinished& finished) {
  return (finished.outcome == "failure" || finished.outcome == "input_required") &&
         finished.definite == true;
}

Instant instant(const Value& text) {
  if (!text.is_string()) return {};
  return instant_from_text(text.as_string()).value_or(Instant{});
}

const KeyRecord* record_of(const JobEvidence& e, std::string_view key) {
  const auto it = e.journal.find(std::string(key));
  return it == e.journal.end() ? nullptr : &it->second;
}

const engine::Plan& plan_at(const JobEvidence& e, std::uint64_t seq) {
  const auto later = std::ranges::upper_bound(e.planned, seq, {}, &JobEvidence::PlanChange::seq);
  return *std::prev(later)->plan;
}

const engine::Node& node_of(const JobEvidence& e, const Event& event) {
  const engine::Plan& plan = plan_at(e, event.seq);
  return plan.nodes[plan.by_id.at(std::string(node_of(event)))];
}

void PartSteps::apply(const Event& event) {
  if (const auto* started = as<NodeStarted>(event)) {
    const engine::Node& node = node_of(e_, event);
    const bool has_parts = node.kind == engine::NodeKind::map || node.loop || node.code;
    if (!has_parts) return;
    const std::string& step = started->step_id.text;
    const auto own = own_.emplace(started->node_id, step).first;
    if (own->second != step) parts_.insert(step);
  } else if (const auto* plan = as<PlanGenerated>(event)) {  // steps not carried start again
    std::set<std::string, std::less<>> carried;
    for (const CarriedNode& entry : plan->carried.read_leniently()) {
      carried.insert(entry.step_id.text.string());
    }
    std::erase_if(own_, [&](const auto& own) { return !carried.contains(own.second); });
  }
}

bool PartSteps::fails_job(const Event& event) const {
  const auto& finished = std::get<NodeFinished>(event.body);
  return finished.result_type.ends_with("_failure") && !node_of(e_, event).continue_on_error &&
         !parts_.contains(finished.step_id.text);
}

bool answers_confirmation(const JobEvidence& e, const engine::ControlRequest& request) {
  if (const auto* resolve = request.as<engine::ResolveRequest>()) return !resolve->step_id.empty();
  const auto* const approve = request.as<engine::ApproveRequest>();
  if (approve == nullptr) return false;
  return std::ranges::any_of(e.events, [&](const Event& event) {
    return decision_of(event, ConfirmationRequested::kKind) &&
           step_of(event) == approve->approval_id;
  });
}

std::map<std::string, CallHistory> calls_of(const std::vector<Event>& events) {
  std::map<std::string, CallHistory> calls;  // by invocation
  std::optional<Instant> opening;
  for (const Event& event : events) {
    if (const auto* running = as<JobRunning>(event)) {
      opening = running->opened_at;
      for (auto& [invocation, call] : calls) {
        for (auto& [number, t] : call.tries) {
          if (!opening || t.opening == opening) continue;
          t.no_send_after = std::min(t.no_send_after, *opening);
        }
      }
    } else if (const auto* started = as<ToolInvocationStarted>(event)) {
      CallHistory& call = calls[started->invocation_id.text];
      call.step = started->step_id.text;
      call.key = started->idempotency_key.text;
      call.external_key = started->external_key.text;
      call.tool = started->tool_name;
      call.effect_class = started->effect_class;
      CallHistory::Try& t = call.tries[started->try_no];
      t.deadline = started->deadline;
      t.no_send_after = started->send_by;
      t.opening = opening;
      t.seq = event.seq;
    } else if (const auto* finished = as<ToolInvocationFinished>(event)) {
      CallHistory::Try& t = calls[finished->invocation_id.text].tries[finished->try_no];
      t.finished = true;
      t.success = finished->outcome == "success";
      t.definite = is_definite(*finished);
      t.newest_outcome_seq = event.seq;
      if (t.first_outcome_seq == 0) {
        t.first_outcome_seq = event.seq;
        t.is_first_outcome_definite = t.definite;
        t.settled = finished->settled == true;
        t.error = finished->error ? finished->error->code : "";
      }
      t.result = finished->result.value;
    }
  }
  return calls;
}

std::map<std::string, std::string, std::less<>> side_commands(const std::vector<Event>& events) {
  std::map<std::string, std::string, std::less<>> about;
  for (const Event& event : events) {
    const auto* command = as<CommandEmitted>(event);
    if (command && command->of) about.emplace(command->step_id.text, command->of->text);
  }
  return about;
}

const Event* end_of(const JobEvidence& e) {
  const auto end = std::ranges::find_if(e.events, is_end, &Event::type);
  return end == e.events.end() ? nullptr : &*end;
}

bool is_expired_request(const JobEvidence& e, std::string_view request) {
  std::string quoted = "\"";
  quoted += request;
  quoted += '"';
  const Event* const end = end_of(e);
  if (!end) return false;
  const Value listed = std::visit(
      [](const auto& ended) {
        if constexpr (requires { ended.undelivered; }) return ended.undelivered.json();
        return Value();
      },
      end->body);
  return canonical(listed).find(quoted) != std::string::npos;
}

const Event* completion_of(const JobEvidence& e, std::string_view id) {
  const auto found = std::ranges::find_if(e.events, [&](const Event& event) {
    const auto* completed = as<WaitCompleted>(event);
    return completed && or_empty(completed->signal_id) == id;
  });
  return found == e.events.end() ? nullptr : &*found;
}

std::optional<std::string> wait_of(const JobEvidence& e, const engine::ControlRequest& request) {
  if (const auto* signal = request.as<engine::SignalRequest>()) return signal->correlation_key;
  const auto* const approve = request.as<engine::ApproveRequest>();
  if (approve == nullptr) return std::nullopt;
  const std::string& id = approve->approval_id;
  std::string approval_step;  // the step whose call needs this approval
  for (const Event& event : e.events) {
    const auto* decision = as<DecisionRecorded>(event);
    if (decision && decision->decision_id.text == id) approval_step = step_of(event);
    const auto* opened = as<WaitOpened>(event);
    if (!opened || opened->wait_type != "human") continue;
    const bool of_call = opened->correlation_key.starts_with("approval/");
    if (opened->step_id.text == (of_call ? approval_step : id)) return opened->correlation_key;
  }
  return "";
}

Value payload_of(const engine::ControlRequest& request) {
  if (const auto* signal = request.as<engine::SignalRequest>()) return signal->payload;
  const auto* const approve = request.as<engine::ApproveRequest>();
  return approve == nullptr ? Value() : approve->payload();
}

bool was_ended_early(const JobEvidence& e) {
  return e.state.status == engine::JobStatus::failed ||
         e.state.status == engine::JobStatus::cancelled;
}

}  // namespace ae::sim
