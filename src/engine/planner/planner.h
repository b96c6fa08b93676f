// planner: what a model that plans answered becomes the plan that its job goes on with.
//
// A planner's plan is one node of kind planner. Its model is asked for JSON, with turns like any other (engine/loop/loop.h); when
// an answer will do, the node is done, and the decision after it is the second plan_generated: the planner's node, carried,
// and behind it the nodes of the answer, with the tools, limits and grants that the first plan has. What it makes follows
// from the plan and the recorded answer alone, so a log in which another plan was made is refused (decision 0057).
//
//   answer = {"nodes": [node…], "output"?: text of JSON}
//   node   = {"id", "tool", "args"?: text of a JSON object, "map"?: "${ … }", "as"?, "needs"?: [id…], "when"?: "${ … }",
//             "on_error"?: "fail" | "continue"}
//          | {"id", "wait_for": duration | "${ … }", "needs"?, "when"?}
// Stored in the plan: its JSON Schema and the words that ask for it. Threads: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "engine/state/state.h"
#include "json/value.h"

namespace ae::engine {

// How an answer becomes a plan; stored with the plan. Another way is another version, and this one stays beside it.
constexpr std::string_view kLoweringVersion = "model/1";

// Of the JSON that a planner is asked for.
const Value& planner_schema();
// What a planner is told before all else: what it may answer, and which tools there are; plain text.
std::string planner_instructions(const std::vector<Value>& tools, std::uint32_t nodes_max);

// The plan that an answer of the planner's model makes. REQUIRES: is_planner_only(planner). Fails with plan_invalid, in words
// that the model can mend it by; with needs_version, when another program has made it in a way of its own.
Result<std::shared_ptr<const Plan>> plan_from_answer(const Plan& planner, const Value& answer,
                                                     std::string_view version = kLoweringVersion);

// `planned_by` of that plan: the model, and the invocation whose answer it is (of a fork another job has it).
// REQUIRES: awaits_plan.
std::string plan_author_of(const State& state);

// The second plan_generated. REQUIRES: awaits_plan.
Result<PlanGenerated> plan_generated_payload(const State& state);

}  // namespace ae::engine
