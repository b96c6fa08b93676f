// summary_view: what lists show of a job, in a size that does not depend on the job.
//
//  {attempt, ended_at, error{code, node_id}, execution_version, kind, parked{reason, since, until},
//   plan_hash, progress{done, nodes, turns}, started_at, unknown_outcomes, usage{cost_micros,
//   model_calls, tool_calls, total_tokens}, waiting{expires_at, node_id, reason, wait_type}}
//
// kind: plan loop planner code. started_at: when the first attempt began. turns: how many turns of a
// loop have begun. unknown_outcomes: how many calls have an unknown outcome. Members that do not
// apply are null. It has no value that can be erased, and no text that an expression made, such as
// the key of a wait.
//
// The store keeps the summary of the last commit that changed the summary's key, and not newer
// figures: a commit in the middle of an attempt writes none.
// Stored: in the rows of jobs; `aetheris rebuild` computes it again. Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/state/state.h"
#include "json/value.h"
#include "log/field_names.h"

namespace ae::engine {

struct SummaryKey {
  JobStatus status = JobStatus::none;
  std::uint64_t epoch = 0;
  friend bool operator==(const SummaryKey&, const SummaryKey&) = default;
};
inline SummaryKey summary_key(const State& state) { return {state.status, state.epoch}; }

// The kinds of jobs, as summary_kind returns them.
inline constexpr std::string_view kPlanKind = "plan", kLoopKind = "loop", kPlannerKind = "planner",
                                  kCodeKind = field::code;
inline constexpr std::string_view kJobKinds[] = {kPlanKind, kLoopKind, kPlannerKind, kCodeKind};
std::string_view summary_kind(const State& state);
Value summary_view(const State& state);
// canonical(summary_view(state)), written without the Value.
std::string summary_text(const State& state);

}  // namespace ae::engine
