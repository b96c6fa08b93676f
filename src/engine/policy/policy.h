// evaluate_policy: may this call be made, does it need an approval, or is it denied?
//
// The plan holds the policies of each of its tools (decision 0055). The first matching rule
// decides. The tool's own `approval` applies in addition, and the stricter of both wins: a rule
// never weakens it. A plan that a model made can call only tools whose capabilities are granted.
// Probes and compensations belong to their call and are not evaluated. Threads: pure functions.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "base/error.h"
#include "engine/state/state.h"
#include "json/value.h"

namespace ae::engine {

struct PolicyDecision {
  PolicyAction action = PolicyAction::allow;
  std::string reason;               // of the rule; "" = none
  std::optional<Duration> expires;  // of the request; nullopt = never
  std::optional<std::size_t> rule;  // it is of this rule: index into ToolPolicy::rules
};

// Fails with expression_failed: a condition without a value permits nothing. In plans with
// "conditions": "strict" it also fails if a condition looks up an argument that is null or missing
// and names no alternative, reads a member of .job that no job has, or compares values of different
// types (ExprScope::fails_on_mixed_types).
Result<PolicyDecision> evaluate_policy(const State& state, const ToolPolicy& tool,
                                       const Value& args, Work* work = nullptr);
// The same for the call of a step. nullptr: of a part that is about to start.
Result<PolicyDecision> evaluate_policy(const State& state, const Step* step, const ToolPolicy& tool,
                                       const Value& args, Work* work = nullptr);
// Are all calls of this tool allowed, whatever their arguments? Those of models are.
bool always_allowed(const State& state, const ToolPolicy& tool);
// Does the decision depend on the arguments, so that it is lost once these are erased?
bool depends_on_arguments(const ToolPolicy& tool);

}  // namespace ae::engine
