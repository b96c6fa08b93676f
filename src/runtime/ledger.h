// Ledger: the only source of permits (SPEC §4).
//
// With one database the ledger is a projection of the log: a try may be performed if its
// declaration is durable, its attempt is the one that holds the lease, and no outcome is recorded.
// `engine::decide` checked the try before it declared it; this is the last check before the try is
// performed. Threads: the loop's.
#pragma once

#include <fmt/core.h>

#include <optional>
#include <unordered_set>

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
    auto [it, fresh] = issued_.emplace(fmt::format("{}/{}", step.call->id.text, step.call->try_no));
    if (!fresh) return std::nullopt;
    return tools::Permit(step.call->id, step.call->try_no);
  }
  // The outcome of the try is recorded, so the log prevents another permit and the entry can be
  // dropped.
  void forget(const InvocationId& invocation, std::uint32_t try_no) {
    issued_.erase(fmt::format("{}/{}", invocation.text, try_no));
  }

 private:
  std::unordered_set<std::string> issued_;
};

}  // namespace ae::runtime
