#include "engine/policy/policy.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "engine/heart/evaluate.h"

namespace ae::engine {
namespace {

// Roots `.args` and `.job`. With "conditions": "strict", a condition fails if it looks up an
// argument that is null or missing, reads a member of .job that no job has, or compares values of
// different types. A label that the job does not have is null.
class PolicyScope : public ExprScope {
 public:
  PolicyScope(const State& state, const Value& args, Work* work)
      : state_(state), args_(args), work_(work) {}
  const Value* root(std::string_view name) const override {
    if (name == "args") return &args_;
    return name == "job" ? &state_.job_root : nullptr;
  }
  const Value* step(std::string_view) const override { return nullptr; }
  Value steps() const override { return {}; }
  bool fails_on_null(std::string_view root) const override {
    return state_.plan->strict_conditions && root != "job";
  }
  bool is_closed(std::string_view root) const override {
    return state_.plan->strict_conditions && root == "job";
  }
  bool fails_on_mixed_types() const override { return state_.plan->strict_conditions; }
  void charge(std::size_t steps) const override {
    if (work_ != nullptr) *work_ += steps;
  }

 private:
  const State& state_;
  const Value& args_;
  Work* work_;
};

Result<bool> condition_holds(const Template& when, const ExprScope& scope,
                             const std::string& where) {
  auto value = when.eval(scope);
  if (!value) return std::unexpected(std::move(value).error().with_context(where));
  return is_met(*value);
}

// The first capability that a plan made by a model uses without a grant; "" = all are granted.
std::string_view missing_grant(const State& state, const ToolPolicy& tool) {
  if (!state.planned_by_model) return {};
  for (const std::string& capability : tool.capabilities) {
    if (!std::ranges::binary_search(state.plan->grants, capability)) return capability;
  }
  return {};
}

// A rule without a label value is from an earlier version and matches jobs without the
// label; new plans have none.
bool has_label(const State& state, const PolicyRule& rule) {
  if (rule.label_value.empty()) return state.labels.text(rule.label_name).empty();
  const Value* label = state.labels.find(rule.label_name);
  return label != nullptr && *label == Value(rule.label_value);
}

// The first matching rule; nullptr = none.
Result<const PolicyRule*> matching_rule(const State& state, const ToolPolicy& tool,
                                        const ExprScope& scope) {
  for (const PolicyRule& rule : tool.rules) {
    if (!rule.label_name.empty() && !has_label(state, rule)) continue;
    if (!rule.when) return &rule;
    AE_ASSIGN(const bool met, condition_holds(*rule.when, scope,
                                              fmt::format("a policy's `when` for {}", tool.name)));
    if (met) return &rule;
  }
  return nullptr;
}

}  // namespace

Result<PolicyDecision> evaluate_policy(const State& state, const ToolPolicy& tool,
                                       const Value& args, Work* work) {
  if (const std::string_view missing = missing_grant(state, tool); !missing.empty()) {
    return PolicyDecision{
        .action = PolicyAction::deny,
        .reason =
            fmt::format("a model made this plan, and the agent does not grant it `{}`", missing),
        .expires = {},
        .rule = {}};
  }
  if (tool.rules.empty() && !tool.may_require_approval())
    return PolicyDecision{.expires = tool.approval_expires, .rule = {}};
  const PolicyScope scope(state, args, work);
  AE_ASSIGN(const PolicyRule* rule, matching_rule(state, tool, scope));
  PolicyDecision decision;
  if (rule) {
    decision = {.action = rule->action,
                .reason = rule->reason,
                .expires = rule->expires,
                .rule = static_cast<std::size_t>(rule - tool.rules.data())};
  }
  if (decision.action == PolicyAction::deny) return decision;
  bool own = tool.approval_required;
  if (tool.approval_when) {
    AE_ASSIGN(own, condition_holds(*tool.approval_when, scope,
                                   fmt::format("`approval` of {}", tool.name)));
  }
  if (own && decision.action == PolicyAction::allow) {
    decision = {.action = PolicyAction::require_approval, .reason = {}, .expires = {}, .rule = {}};
  }
  if (!decision.expires) decision.expires = tool.approval_expires;
  return decision;
}

Result<PolicyDecision> evaluate_policy(const State& state, const Step* step, const ToolPolicy& tool,
                                       const Value& args, Work* work) {
  if (step && step->role != Role::node) return PolicyDecision{};
  return evaluate_policy(state, tool, args, work);
}

bool always_allowed(const State& state, const ToolPolicy& tool) {
  if (tool.is_model()) return true;
  return !tool.may_require_approval() && tool.rules.empty() && missing_grant(state, tool).empty();
}

bool depends_on_arguments(const ToolPolicy& tool) {
  return tool.approval_when.has_value() ||
         std::ranges::any_of(tool.rules,
                             [](const PolicyRule& rule) { return rule.when.has_value(); });
}

}  // namespace ae::engine
