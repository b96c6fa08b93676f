// How events change a job's budget: what is reserved, spent and added (plan/budget.h).
//
//   none ── started ─▶ reserved ── finished ─▶ spent      if withdrawn before a byte was sent: none
//
// What a model that a function called itself used is spent when the function has ended.
// The cost of a model call is known, and counts as spent, when its command is committed. What a
// child job used is known when it ends.
#include <algorithm>

#include "engine/state/applier.h"
#include "plan/model_calls.h"

namespace ae::engine {
namespace {

Usage usage_of(const Invocation& call, const ToolPolicy& tool) {
  if (tool.awaits_child()) return child_use(call.reserved);
  return tool.is_model() ? model_use(call.reserved) : Usage{.tool_calls = 1};
}

std::optional<Limit> limit_of(std::string_view text) {
  for (const Limit limit :
       {Limit::tokens, Limit::cost, Limit::model_calls, Limit::tool_calls, Limit::wall}) {
    if (to_text(limit) == text) return limit;
  }
  return std::nullopt;
}

}  // namespace

Status Applier::set_initial_budget(const JsonOf<JobBudget>& stored) {
  if (stored.is_null()) return {};
  const auto budget = stored.read();
  if (!budget) return corrupt_event(budget.error().message);
  const auto limits = limits_of(*budget);
  if (!limits) return corrupt_event(limits.error().message);
  s_.budget.limits = *limits;
  s_.budget.wall_until = budget->wall_until;
  if (limits->wall && s_.budget.wall_until) {
    s_.budget.wall_from = *s_.budget.wall_until - *limits->wall;
  }
  if (budget->spent) {  // by the origin of this fork
    const auto used = spent_of(*budget->spent);
    if (!used || !s_.forked_from) return corrupt_event("nothing can be spent of its budget yet");
    s_.budget.spent = *used;
  }
  return {};
}

// A try is declared. REQUIRES: it is not counted in the state yet.
Status Applier::reserve(const Step& step, const JsonOf<TokenReservation>& reservation) {
  if (step.role != Role::node || !s_.budget.is_tracked()) return {};
  Invocation& call = *step.call;
  const ToolPolicy& tool = s_.tool_of(step);
  const bool model = tool.is_model();
  const bool again =
      call.charge != Charge::none && (tool.awaits_child() || !is_first_with_answers(call));
  if (!model && again) return {};  // another try of the same call
  if (call.charge == Charge::reserved)
    return corrupt_event("the earlier try is still reserved in the budget");
  if (model || tool.awaits_child()) {
    const auto stored = reservation.read();
    const auto reserved = stored ? reservation_of(*stored) : std::nullopt;
    if (!reserved) return corrupt_event("nothing of the job's budget is reserved for it");
    call.reserved = *reserved;
  }
  const Usage use = usage_of(call, tool);
  if (!s_.budget.exceeded_by(use).empty())
    return corrupt_event("the job's budget does not allow it");
  if (!can_add(s_.budget.reserved, use))
    return corrupt_event("more is reserved than a number can hold");
  add(s_.budget.reserved, use);
  call.charge = Charge::reserved;
  return {};
}

// A try has ended. `withdrawn`: before a byte was sent.
void Applier::settle(const Step& step, bool withdrawn) {
  Invocation& call = *step.call;
  const ToolPolicy& tool = s_.tool_of(step);
  const bool model = tool.is_model();
  if (call.charge != Charge::reserved || (model && call.outcome == OutcomeKind::success)) return;
  // The child runs, or may run: a process died while it created it.
  const bool failed = call.outcome == OutcomeKind::failure && call.definite;
  if (tool.awaits_child() && !failed) return;
  Usage use = usage_of(call, tool);
  subtract(s_.budget.reserved, use);
  call.charge = withdrawn ? Charge::none : Charge::spent;
  if (withdrawn) return;
  if (tool.awaits_child()) use = {.tool_calls = 1};  // no child was created
  // A refused request used no tokens; the cost of a lost answer is unknown, so
  // the reservation is charged.
  const bool refused = call.outcome == OutcomeKind::failure && call.definite;
  if (model && refused) use.tokens = use.cost_micros = 0;
  add(s_.budget.spent, use);
}

// A child has ended. If it did not count what it used, its whole reservation is charged.
void Applier::settle_child(const Step& step, const JsonOf<BudgetUse>& recorded) {
  Invocation& call = *step.call;
  if (call.charge != Charge::reserved) return;
  Usage use = child_use(call.reserved);
  subtract(s_.budget.reserved, use);
  call.charge = Charge::spent;
  const auto stored = recorded.is_null() ? std::nullopt : spent_of(recorded.read_leniently());
  if (stored) {
    use = *stored;
    add(use, {.tool_calls = 1});
  }
  add(s_.budget.spent, use);
}

// A model has answered.
void Applier::settle_answer(const Step& step, const TokenUsage& usage) {
  Invocation& call = *step.call;
  if (call.charge != Charge::reserved) return;
  Usage use = usage_of(call, s_.tool_of(step));
  subtract(s_.budget.reserved, use);
  call.charge = Charge::spent;
  ModelUsage counted;
  add_usage(usage, counted);
  // If the reported usage is incomplete, at least the reservation is charged.
  const std::uint64_t least = usage.incomplete == true ? use.tokens : 0;
  if (counted.total_tokens > 0) use.tokens = std::max(least, counted.total_tokens);
  if (usage.cost_micros) use.cost_micros = counted.cost_micros;
  add(s_.budget.spent, use);
}

// A function has called a model itself. Nothing was reserved for its tokens.
void Applier::charge_function(const Step& step, const ToolInvocationFinished& event) {
  if (event.usage.is_null()) return;
  const TokenUsage usage = event.usage.read_leniently();
  add_usage(usage, s_.models);
  if (step.role != Role::node || !s_.budget.is_tracked()) return;
  ModelUsage counted;
  add_usage(usage, counted);
  add(s_.budget.spent, {.tokens = counted.total_tokens, .cost_micros = counted.cost_micros});
}

// Records the limits of which the model of this turn was notified.
void Applier::record_notices(LoopProgress& loop, const Value& arguments) {
  const Value& notice = arguments["notice"];
  if (!notice.is_object()) return;
  for (const auto& [name, left] : notice.members()) {
    if (const auto limit = limit_of(name)) loop.noticed_limits.insert(*limit);
  }
}

Status Applier::wall_passed(const TimerFired& event) {
  Budget& budget = s_.budget;
  const bool unknown = budget.erased && budget.wall_from && !budget.wall_until;
  if ((!budget.wall_until && !unknown) || budget.wall_passed)
    return corrupt_event("no time is limited");
  if (budget.wall_until && fired_before(event, *budget.wall_until))
    return corrupt_event("its time has not passed");
  budget.wall_passed = true;
  return {};
}

// Is there room left in the limit? An unknown (erased) limit has none.
bool Applier::has_room(const BudgetExceeded& exceeded) const {
  const Budget& budget = s_.budget;
  const auto limit = limit_of(exceeded.limit);
  if (!limit) return true;
  if (*limit == Limit::wall) return !budget.wall_passed;
  const std::int64_t needed = exceeded.asked.value_or(0);
  if (needed <= 0) return true;
  const auto& most = budget.limits.max_of(*limit);
  if (!most) return !budget.erased;
  Usage use;
  amount_of(use, *limit) = static_cast<std::uint64_t>(needed);
  return budget.exceeded_by(use).empty();
}

Status Applier::apply(const BudgetExceeded& exceeded, const DecisionRecorded&, Step*) {
  Budget& budget = s_.budget;
  if (s_.status != JobStatus::running || !budget.is_tracked())
    return corrupt_event("no budget is used up");
  if (!exceeded.erased && has_room(exceeded)) return corrupt_event("there is room for the call");
  budget.exceeded =
      ExceededLimit{.limit = limit_of(exceeded.limit).value_or(Limit::tokens),
                    .requested = static_cast<std::uint64_t>(exceeded.asked.value_or(0))};
  return {};
}

Status Applier::apply(const BudgetRaised& raised, const DecisionRecorded&, Step*) {
  Budget& budget = s_.budget;
  if (s_.ending) return corrupt_event("the job is ending");
  budget.exceeded.reset();
  if (raised.erased) {  // the new limits are unknown: they block nothing
    const std::uint32_t soft = budget.limits.soft;  // it is never raised
    budget.limits = {};
    budget.limits.soft = soft;
    budget.wall_until.reset();
    budget.wall_passed = false;
    budget.erased = true;
    return {};
  }
  const auto limits = limits_of(raised.limits);
  if (!limits) return corrupt_event(limits.error().message);
  for (const Limit limit : kCountedLimits) {
    auto& most = budget.limits.max_of(limit);
    const auto& new_max = limits->max_of(limit);
    if (!new_max) continue;
    if (most ? *new_max <= *most : !budget.erased) return corrupt_event("it raises nothing");
    most = new_max;
    for (Step& step : s_.steps) {
      if (step.loop) step.loop->noticed_limits.erase(limit);
    }
  }
  if (limits->wall) {
    const auto& wall = budget.limits.wall;
    if (!budget.wall_from || (wall ? *limits->wall <= *wall : !budget.erased)) {
      return corrupt_event("it raises nothing");
    }
    budget.wall_until = *budget.wall_from + *limits->wall;
    budget.limits.wall = limits->wall;
    budget.wall_passed = false;
  }
  return {};
}

}  // namespace ae::engine
