// Providers: several kinds of workers as one RoutineProvider: native code and worker processes.
//
// Borrows them. Threads: the loop's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "routines/routine.h"

namespace ae::routines {

class Providers final : public RoutineProvider {
 public:
  // Those that were added first are preferred.
  void add(RoutineProvider& provider) { providers_.push_back(&provider); }

  // Versions of later providers are newer.
  engine::OfferedCode offered(const engine::Plan& plan, std::uint32_t node,
                              std::string_view own) const override {
    engine::OfferedCode all{.versions = {}, .own_missing_for = Duration::max()};
    std::set<std::string> connected;
    for (const RoutineProvider* const one : providers_) {
      const engine::OfferedCode some = one->offered(plan, node, own);
      all.own_missing_for = std::min(all.own_missing_for, some.own_missing_for);
      for (const std::string& version : some.versions) {
        if (!all.has(version)) all.versions.push_back(version);
        if (std::ranges::find(some.away, version) == some.away.end()) connected.insert(version);
      }
    }
    std::ranges::copy_if(all.versions, std::back_inserter(all.away),
                         [&](const std::string& one) { return !connected.contains(one); });
    return all;
  }
  std::optional<MissingFunction> missing_function(const engine::Plan& plan,
                                                  std::uint32_t node) const override {
    for (const RoutineProvider* const one : providers_) {
      if (auto missing = one->missing_function(plan, node)) return missing;
    }
    return std::nullopt;
  }
  std::vector<AgentVersion> agent_versions() const override {
    std::vector<AgentVersion> all;
    for (const RoutineProvider* const one : providers_) {
      std::ranges::move(one->agent_versions(), std::back_inserter(all));
    }
    return all;
  }
  // One that offers the code but has no room does not keep it from the next.
  std::unique_ptr<Routine> start(RoutineStart start) override {
    for (RoutineProvider* const one : providers_) {
      if (auto routine = one->start(start)) return routine;
    }
    return nullptr;
  }

 private:
  std::vector<RoutineProvider*> providers_;
};

}  // namespace ae::routines
