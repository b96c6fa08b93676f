// judge: may this call be made, must a person be asked first, or is it forbidden?
//
// The plan holds what the policies say of each of its tools (decision 0055). The first rule that holds decides; what the tool
// says of itself (`approval`) holds beside it, and the stricter of both is the answer: a policy makes nothing laxer. A plan
// that a model made calls only what can do no more than it is granted. What asks about a call or undoes it is part of that
// call, and is not judged. Threads: pure functions.
#pragma once

#include <optional>
#include <string>

#include "base/error.h"
#include "engine/state/state.h"
#include "json/value.h"

namespace ae::engine {

struct PolicyDecision {
  PolicyAction action = PolicyAction::allow;
  std::string reason;               // of the rule; "" = it names none
  std::optional<Duration> expires;  // of the request; nullopt = never
};

// Fails with expression_failed: a condition that gives no value lets nothing through. In plans with "conditions": "strict" nor
// does one that looks up an argument which is null or not there, but where it says what else to take; one that reads of .job
// what no job has; and one that compares values of different types (ExprScope::mixed_fails).
Result<PolicyDecision> evaluate_policy(const State& state, const ToolPolicy& tool,
                                       const Value& args, Work* work = nullptr);
// The same for the call of a step. nullptr: of a part that is about to begin.
Result<PolicyDecision> evaluate_policy(const State& state, const Step* step, const ToolPolicy& tool,
                                       const Value& args, Work* work = nullptr);
// Is every call of this tool allowed, whatever its arguments are? A model's is.
bool always_allowed(const State& state, const ToolPolicy& tool);
// Can it be told without the arguments, once these are erased?
bool depends_on_arguments(const ToolPolicy& tool);

}  // namespace ae::engine
