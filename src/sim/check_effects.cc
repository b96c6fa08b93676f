// The rules about effects: what arrived at the services, compared with what the log records.
#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "log/decisions.h"
#include "sim/checker.h"

namespace ae::sim {
namespace {

using engine::is_terminal;

void trace_ids_are_stable(const JobEvidence& e, Checker& checker) {
  std::set<std::pair<std::string, std::int64_t>> declared_tries;
  for (const auto& [invocation, call] : calls_of(e.events)) {
    for (const auto& [number, t] : call.tries) declared_tries.emplace(invocation, number);
  }
  for (const KeyRecord* record : e.touched) {
    for (const Arrival& arrival : record->arrivals) {
      if (!declared_tries.contains({arrival.invocation.text, arrival.try_no})) {
        checker.fail("{} {} arrived, undeclared", record->tool, arrival.invocation.text);
      }
    }
  }
}

void at_most_once_arrives_once(const JobEvidence& e, Checker& checker) {
  for (const KeyRecord* record : e.touched) {
    if (record->effect_class != EffectClass::at_most_once) continue;
    std::size_t arrivals = 0;
    for (const Arrival& arrival : record->arrivals) arrivals += arrival.refused ? 0 : 1;
    checker.fail_if(arrivals > 1 || record->effects > 1, "{} arrived {} times, {} effects",
                    record->tool, arrivals, record->effects);
  }
}

void idempotent_takes_effect_once(const JobEvidence& e, Checker& checker) {
  for (const KeyRecord* record : e.touched) {
    if (record->effect_class != EffectClass::idempotent) continue;
    checker.fail_if(record->effects > 1, "{} took effect twice", record->tool);
    checker.fail_if(record->external_keys.size() > 1, "{} was sent under two keys", record->tool);
  }
}

void records_are_true(const JobEvidence& e, Checker& checker) {
  const std::vector<std::string> unknown = e.state.unknown_call_keys();
  for (const auto& [invocation, call] : calls_of(e.events)) {
    if (tool_kind(call.tool)->child) continue;  // see check_children.cc
    const KeyRecord* record = record_of(e, call.key);
    const bool read = call.effect_class == "read";
    for (const auto& [number, t] : call.tries) {
      if (!t.success) continue;
      const bool happened = record && (read || record->effects == 1);
      checker.fail_if(!happened, "{} is recorded as done, but was not", call.tool);
      const bool invalid = t.result["invalid"].is_bool();
      bool is_replied = happened && t.result == record->result;
      for (const Arrival& arrival : record ? record->arrivals : std::vector<Arrival>()) {
        is_replied = is_replied || (!arrival.answer.is_null() && arrival.answer == t.result);
      }
      checker.fail_if(happened && !invalid && !is_replied,
                      "{}: the recorded result is not the returned one", call.tool);
    }
    if (call.has_unknown_outcome() || call.tries.empty() || call.tries.rbegin()->second.success)
      continue;
    // A late success of an earlier try keeps the outcome of the call unknown.
    const bool is_unknown =
        std::ranges::any_of(call.tries, [](const auto& one) { return one.second.success; }) &&
        std::ranges::find(unknown, call.key) != unknown.end();
    checker.fail_if(record && record->effects > 0 && !is_unknown,
                    "{} is recorded as definitely failed, but took effect", call.tool);
  }
}

void completed_means_done(const JobEvidence& e, Checker& checker) {
  for (const engine::Step& step : e.state.steps) {
    const engine::Node& node = e.state.node_of(step);
    if (e.state.status == engine::JobStatus::completed && step.phase != engine::StepPhase::done) {
      const bool dropped_item = step.is_part();
      checker.fail_if(!dropped_item, "node {} is not done", node.id);
    }
    if (!step.call || tool_kind(step.call->tool)->child) continue;
    const KeyRecord* record = record_of(e, step.call->key.text);
    const bool read = tool_kind(step.call->tool)->effect_class == EffectClass::read;
    const std::uint64_t effects = record ? record->effects : 0;
    if (step.committed && !read) {
      checker.fail_if(effects != 1, "node {} is committed with {} effects", node.id, effects);
    }
    checker.fail_if(effects > 1, "node {} has more than one effect", node.id);
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
        checker.fail_if(!allowed, "{} try {} was declared though the one before may have happened",
                        call.tool, number);
      }
      before = &t;
    }
  }
  if (!is_terminal(e.state.status)) return;
  for (const auto& [invocation, call] : calls) {
    for (const auto& [number, t] : call.tries) {
      checker.fail_if(!t.finished, "{} is open in an ended job", call.tool);
    }
  }
}

void keys_are_injective(const JobEvidence& e, Checker& checker) {
  std::set<std::string> external, keys;
  for (const auto& [invocation, call] : calls_of(e.events)) {
    checker.fail_if(!external.insert(call.external_key).second, "external key {}",
                    call.external_key);
    checker.fail_if(!keys.insert(call.key).second, "idempotency key {}", call.key);
  }
}

void nothing_starts_after_cancel(const JobEvidence& e, Checker& checker) {
  const auto side = side_commands(e.events);
  bool cancelled = false;
  // A retry of a call with an unknown outcome that can be undone is allowed: its outcome must be
  // known first. Another rule checks whether a retry is allowed. A retry records the end of a
  // child, or finds out whether there is one.
  const auto repeats = [](const ToolInvocationStarted& started) {
    const ToolKind* kind = tool_kind(started.tool_name);
    return started.try_no != 1 && kind != nullptr && (!kind->undo.empty() || kind->awaits_child());
  };
  for (const Event& event : e.events) {
    if (event.type == EventType::job_cancel_requested) cancelled = true;
    const auto* started = as<ToolInvocationStarted>(event);
    checker.fail_if(
        cancelled && started && !side.contains(started->step_id.text) && !repeats(*started),
        "event {} declares a call", event.seq);
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
                        "{} try {} could still arrive", call.tool, number);
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
            "{} try {} could still arrive when the user checked, at {}", call.tool, number,
            to_text(ack->request.checked_at.value_or(Instant{})));
      }
    }
  }
}

constexpr Rule kEffectRules[] = {
    {"D2 no effect without a declaration", trace_ids_are_stable},
    {"A1 at_most_once arrives at most once", at_most_once_arrives_once},
    {"A1 idempotent takes effect once, under one key", idempotent_takes_effect_once},
    {"A2 a recorded outcome is what happened", records_are_true},
    {"A3 a committed step has exactly one effect", completed_means_done},
    {"A4 an unknown outcome is never guessed", unknown_outcome_is_never_guessed},
    {"A5 no two calls share a key", keys_are_injective},
    {"A6 no call is declared after a cancel", nothing_starts_after_cancel},
    {"A7 not_happened is recorded only for a settled call", not_happened_waits},
};

}  // namespace

std::span<const Rule> effect_rules() { return kEffectRules; }

}  // namespace ae::sim
