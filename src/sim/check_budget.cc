// The rules about budgets: each declared call has room for its reservation, its usage is counted,
// and only users raise limits. Counts the log independently of the engine.
#include "log/decisions.h"
#include "plan/budget.h"

#include <algorithm>
#include <map>
#include <string>

#include "sim/checker.h"

namespace ae::sim {
namespace {

using engine::kCountedLimits;
using engine::Limit;
using engine::Usage;

// The newest charge of a command.
struct Charge {
  Usage use;
  bool model = false, child = false, open = false, reserved = false, spent = false;
  bool requested = false;  // its newest try ended with questions: the next is charged
  std::string attempt;
};

// Walks the log of a job that has a budget.
class UsageCounter {
 public:
  // `requested`: the users' requests to this job; nullptr = not checked here.
  UsageCounter(const std::vector<Event>& events, const Users::SentRequests* requested,
               Checker& checker)
      : requested_(requested), checker_(checker), side_(side_commands(events)) {}

  const engine::Limits& limits() const { return limits_; }
  const Usage& spent() const { return spent_; }

  void apply(const Event& event) {
    if (const auto* created = as<JobCreated>(event)) {
      if (!created->budget.is_null()) begin(created->budget.read_leniently());
    } else if (const auto* call = as<ToolInvocationStarted>(event)) {
      if (!side_.contains(call->step_id.text)) started(event, *call);
    } else if (const auto* finish = as<ToolInvocationFinished>(event)) {
      if (!finish->late) finished(*finish);
    } else if (const auto* wait = as<WaitCompleted>(event)) {
      if (is_of_child(wait->wait_type)) child_ended(*wait);
    } else if (const auto* command = as<CommandCommitted>(event)) {
      committed(*command);
    } else if (const auto* timer = as<TimerFired>(event)) {
      wall_passed_ = wall_passed_ || timer->effect_id == engine::kWallTimer;
    } else if (const auto* decision = decision_of(event, BudgetExceeded::kKind)) {
      decided(event, *decision);
    }
  }

  void end(const engine::Budget& state) {
    for (const Limit limit : kCountedLimits) {
      if (!limits_.any()) return;
      const bool same = amount_of(state.spent, limit) == amount_of(spent_, limit) &&
                        amount_of(state.reserved, limit) == amount_of(deferred_, limit);
      checker_.fail_if(!same, "the state counts {} and {} of {}, the log {} and {}",
                       amount_of(state.spent, limit), amount_of(state.reserved, limit),
                       to_text(limit), amount_of(spent_, limit), amount_of(deferred_, limit));
    }
  }

 private:
  static engine::Limits read(const JobBudget& budget) {
    return engine::limits_of(budget).value_or(engine::Limits());
  }

  void begin(const JobBudget& budget) {
    limits_ = read(budget);
    spent_ = engine::spent_of(budget.spent.value_or(BudgetUse())).value_or(Usage());
  }

  void started(const Event& event, const ToolInvocationStarted& call) {
    if (!limits_.any()) return;
    Charge& charge = charges_[call.invocation_id.text];
    charge.child = tool_kind(call.tool_name)->awaits_child();
    const bool again =
        charge.child ? charge.spent || charge.reserved
                     : charge.spent && !charge.model && !std::exchange(charge.requested, false);
    if (charge.child) charges_by_step_[call.step_id.text] = &charge;
    charge.open = true;
    charge.attempt = event.attempt_id ? event.attempt_id->text : "";
    if (again) return;  // a retry of a tool's call
    charge.model = call.tool_name.starts_with(kModelToolPrefix);
    charge.use = Usage{.tool_calls = 1};
    if (charge.model || charge.child) {
      const auto stored = call.reserved.read();
      const auto reserved = stored ? engine::reservation_of(*stored) : std::nullopt;
      if (!reserved) return checker_.fail("event {}: a call without a reservation", event.seq);
      charge.use =
          Usage{.tokens = reserved->input_tokens + reserved->output_tokens,
                .cost_micros = reserved->cost_micros,
                .model_calls = charge.model ? 1 : reserved->model_calls,
                .tool_calls = charge.model ? 0 : std::max<std::uint64_t>(reserved->tool_calls, 1)};
    }
    checker_.fail_if(charge.reserved, "event {}: the try before it is not settled", event.seq);
    checker_.fail_if(wall_passed_, "event {}: a call begins after the time has passed", event.seq);
    for (const Limit limit : kCountedLimits) {
      const auto& most = limits_.max_of(limit);
      const std::uint64_t use = amount_of(charge.use, limit);
      checker_.fail_if(
          most && use > 0 && amount_of(spent_, limit) + amount_of(deferred_, limit) + use > *most,
          "event {}: the budget is exceeded in {}", event.seq, to_text(limit));
    }
    add(deferred_, charge.use);
    charge.reserved = true;
    charge.spent = false;
  }

  void settle(Charge& charge, const Usage& used) {
    if (!std::exchange(charge.reserved, false)) return;
    subtract(deferred_, charge.use);
    add(spent_, used);
    charge.spent = true;
  }

  void finished(const ToolInvocationFinished& finish) {
    const auto found = charges_.find(finish.invocation_id.text);
    if (found == charges_.end()) return;
    Charge& charge = found->second;
    charge.open = false;
    const std::string& outcome = finish.outcome;
    charge.requested = outcome == "input_required";
    const bool definite = outcome == "failure" && finish.definite == true;
    if (charge.reserved && definite && finish.error && finish.error->code == "not_sent") {
      charge.reserved = false;
      return subtract(deferred_, charge.use);
    }
    if (charge.model && outcome == "success") return;  // its command has the actual usage
    if (charge.child && !definite) return;             // the child runs, or may run
    Usage used = charge.child ? Usage{.tool_calls = 1} : charge.use;
    if (charge.model && definite) used.tokens = used.cost_micros = 0;
    settle(charge, used);
  }

  void child_ended(const WaitCompleted& wait) {
    const auto found = charges_by_step_.find(wait.step_id.text);
    if (found == charges_by_step_.end()) return;
    Usage used = found->second->use;
    if (!wait.child_use.is_null()) {
      used = engine::spent_of(wait.child_use.read_leniently()).value_or(Usage());
      add(used, {.tool_calls = 1});
    }
    settle(*found->second, used);
  }

  void committed(const CommandCommitted& command) {
    const auto found = charges_.find(or_empty(command.result_of));
    if (found == charges_.end() || !found->second.model) return;
    Usage used = found->second.use;
    const std::int64_t total = command.usage.read_leniently().total_tokens.value_or(0);
    if (total > 0) used.tokens = static_cast<std::uint64_t>(total);
    settle(found->second, used);
  }

  void decided(const Event& event, const DecisionRecorded& decision) {
    if (is_decision<BudgetRaised>(decision)) return check_raise(event, decision);
    const auto exceeded = decision_as<BudgetExceeded>(decision);
    if (!exceeded) return checker_.fail("event {}: no decision about a budget", event.seq);
    checker_.mark("budget.exceeded");
    for (const auto& [id, charge] : charges_) {
      const bool is_own_attempt = event.attempt_id && charge.attempt == event.attempt_id->text;
      checker_.fail_if(charge.open && is_own_attempt, "event {}: it parks with a call in flight",
                       event.seq);
    }
    if (exceeded->limit == "wall") {
      return checker_.fail_if(!wall_passed_, "event {}: no time has passed", event.seq);
    }
    for (const Limit limit : kCountedLimits) {
      if (to_text(limit) != exceeded->limit) continue;
      const std::uint64_t used = amount_of(spent_, limit) + amount_of(deferred_, limit);
      const bool fits = used + static_cast<std::uint64_t>(exceeded->asked.value_or(0)) <=
                        limits_.max_of(limit).value_or(0);
      checker_.fail_if(fits, "event {}: the budget was not exceeded", event.seq);
    }
  }

  void check_raise(const Event& event, const DecisionRecorded& decision) {
    checker_.mark("budget.raised");
    const engine::Limits more =
        engine::limits_of(decision.payload.value).value_or(engine::Limits());
    if (requested_ != nullptr) {
      const auto request = requested_->find(or_empty(decision.by));
      if (request == requested_->end())
        return checker_.fail("event {}: no user raised it", event.seq);
      const auto* const raise = request->second.request.as<engine::BudgetRequest>();
      const engine::Limits requested = raise ? raise->limits : engine::Limits();
      for (const Limit limit : kCountedLimits) {
        checker_.fail_if(more.max_of(limit) && more.max_of(limit) != requested.max_of(limit),
                         "event {}: no user requested this limit", event.seq);
      }
      checker_.fail_if(more.wall && more.wall != requested.wall,
                       "event {}: no user requested this wall time", event.seq);
    }
    for (const Limit limit : kCountedLimits) {
      if (more.max_of(limit)) limits_.max_of(limit) = more.max_of(limit);
    }
    if (!more.wall) return;
    limits_.wall = more.wall;
    wall_passed_ = false;
  }

  const Users::SentRequests* requested_;
  Checker& checker_;
  std::map<std::string, std::string, std::less<>> side_;
  engine::Limits limits_;
  Usage spent_, deferred_;
  bool wall_passed_ = false;
  std::map<std::string, Charge> charges_;                        // by invocation
  std::map<std::string, Charge*, std::less<>> charges_by_step_;  // of calls that await a child
};

void calls_stay_within_budget(const JobEvidence& e, Checker& checker) {
  UsageCounter count(e.events, &e.requested, checker);
  for (const Event& event : e.events) count.apply(event);
  count.end(e.state.budget);
}

// What a child used is counted in its own log, and charged to its parent.
void children_are_charged(const JobEvidence& e, Checker& checker) {
  for (const Event& event : e.events) {
    const auto* wait = as<WaitCompleted>(event);
    if (!wait || !is_of_child(wait->wait_type)) continue;
    const JobId child = child_job_id(e.job, wait->step_id);
    const auto log = e.logs.find(child);
    if (log == e.logs.end()) return checker.fail("the child {} does not exist", child.text);
    Report unread;
    Checker muted(unread, child, "the child is checked separately");
    UsageCounter count(log->second, nullptr, muted);
    for (const Event& own : log->second) count.apply(own);
    checker.fail_if(wait->child_use.is_null() == count.limits().any(),
                    "event {}: the usage of the child is not as its limits", event.seq);
    if (wait->child_use.is_null()) continue;
    const Usage used = engine::spent_of(wait->child_use.read_leniently()).value_or(Usage());
    for (const Limit limit : kCountedLimits) {
      checker.fail_if(amount_of(used, limit) != amount_of(count.spent(), limit),
                      "event {}: {} of {} are charged for the child, it used {}", event.seq,
                      amount_of(used, limit), to_text(limit), amount_of(count.spent(), limit));
    }
    checker.mark("child.charged");
  }
}

void fork_keeps_budget(const JobEvidence& e, Checker& checker) {
  const auto& from = e.state.forked_from;
  if (!from) return;
  const auto origin = e.logs.find(JobId(from->job_id));
  if (origin == e.logs.end()) return checker.fail("its origin does not exist");
  Report unread;
  Checker muted(unread, e.job, "the origin is checked separately");
  UsageCounter then(origin->second, nullptr, muted);
  for (const Event& event : origin->second) {
    then.apply(event);
    if (std::cmp_equal(event.seq, from->seq)) break;
  }
  UsageCounter now(e.events, nullptr, muted);
  now.apply(e.events.front());
  for (const Limit limit : kCountedLimits) {
    const std::string name(to_text(limit));
    checker.fail_if(now.limits().max_of(limit) != then.limits().max_of(limit),
                    "its limit differs in {} from that of its origin", name);
    if (!then.limits().any()) continue;
    checker.fail_if(amount_of(now.spent(), limit) != amount_of(then.spent(), limit),
                    "it begins with {} of {} spent, its origin had spent {}",
                    amount_of(now.spent(), limit), name, amount_of(then.spent(), limit));
    if (amount_of(now.spent(), limit) > 0) checker.mark("fork.usage_inherited");
  }
  checker.fail_if(now.limits().wall != then.limits().wall,
                  "its wall limit differs from that of its origin");
}

void raises_are_kept(const JobEvidence& e, Checker& checker) {
  for (const Ack* ack : e.acks) {
    if (!ack->request.is<engine::BudgetRequest>() || ack->answer["raised"] != Value(true)) continue;
    bool found = false;
    for (const Event& event : e.events) {
      const auto* raise = decision_of(event, BudgetRaised::kKind);
      found = found || (raise && or_empty(raise->by) == ack->request.by);
    }
    checker.fail_if(!found, "{} was accepted and is not in the log", ack->request.id);
  }
}

constexpr Rule kBudgetRules[] = {
    {"B1 no call exceeds the budget, and all usage is counted", calls_stay_within_budget},
    {"B2 an accepted budget raise is never lost", raises_are_kept},
    {"B3 what a child used is charged to its parent", children_are_charged},
    {"K5 a fork starts with the usage that its origin had at that event", fork_keeps_budget},
};

}  // namespace

std::span<const Rule> budget_rules() { return kBudgetRules; }

}  // namespace ae::sim
