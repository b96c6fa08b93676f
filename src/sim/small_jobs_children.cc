// Small jobs about child jobs: their results, failures, cancellations, compensations and budgets.
#include <vector>

#include "sim/small_job_lists.h"
#include "sim/small_job_requests.h"

namespace ae::sim {

using namespace std::chrono_literals;

std::vector<SmallJob> parent_jobs() {
  return {
      {.name = "a child, and a call with its result", .nodes = R"({"schema":1,"nodes":[
         {"id":"c","kind":"tool","tool":"agent:sim","args":{"plan":"puts","x":1}},
         {"id":"b","kind":"tool","tool":"once","needs":["c"],"args":{"c":"${ .steps.c }"}}],
         "output":"${ .steps.c }"})"},
      {.name = "a child fails: it undoes its step, then its parent",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"book","args":{}},
         {"id":"c","kind":"tool","tool":"delegate","needs":["a"],"args":{"plan":"fails"}}]})"},
      {.name = "a parent is cancelled, and its child",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"book","args":{}},
         {"id":"c","kind":"tool","tool":"delegate","needs":["a"],"args":{"plan":"holds"}}]})",
       .actions = {{3s, requests::cancel()}},
       .may_end = {"cancelled"}},  // before its child was created
      {.name = "a parent fails: a child that completed is undone, and one that waits is cancelled",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"c","kind":"tool","tool":"delegate","args":{"plan":"puts","x":2}},
         {"id":"w","kind":"tool","tool":"agent:sim","args":{"plan":"holds"}},
         {"id":"d","kind":"tool","tool":"look","needs":["c"],"args":{"fate":["denied"]}}]})"},
      {.name = "children of a map within a budget, and a detached one",
       .nodes = R"({"schema":1,"budget":{"tool_calls":9},"nodes":[
         {"id":"m","kind":"map","over":"${ [1,2] }","max_parallel":2,"do":{"tool":"ration",
          "args":{"plan":"puts","i":"${ .index }","x":"${ .item }"}}},
         {"id":"d","kind":"tool","tool":"agent:sim:detached","needs":["m"],
          "args":{"plan":"puts","x":3}}],"output":"${ .steps.m }"})"},
  };
}

const std::vector<SmallJob>& small_children() {
  static const std::vector<SmallJob> jobs = {
      {.name = "puts", .nodes = R"({"schema":1,"nodes":[
         {"id":"p","kind":"tool","tool":"put","args":{"x":"${ .input.x }"}}],
         "output":"${ .steps.p }"})"},
      {.name = "fails", .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"book","args":{}},
         {"id":"f","kind":"tool","tool":"look","needs":["a"],"args":{"fate":["denied"]}}]})"},
      {.name = "holds", .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"book","args":{}},
         {"id":"s","kind":"wait","wait":{"type":"signal","key":"k"},"needs":["a"]}]})"},
  };
  return jobs;
}

}  // namespace ae::sim
