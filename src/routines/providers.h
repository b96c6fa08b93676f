// Providers: several kinds of workers as one RoutineProvider: native code and worker processes.
//
// Borrows them. Threads: the loop's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "routines/routine.h"

namespace ae::routines {

class Providers final : public RoutineProvider {
 public:
  // Those that were added first are preferred.
  void add(RoutineProvider& provider) { providers_.push_back(&provider); }

  bool offers(const engine::Plan& plan, std::uint32_t node) const override {
    return std::ranges::any_of(providers_,
                               [&](const auto* one) { return one->offers(plan, node); });
  }
  // One that offers the code but has no room does not keep it from the next.
  std::unique_ptr<Routine> start(RoutineStart start) override {
    for (RoutineProvider* const one : providers_) {
      if (!one->offers(*start.plan, start.node)) continue;
      if (auto routine = one->start(start)) return routine;
    }
    return nullptr;
  }

 private:
  std::vector<RoutineProvider*> providers_;
};

}  // namespace ae::routines
