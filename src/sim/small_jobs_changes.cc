// Small jobs about verified changes, forks and re-plans.
#include <vector>

#include "sim/small_job_lists.h"
#include "sim/small_job_requests.h"

namespace ae::sim {

using namespace std::chrono_literals;

std::vector<SmallJob> confirm_jobs() {
  return {
      {.name = "strict: a mismatch fails the job",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"alter","args":{"thing":"${ .job.id }/t"}},
         {"id":"s","kind":"wait","wait":{"type":"signal","key":"go"},"needs":["a"]},
         {"id":"b","kind":"tool","tool":"put","needs":["s"],"args":{}}]})",
       .actions = {requests::mutate(), requests::signal_go()}},
      {.name = "strict: a match",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"alter","args":{"thing":"${ .job.id }/t"}},
         {"id":"s","kind":"wait","wait":{"type":"signal","key":"go"},"needs":["a"]},
         {"id":"b","kind":"tool","tool":"alter","needs":["s"],"args":{"thing":"${ .job.id }/t"}}],
         "output":"${ .steps.b.version }"})",
       .actions = {requests::signal_go()}},
      {.name = "warn: the job continues after a mismatch",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"amend","args":{"thing":"${ .job.id }/t"}},
         {"id":"s","kind":"wait","wait":{"type":"signal","key":"go"},"needs":["a"]},
         {"id":"b","kind":"tool","tool":"put","needs":["s"],"args":{}}]})",
       .actions = {requests::mutate(), requests::signal_go()}},
      {.name = "human: a user accepts a mismatch",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"edit","args":{"thing":"${ .job.id }/t"}},
         {"id":"s","kind":"wait","wait":{"type":"signal","key":"go"},"needs":["a"]},
         {"id":"b","kind":"tool","tool":"put","needs":["s"],"args":{}}]})",
       .actions = {requests::mutate(), requests::signal_go()}},
      {.name = "human: a user does not accept a mismatch, and steps are compensated",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"z","kind":"tool","tool":"book","args":{}},
         {"id":"a","kind":"tool","tool":"edit","args":{"thing":"${ .job.id }/t"}},
         {"id":"s","kind":"wait","wait":{"type":"signal","key":"go"},"needs":["a","z"]},
         {"id":"b","kind":"tool","tool":"put","needs":["s"],"args":{}}]})",
       .actions = {requests::mutate(), requests::signal_go()},
       .confirm = "fail"},
      {.name = "an unreachable verifier, then a user has it check again",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"amend","args":{"thing":"${ .job.id }/t"}},
         {"id":"s","kind":"wait","wait":{"type":"signal","key":"go"},"needs":["a"]},
         {"id":"b","kind":"tool","tool":"put","needs":["s"],"args":{}}]})",
       .actions = {{.after = 100ms,
                    .when = requests::kWaiting,
                    .kind = Action::Kind::verifiers_unreachable},
                   requests::signal_go(),
                   {.after = 9s, .kind = Action::Kind::verifiers_reachable},
                   {.after = 100ms, .request = requests::resume("look-again")}}},
  };
}

std::vector<SmallJob> fork_jobs() {
  return {
      {.name = "a fork from the middle of an ended job",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"put","args":{"x":"${ .input.x }"}},
         {"id":"b","kind":"tool","tool":"once","needs":["a"],"args":{"a":"${ .steps.a.tool }"}},
         {"id":"c","kind":"tool","tool":"book","needs":["b"],"args":{}}],
         "output":"${ .steps.a.args }"})",
       .actions =
           {{.after = 100ms, .when = "completed", .kind = Action::Kind::fork, .at_node = "a"}}},
      {.name = "a retry of a failed job with another input",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"put","args":{}},
         {"id":"b","kind":"tool","tool":"once","needs":["a"],"args":{"fate":"${ .input.fate }"}}]})",
       .actions = {{.after = 100ms,
                    .when = "failed",
                    .kind = Action::Kind::fork,
                    .input = Value::object({{"fate", Value::array({"ok"})}, {"x", 5}})}}},
      {.name = "a retry of a loop that used up its turns continues before the last one",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"chat","kind":"loop","loop":{"tool":"model:echo","model":"echo","max_turns":2,
          "parallel_tools":2,"tools":["put","once"],"prompt":
          "[[{\"name\":\"put\",\"arguments\":{\"n\":1}},{\"name\":\"once\",\"arguments\":{\"n\":2}}],[{\"name\":\"put\",\"arguments\":{\"n\":3}}]]"}}]})",
       .actions = {{.after = 100ms, .when = "failed", .kind = Action::Kind::fork}}},
      {.name = "a fork of a waiting job, and both continue",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"m","kind":"map","over":"${ [1,2] }","max_parallel":2,
          "do":{"tool":"put","args":{"i":"${ .index }"}}},
         {"id":"s","kind":"wait","wait":{"type":"signal","key":"go"},"needs":["m"]},
         {"id":"b","kind":"tool","tool":"once","needs":["s"],"args":{"s":"${ .steps.s }"}}]})",
       .actions = {{.after = 100ms,
                    .when = requests::kWaiting,
                    .kind = Action::Kind::fork,
                    .at_node = "m"},
                   requests::signal_go(),
                   {.after = 100ms,
                    .request = requests::signal("go"),
                    .when = requests::kWaiting,
                    .of_fork = true}}},
  };
}

std::vector<SmallJob> replan_jobs() {
  return {
      {.name = "a re-plan of a waiting job that carries everything",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"once","args":{"n":1}},
         {"id":"s","kind":"wait","wait":{"type":"signal","key":"go"},"needs":["a"]}]})",
       .actions = {{.after = 100ms,
                    .request = requests::plan(R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"once","args":{"n":1}},
         {"id":"s","kind":"wait","wait":{"type":"signal","key":"go"},"needs":["a"]},
         {"id":"b","kind":"tool","tool":"once","needs":["s"],"args":{"n":2}}]})"),
                    .when = requests::kWaiting},
                   requests::signal_go()}},
      {.name = "a re-plan drops a call and makes it differently",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"book","args":{"n":1}},
         {"id":"m","kind":"llm","tool":"model:echo","args":{"model":"echo","messages":[
          {"role":"user","content":"well?"}]}},
         {"id":"s","kind":"wait","wait":{"type":"signal","key":"go"},"needs":["a","m"]}]})",
       .actions = {{.after = 100ms,
                    .request = requests::plan(R"({"schema":1,"nodes":[
         {"id":"m","kind":"llm","tool":"model:echo","args":{"model":"echo","messages":[
          {"role":"user","content":"well?"}]}},
         {"id":"a","kind":"tool","tool":"book","args":{"n":2}},
         {"id":"s","kind":"wait","wait":{"type":"signal","key":"go"},"needs":["a"]}],
         "output":"${ .steps.m.text }"})",
                                              {"a"}),
                    .when = requests::kWaiting},
                   {.after = 100ms,
                    .request = requests::signal("go#1"),
                    .when = requests::kWaiting}}},
      {.name = "a re-plan during a call: refused, then requested again",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"put","args":{"fate":["late"]}},
         {"id":"b","kind":"tool","tool":"once","needs":["a"],"args":{}}]})",
       .actions = {{.after = 100ms, .request = requests::plan(R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"put","args":{"fate":["late"]}},
         {"id":"b","kind":"tool","tool":"once","needs":["a"],"args":{}},
         {"id":"c","kind":"tool","tool":"once","needs":["b"],"args":{}}]})")}},
       .races = true},
  };
}

}  // namespace ae::sim
