// Version rules of a job (SPEC §12): a strict job parks where another execution version is
// offered. A call that was not resent because its tool had changed is resent once the old
// version is offered again.
#include <algorithm>
#include <utility>

#include "engine/heart/decider.h"
#include "log/park_until.h"

namespace ae::engine {

bool has_wrong_version(const State& state, const DecisionContext& context) {
  return state.plan && state.plan->versions == VersionPolicy::strict &&
         context.execution_version != nullptr &&
         *context.execution_version != state.execution_version;
}

// Calls that an earlier attempt left open stay open: an attempt with the right version decides
// about them. REQUIRES: no call of this attempt is live.
void Decider::park_for_version() {
  emit(JobParked{.reason = std::string(code_name(Code::execution_version_mismatch)),
                 .until = park_until::kVersion});
  decision_.release = true;
}

// As handle_orphaned_try and handle_unknown_outcome do for a call whose tool has not changed.
std::vector<std::string> Decider::unknown_calls_to_resend() const {
  std::vector<std::string> keys;
  for (const auto& [key, wait] : s_.waits) {
    if (!wait.resolve) continue;
    const Step& step = s_.steps[wait.step];
    if (step.phase != StepPhase::in_doubt || !step.call || step.role == Role::probe) continue;
    const bool again = step.call->open ? s_.on_in_doubt_of(step) == OnInDoubt::resend
                                       : has_tries_after_unknown(s_, step);
    if (again && !attempts_exhausted() && may_repeat(step)) keys.push_back(key);
  }
  return keys;
}

std::vector<std::string> unknown_calls_to_resend(const State& state, const DecisionContext& context,
                                                 const DecideLimits& limits) {
  if (!state.plan || state.ending) return {};
  Decision unused;
  return Decider(state, context, limits, unused).unknown_calls_to_resend();
}

}  // namespace ae::engine
