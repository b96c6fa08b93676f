// A request that raises the budget of a job.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "engine/heart/request.h"

namespace ae::engine {
namespace {

std::unexpected<Error> limit_error(Limit limit, const std::string& why) {
  return fail(Code::input_invalid, "the budget of {} {}", to_text(limit), why);
}

// Raises one limit of `next`. True: it changed.
Result<bool> raise(Budget& next, Limit limit, const std::optional<std::uint64_t>& new_max) {
  auto& most = next.limits.max_of(limit);
  if (!new_max || most == new_max) return false;
  if (!most && !next.erased) return limit_error(limit, "is not limited: there is nothing to raise");
  if (most && *new_max < *most) {
    return limit_error(limit, fmt::format("is {} already: it can be raised, not lowered",
                                          amount_text(limit, *most)));
  }
  if (*new_max <= next.used(limit)) {
    return limit_error(limit, fmt::format("must be more than what is spent, {}",
                                          amount_text(limit, next.used(limit))));
  }
  most = new_max;
  return true;
}

Result<bool> raise_wall(Budget& next, const std::optional<Duration>& new_wall, Instant now) {
  if (!new_wall || next.limits.wall == new_wall) return false;
  const auto& old_wall = next.limits.wall;
  if (!next.wall_from || (!old_wall && !next.erased)) {
    return limit_error(Limit::wall, "is not limited: there is nothing to raise");
  }
  if (old_wall && *new_wall < *old_wall) {
    return limit_error(Limit::wall, fmt::format("is {} already: it can be raised, not lowered",
                                                ae::to_text(*old_wall)));
  }
  const Instant until = *next.wall_from + *new_wall;
  if (until <= now) {
    return limit_error(Limit::wall,
                       fmt::format("would have passed at {}: give more", to_text(until)));
  }
  next.limits.wall = new_wall;
  next.wall_until = until;
  next.wall_passed = false;
  return true;
}

// Fails if the call that the job was parked for would still not fit.
Status check_covers_call(const State& state, const Budget& next) {
  if (!state.awaits_budget() || !state.budget.exceeded) return {};
  const ExceededLimit& exceeded = *state.budget.exceeded;
  if (exceeded.limit == Limit::wall) {
    if (!next.wall_passed) return {};
    return limit_error(Limit::wall, "is what has passed: raise `wall`");
  }
  const std::uint64_t needed = next.used(exceeded.limit) + exceeded.requested;
  const auto& most = next.limits.max_of(exceeded.limit);
  if (!most || *most >= needed) return {};
  return limit_error(exceeded.limit,
                     fmt::format("would not do: the call that waits needs it to be {} or more",
                                 amount_text(exceeded.limit, needed)));
}

// Does each limit have the wanted value?
bool is_set(const Limits& limits, const Limits& wanted) {
  const bool counted = std::ranges::all_of(kCountedLimits, [&](Limit limit) {
    return !wanted.max_of(limit) || wanted.max_of(limit) == limits.max_of(limit);
  });
  return counted && (!wanted.wall || wanted.wall == limits.wall);
}

Value answer_of(const Limits& limits, bool raised) {
  return Value::object({{"limits", to_json(limits)}, {"raised", raised}});
}

}  // namespace

Result<AppliedRequest> apply_request(const State& state, const ControlRequest& request,
                                     const BudgetRequest& budget, const DecisionContext& context) {
  if (!state.plan) return fail(Code::plan_missing, "the job's log holds no plan");
  Limits wanted = budget.limits;
  if (!wanted.any()) {
    return fail(Code::input_invalid,
                "give at least one limit: tokens, cost, model_calls, tool_calls or wall");
  }
  if (is_terminal(state.status) || state.ending) {
    if (is_set(state.budget.limits, wanted)) {
      return AppliedRequest{.events = {}, .answer = answer_of(state.budget.limits, false)};
    }
    return fail(Code::job_terminal,
                is_terminal(state.status)
                    ? fmt::format("the job has ended ({})", to_text(state.status))
                    : "the job is ending: it uses no more budget");
  }
  Budget next = state.budget;
  bool raised = false;
  for (const Limit limit : kCountedLimits) {
    AE_ASSIGN(const bool more, raise(next, limit, wanted.max_of(limit)));
    raised = raised || more;
    if (!more) wanted.max_of(limit).reset();
  }
  AE_ASSIGN(const bool longer, raise_wall(next, wanted.wall, context.now));
  if (!longer) wanted.wall.reset();
  AppliedRequest applied;
  applied.answer = answer_of(next.limits, raised || longer);
  if (!raised && !longer) return applied;
  AE_TRY(check_covers_call(state, next));
  wanted.soft = 0;
  const std::string name = fmt::format("budget/{}#raised", state.seq);
  applied.events.emplace_back(decision_event(BudgetRaised{.limits = to_record(wanted)},
                                             {.at = context.now,
                                              .by = none_if_empty(request.by),
                                              .decision_id = decision_at(state, name),
                                              .reason = none_if_empty(budget.reason)}));
  if (state.awaits_budget()) {
    applied.events.emplace_back(JobResumed{.by = author_of(request)});
  }
  return applied;
}

}  // namespace ae::engine
