// requests_view: everything that a job asks an operator for, in one shape.
//
//   {id, job_id, agent, kind, node_id, step_id, item, tool, reason, labels, opened_at, expires_at,
//    actions[], detail}
//
//   kind              detail
//   call, wait, question, confirmation    its entry in approvals_view (inspect/view.h)
//   unknown_outcome                       its entry in in_doubt_view
//   budget                                {limit, requested}: what is used up
//
// The id is `<job id>.<16 hex digits>`: of the request for exactly this call, of the step, or of
// the call's key; of a budget, `<job id>.budget`. `detail` of the other kinds has the same members
// in every version. Pure.
#pragma once

#include <vector>

#include "engine/state/state.h"
#include "json/value.h"

namespace ae::engine {

// The open requests: approvals in the order of their steps, unknown outcomes, the budget.
std::vector<Value> requests_view(const State& state);

// A request of requests_view with {answer_schema, args_schema, model_text, policy, result_schema}
// from the plan and the log; each is null where it does not apply.
//   answer_schema  of the form that a tool's question requests
//   args_schema, result_schema  of the tool of a call to approve, or with an unknown outcome
//   model_text     the text of the model's answer that requests the call, in a loop
//   policy         {number, rule}: the rule of the plan that requires approval, and its place
//                  among the rules for the tool, from 1; null if the tool itself requires it
Value detailed_request(const State& state, const Value& request);

}  // namespace ae::engine
