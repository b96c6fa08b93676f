// planner: turns the answer of a planner's model into the plan with which its job continues.
//
// A planner's plan is one node of kind planner. Its model is asked for JSON, in turns as in a loop
// (engine/loop/loop.h). When an answer is valid the node is done. The next decision is the second
// plan_generated: the planner's node, carried over, and after it the nodes of the answer, with the
// tools, limits and grants of the first plan. That plan follows from the first plan and the
// recorded answer alone; a log with any other plan is rejected (decision 0057).
//
//   answer = {"nodes": [node…], "output"?: text of JSON}
//   node   = {"id", "tool", "args"?: text of a JSON object, "map"?: "${ … }", "as"?,
//             "needs"?: [id…], "when"?: "${ … }", "on_error"?: "fail" | "continue"}
//          | {"id", "wait_for": duration | "${ … }", "needs"?, "when"?}
// Stored in the plan: its JSON Schema and its instructions. Threads: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "engine/state/state.h"
#include "json/value.h"

namespace ae::engine {

// How an answer becomes a plan; stored with the plan. A changed lowering gets a new version, and
// this one stays supported.
constexpr std::string_view kLoweringVersion = "model/1";

// Of the JSON that a planner's model must answer with.
const Value& planner_schema();
// The first instructions for a planner's model: what it may answer, and the
// available tools; plain text.
std::string planner_instructions(const std::vector<Value>& tools, std::uint32_t nodes_max);

// The plan for an answer of the planner's model. REQUIRES: is_planner_only(planner). Fails with
// plan_invalid, with a message that lets the model correct the answer; with needs_version, if
// another program version made the plan in another way.
Result<std::shared_ptr<const Plan>> plan_from_answer(const Plan& planner, const Value& answer,
                                                     std::string_view version = kLoweringVersion);

// `planned_by` of that plan: the model, and the invocation that answered (of a fork: possibly in
// another job). REQUIRES: awaits_plan.
std::string plan_author_of(const State& state);

// The second plan_generated. REQUIRES: awaits_plan.
Result<PlanGenerated> plan_generated_payload(const State& state);

}  // namespace ae::engine
