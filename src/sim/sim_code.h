// SimCode: the code agents of one simulated process. It offers every agent, and runs the program
// that the name of the agent selects.
//
// A routine may be cut off from its job at any time; its functions are those of the external world.
// Threads: one.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "routines/routine.h"
#include "sim/external_world.h"

namespace ae::sim {

class SimCode final : public routines::RoutineProvider {
 public:
  SimCode(ExternalWorld& external_world, std::shared_ptr<SimProcess> process);

  engine::OfferedCode offered(const engine::Plan& plan, std::uint32_t node,
                              std::string_view own) const override;
  std::optional<routines::MissingFunction> missing_function(const engine::Plan&,
                                                            std::uint32_t) const override {
    return std::nullopt;
  }
  std::vector<routines::AgentVersion> agent_versions() const override { return {}; }
  std::unique_ptr<routines::Routine> start(routines::RoutineStart start) override;

 private:
  friend class SimRoutine;
  ExternalWorld& external_world_;
  std::shared_ptr<SimProcess> process_;
  std::map<std::string, std::unique_ptr<tools::Tool>, std::less<>> functions_;  // by name
};

}  // namespace ae::sim
