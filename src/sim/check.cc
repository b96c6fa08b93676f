// The rules, one function each.
#include "sim/check.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <set>
#include <span>

#include "engine/heart/recorded_value.h"
#include "inspect/verify.h"
#include "inspect/view.h"
#include "json/json.h"
#include "runtime/runtime.h"
#include "sim/judge.h"

namespace ae::sim {
bool is_end(EventType type) {
  return type == EventType::job_completed || type == EventType::job_failed ||
         type == EventType::job_cancelled;
}

Instant instant(const Value& payload, std::string_view field) {
  return instant_from_text(payload.text(field)).value_or(Instant{});
}

const KeyRecord* record_of(const JobEvidence& e, std::string_view key) {
  const auto it = e.journal.find(std::string(key));
  return it == e.journal.end() ? nullptr : &it->second;
}

const engine::Plan& plan_at(const JobEvidence& e, std::uint64_t seq) {
  const auto later = std::ranges::upper_bound(e.planned, seq, {}, &JobEvidence::Planned::seq);
  return *std::prev(later)->plan;
}

const engine::Node& node_of(const JobEvidence& e, const Event& event) {
  const engine::Plan& plan = plan_at(e, event.seq);
  return plan.nodes[plan.by_id.at(std::string(event.payload.text("node_id")))];
}

void Parts::take_in(const Event& event) {
  const Value& p = event.payload;
  if (event.type == EventType::node_started) {
    const engine::Node& node = node_of(e_, event);
    if (node.kind != engine::NodeKind::map && node.loop == nullptr) return;
    const auto own = own_.emplace(p.text("node_id"), p.text("step_id")).first;
    if (own->second != p.text("step_id")) parts_.emplace(p.text("step_id"));
  } else if (event.type == EventType::plan_generated) {  // what is not carried starts again
    std::set<std::string, std::less<>> carried;
    if (const Value& list = p["carried"]; list.is_array()) {
      for (const Value& entry : list.items()) carried.emplace(entry.text("step_id"));
    }
    std::erase_if(own_, [&](const auto& own) { return !carried.contains(own.second); });
  }
}

bool Parts::fails_job(const Event& event) const {
  const Value& p = event.payload;
  return p.text("result_type").ends_with("_failure") && !node_of(e_, event).continue_on_error &&
         !parts_.contains(std::string(p.text("step_id")));
}

bool answers_confirmation(const JobEvidence& e, const engine::Act& act) {
  if (act.kind == engine::Act::Kind::resolve) return !act.step_id.empty();
  if (act.kind != engine::Act::Kind::signal || act.approval.empty()) return false;
  return std::ranges::any_of(e.events, [&](const Event& event) {
    return event.type == EventType::decision_recorded &&
           event.payload.text("kind") == "confirmation" &&
           event.payload.text("step_id") == act.approval;
  });
}

std::map<std::string, Calls> calls_of(const std::vector<Event>& events) {
  std::map<std::string, Calls> calls;  // by invocation
  std::string opening;
  for (const Event& event : events) {
    const Value& p = event.payload;
    if (event.type == EventType::job_running) {
      opening = p.text("opened_at");
      for (auto& [invocation, call] : calls) {
        for (auto& [number, t] : call.tries) {
          if (opening.empty() || t.opening == opening) continue;
          t.unsent_from = std::min(t.unsent_from, instant(p, "opened_at"));
        }
      }
    } else if (event.type == EventType::tool_invocation_started) {
      Calls& call = calls[std::string(p.text("invocation_id"))];
      call.step = p.text("step_id");
      call.key = p.text("idempotency_key");
      call.external_key = p.text("external_key");
      call.tool = p.text("tool_name");
      call.effect_class = p.text("effect_class");
      Calls::Try& t = call.tries[p["try"].as_int()];
      t.deadline = instant(p, "deadline");
      t.unsent_from = instant(p, "send_by");
      t.opening = opening;
      t.seq = event.seq;
    } else if (event.type == EventType::tool_invocation_finished) {
      Calls::Try& t = calls[std::string(p.text("invocation_id"))].tries[p["try"].as_int()];
      t.finished = true;
      t.success = p.text("outcome") == "success";
      t.definite = (p.text("outcome") == "failure" || p.text("outcome") == "input_required") &&
                   p["definite"] == Value(true);
      t.heard_seq = event.seq;
      if (t.closed_seq == 0) {
        t.closed_seq = event.seq;
        t.closed_definite = t.definite;
        t.settled = p["settled"] == Value(true);
        t.error = p["error"].text("code");
      }
      t.result = p["result"];
    }
  }
  return calls;
}

std::map<std::string, std::string, std::less<>> side_commands(const std::vector<Event>& events) {
  std::map<std::string, std::string, std::less<>> about;
  for (const Event& event : events) {
    if (event.type != EventType::command_emitted || event.payload.find("of") == nullptr) continue;
    about.emplace(event.payload.text("step_id"), event.payload.text("of"));
  }
  return about;
}

const Event* end_of(const JobEvidence& e) {
  const auto end = std::ranges::find_if(e.events, is_end, &Event::type);
  return end == e.events.end() ? nullptr : &*end;
}

bool undelivered(const JobEvidence& e, std::string_view act) {
  std::string quoted = "\"";
  quoted += act;
  quoted += '"';
  const Event* const end = end_of(e);
  return end && canonical(end->payload["undelivered"]).find(quoted) != std::string::npos;
}

std::string wait_of(const JobEvidence& e, const engine::Act& act) {
  if (act.approval.empty()) return act.correlation_key;
  std::string asking;  // the step whose call this approval is about
  for (const Event& event : e.events) {
    const Value& p = event.payload;
    if (p.text("decision_id") == act.approval) asking = p.text("step_id");
    if (event.type != EventType::wait_opened || p.text("wait_type") != "human") continue;
    const bool of_call = p.text("correlation_key").starts_with("approval/");
    if (of_call ? p.text("step_id") == asking : p.text("step_id") == act.approval) {
      return std::string(p.text("correlation_key"));
    }
  }
  return {};
}

bool was_ended(const JobEvidence& e) {
  return e.state.status == engine::JobStatus::failed ||
         e.state.status == engine::JobStatus::cancelled;
}

namespace {

using engine::is_terminal;

// ---------------------------------------------------------------- the log

void log_is_gapless(const JobEvidence& e, Judge& judge) {
  std::uint64_t seq = 0;
  for (const Event& event : e.events) {
    if (event.seq != ++seq) return judge.broken("event " + std::to_string(seq) + " is missing");
  }
}

void ids_are_unique(const JobEvidence& e, Judge& judge) {
  std::set<Uuid> ids;
  for (const Event& event : e.events) {
    if (!ids.insert(event.id).second) judge.broken("event " + std::to_string(event.seq));
  }
}

void row_is_a_copy(const JobEvidence& e, Judge& judge) {
  judge.broken_if(e.loaded.row.status != engine::to_text(e.state.status),
                  "the row says " + e.loaded.row.status + ", the log " +
                      std::string(engine::to_text(e.state.status)));
  judge.broken_if(e.loaded.row.last_seq != e.events.back().seq, "the row's last_seq differs");
  judge.broken_if(!is_terminal(e.state.status) && e.loaded.row.wake_at != e.state.next_due(),
                  "the row's wake_at is not the next due instant of the log");
}

void end_is_final(const JobEvidence& e, Judge& judge) {
  bool ended = false;
  for (const Event& event : e.events) {
    if (ended && static_cast<int>(event.type) < 128) {
      judge.broken(std::string(event_name(event)) + " after the end");
    }
    ended = ended || is_end(event.type);
  }
}

void log_verifies(const JobEvidence& e, Judge& judge) {
  engine::VerifyInput input{.job = e.job,
                            .events = e.events,
                            .refused = {},
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
  if (!proof.ok) judge.broken(canonical(proof.to_json()));
}

// ---------------------------------------------------------------- fencing

void epochs_rise(const JobEvidence& e, Judge& judge) {
  std::int64_t epoch = 0;
  for (const Event& event : e.events) {
    if (event.type != EventType::job_running) continue;
    const std::int64_t next = event.payload["epoch"].as_int();
    judge.broken_if(next <= epoch,
                    "epoch " + std::to_string(next) + " after " + std::to_string(epoch));
    epoch = next;
  }
}

void nobody_writes_late(const JobEvidence& e, Judge& judge) {
  std::set<AttemptId> over;
  AttemptId running;
  for (const Event& event : e.events) {
    if (event.type == EventType::job_running) {
      over.insert(running);
      running = AttemptId(std::string(event.payload.text("attempt_id")));
    }
    if (event.attempt_id && over.contains(*event.attempt_id)) {
      judge.broken("event " + std::to_string(event.seq) + " is of an attempt that was over");
    }
  }
}

// ---------------------------------------------------------------- effects

void traces_stand(const JobEvidence& e, Judge& judge) {
  std::set<std::pair<std::string, std::int64_t>> declared;
  for (const auto& [invocation, call] : calls_of(e.events)) {
    for (const auto& [number, t] : call.tries) declared.emplace(invocation, number);
  }
  for (const KeyRecord* record : e.touched) {
    for (const Arrival& arrival : record->arrivals) {
      if (!declared.contains({arrival.invocation.text, arrival.try_no})) {
        judge.broken(record->tool + " " + arrival.invocation.text + " arrived, undeclared");
      }
    }
  }
}

void at_most_once_arrives_once(const JobEvidence& e, Judge& judge) {
  for (const KeyRecord* record : e.touched) {
    if (record->nature != Nature::at_most_once) continue;
    std::size_t arrivals = 0;
    for (const Arrival& arrival : record->arrivals) arrivals += arrival.refused ? 0 : 1;
    judge.broken_if(arrivals > 1 || record->effects > 1,
                    record->tool + " arrived " + std::to_string(arrivals) + " times, " +
                        std::to_string(record->effects) + " effects");
  }
}

void idempotent_takes_effect_once(const JobEvidence& e, Judge& judge) {
  for (const KeyRecord* record : e.touched) {
    if (record->nature != Nature::idempotent) continue;
    judge.broken_if(record->effects > 1, record->tool + " took effect twice");
    judge.broken_if(record->external_keys.size() > 1, record->tool + " was sent under two keys");
  }
}

void records_are_true(const JobEvidence& e, Judge& judge) {
  for (const auto& [invocation, call] : calls_of(e.events)) {
    const KeyRecord* record = record_of(e, call.key);
    const bool read = call.effect_class == "read";
    for (const auto& [number, t] : call.tries) {
      if (!t.success) continue;
      const bool happened = record && (read || record->effects == 1);
      judge.broken_if(!happened, call.tool + " is recorded as done, but was not");
      const bool invalid = t.result["invalid"].is_bool();
      bool answered = happened && t.result == record->result;
      for (const Arrival& arrival : record ? record->arrivals : std::vector<Arrival>()) {
        answered = answered || (!arrival.answer.is_null() && arrival.answer == t.result);
      }
      judge.broken_if(happened && !invalid && !answered,
                      call.tool + ": the recorded result is not what was answered");
    }
    if (!call.any_doubt() && !call.tries.empty() && !call.tries.rbegin()->second.success) {
      judge.broken_if(record && record->effects > 0,
                      call.tool + " is recorded as definitely failed, but took effect");
    }
  }
}

void completed_means_done(const JobEvidence& e, Judge& judge) {
  for (const engine::Step& step : e.state.steps) {
    const engine::Node& node = e.state.node_of(step);
    if (e.state.status == engine::JobStatus::completed && step.phase != engine::StepPhase::done) {
      const bool dropped_item = step.is_part();
      judge.broken_if(!dropped_item, "node " + node.id + " is not done");
    }
    if (!step.call) continue;
    const KeyRecord* record = record_of(e, step.call->key.text);
    const bool read = tool_kind(step.call->tool)->nature == Nature::read;
    const std::uint64_t effects = record ? record->effects : 0;
    if (step.committed && !read) {
      judge.broken_if(effects != 1, "node " + node.id + " is committed with " +
                                        std::to_string(effects) + " effects");
    }
    judge.broken_if(effects > 1, "node " + node.id + " has more than one effect");
  }
}

void doubt_is_never_guessed(const JobEvidence& e, Judge& judge) {
  const std::map<std::string, Calls> calls = calls_of(e.events);
  for (const auto& [invocation, call] : calls) {
    if (call.effect_class != "at_most_once" || call.tries.size() < 2) continue;
    const Calls::Try* before = nullptr;
    for (const auto& [number, t] : call.tries) {
      if (before && !before->definite) {
        bool said = false;
        for (const Event& event : e.events) {
          said = said || (event.type == EventType::decision_recorded && event.seq > before->seq &&
                          event.seq < t.seq && event.payload.text("kind") == "in_doubt" &&
                          event.payload.text("step_id") == call.step &&
                          event.payload.text("state") == "not_happened");
        }
        judge.broken_if(!said, call.tool + " try " + std::to_string(number) +
                                   " was declared though the one before may have happened");
      }
      before = &t;
    }
  }
  if (!is_terminal(e.state.status)) return;
  for (const auto& [invocation, call] : calls) {
    for (const auto& [number, t] : call.tries) {
      judge.broken_if(!t.finished, call.tool + " is open in an ended job");
    }
  }
}

void keys_are_injective(const JobEvidence& e, Judge& judge) {
  std::set<std::string> external, keys;
  for (const auto& [invocation, call] : calls_of(e.events)) {
    judge.broken_if(!external.insert(call.external_key).second,
                    "external key " + call.external_key);
    judge.broken_if(!keys.insert(call.key).second, "idempotency key " + call.key);
  }
}

void nothing_starts_after_cancel(const JobEvidence& e, Judge& judge) {
  const auto side = side_commands(e.events);
  bool cancelled = false;
  // A call in doubt that could be undone is sent again, so that its outcome is known before it is undone. What may be sent
  // again is another rule's.
  const auto repeats = [](const Value& started) {
    const ToolKind* kind = tool_kind(started.text("tool_name"));
    return started["try"] != Value(1) && kind != nullptr && !kind->undo.empty();
  };
  for (const Event& event : e.events) {
    if (event.type == EventType::job_cancel_requested) cancelled = true;
    const bool undoes = side.contains(event.payload.text("step_id"));
    judge.broken_if(cancelled && !undoes && event.type == EventType::tool_invocation_started &&
                        !repeats(event.payload),
                    "event " + std::to_string(event.seq) + " declares a call");
    judge.broken_if(cancelled && event.type == EventType::job_completed,
                    "the job completed though it was cancelled");
  }
}

const Event* completion_of(const JobEvidence& e, std::string_view id) {
  for (const Event& event : e.events) {
    if (event.type == EventType::wait_completed && event.payload.text("signal_id") == id)
      return &event;
  }
  return nullptr;
}

// What the log knew of a call when somebody said what became of it: may one of its tries still arrive?
std::vector<std::int64_t> under_way(const Calls& call, std::uint64_t seq) {
  std::vector<std::int64_t> tries;
  for (const auto& [number, t] : call.tries) {
    if (t.seq > seq) break;
    const bool definite = t.closed_definite && t.closed_seq < seq;
    if (definite && !t.never_arrived()) tries.clear();  // an answer under this key
    if (!definite && !(t.settled && t.closed_seq < seq)) tries.push_back(number);
  }
  return tries;
}

void not_happened_waits(const JobEvidence& e, Judge& judge) {
  if (e.clock_jumped) return;
  const std::map<std::string, Calls> calls = calls_of(e.events);
  for (const Event& event : e.events) {
    const Value& p = event.payload;
    if (event.type != EventType::decision_recorded || p.text("state") != "not_happened") continue;
    for (const auto& [invocation, call] : calls) {
      if (call.key != p["payload"].text("idempotency_key")) continue;
      for (const std::int64_t number : under_way(call, event.seq)) {
        judge.broken_if(instant(p, "at") < call.tries.at(number).settles(kToolTimeout, kToolGrace),
                        call.tool + " try " + std::to_string(number) + " could still arrive");
      }
    }
  }
  for (const Ack* ack : e.acks) {
    if (ack->act.resolution != "not_happened") continue;
    const Event* believed = completion_of(e, ack->act.id);
    for (const auto& [invocation, call] : calls) {
      if (!believed || call.key != ack->act.idempotency_key) continue;
      for (const std::int64_t number : under_way(call, believed->seq)) {
        judge.broken_if(
            ack->act.looked_at < call.tries.at(number).settles(kToolTimeout, kToolGrace),
            call.tool + " try " + std::to_string(number) +
                " could still arrive when somebody looked, at " +
                to_text(ack->act.looked_at.value_or(Instant{})));
      }
    }
  }
}

// ---------------------------------------------------------------- what was acknowledged

void signals_are_kept(const JobEvidence& e, Judge& judge) {
  for (const Ack* ack : e.acks) {
    if (ack->act.kind != engine::Act::Kind::signal || ack->answer["duplicate"].is_bool()) continue;
    if (answers_confirmation(e, ack->act)) continue;
    if (completion_of(e, ack->act.id) || undelivered(e, ack->act.id)) continue;
    // Another signal for the same wait was accepted before it; asked again, the job answers with that one.
    const std::string key = wait_of(e, ack->act);
    bool answered = false;
    for (const Event& event : e.events) {
      answered = answered || (event.type == EventType::wait_completed &&
                              event.payload.text("correlation_key") == key &&
                              !event.payload.text("signal_id").empty());
    }
    if (answered) continue;
    judge.broken("the signal " + ack->act.id + " for " + key + " was accepted and is nowhere");
  }
}

void cancels_are_kept(const JobEvidence& e, Judge& judge) {
  for (const Ack* ack : e.acks) {
    if (ack->act.kind != engine::Act::Kind::cancel) continue;
    bool there = undelivered(e, ack->act.id);
    for (const Event& event : e.events) {
      there = there || event.type == EventType::job_cancel_requested;
    }
    judge.broken_if(!there, "the cancel " + ack->act.id + " was accepted and is nowhere");
  }
}

void resolutions_are_kept(const JobEvidence& e, Judge& judge) {
  for (const Ack* ack : e.acks) {
    if (ack->act.kind != engine::Act::Kind::resolve || answers_confirmation(e, ack->act)) continue;
    if (completion_of(e, ack->act.id) || undelivered(e, ack->act.id)) continue;
    bool answered = false;  // by the call itself, or by somebody before
    for (const Event& event : e.events) {
      answered = answered || (event.type == EventType::wait_completed &&
                              event.payload.text("correlation_key")
                                  .starts_with("resolve/" + ack->act.idempotency_key) &&
                              (event.payload.text("outcome") == "signalled" ||
                               event.payload.text("outcome") == "rejected" ||
                               event.payload.text("outcome") == "cancelled"));
    }
    judge.broken_if(!answered, "the resolution " + ack->act.id + " was accepted and is nowhere");
  }
}

void waits_resolve_once(const JobEvidence& e, Judge& judge) {
  std::set<std::string, std::less<>> opened, completed;
  for (const Event& event : e.events) {
    const std::string key(event.payload.text("correlation_key"));
    if (event.type == EventType::wait_opened) {
      judge.broken_if(!opened.insert(key).second, key + " was opened twice");
    } else if (event.type == EventType::wait_completed) {
      judge.broken_if(!opened.contains(key), key + " was completed, never opened");
      judge.broken_if(!completed.insert(key).second, key + " was completed twice");
    }
  }
  judge.broken_if(is_terminal(e.state.status) && opened.size() != completed.size(),
                  "a wait is open in an ended job");
}

void timers_fire_late_and_once(const JobEvidence& e, Judge& judge) {
  std::set<std::string, std::less<>> fired;
  for (const Event& event : e.events) {
    const Value& p = event.payload;
    // More time was given: it passes once more.
    const bool raised = event.type == EventType::decision_recorded && p.text("kind") == "budget";
    if (raised && !p["payload"]["wall"].is_null()) fired.erase("budget");
    if (event.type != EventType::timer_fired) continue;
    judge.broken_if(!fired.emplace(p.text("effect_id")).second,
                    std::string(p.text("effect_id")) + " fired twice");
    judge.broken_if(instant(p, "value") < instant(p, "due_at"),
                    std::string(p.text("effect_id")) + " fired early");
  }
}

// A step has one value of time, chance or an id: its result. What a fork brought in has its origin's.
void values_are_drawn_once(const JobEvidence& e, Judge& judge) {
  std::map<std::string, Value, std::less<>> values;
  for (const Event& event : e.events) {
    const engine::Records records = engine::records_of(event.type);
    const auto step = engine::step_of_effect(event.payload.text("effect_id"), records);
    if (records == engine::Records::nothing || !step) continue;
    judge.broken_if(!values.emplace(step->text, event.payload["value"]).second,
                    "event " + std::to_string(event.seq) + " is a second value of its step");
  }
  for (const engine::Step& step : e.state.steps) {
    const auto value = values.find(step.id.text);
    if (value == values.end()) continue;
    judge.broken_if(step.imported != nullptr, step.id.text + " was brought in, and drawn again");
    judge.broken_if(step.item == engine::kNoItem && !(step.result == value->second),
                    step.id.text + " has another result than its value");
  }
}

constexpr Checker kCheckers[] = {
    {"L1 a log has no gap", log_is_gapless},
    {"L2 an event id occurs once", ids_are_unique},
    {"L3 the row is a copy of the log", row_is_a_copy},
    {"L4 an end is unique and final", end_is_final},
    {"L6 the log verifies: chain, states, ledger, replay", log_verifies},
    {"D2 no effect without a declaration", traces_stand},
    {"F1 epochs rise", epochs_rise},
    {"F2 an attempt that is over writes nothing more", nobody_writes_late},
    {"A1 at_most_once arrives at most once", at_most_once_arrives_once},
    {"A1 idempotent takes effect once, under one key", idempotent_takes_effect_once},
    {"A2 what is recorded is what happened", records_are_true},
    {"A3 what is committed has exactly one effect", completed_means_done},
    {"A4 doubt is never guessed", doubt_is_never_guessed},
    {"A5 keys are injective", keys_are_injective},
    {"A6 no declaration after a cancel", nothing_starts_after_cancel},
    {"A7 not_happened only when the call is settled", not_happened_waits},
    {"N1 an accepted signal is never lost", signals_are_kept},
    {"N1 an accepted cancel is never lost", cancels_are_kept},
    {"N1 an accepted resolution is never lost", resolutions_are_kept},
    {"N5 a wait has one resolution", waits_resolve_once},
    {"T1 a timer fires once, and not early", timers_fire_late_and_once},
    {"T2 a time, a number or an id is drawn once", values_are_drawn_once},
};

std::array<std::span<const Checker>, 7> all_checkers() {
  return {kCheckers,         people_checkers(),  side_checkers(), model_checkers(),
          budget_checkers(), confirm_checkers(), plan_checkers()};
}

// What is known of one job, kept together.
struct Loading {
  store::Loaded loaded;
  engine::State state;
  std::vector<JobEvidence::Planned> planned;
};

Result<Loading> load(SimWorld& world, const JobId& job, const engine::PlanSource& plans,
                     std::vector<Event>& events) {
  Loading all;
  AE_ASSIGN(all.loaded, world.read_disk(job));
  const auto seen = world.witness().jobs().find(job);
  if (seen != world.witness().jobs().end() && seen->second.commits == all.loaded.commits) {
    events = seen->second.log;  // byte for byte what was read when it was written
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

// What shows only when all jobs are looked at together.
void check_together(SimWorld& world, const std::map<JobId, std::vector<Event>>& logs) {
  Report& report = world.report();
  for (const auto& [name, thing] : world.outside().things()) {
    if (thing.version != thing.made.size() + thing.strangers) {
      report.violate("V5 a verifier only reads", {}, name + " was changed, and nobody did it");
    }
  }
  std::uint64_t warnings = 0;
  for (const auto& [job, events] : logs) {
    for (const Event& event : events) {
      const Value& p = event.payload;
      warnings += event.type == EventType::confirmation_checked &&
                  p.text("verdict") == "mismatch" && p["detail"].text("mode") == "warn";
    }
  }
  const std::uint64_t counted = world.warned();
  // Who dies between a commit and its answer does not count it.
  if (counted > warnings || (counted < warnings && !world.disturbed())) {
    report.violate(
        "V6 a mismatch with which a job goes on is counted", {},
        std::to_string(counted) + " were counted, the logs have " + std::to_string(warnings));
  }
  if (warnings > 0) report.mark("confirm.warned");
}

}  // namespace

std::vector<std::string_view> checker_names() {
  std::vector<std::string_view> names;
  for (const auto& checkers : all_checkers()) {
    for (const Checker& checker : checkers) names.push_back(checker.name);
  }
  return names;
}

void check_all(SimWorld& world, People& people, const engine::PlanSource& plans) {
  Report& report = world.report();
  std::map<JobId, std::vector<const KeyRecord*>> touched;
  for (const auto& [key, record] : world.outside().journal())
    touched[record.job].push_back(&record);
  std::map<JobId, std::vector<const Ack*>> acks;
  for (const Ack& ack : people.acks()) acks[ack.job].push_back(&ack);
  for (const auto* acknowledged : {&people.created(), &people.forked()}) {
    for (const JobId& job : *acknowledged) {
      if (world.witness().jobs().contains(job)) continue;
      report.violate("D1 an acknowledged job exists", job, "the disk never saw it");
    }
  }
  std::map<JobId, std::vector<Event>> logs;
  std::map<JobId, Loading> loadings;
  for (const auto& [job, seen] : world.witness().jobs()) {
    auto all = load(world, job, plans, logs[job]);
    if (!all) {
      report.violate("L1 a log has no gap", job, all.error().message);
      continue;
    }
    loadings.emplace(job, *std::move(all));
  }
  std::map<std::string_view, std::vector<const Look*>> looks;
  for (const Look& look : world.outside().looks()) looks[look.job.text].push_back(&look);
  for (const auto& [job, all] : loadings) {
    const std::vector<Event>& events = logs.at(job);
    report.events += events.size();
    for (const Event& event : world.options().verbose ? events : std::vector<Event>()) {
      world.say(job.text + " " + std::to_string(event.seq) + " " + to_text(event.created_at) + " " +
                std::string(event_name(event)) + " " + canonical(event.payload).substr(0, 200));
    }
    const JobEvidence evidence{.job = job,
                               .loaded = all.loaded,
                               .events = events,
                               .state = all.state,
                               .journal = world.outside().journal(),
                               .touched = touched[job],
                               .acks = acks[job],
                               .asked = people.asked(job),
                               .clock_jumped = world.clock().jumped(),
                               .plans = plans,
                               .planned = all.planned,
                               .looks = looks[job.text],
                               .logs = logs,
                               .forks = people.forks()};
    for (const auto& checkers : all_checkers()) {
      for (const Checker& checker : checkers) {
        Judge judge(report, job, checker.name);
        checker.check(evidence, judge);
      }
    }
    report.mark("ended." + std::string(engine::to_text(all.state.status)));
  }
  check_together(world, logs);
  for (const auto& [job, records] : touched) {
    if (!world.witness().jobs().contains(job)) {
      report.violate("D2 no effect without a declaration", job, "the job is not on the disk");
    }
  }
}

void check_visible(SimWorld& world, const engine::PlanSource& plans) {
  constexpr std::string_view kRule =
      "PR1 every job has ended or says what it waits for and which command answers";
  for (const auto& [job, seen] : world.witness().jobs()) {
    if (seen.status == "completed" || seen.status == "failed" || seen.status == "cancelled") {
      continue;
    }
    std::vector<Event> events;
    auto all = load(world, job, plans, events);
    if (!all) continue;  // check_all says so
    const Value view = engine::job_view(all->state);
    bool visible = false;
    for (const Value& wait : view["waits"].items()) {
      visible = visible || wait["command"].is_string() || wait["due_at"].is_string();
    }
    const Value& parked = view["parked"];
    visible = visible || (!parked.text("reason").empty() && parked["command"].is_string());
    const bool blocked = engine::is_blocked(all->state.status);
    if (!blocked || !visible) {
      world.report().violate(kRule, job, "it is " + seen.status + ": " + canonical(view),
                             Harm::liveness);
    }
  }
}

}  // namespace ae::sim
