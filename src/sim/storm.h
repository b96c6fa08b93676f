// Storm: many jobs in one world with all faults drawn from one seed; then the faults end; then the
// checks.
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
