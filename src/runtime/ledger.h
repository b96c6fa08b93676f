// Ledger: the only maker of permits (SPEC §4).
//
// With one database the ledger is a projection of the log: a try may be performed when its declaration is durable, its
// attempt is the one that holds the job, and no answer is recorded. `engine::admit` judged before the declaration was
// written; this is the last gate before the world. Threads: the loop's.
#pragma once

#include <optional>
#include <unordered_set>

#include "engine/state/state.h"
#include "tools/permit.h"

namespace ae::runtime {

class Ledger {
 public:
  // A permit for the open try of `step`, once. REQUIRES: the state holds only what is durable. nullopt: not declared
  // by this attempt, answered already, or permitted before.
  std::optional<tools::Permit> permit(const engine::State& durable, const engine::Step& step) {
    if (!step.call || !durable.is_live(step)) return std::nullopt;
    auto [it, fresh] = given_.emplace(step.call->id.text + "/" + std::to_string(step.call->try_no));
    if (!fresh) return std::nullopt;
    return tools::Permit(step.call->id, step.call->try_no);
  }
  // The try is recorded: it cannot be asked for again (the log says so), so it need not be remembered.
  void forget(const InvocationId& invocation, std::uint32_t try_no) {
    given_.erase(invocation.text + "/" + std::to_string(try_no));
  }

 private:
  std::unordered_set<std::string> given_;
};

}  // namespace ae::runtime
