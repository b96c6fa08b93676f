// The sweep: every small job, fused and split, on a store that one process owns and on one with leases; a crash at every
// boundary, and at every boundary of every recovery again. Nothing is sampled but the third crash in a row.
//
// A boundary is the moment before a store call and that of its answer, an AE_FAILPOINT, and the moments at which a request
// leaves, takes effect and is answered. Where the leases bind, two workers share the store and one of them dies. Some
// boundaries lie beside each other with nothing between (a call and the AE_FAILPOINT inside it; the answer of a read): the
// first crash is made at each of them, the later ones at one of each such pair.
// Threads: one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sim/report.h"
#include "sim/workload.h"
#include "sim/world.h"

namespace ae::sim {

struct SweepCase {
  const SmallJob* job = nullptr;
  runtime::Durability durability = runtime::Durability::fused;
  bool owned = true;
  std::string name() const;
};
std::vector<SweepCase> sweep_cases();

struct SweepDepth {
  bool recovery = true;  // the second crash, at boundaries of the recovery
  // At one of so many; which one follows from `second_from`.
  std::uint64_t second_one_in = 1, second_from = 0;
  // A third one: in one of so many recoveries of a recovery, at one boundary; 0 = never, 1 = in all of them.
  std::uint64_t third_one_in = 4;
};

struct SweepCount {
  std::uint64_t points = 0, recovery_points = 0, third_points = 0, runs = 0;
};

// Stops at the first violation; the report names the crashes that led to it.
SweepCount sweep(const SweepCase& the_case, const SweepDepth& depth, PlanBook& plans,
                 Report& report);

// One run with these crashes, each counted in boundaries from the one before. For repeating.
struct SmallResult {
  std::string status;  // "completed", "failed:<code>", "cancelled"
  std::string result;
  std::map<std::string, std::uint64_t> effects;  // by call
  std::vector<std::uint64_t> boundaries;  // passed in each life: first, after the first crash, …
  Report report;
  std::uint64_t last_draw = 0;
};
SmallResult run_small_job(const SweepCase& the_case, const std::vector<std::uint64_t>& crashes,
                          PlanBook& plans, bool verbose = false);

}  // namespace ae::sim
