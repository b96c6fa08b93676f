// The lists of small jobs by subject, in the order in which the sweep runs them.
//
// Threads: constants.
#pragma once

#include <vector>

#include "sim/small_jobs.h"

namespace ae::sim {

std::vector<SmallJob> call_jobs();
std::vector<SmallJob> wait_jobs();
std::vector<SmallJob> user_jobs();
std::vector<SmallJob> undo_jobs();
std::vector<SmallJob> model_jobs();
std::vector<SmallJob> confirm_jobs();
std::vector<SmallJob> fork_jobs();
std::vector<SmallJob> replan_jobs();
std::vector<SmallJob> loop_jobs();
std::vector<SmallJob> thread_jobs();
std::vector<SmallJob> context_jobs();
std::vector<SmallJob> repair_jobs();
std::vector<SmallJob> question_jobs();
std::vector<SmallJob> parent_jobs();
std::vector<SmallJob> code_jobs();

}  // namespace ae::sim
