// Ledger: the only source of permits (SPEC §4).
//
// With one database the ledger is a projection of the log: a try may be performed if its
// declaration is durable, its attempt is the one that holds the lease, and no outcome is recorded.
// `engine::decide` checked the try before it declared it; this is the last check before the try is
// performed. Threads: the loop's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "engine/state/state.h"
#include "tools/permit.h"

namespace ae::runtime {

class Ledger {
 public:
  // Returns a permit for the open try of `step`, once. REQUIRES: the state holds only durable
  // events. nullopt: not declared by this attempt, already has an outcome, or a permit was issued
  // before.
  std::optional<tools::Permit> permit(const engine::State& durable, const engine::Step& step) {
    if (!step.call || !durable.is_live(step)) return std::nullopt;
    const Try issued{step.call->id, step.call->try_no};
    if (std::ranges::find(issued_, issued) != issued_.end()) return std::nullopt;
    issued_.push_back(issued);
    return tools::Permit(step.call->id, step.call->try_no);
  }
  // The outcome of the try is recorded, so the log prevents another permit and the entry can be
  // dropped.
  void forget(const InvocationId& invocation, std::uint32_t try_no) {
    std::erase(issued_, Try{invocation, try_no});
  }

 private:
  using Try = std::pair<InvocationId, std::uint32_t>;
  std::vector<Try> issued_;  // few: tries that are in flight
};

}  // namespace ae::runtime
