// How a decision enforces the job's budget: a call is declared only if the budget covers it.
// Otherwise the job parks until the budget is raised, once nothing else is running (plan/budget.h).
#include <fmt/core.h>

#include "engine/heart/decider.h"
#include "engine/heart/features.h"
#include "log/park_until.h"
#include "plan/model_calls.h"

namespace ae::engine {

// What a child job may use: all that is left, or less if its tool limits it. REQUIRES: a call fits.
Reservation Decider::child_reservation(const ChildPolicy& child) const {
  Budget budget = s_.budget;
  add(budget.reserved, reserved_);
  const auto left = [&](Limit limit, std::uint64_t own) -> std::uint64_t {
    const auto& most = budget.limits.max_of(limit);
    if (!most) return 0;
    const std::uint64_t rest = std::min(*most - std::min(*most, budget.used(limit)), kReservedMax);
    const auto& lower = child.budget.max_of(limit);
    return lower ? std::min(rest, *lower + own) : rest;
  };
  return {.input_tokens = left(Limit::tokens, 0),
          .output_tokens = 0,
          .cost_micros = left(Limit::cost, 0),
          .model_calls = left(Limit::model_calls, 0),
          .tool_calls = left(Limit::tool_calls, 1)};
}

// The reservation of a call whose next try sends these arguments. REQUIRES: of a model or a child.
Reservation Decider::reservation(const Declaration& d, const Value& args) const {
  const Step* step = d.known;
  const ToolPolicy& tool = s_.plan->tools[d.tool];
  if (tool.awaits_child()) return child_reservation(*tool.child);
  if (step && step->call && step->call->try_no > 0) return step->call->reserved;
  const std::uint64_t input = d.turn == kNoTurn
                                  ? estimate_input_tokens(args)
                                  : turn_tokens_of(s_, s_.steps[d.node.index], d.turn, args);
  return make_reservation(s_.plan->tools[d.tool].price, input, estimate_output_tokens(args));
}

// Is there a budget, and does this call count against it?
bool Decider::counts_against_budget(const Declaration& d) const {
  if (!s_.budget.is_tracked() || d.of != nullptr || !s_.plan->tools[d.tool].makes_call())
    return false;
  const Step* step = d.known;
  if (!step) return true;
  const bool answers =
      !s_.plan->tools[d.tool].awaits_child() && step->call && is_first_with_answers(*step->call);
  const bool again = step->call && step->call->charge != Charge::none && !answers;
  return step->role == Role::node && (s_.plan->tools[d.tool].is_model() || !again);
}

Usage Decider::usage_of(const Declaration& d, const Value& args) const {
  const ToolPolicy& tool = s_.plan->tools[d.tool];
  // Of each limit something must be left, which another child may return.
  if (tool.awaits_child()) {
    return {.tokens = 1, .cost_micros = 1, .model_calls = 1, .tool_calls = 1};
  }
  if (tool.is_model()) return model_use(reservation(d, args));
  // What a model uses that a function calls itself is known afterwards: something must be left.
  const std::uint64_t left = tool.is_stated_in_code() && is_model_request(args) ? 1 : 0;
  return {.tokens = left, .cost_micros = left, .tool_calls = 1};
}

std::vector<ExceededLimit> Decider::exceeded_limits(const Usage& more) const {
  Budget budget = s_.budget;
  add(budget.reserved, reserved_);
  return budget.exceeded_by(more);
}

// A check before the arguments of a new call are evaluated, for a tool
// whose calls need no approval.
bool Decider::may_fit_budget(const ToolPolicy& tool) {
  if (!s_.budget.is_tracked() || !tool.makes_call() || !always_allowed(s_, tool)) return true;
  if (exceeded_limits_.empty() && answered_) {
    limit_reached_ = true;
    return false;
  }
  if (exceeded_limits_.empty() && !tool.is_model())
    exceeded_limits_ = exceeded_limits({.tool_calls = 1});
  return exceeded_limits_.empty();
}

// Does the budget allow this call now? After the first one that does not fit nothing else starts.
bool Decider::fits_budget(Declaration& d, const Value& args) {
  if (!counts_against_budget(d)) return true;
  if (!always_allowed(s_, s_.plan->tools[d.tool])) {
    digest(d);
    if (!is_call_approved(d, args, *d.hash)) return true;
  }
  if (!exceeded_limits_.empty()) return false;
  if (answered_) {  // the cost of an answer in this decision is known once it is applied
    limit_reached_ = true;
    return false;
  }
  exceeded_limits_ = exceeded_limits(usage_of(d, args));
  return exceeded_limits_.empty();
}

// The amount that the declaration of a model call reserves. REQUIRES: it fits the budget.
std::optional<Reservation> Decider::reserve(const Declaration& d, const Value& args) {
  if (!counts_against_budget(d)) return {};
  const ToolPolicy& tool = s_.plan->tools[d.tool];
  if (!tool.is_model() && !tool.awaits_child()) {
    add(reserved_, usage_of(d, args));
    return {};
  }
  const Reservation reserved = reservation(d, args);
  add(reserved_, tool.is_model() ? model_use(reserved) : child_use(reserved));
  return reserved;
}

// Nothing is running, and the next call does not fit.
void Decider::park_for_budget() {
  const Limit limit = exceeded_limits_.front().limit;
  BudgetExceeded exceeded{.limit = to_text(limit)};
  if (limit == Limit::wall) {
    // Unknown if the raise was erased.
    if (s_.budget.limits.wall) exceeded.most = ae::to_text(*s_.budget.limits.wall);
  } else {
    exceeded.asked = static_cast<std::int64_t>(exceeded_limits_.front().requested);
    exceeded.most = *s_.budget.limits.max_of(limit);
    exceeded.spent = static_cast<std::int64_t>(s_.budget.used(limit));
  }
  const std::string name = fmt::format("budget/{}", s_.seq);
  emit(decision_event(exceeded, {.decision_id = decision_at(s_, name)}));
  emit(JobParked{.reason = std::string(code_name(Code::budget_exceeded)),
                 .until = park_until::kBudget});
  decision_.exceeded = exceeded_limits_;
  decision_.release = true;
}

}  // namespace ae::engine
