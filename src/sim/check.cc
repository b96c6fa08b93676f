// The rules, one function each.
#include "sim/check.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <set>
#include <span>

#include "engine/heart/recorded_value.h"
#include "inspect/request_kind.h"
#include "inspect/requests_view.h"
#include "inspect/verify.h"
#include "inspect/view.h"
#include "json/json.h"
#include "log/decisions.h"
#include "log/field_names.h"
#include "runtime/runtime.h"
#include "sim/checker.h"

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
    if (node.kind != engine::NodeKind::map && node.loop == nullptr) return;
    const std::string& step = started->step_id.text;
    const auto own = own_.emplace(started->node_id, step).first;
    if (own->second != step) parts_.insert(step);
  } else if (const auto* plan = as<PlanGenerated>(event)) {  // steps not carried start again
    std::set<std::string, std::less<>> carried;
    if (plan->carried.is_array()) {
      for (const Value& entry : plan->carried.items()) carried.emplace(entry.text(field::step_id));
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
  const auto* const signal = request.as<engine::SignalRequest>();
  if (signal == nullptr || signal->approval.empty()) return false;
  return std::ranges::any_of(e.events, [&](const Event& event) {
    return decision_of(event, ConfirmationRequested::kKind) && step_of(event) == signal->approval;
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
        if constexpr (requires { ended.undelivered; }) return ended.undelivered;
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

std::string wait_of(const JobEvidence& e, const engine::SignalRequest& signal) {
  if (signal.approval.empty()) return signal.correlation_key;
  std::string approval_step;  // the step whose call needs this approval
  for (const Event& event : e.events) {
    const auto* decision = as<DecisionRecorded>(event);
    if (decision && decision->decision_id.text == signal.approval) approval_step = step_of(event);
    const auto* opened = as<WaitOpened>(event);
    if (!opened || opened->wait_type != "human") continue;
    const bool of_call = opened->correlation_key.starts_with("approval/");
    if (opened->step_id.text == (of_call ? approval_step : signal.approval))
      return opened->correlation_key;
  }
  return {};
}

bool was_ended_early(const JobEvidence& e) {
  return e.state.status == engine::JobStatus::failed ||
         e.state.status == engine::JobStatus::cancelled;
}

namespace {

using engine::is_terminal;

// ---------------------------------------------------------------- the log

void log_is_gapless(const JobEvidence& e, Checker& checker) {
  std::uint64_t seq = 0;
  for (const Event& event : e.events) {
    if (event.seq != ++seq) return checker.fail("event " + std::to_string(seq) + " is missing");
  }
}

void ids_are_unique(const JobEvidence& e, Checker& checker) {
  std::set<Uuid> ids;
  for (const Event& event : e.events) {
    if (!ids.insert(event.id).second) checker.fail("event " + std::to_string(event.seq));
  }
}

void row_is_a_copy(const JobEvidence& e, Checker& checker) {
  checker.fail_if(e.loaded.row.status != engine::to_text(e.state.status),
                  "the row has the status " + e.loaded.row.status + ", the log " +
                      std::string(engine::to_text(e.state.status)));
  checker.fail_if(e.loaded.row.last_seq != e.events.back().seq, "the row's last_seq differs");
  checker.fail_if(!is_terminal(e.state.status) && e.loaded.row.wake_at != e.state.next_due(),
                  "the row's wake_at is not the next due instant of the log");
}

// Lists of requests read only the jobs whose rows have the kind.
void row_has_open_requests(const JobEvidence& e, Checker& checker) {
  using engine::RequestKind;
  constexpr std::pair<std::string_view, store::PendingKinds> kKinds[] = {
      {to_text(RequestKind::call), store::pending::call},
      {to_text(RequestKind::wait), store::pending::wait},
      {to_text(RequestKind::question), store::pending::question},
      {to_text(RequestKind::confirmation), store::pending::confirmation},
      {to_text(RequestKind::unknown_outcome), store::pending::unknown_outcome},
      {to_text(RequestKind::budget), store::pending::budget}};
  for (const Value& request : engine::requests_view(e.state)) {
    for (const auto& [name, kind] : kKinds) {
      if (request.text(field::kind) != name) continue;
      checker.fail_if((e.loaded.row.pending & kind) == 0,
                      "the row does not have the open request " + canonical(request));
    }
  }
}

void end_is_final(const JobEvidence& e, Checker& checker) {
  bool ended = false;
  for (const Event& event : e.events) {
    if (ended && static_cast<int>(event.type) < 128) {
      checker.fail(std::string(event_name(event)) + " after the end");
    }
    ended = ended || is_end(event.type);
  }
}

void log_verifies(const JobEvidence& e, Checker& checker) {
  engine::VerifyInput input{.job = e.job,
                            .events = e.events,
                            .open_error = {},
                            .last_seq = e.loaded.row.last_seq,
                            .head = e.loaded.row.head,
                            .effects = {},
                            .ledger = {}};
  for (const store::EffectRow& row : e.loaded.effects) {
    input.effects.push_back({row.invocation, row.try_no, row.record});
  }
  for (const store::LedgerRow& row : e.loaded.ledger) {
    input.ledger.push_back({row.invocation, row.try_no, row.state, row.record});
  }
  const engine::Verification proof = engine::verify(input, e.plans);
  if (!proof.ok) checker.fail(canonical(proof.to_json()));
}

// ---------------------------------------------------------------- fencing

void epochs_rise(const JobEvidence& e, Checker& checker) {
  std::int64_t epoch = 0;
  for (const Event& event : e.events) {
    const auto* running = as<JobRunning>(event);
    if (!running) continue;
    const std::int64_t next = running->epoch;
    checker.fail_if(next <= epoch,
                    "epoch " + std::to_string(next) + " after " + std::to_string(epoch));
    epoch = next;
  }
}

void no_write_after_lease_loss(const JobEvidence& e, Checker& checker) {
  std::set<AttemptId> over;
  AttemptId running;
  for (const Event& event : e.events) {
    if (const auto* begins = as<JobRunning>(event)) {
      over.insert(running);
      running = AttemptId(begins->attempt_id);
    }
    if (event.attempt_id && over.contains(*event.attempt_id)) {
      checker.fail("event " + std::to_string(event.seq) + " is of an ended attempt");
    }
  }
}

// ---------------------------------------------------------------- effects

void trace_ids_are_stable(const JobEvidence& e, Checker& checker) {
  std::set<std::pair<std::string, std::int64_t>> declared_tries;
  for (const auto& [invocation, call] : calls_of(e.events)) {
    for (const auto& [number, t] : call.tries) declared_tries.emplace(invocation, number);
  }
  for (const KeyRecord* record : e.touched) {
    for (const Arrival& arrival : record->arrivals) {
      if (!declared_tries.contains({arrival.invocation.text, arrival.try_no})) {
        checker.fail(record->tool + " " + arrival.invocation.text + " arrived, undeclared");
      }
    }
  }
}

void at_most_once_arrives_once(const JobEvidence& e, Checker& checker) {
  for (const KeyRecord* record : e.touched) {
    if (record->effect_class != EffectClass::at_most_once) continue;
    std::size_t arrivals = 0;
    for (const Arrival& arrival : record->arrivals) arrivals += arrival.refused ? 0 : 1;
    checker.fail_if(arrivals > 1 || record->effects > 1,
                    record->tool + " arrived " + std::to_string(arrivals) + " times, " +
                        std::to_string(record->effects) + " effects");
  }
}

void idempotent_takes_effect_once(const JobEvidence& e, Checker& checker) {
  for (const KeyRecord* record : e.touched) {
    if (record->effect_class != EffectClass::idempotent) continue;
    checker.fail_if(record->effects > 1, record->tool + " took effect twice");
    checker.fail_if(record->external_keys.size() > 1, record->tool + " was sent under two keys");
  }
}

void records_are_true(const JobEvidence& e, Checker& checker) {
  for (const auto& [invocation, call] : calls_of(e.events)) {
    const KeyRecord* record = record_of(e, call.key);
    const bool read = call.effect_class == "read";
    for (const auto& [number, t] : call.tries) {
      if (!t.success) continue;
      const bool happened = record && (read || record->effects == 1);
      checker.fail_if(!happened, call.tool + " is recorded as done, but was not");
      const bool invalid = t.result["invalid"].is_bool();
      bool is_replied = happened && t.result == record->result;
      for (const Arrival& arrival : record ? record->arrivals : std::vector<Arrival>()) {
        is_replied = is_replied || (!arrival.answer.is_null() && arrival.answer == t.result);
      }
      checker.fail_if(happened && !invalid && !is_replied,
                      call.tool + ": the recorded result is not the returned one");
    }
    if (!call.has_unknown_outcome() && !call.tries.empty() &&
        !call.tries.rbegin()->second.success) {
      checker.fail_if(record && record->effects > 0,
                      call.tool + " is recorded as definitely failed, but took effect");
    }
  }
}

void completed_means_done(const JobEvidence& e, Checker& checker) {
  for (const engine::Step& step : e.state.steps) {
    const engine::Node& node = e.state.node_of(step);
    if (e.state.status == engine::JobStatus::completed && step.phase != engine::StepPhase::done) {
      const bool dropped_item = step.is_part();
      checker.fail_if(!dropped_item, "node " + node.id + " is not done");
    }
    if (!step.call) continue;
    const KeyRecord* record = record_of(e, step.call->key.text);
    const bool read = tool_kind(step.call->tool)->effect_class == EffectClass::read;
    const std::uint64_t effects = record ? record->effects : 0;
    if (step.committed && !read) {
      checker.fail_if(effects != 1, "node " + node.id + " is committed with " +
                                        std::to_string(effects) + " effects");
    }
    checker.fail_if(effects > 1, "node " + node.id + " has more than one effect");
  }
}

void unknown_outcome_is_never_guessed(const JobEvidence& e, Checker& checker) {
  const std::map<std::string, CallHistory> calls = calls_of(e.events);
  for (const auto& [invocation, call] : calls) {
    if (call.effect_class != "at_most_once" || call.tries.size() < 2) continue;
    const CallHistory::Try* before = nullptr;
    for (const auto& [number, t] : call.tries) {
      if (before && !before->definite) {
        bool allowed = false;
        for (const Event& event : e.events) {
          const auto* decision = decision_of(event, OutcomeDecided::kKind);
          allowed = allowed || (decision && event.seq > before->seq && event.seq < t.seq &&
                                step_of(event) == call.step && decision->state == "not_happened");
        }
        checker.fail_if(!allowed, call.tool + " try " + std::to_string(number) +
                                      " was declared though the one before may have happened");
      }
      before = &t;
    }
  }
  if (!is_terminal(e.state.status)) return;
  for (const auto& [invocation, call] : calls) {
    for (const auto& [number, t] : call.tries) {
      checker.fail_if(!t.finished, call.tool + " is open in an ended job");
    }
  }
}

void keys_are_injective(const JobEvidence& e, Checker& checker) {
  std::set<std::string> external, keys;
  for (const auto& [invocation, call] : calls_of(e.events)) {
    checker.fail_if(!external.insert(call.external_key).second,
                    "external key " + call.external_key);
    checker.fail_if(!keys.insert(call.key).second, "idempotency key " + call.key);
  }
}

void nothing_starts_after_cancel(const JobEvidence& e, Checker& checker) {
  const auto side = side_commands(e.events);
  bool cancelled = false;
  // A retry of a call with an unknown outcome that can be undone is allowed: its outcome must be
  // known first. Another rule checks whether a retry is allowed.
  const auto repeats = [](const ToolInvocationStarted& started) {
    const ToolKind* kind = tool_kind(started.tool_name);
    return started.try_no != 1 && kind != nullptr && !kind->undo.empty();
  };
  for (const Event& event : e.events) {
    if (event.type == EventType::job_cancel_requested) cancelled = true;
    const auto* started = as<ToolInvocationStarted>(event);
    checker.fail_if(
        cancelled && started && !side.contains(started->step_id.text) && !repeats(*started),
        "event " + std::to_string(event.seq) + " declares a call");
    checker.fail_if(cancelled && event.type == EventType::job_completed,
                    "the job completed though it was cancelled");
  }
}

// The tries of a call that could still arrive, as the log showed at `seq`, when the outcome was
// resolved.
std::vector<std::int64_t> unsettled_tries(const CallHistory& call, std::uint64_t seq) {
  std::vector<std::int64_t> tries;
  for (const auto& [number, t] : call.tries) {
    if (t.seq > seq) break;
    const bool definite = t.is_first_outcome_definite && t.first_outcome_seq < seq;
    if (definite && !t.was_never_delivered()) tries.clear();  // a response for this key
    if (!definite && !(t.settled && t.first_outcome_seq < seq)) tries.push_back(number);
  }
  return tries;
}

void not_happened_waits(const JobEvidence& e, Checker& checker) {
  if (e.clock_jumped) return;
  const std::map<std::string, CallHistory> calls = calls_of(e.events);
  for (const Event& event : e.events) {
    const auto* decision = as<DecisionRecorded>(event);
    if (!decision || decision->state != "not_happened") continue;
    const auto decided = decision_as<OutcomeDecided>(*decision);
    const Instant at = decision->at.value_or(Instant{});
    for (const auto& [invocation, call] : calls) {
      if (!decided || call.key != decided->idempotency_key.text) continue;
      for (const std::int64_t number : unsettled_tries(call, event.seq)) {
        checker.fail_if(at < call.tries.at(number).settled_at(kToolTimeout, kToolGrace),
                        call.tool + " try " + std::to_string(number) + " could still arrive");
      }
    }
  }
  for (const Ack* ack : e.acks) {
    const auto* const resolve = ack->request.as<engine::ResolveRequest>();
    if (resolve == nullptr || resolve->resolution != "not_happened") continue;
    const Event* believed = completion_of(e, ack->request.id);
    for (const auto& [invocation, call] : calls) {
      if (!believed || call.key != resolve->idempotency_key) continue;
      for (const std::int64_t number : unsettled_tries(call, believed->seq)) {
        checker.fail_if(
            ack->request.checked_at < call.tries.at(number).settled_at(kToolTimeout, kToolGrace),
            call.tool + " try " + std::to_string(number) +
                " could still arrive when the user checked, at " +
                to_text(ack->request.checked_at.value_or(Instant{})));
      }
    }
  }
}

// ---------------------------------------------------------------- acknowledged requests

void signals_are_kept(const JobEvidence& e, Checker& checker) {
  for (const Ack* ack : e.acks) {
    const auto* const signal = ack->request.as<engine::SignalRequest>();
    if (signal == nullptr || ack->answer["duplicate"].is_bool()) continue;
    if (answers_confirmation(e, ack->request)) continue;
    if (completion_of(e, ack->request.id) || is_expired_request(e, ack->request.id)) continue;
    // Another signal for the same wait was accepted first; for a retry, the job returns that one's
    // answer.
    const std::string key = wait_of(e, *signal);
    bool is_answered = false;
    for (const Event& event : e.events) {
      const auto* completed = as<WaitCompleted>(event);
      is_answered = is_answered || (completed && completed->correlation_key == key &&
                                    !or_empty(completed->signal_id).empty());
    }
    if (is_answered) continue;
    checker.fail("the signal " + ack->request.id + " for " + key +
                 " was accepted and is not in the log");
  }
}

void cancels_are_kept(const JobEvidence& e, Checker& checker) {
  for (const Ack* ack : e.acks) {
    if (!ack->request.is<engine::CancelRequest>()) continue;
    bool found = is_expired_request(e, ack->request.id);
    for (const Event& event : e.events) {
      found = found || event.type == EventType::job_cancel_requested;
    }
    checker.fail_if(!found,
                    "the cancel " + ack->request.id + " was accepted and is not in the log");
  }
}

void resolutions_are_kept(const JobEvidence& e, Checker& checker) {
  for (const Ack* ack : e.acks) {
    const auto* const resolve = ack->request.as<engine::ResolveRequest>();
    if (resolve == nullptr || answers_confirmation(e, ack->request)) continue;
    if (completion_of(e, ack->request.id) || is_expired_request(e, ack->request.id)) continue;
    bool is_answered = false;  // by the call itself, or by an earlier request
    for (const Event& event : e.events) {
      const auto* completed = as<WaitCompleted>(event);
      is_answered =
          is_answered ||
          (completed &&
           completed->correlation_key.starts_with("resolve/" + resolve->idempotency_key) &&
           (completed->outcome == "signalled" || completed->outcome == "rejected" ||
            completed->outcome == "cancelled"));
    }
    checker.fail_if(!is_answered,
                    "the resolution " + ack->request.id + " was accepted and is not in the log");
  }
}

void waits_resolve_once(const JobEvidence& e, Checker& checker) {
  std::set<std::string, std::less<>> opened, completed;
  for (const Event& event : e.events) {
    if (const auto* wait = as<WaitOpened>(event)) {
      const std::string& key = wait->correlation_key;
      checker.fail_if(!opened.insert(key).second, key + " was opened twice");
    } else if (const auto* end = as<WaitCompleted>(event)) {
      const std::string& key = end->correlation_key;
      checker.fail_if(!opened.contains(key), key + " was completed, never opened");
      checker.fail_if(!completed.insert(key).second, key + " was completed twice");
    }
  }
  checker.fail_if(is_terminal(e.state.status) && opened.size() != completed.size(),
                  "a wait is open in an ended job");
}

void timers_fire_late_and_once(const JobEvidence& e, Checker& checker) {
  std::set<std::string, std::less<>> fired;
  for (const Event& event : e.events) {
    // The wall time was raised, so its timer may fire again.
    const auto raised = decision_as<BudgetRaised>(event);
    if (raised && !raised->limits["wall"].is_null()) fired.erase(std::string(engine::kWallTimer));
    const auto* timer = as<TimerFired>(event);
    if (!timer) continue;
    checker.fail_if(!fired.insert(timer->effect_id).second, timer->effect_id + " fired twice");
    checker.fail_if(instant(timer->value.value) < timer->due_at, timer->effect_id + " fired early");
  }
}

struct GeneratedValue {
  std::string_view effect;
  Value value;
};

// The value of a recorded-effect event; empty for other events.
GeneratedValue value_of(const Event& event) {
  return std::visit(
      [](const auto& recorded) {
        if constexpr (requires { recorded.effect_id; }) {
          return GeneratedValue{recorded.effect_id, recorded.value.value};
        }
        return GeneratedValue{};
      },
      event.body);
}

// A step has one recorded time, random number or id: its result. An imported step has the value of
// the origin.
void values_are_generated_once(const JobEvidence& e, Checker& checker) {
  std::map<std::string, Value, std::less<>> values;
  for (const Event& event : e.events) {
    const engine::RecordedKind records = engine::recorded_kind_of(event.type);
    const GeneratedValue generated = value_of(event);
    const auto step = engine::step_of_effect(generated.effect, records);
    if (records == engine::RecordedKind::nothing || !step) continue;
    checker.fail_if(!values.emplace(step->text, generated.value).second,
                    "event " + std::to_string(event.seq) + " is a second value of its step");
  }
  for (const engine::Step& step : e.state.steps) {
    const auto value = values.find(step.id.text);
    if (value == values.end()) continue;
    checker.fail_if(step.imported != nullptr, step.id.text + " was imported and generated again");
    checker.fail_if(step.item == engine::kNoItem && !(step.result == value->second),
                    step.id.text + " has another result than its value");
  }
}

constexpr Rule kRules[] = {
    {"L1 a log has no gap", log_is_gapless},
    {"L2 an event id occurs once", ids_are_unique},
    {"L3 the row matches the log", row_is_a_copy},
    {"L4 the row has the kind of each open request", row_has_open_requests},
    {"L4 a terminal event is unique and final", end_is_final},
    {"L6 the log verifies: chain, states, ledger, replay", log_verifies},
    {"D2 no effect without a declaration", trace_ids_are_stable},
    {"F1 the epochs in a log increase", epochs_rise},
    {"F2 an ended attempt writes nothing", no_write_after_lease_loss},
    {"A1 at_most_once arrives at most once", at_most_once_arrives_once},
    {"A1 idempotent takes effect once, under one key", idempotent_takes_effect_once},
    {"A2 a recorded outcome is what happened", records_are_true},
    {"A3 a committed step has exactly one effect", completed_means_done},
    {"A4 an unknown outcome is never guessed", unknown_outcome_is_never_guessed},
    {"A5 no two calls share a key", keys_are_injective},
    {"A6 no call is declared after a cancel", nothing_starts_after_cancel},
    {"A7 not_happened is recorded only for a settled call", not_happened_waits},
    {"N1 an accepted signal is never lost", signals_are_kept},
    {"N1 an accepted cancel is never lost", cancels_are_kept},
    {"N1 an accepted resolution is never lost", resolutions_are_kept},
    {"N5 a wait is completed once", waits_resolve_once},
    {"T1 a timer fires once, and not early", timers_fire_late_and_once},
    {"T2 a time, random number or id is generated once", values_are_generated_once},
};

std::array<std::span<const Rule>, 7> all_rules() {
  return {kRules,         user_rules(),    side_rules(), model_rules(),
          budget_rules(), confirm_rules(), plan_rules()};
}

// The loaded data of one job.
struct PendingLoad {
  store::LoadedJob loaded;
  engine::State state;
  std::vector<JobEvidence::PlanChange> planned;
};

Result<PendingLoad> load(SimWorld& world, const JobId& job, const engine::PlanSource& plans,
                         std::vector<Event>& events) {
  PendingLoad all;
  AE_ASSIGN(all.loaded, world.read_disk(job));
  const auto observed = world.observer().jobs().find(job);
  if (observed != world.observer().jobs().end() && observed->second.commits == all.loaded.commits) {
    events = observed->second.log;  // byte for byte what was decoded when it was written
  } else {
    AE_ASSIGN(events, runtime::open_log(job, all.loaded));
  }
  std::uint64_t seq = 0;
  const engine::PlanSource note = [&](const Value& graph, std::string_view hash) {
    auto plan = plans(graph, hash);
    if (plan) all.planned.push_back({seq, *plan});
    return plan;
  };
  all.state.job = job;
  for (const Event& event : events) {
    seq = event.seq;
    AE_TRY(engine::apply(all.state, event, note));
  }
  return all;
}

// Rules that need the evidence of all jobs.
void check_together(SimWorld& world, const std::map<JobId, std::vector<Event>>& logs) {
  Report& report = world.report();
  for (const auto& [name, resource] : world.external_world().resources()) {
    if (resource.version != resource.applied_changes.size() + resource.foreign_changes) {
      report.violate("V5 a verifier only reads", {},
                     name + " was changed by neither a call nor the test");
    }
  }
  std::uint64_t warnings = 0;
  for (const auto& [job, events] : logs) {
    for (const Event& event : events) {
      const auto* checked = as<ConfirmationChecked>(event);
      warnings +=
          checked && checked->verdict == "mismatch" && checked->detail.text("mode") == "warn";
    }
  }
  const std::uint64_t counted = world.warning_count();
  // A process that dies between a commit and its answer does not count the warning.
  if (counted > warnings || (counted < warnings && !world.was_disturbed())) {
    report.violate(
        "V6 a mismatch in warn mode is counted", {},
        std::to_string(counted) + " were counted, the logs have " + std::to_string(warnings));
  }
  if (warnings > 0) report.mark("confirm.warned");
}

}  // namespace

std::vector<std::string_view> rule_names() {
  std::vector<std::string_view> names;
  for (const auto& rules : all_rules()) {
    for (const Rule& rule : rules) names.push_back(rule.name);
  }
  return names;
}

void check_all(SimWorld& world, Users& users, const engine::PlanSource& plans) {
  Report& report = world.report();
  std::map<JobId, std::vector<const KeyRecord*>> touched;
  for (const auto& [key, record] : world.external_world().journal())
    touched[record.job].push_back(&record);
  std::map<JobId, std::vector<const Ack*>> acks;
  for (const Ack& ack : users.acks()) acks[ack.job].push_back(&ack);
  for (const auto* acknowledged : {&users.created(), &users.forked()}) {
    for (const JobId& job : *acknowledged) {
      if (world.observer().jobs().contains(job)) continue;
      report.violate("D1 an acknowledged job exists", job, "it was never written to the disk");
    }
  }
  std::map<JobId, std::vector<Event>> logs;
  std::map<JobId, PendingLoad> loadings;
  for (const auto& [job, observed] : world.observer().jobs()) {
    auto all = load(world, job, plans, logs[job]);
    if (!all) {
      report.violate("L1 a log has no gap", job, all.error().message);
      continue;
    }
    loadings.emplace(job, *std::move(all));
  }
  std::map<std::string_view, std::vector<const VerifierCheck*>> verifier_checks;
  for (const VerifierCheck& check : world.external_world().verifier_checks())
    verifier_checks[check.job.text].push_back(&check);
  for (const auto& [job, all] : loadings) {
    const std::vector<Event>& events = logs.at(job);
    report.events += events.size();
    for (const Event& event : world.options().verbose ? events : std::vector<Event>()) {
      world.log_line(job.text + " " + std::to_string(event.seq) + " " + to_text(event.created_at) +
                     " " + std::string(event_name(event)) + " " +
                     canonical(payload_json(event.body)).substr(0, 200));
    }
    const JobEvidence evidence{.job = job,
                               .loaded = all.loaded,
                               .events = events,
                               .state = all.state,
                               .journal = world.external_world().journal(),
                               .touched = touched[job],
                               .acks = acks[job],
                               .requested = users.requested(job),
                               .clock_jumped = world.clock().jumped(),
                               .plans = plans,
                               .planned = all.planned,
                               .verifier_checks = verifier_checks[job.text],
                               .logs = logs,
                               .forks = users.forks()};
    for (const auto& rules : all_rules()) {
      for (const Rule& rule : rules) {
        Checker checker(report, job, rule.name);
        rule.check(evidence, checker);
      }
    }
    report.mark("ended." + std::string(engine::to_text(all.state.status)));
  }
  check_together(world, logs);
  for (const auto& [job, records] : touched) {
    if (!world.observer().jobs().contains(job)) {
      report.violate("D2 no effect without a declaration", job, "the job is not on the disk");
    }
  }
}

void check_visible(SimWorld& world, const engine::PlanSource& plans) {
  constexpr std::string_view kRule =
      "PR1 every job has ended or shows what it waits for and which command answers it";
  for (const auto& [job, observed] : world.observer().jobs()) {
    if (observed.status == "completed" || observed.status == "failed" ||
        observed.status == "cancelled") {
      continue;
    }
    std::vector<Event> events;
    auto all = load(world, job, plans, events);
    if (!all) continue;  // check_all reports it
    const Value view = engine::job_view(all->state);
    bool visible = false;
    for (const Value& wait : view[field::waits].items()) {
      visible = visible || wait["actions"].size() > 0 || wait[field::due_at].is_string();
    }
    const Value& parked = view["parked"];
    visible = visible || (!parked.text(field::reason).empty() && parked["action"].is_object());
    const bool blocked = engine::is_blocked(all->state.status);
    if (!blocked || !visible) {
      world.report().violate(kRule, job, "it is " + observed.status + ": " + canonical(view),
                             ViolationKind::liveness);
    }
  }
}

}  // namespace ae::sim
