// The rules about the log: its order and its row, fencing, timers, and the values that it records.
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "engine/values/recorded_value.h"
#include "inspect/request_kind.h"
#include "inspect/requests_view.h"
#include "inspect/verify.h"
#include "json/json.h"
#include "log/decisions.h"
#include "log/field_names.h"
#include "sim/checker.h"

namespace ae::sim {
namespace {

using engine::is_terminal;

void log_is_gapless(const JobEvidence& e, Checker& checker) {
  std::uint64_t seq = 0;
  for (const Event& event : e.events) {
    if (event.seq != ++seq) return checker.fail("event {} is missing", seq);
  }
}

void ids_are_unique(const JobEvidence& e, Checker& checker) {
  std::set<Uuid> ids;
  for (const Event& event : e.events) {
    if (!ids.insert(event.id).second) checker.fail("event {}", event.seq);
  }
}

void row_is_a_copy(const JobEvidence& e, Checker& checker) {
  checker.fail_if(e.loaded.row.status != engine::to_text(e.state.status),
                  "the row has the status {}, the log {}", e.loaded.row.status,
                  engine::to_text(e.state.status));
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
                      "the row does not have the open request {}", canonical(request));
    }
  }
}

void end_is_final(const JobEvidence& e, Checker& checker) {
  bool ended = false;
  for (const Event& event : e.events) {
    if (ended && static_cast<int>(event.type) < 128) {
      checker.fail("{} after the end", event_name(event));
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
  if (!proof.ok) checker.fail("{}", canonical(proof.to_json()));
}

void epochs_rise(const JobEvidence& e, Checker& checker) {
  std::int64_t epoch = 0;
  for (const Event& event : e.events) {
    const auto* running = as<JobRunning>(event);
    if (!running) continue;
    const std::int64_t next = running->epoch;
    checker.fail_if(next <= epoch, "epoch {} after {}", next, epoch);
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
      checker.fail("event {} is of an ended attempt", event.seq);
    }
  }
}

void timers_fire_late_and_once(const JobEvidence& e, Checker& checker) {
  std::set<std::string, std::less<>> fired;
  for (const Event& event : e.events) {
    // The wall time was raised, so its timer may fire again.
    const auto raised = decision_as<BudgetRaised>(event);
    if (raised && raised->limits.wall.has_value()) fired.erase(std::string(engine::kWallTimer));
    const auto* timer = as<TimerFired>(event);
    if (!timer) continue;
    checker.fail_if(!fired.insert(timer->effect_id).second, "{} fired twice", timer->effect_id);
    checker.fail_if(instant(timer->value.value) < timer->due_at, "{} fired early",
                    timer->effect_id);
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
                    "event {} is a second value of its step", event.seq);
  }
  for (const engine::Step& step : e.state.steps) {
    const auto value = values.find(step.id.text);
    if (value == values.end() || step.code) continue;  // of code: the seed of its random numbers
    checker.fail_if(step.imported != nullptr, "{} was imported and generated again", step.id.text);
    checker.fail_if(step.item == engine::kNoItem && !(step.result == value->second),
                    "{} has another result than its value", step.id.text);
  }
}

constexpr Rule kLogRules[] = {
    {"L1 a log has no gap", log_is_gapless},
    {"L2 an event id occurs once", ids_are_unique},
    {"L3 the row matches the log", row_is_a_copy},
    {"L4 the row has the kind of each open request", row_has_open_requests},
    {"L4 a terminal event is unique and final", end_is_final},
    {"L6 the log verifies: chain, states, ledger, replay", log_verifies},
    {"F1 the epochs in a log increase", epochs_rise},
    {"F2 an ended attempt writes nothing", no_write_after_lease_loss},
    {"T1 a timer fires once, and not early", timers_fire_late_and_once},
    {"T2 a time, random number or id is generated once", values_are_generated_once},
};

}  // namespace

std::span<const Rule> log_rules() { return kLogRules; }

}  // namespace ae::sim
