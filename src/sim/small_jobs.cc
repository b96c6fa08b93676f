#include "sim/small_jobs.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "sim/small_job_lists.h"

namespace ae::sim {

const std::vector<SmallJob>& small_jobs() {
  static const std::vector<SmallJob> jobs = [] {
    std::vector<SmallJob> all;
    for (auto* list : {call_jobs, wait_jobs, user_jobs, undo_jobs, model_jobs, confirm_jobs,
                       fork_jobs, replan_jobs, loop_jobs, repair_jobs, question_jobs, thread_jobs,
                       context_jobs, parent_jobs, code_jobs}) {
      std::vector<SmallJob> some = list();
      std::ranges::move(some, std::back_inserter(all));
    }
    return all;
  }();
  return jobs;
}

}  // namespace ae::sim
