// requests_view: everything that a job asks an operator for, in one shape.
//
//   {id, job_id, agent, kind, node_id, step_id, item, tool, reason, labels, opened_at, expires_at,
//    actions[], detail}
//
//   kind              detail
//   call, wait, question, confirmation    its entry in approvals_view
//   unknown_outcome                       its entry of in_doubt in job_view
//   budget                                {limit, requested}: what is used up
//
// The id is `<job id>.<16 hex digits>`, as in approvals_view, or of the call's key; of a budget,
// `<job id>.budget`. `detail` of the other kinds has the same members in every version.
// Pure.
#pragma once

#include <vector>

#include "engine/state/state.h"
#include "json/value.h"

namespace ae::engine {

// The open requests: approvals in the order of their steps, unknown outcomes, the budget.
std::vector<Value> requests_view(const State& state);

}  // namespace ae::engine
