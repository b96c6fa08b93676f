// Small jobs about calls: their outcomes, retries, unknown outcomes, probes and compensations.
#include <vector>

#include "sim/small_job_lists.h"
#include "sim/small_job_requests.h"

namespace ae::sim {

using namespace std::chrono_literals;

std::vector<SmallJob> call_jobs() {
  return {
      {.name = "chain: read, idempotent, at_most_once, output", .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"look","args":{"x":"${ .input.x }"}},
         {"id":"b","kind":"tool","tool":"put","needs":["a"],"args":{"x":"${ .steps.a.args.x }"}},
         {"id":"c","kind":"tool","tool":"once","needs":["b"],"args":{"x":"${ .steps.b.tool }"}}],
         "output":{"c":"${ .steps.c.args }"}})"},
      {.name = "recorded time, random numbers and ids: each generated once and sent",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"t","kind":"tool","tool":"clock"},
         {"id":"r","kind":"tool","tool":"dice","needs":["t"],"args":{"min":4,"max":4}},
         {"id":"u","kind":"map","over":"${ [1, 2, 3] }","max_parallel":2,"do":{"tool":"ids"}},
         {"id":"a","kind":"tool","tool":"put","needs":["r"],"args":{"r":"${ .steps.r }"}},
         {"id":"b","kind":"tool","tool":"once","needs":["a","t","u"],
          "args":{"t":"${ .steps.t.ms > 0 }","u":"${ .steps.u[0] != .steps.u[2] }"}}],
         "output":{"r":"${ .steps.r }","b":"${ .steps.b.args }"}})"},
      {.name = "parallel branches, a join, a skipped node", .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"put","args":{"n":1}},
         {"id":"b","kind":"tool","tool":"once","args":{"n":2}},
         {"id":"no","kind":"tool","tool":"once","when":"${ .input.x > 100 }","args":{"n":3}},
         {"id":"c","kind":"tool","tool":"put","needs":["a","b","no"],
          "args":{"a":"${ .steps.a.args.n }","no":"${ .steps.no }"}}]})"},
      {.name = "map: one item fails definitely, errors are collected",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"m","kind":"map","over":"${ [[\"ok\"],[\"denied\"],[\"ok\"]] }","max_parallel":2,
          "on_item_error":"collect",
          "do":{"tool":"put","args":{"fate":"${ .item }","i":"${ .index }"}}},
         {"id":"z","kind":"tool","tool":"look","needs":["m"],"args":{}}]})"},
      {.name = "retries: no connection, then 503, then success", .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"put","args":{"fate":["refused","down_after","ok"]}},
         {"id":"b","kind":"tool","tool":"once","needs":["a"],"args":{"fate":["refused","ok"]}}]})"},
      {.name = "a definite failure ends the job", .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"put","args":{"n":1}},
         {"id":"b","kind":"tool","tool":"once","needs":["a"],"args":{"fate":["denied"]}},
         {"id":"c","kind":"tool","tool":"once","needs":["b"],"args":{}}]})"},
      {.name = "a definite failure that the job survives", .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"once","on_error":"continue","args":{"fate":["denied"]}},
         {"id":"b","kind":"tool","tool":"put","needs":["a"],"args":{"a":"${ .steps.a }"}}]})"},
      {.name = "an at_most_once call without an answer: a user resolves it",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"once","args":{"fate":["silent"]}},
         {"id":"b","kind":"tool","tool":"put","needs":["a"],"args":{"n":2}}]})"},
      {.name = "a lost at_most_once call: resolved as not_happened and retried",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"once","args":{"fate":["lost","ok"]}}]})"},
      {.name = "an at_most_once call that arrives after its timeout, a probe, and a slow call",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"wire","args":{"fate":["late"]}},
         {"id":"b","kind":"tool","tool":"wire","args":{"fate":["slow"]}}]})"},
      {.name = "at_most_once calls that arrive late: a user resolves them as early as possible",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"once","args":{"fate":["late"]}},
         {"id":"b","kind":"tool","tool":"once","args":{"fate":["slow"]}}]})"},
      {.name = "a complete 500 after the effect: probed at once, resolved at once",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"wire","args":{"fate":["fault"]}},
         {"id":"b","kind":"tool","tool":"once","args":{"fate":["fault"]}}]})"},
      {.name = "on_in_doubt: fail",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"pay","args":{"n":1}},
         {"id":"b","kind":"tool","tool":"put","needs":["a"],"args":{}}]})",
       .may_end = {"failed:invocation_in_doubt"}},
      {.name = "on_in_doubt: park of an idempotent tool; an invalid output",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"mail","args":{"n":1}},
         {"id":"b","kind":"tool","tool":"put","needs":["a"],"on_error":"continue",
          "args":{"fate":["broken"]}}]})"},
      {.name = "an idempotent call whose tries or dedupe window run out",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"stow","args":{"fate":["silent","silent","silent"]}},
         {"id":"b","kind":"tool","tool":"put","needs":["a"],"args":{}}]})"},
      {.name = "a job ends after its maximum of lost attempts",
       .nodes = R"({"schema":1,"max_attempts":2,"nodes":[
         {"id":"a","kind":"tool","tool":"put","args":{"n":1}},
         {"id":"b","kind":"tool","tool":"once","needs":["a"],"args":{}}]})",
       .may_end = {"failed:max_attempts"}},
  };
}

std::vector<SmallJob> undo_jobs() {
  return {
      {.name = "a probe finds the call", .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"wire","args":{"fate":["silent"]}}]})"},
      {.name = "a probe finds no call, and it is retried", .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"wire","args":{"fate":["lost","ok"]}}]})"},
      {.name = "committed steps are compensated, newest first", .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"book","args":{"n":1}},
         {"id":"b","kind":"tool","tool":"grab","needs":["a"],"args":{"n":2}},
         {"id":"c","kind":"tool","tool":"once","needs":["b"],"args":{"fate":["denied"]}}]})"},
      {.name = "committed steps are compensated after a cancel",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"book","args":{"n":1}},
         {"id":"s","kind":"wait","wait":{"type":"signal","key":"k"},"needs":["a"]}]})",
       .actions = {{2s, requests::cancel()}}},
      {.name = "a cancelled job with one unknown call: a user resolves it",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"grab","args":{"fate":["silent"]}}]})",
       .actions = {{2s, requests::cancel()}},
       .may_end = {"completed"}},  // a crash delays the cancel
      {.name = "a cancelled job with one unknown call: it is retried and compensated",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"book","args":{"fate":["silent","ok"]}}]})",
       .actions = {{2s, requests::cancel()}},
       .may_end = {"completed"}},  // a crash delays the cancel
      {.name = "a cancelled job with one unknown call: its probe resolves it",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"hire","args":{"fate":["silent"]}}]})",
       .actions = {{2s, requests::cancel()}},
       .may_end = {"completed"}},  // a crash delays the cancel
      {.name = "a cancelled job with one late call: a user resolves it as early as possible",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"grab","args":{"fate":["late"]}}]})",
       .actions = {{2s, requests::cancel()}},
       .may_end = {"completed"}},  // a crash delays the cancel
      {.name = "a cancelled job with one late call: probed as early as possible",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"hire","args":{"fate":["late"]}}]})",
       .actions = {{2s, requests::cancel()}},
       .may_end = {"completed"}},  // a crash delays the cancel
      {.name = "a cancelled job with two late map items: a user resolves them",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"m","kind":"map","over":"${ [[\"late\"],[\"late\"]] }","max_parallel":2,
          "do":{"tool":"grab","args":{"fate":"${ .item }","i":"${ .index }"}}}]})",
       .actions = {{2s, requests::cancel()}},
       .may_end = {"completed"}},  // a crash delays the cancel
      {.name = "a cancelled job with two late calls of a loop: a user and a probe resolve them",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"chat","kind":"loop","loop":{"tool":"model:echo","model":"echo","max_turns":3,
          "parallel_tools":2,"tools":["grab","hire"],"prompt":
          "[[{\"name\":\"grab\",\"arguments\":{\"fate\":[\"late\"]}},{\"name\":\"hire\",\"arguments\":{\"fate\":[\"late\"]}}]]"}}]})",
       .actions = {{2s, requests::cancel()}},
       .may_end = {"completed"}},  // a crash delays the cancel
      {.name = "a cancel without compensation",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"book","args":{"n":1}},
         {"id":"s","kind":"wait","wait":{"type":"signal","key":"k"},"needs":["a"]}]})",
       .actions = {{2s, requests::cancel(false)}}},
      {.name = "an unknown compensation: a user resolves it", .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"grab","args":{"undo_fate":["silent"]}},
         {"id":"b","kind":"tool","tool":"put","needs":["a"],"args":{"fate":["denied"]}}]})"},
      {.name = "an unknown compensation: its probe resolves it", .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"hire","args":{"undo_fate":["lost","ok"]}},
         {"id":"b","kind":"tool","tool":"put","needs":["a"],"args":{"fate":["denied"]}}]})"},
      {.name = "a compensation that fails and is retried", .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"book","args":{"undo_fate":["denied","ok"]}},
         {"id":"b","kind":"tool","tool":"put","needs":["a"],"args":{"fate":["denied"]}}]})"},
      {.name = "a compensation that cannot be called", .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"book","args":{"fate":["broken"]}}]})"},
      {.name = "an unknown call, then a compensation", .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"book","args":{}},
         {"id":"b","kind":"tool","tool":"once","args":{"fate":["silent"]}},
         {"id":"c","kind":"tool","tool":"put","needs":["a"],"args":{"fate":["denied"]}}]})"},
  };
}

}  // namespace ae::sim
