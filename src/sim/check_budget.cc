// The rules about budgets: what each call may use has room when it is declared, what it used is counted, and only people add.
// The log is counted here once more, without the engine.
#include "engine/budget.h"

#include <map>
#include <string>

#include "sim/judge.h"

namespace ae::sim {
namespace {

using engine::kCounted;
using engine::Limit;
using engine::Use;

// A command's newest charge.
struct Charge {
  Use use;
  bool model = false, open = false, held = false, spent = false;
  std::string attempt;
};

std::string at(const Event& event) { return "event " + std::to_string(event.seq) + ": "; }

// Walks the log of a job that has a budget.
class Count {
 public:
  Count(const JobEvidence& e, Judge& judge)
      : e_(e), judge_(judge), side_(side_commands(e.events)) {}

  void take_in(const Event& event) {
    const Value& p = event.payload;
    switch (event.type) {
      case EventType::job_created:
        if (p.find("budget") != nullptr) limits_ = limits(p["budget"]);
        return;
      case EventType::tool_invocation_started:
        if (!side_.contains(p.text("step_id"))) started(event);
        return;
      case EventType::tool_invocation_finished:
        if (!p["late"].is_bool()) finished(p);
        return;
      case EventType::command_committed:
        return committed(p);
      case EventType::timer_fired:
        wall_passed_ = wall_passed_ || p.text("effect_id") == "budget";
        return;
      case EventType::decision_recorded:
        if (p.text("kind") == "budget") decided(event);
        return;
      default:
        return;
    }
  }

  void end() {
    const engine::Budget& state = e_.state.budget;
    for (const Limit limit : kCounted) {
      if (!limits_.any()) return;
      const bool same = part(state.spent, limit) == part(spent_, limit) &&
                        part(state.reserved, limit) == part(held_, limit);
      judge_.broken_if(!same, "the state counts " + std::to_string(part(state.spent, limit)) +
                                  " and " + std::to_string(part(state.reserved, limit)) + " of " +
                                  std::string(to_text(limit)) + ", the log " +
                                  std::to_string(part(spent_, limit)) + " and " +
                                  std::to_string(part(held_, limit)));
    }
  }

 private:
  static engine::Limits limits(const Value& value) {
    return engine::limits_of(value).value_or(engine::Limits());
  }

  void started(const Event& event) {
    const Value& p = event.payload;
    if (!limits_.any()) return;
    Charge& charge = charges_[std::string(p.text("invocation_id"))];
    const bool again = charge.spent && !charge.model;
    charge.open = true;
    charge.attempt = event.attempt_id ? event.attempt_id->text : "";
    if (again) return;  // another try of a tool's call
    charge.model = p.text("tool_name").starts_with(kModelToolPrefix);
    charge.use = Use{.tool_calls = 1};
    if (charge.model) {
      const auto reserved = engine::reservation_of(p["reserved"]);
      if (!reserved) return judge_.broken(at(event) + "a question that reserves nothing");
      charge.use = Use{.tokens = reserved->input_tokens + reserved->output_tokens,
                       .cost_micros = reserved->cost_micros,
                       .model_calls = 1};
    }
    judge_.broken_if(charge.held, at(event) + "the try before it is not settled");
    judge_.broken_if(wall_passed_, at(event) + "a call begins after the time has passed");
    for (const Limit limit : kCounted) {
      const auto& most = limits_.most(limit);
      const std::uint64_t use = part(charge.use, limit);
      judge_.broken_if(most && use > 0 && part(spent_, limit) + part(held_, limit) + use > *most,
                       at(event) + "there is no room in its " + std::string(to_text(limit)));
    }
    add(held_, charge.use);
    charge.held = true;
    charge.spent = false;
  }

  void settle(Charge& charge, const Use& used) {
    if (!std::exchange(charge.held, false)) return;
    take_away(held_, charge.use);
    add(spent_, used);
    charge.spent = true;
  }

  void finished(const Value& p) {
    const auto found = charges_.find(std::string(p.text("invocation_id")));
    if (found == charges_.end()) return;
    Charge& charge = found->second;
    charge.open = false;
    const std::string_view outcome = p.text("outcome");
    const bool definite = outcome == "failure" && p["definite"] == Value(true);
    if (charge.held && definite && p["error"].text("code") == "not_sent") {
      charge.held = false;
      return take_away(held_, charge.use);
    }
    if (charge.model && outcome == "success") return;  // its command says what it cost
    Use used = charge.use;
    if (charge.model && definite) used.tokens = used.cost_micros = 0;
    settle(charge, used);
  }

  void committed(const Value& p) {
    const auto found = charges_.find(std::string(p.text("result_of")));
    if (found == charges_.end() || !found->second.model) return;
    Use used = found->second.use;
    const Value& total = p["usage"]["total_tokens"];
    if (total.is_integer() && total.as_int() > 0) {
      used.tokens = static_cast<std::uint64_t>(total.as_int());
    }
    settle(found->second, used);
  }

  void decided(const Event& event) {
    const Value& p = event.payload;
    if (p.text("state") == "raised") return raised(event);
    judge_.mark("budget.exceeded");
    for (const auto& [id, charge] : charges_) {
      const bool ours = event.attempt_id && charge.attempt == event.attempt_id->text;
      judge_.broken_if(charge.open && ours, at(event) + "it parks with a call under way");
    }
    const Value& said = p["payload"];
    if (said.text("limit") == "wall") {
      return judge_.broken_if(!wall_passed_, at(event) + "no time has passed");
    }
    for (const Limit limit : kCounted) {
      if (to_text(limit) != said.text("limit")) continue;
      const std::uint64_t used = part(spent_, limit) + part(held_, limit);
      const bool fits = used + static_cast<std::uint64_t>(said["asked"].as_int()) <=
                        limits_.most(limit).value_or(0);
      judge_.broken_if(fits, at(event) + "there was room");
    }
  }

  void raised(const Event& event) {
    const Value& p = event.payload;
    judge_.mark("budget.raised");
    const engine::Limits more = limits(p["payload"]);
    const auto asked = e_.asked.find(p.text("by"));
    if (asked == e_.asked.end()) return judge_.broken(at(event) + "nobody raised it");
    const engine::Limits wish = limits(asked->second.act.payload);
    for (const Limit limit : kCounted) {
      if (!more.most(limit)) continue;
      judge_.broken_if(more.most(limit) != wish.most(limit),
                       at(event) + "nobody let it use so much");
      limits_.most(limit) = more.most(limit);
    }
    if (!more.wall) return;
    judge_.broken_if(more.wall != wish.wall, at(event) + "nobody gave it so much time");
    wall_passed_ = false;
  }

  const JobEvidence& e_;
  Judge& judge_;
  std::map<std::string, std::string, std::less<>> side_;
  engine::Limits limits_;
  Use spent_, held_;
  bool wall_passed_ = false;
  std::map<std::string, Charge> charges_;  // by invocation
};

void nothing_begins_without_room(const JobEvidence& e, Judge& judge) {
  Count count(e, judge);
  for (const Event& event : e.events) count.take_in(event);
  count.end();
}

void raises_are_kept(const JobEvidence& e, Judge& judge) {
  for (const Ack* ack : e.acks) {
    if (ack->act.kind != engine::Act::Kind::budget || ack->answer["raised"] != Value(true)) {
      continue;
    }
    bool there = false;
    for (const Event& event : e.events) {
      there = there ||
              (event.type == EventType::decision_recorded &&
               event.payload.text("kind") == "budget" && event.payload.text("by") == ack->act.by);
    }
    judge.broken_if(!there, ack->act.id + " was accepted and is nowhere");
  }
}

constexpr Checker kCheckers[] = {
    {"B1 no call begins that its budget has no room for, and what was used is counted",
     nothing_begins_without_room},
    {"B2 an accepted raise is never lost", raises_are_kept},
};

}  // namespace

std::span<const Checker> budget_checkers() { return kCheckers; }

}  // namespace ae::sim
