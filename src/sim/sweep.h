// Sweep: runs every small job, fused and split, on a store with a single owner and on one with
// leases; crashes at every boundary, and again at every boundary of every recovery. Only the third
// crash in a row is sampled.
//
// A boundary is the moment before a store call and that of its answer, an AE_FAILPOINT, and the
// moments when a request is sent, takes effect and is answered. With leases, two workers share the
// store and one of them crashes. Some boundaries are adjacent, with nothing between them (a call
// and the AE_FAILPOINT inside of it; the answer of a read): the first crash is tried at each of
// them, later ones at one of each such pair.
// Threads: one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sim/report.h"
#include "sim/small_jobs.h"
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
  // The first crash at one in this many boundaries; `first_from` selects which ones.
  std::uint64_t first_one_in = 1, first_from = 0;
  bool recovery = true;  // the second crash, at boundaries of the recovery
  // The second crash at one in this many boundaries; `second_from` selects which ones.
  std::uint64_t second_one_in = 1, second_from = 0;
  // A third crash at one boundary of one in this many recoveries of a recovery; 0 = never, 1 = all.
  std::uint64_t third_one_in = 4;
};

struct SweepCount {
  std::uint64_t points = 0, recovery_points = 0, third_points = 0, runs = 0;
};

// Stops at the first violation; the report names the crashes that caused it.
SweepCount sweep(const SweepCase& the_case, const SweepDepth& depth, PlanBook& plans,
                 Report& report);

// One run with these crashes, each given in boundaries since the previous one. For reproduction.
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
