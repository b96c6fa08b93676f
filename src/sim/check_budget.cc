// The rules about budgets: what each call may use has room when it is declared, what it used is counted, and only people add.
// The log is counted here once more, without the engine.
#include "plan/budget.h"

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
  bool asked = false;  // its newest try ended with questions: the next is another call
  std::string attempt;
};

std::string at(const Event& event) { return "event " + std::to_string(event.seq) + ": "; }

// Walks the log of a job that has a budget.
class Count {
 public:
  // `asked`: what people wanted of this job; nullptr = that is judged elsewhere.
  Count(const std::vector<Event>& events, const People::Sayings* asked, Judge& judge)
      : asked_(asked), judge_(judge), side_(side_commands(events)) {}

  const engine::Limits& limits() const { return limits_; }
  const Use& spent() const { return spent_; }

  void take_in(const Event& event) {
    if (const auto* created = as<JobCreated>(event)) {
      if (!created->budget.is_null()) begin(created->budget);
    } else if (const auto* call = as<ToolInvocationStarted>(event)) {
      if (!side_.contains(call->step_id.text)) started(event, *call);
    } else if (const auto* finish = as<ToolInvocationFinished>(event)) {
      if (!finish->late) finished(*finish);
    } else if (const auto* command = as<CommandCommitted>(event)) {
      committed(*command);
    } else if (const auto* timer = as<TimerFired>(event)) {
      wall_passed_ = wall_passed_ || timer->effect_id == "budget";
    } else if (const auto* decision = decision_of(event, "budget")) {
      decided(event, *decision);
    }
  }

  void end(const engine::Budget& state) {
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
  static engine::Limits read(const Value& value) {
    return engine::limits_of(value).value_or(engine::Limits());
  }

  void begin(const Value& budget) {
    limits_ = read(budget);
    spent_ = engine::spent_of(budget["spent"]).value_or(Use());
  }

  void started(const Event& event, const ToolInvocationStarted& call) {
    if (!limits_.any()) return;
    Charge& charge = charges_[call.invocation_id.text];
    const bool again = charge.spent && !charge.model && !std::exchange(charge.asked, false);
    charge.open = true;
    charge.attempt = event.attempt_id ? event.attempt_id->text : "";
    if (again) return;  // another try of a tool's call
    charge.model = call.tool_name.starts_with(kModelToolPrefix);
    charge.use = Use{.tool_calls = 1};
    if (charge.model) {
      const auto reserved = engine::reservation_of(call.reserved);
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

  void finished(const ToolInvocationFinished& finish) {
    const auto found = charges_.find(finish.invocation_id.text);
    if (found == charges_.end()) return;
    Charge& charge = found->second;
    charge.open = false;
    const std::string& outcome = finish.outcome;
    charge.asked = outcome == "input_required";
    const bool definite = outcome == "failure" && finish.definite == true;
    if (charge.held && definite && finish.error && finish.error->code == "not_sent") {
      charge.held = false;
      return take_away(held_, charge.use);
    }
    if (charge.model && outcome == "success") return;  // its command says what it cost
    Use used = charge.use;
    if (charge.model && definite) used.tokens = used.cost_micros = 0;
    settle(charge, used);
  }

  void committed(const CommandCommitted& command) {
    const auto found = charges_.find(or_empty(command.result_of));
    if (found == charges_.end() || !found->second.model) return;
    Use used = found->second.use;
    const Value& total = command.usage["total_tokens"];
    if (total.is_integer() && total.as_int() > 0) {
      used.tokens = static_cast<std::uint64_t>(total.as_int());
    }
    settle(found->second, used);
  }

  void decided(const Event& event, const DecisionRecorded& decision) {
    if (decision.state == "raised") return raised(event, decision);
    judge_.mark("budget.exceeded");
    for (const auto& [id, charge] : charges_) {
      const bool ours = event.attempt_id && charge.attempt == event.attempt_id->text;
      judge_.broken_if(charge.open && ours, at(event) + "it parks with a call under way");
    }
    const Value& said = decision.payload.value;
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

  void raised(const Event& event, const DecisionRecorded& decision) {
    judge_.mark("budget.raised");
    const engine::Limits more = read(decision.payload.value);
    if (asked_ != nullptr) {
      const auto asked = asked_->find(or_empty(decision.by));
      if (asked == asked_->end()) return judge_.broken(at(event) + "nobody raised it");
      const engine::Limits wish = read(asked->second.act.payload);
      for (const Limit limit : kCounted) {
        judge_.broken_if(more.most(limit) && more.most(limit) != wish.most(limit),
                         at(event) + "nobody let it use so much");
      }
      judge_.broken_if(more.wall && more.wall != wish.wall,
                       at(event) + "nobody gave it so much time");
    }
    for (const Limit limit : kCounted) {
      if (more.most(limit)) limits_.most(limit) = more.most(limit);
    }
    if (!more.wall) return;
    limits_.wall = more.wall;
    wall_passed_ = false;
  }

  const People::Sayings* asked_;
  Judge& judge_;
  std::map<std::string, std::string, std::less<>> side_;
  engine::Limits limits_;
  Use spent_, held_;
  bool wall_passed_ = false;
  std::map<std::string, Charge> charges_;  // by invocation
};

void nothing_begins_without_room(const JobEvidence& e, Judge& judge) {
  Count count(e.events, &e.asked, judge);
  for (const Event& event : e.events) count.take_in(event);
  count.end(e.state.budget);
}

void a_fork_pays_on(const JobEvidence& e, Judge& judge) {
  const Value& from = e.state.forked_from;
  if (from.is_null()) return;
  const auto origin = e.logs.find(JobId(std::string(from.text("job_id"))));
  if (origin == e.logs.end()) return judge.broken("its origin is nowhere");
  Report unread;
  Judge nobody(unread, e.job, "the origin is judged for itself");
  Count then(origin->second, nullptr, nobody);
  for (const Event& event : origin->second) {
    then.take_in(event);
    if (Value(event.seq) == from["seq"]) break;
  }
  Count now(e.events, nullptr, nobody);
  now.take_in(e.events.front());
  for (const Limit limit : kCounted) {
    const std::string name(to_text(limit));
    judge.broken_if(now.limits().most(limit) != then.limits().most(limit),
                    "it may use another amount of " + name + " than its origin might");
    if (!then.limits().any()) continue;
    judge.broken_if(part(now.spent(), limit) != part(then.spent(), limit),
                    "it begins with " + std::to_string(part(now.spent(), limit)) + " of " + name +
                        " spent, its origin had spent " +
                        std::to_string(part(then.spent(), limit)));
    if (part(now.spent(), limit) > 0) judge.mark("fork.has_spent");
  }
  judge.broken_if(now.limits().wall != then.limits().wall, "it has another time than its origin");
}

void raises_are_kept(const JobEvidence& e, Judge& judge) {
  for (const Ack* ack : e.acks) {
    if (ack->act.kind != engine::Act::Kind::budget || ack->answer["raised"] != Value(true)) {
      continue;
    }
    bool there = false;
    for (const Event& event : e.events) {
      const auto* raise = decision_of(event, "budget");
      there = there || (raise && or_empty(raise->by) == ack->act.by);
    }
    judge.broken_if(!there, ack->act.id + " was accepted and is nowhere");
  }
}

constexpr Checker kBudgetCheckers[] = {
    {"B1 no call begins that its budget has no room for, and what was used is counted",
     nothing_begins_without_room},
    {"B2 an accepted raise is never lost", raises_are_kept},
    {"K5 a fork has spent what its origin had spent by then", a_fork_pays_on},
};

}  // namespace

std::span<const Checker> budget_checkers() { return kBudgetCheckers; }

}  // namespace ae::sim
