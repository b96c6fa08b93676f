// The storm: many jobs in one world, everything going wrong as one seed draws it; then healing; then the verdict.
// Threads: one.
#pragma once

#include <cstdint>

#include "sim/report.h"
#include "sim/workload.h"
#include "sim/world.h"

namespace ae::sim {

struct StormOptions {
  std::uint64_t seed = 1;
  Canary canary = Canary::none;
  bool verbose = false;
};

struct StormResult {
  Report report;
  std::uint64_t last_draw = 0;  // equal for equal seeds
};

StormResult run_storm(const StormOptions& options, PlanBook& plans);

}  // namespace ae::sim
